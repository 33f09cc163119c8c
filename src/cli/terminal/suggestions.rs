//! Tips for commands and flags that users bring from other programs.

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// This program's commands, each with its names in other programs.
const FOREIGN_COMMANDS: [(&str, &str); 12] = [
    ("apply", "run train start launch fit pretrain"),
    ("runs", "list ls ps status"),
    ("runs show", "show info"),
    ("runs rm", "rm remove delete"),
    ("runs tag", "tag"),
    ("sample", "generate chat infer"),
    ("init", "new create"),
    ("eval", "evaluate"),
    ("validate", "check"),
    ("data prepare", "prepare"),
    ("resume", "continue"),
    ("report --serve", "serve"),
];

/// `error`, with a tip that names what the user meant. An internal command is never suggested.
pub(crate) fn with_tip(mut error: clap::Error, program: &Command) -> clap::Error {
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let given = error.get(ContextKind::InvalidSubcommand).map(ToString::to_string).unwrap_or_default();
            let is_own = |names: &str| names.split(' ').any(|name| name == given);
            let own = FOREIGN_COMMANDS.iter().filter(|(_, names)| is_own(names)).map(|(own, _)| (*own).to_owned());
            let mut names: Vec<String> = own.collect();
            if let Some(ContextValue::Strings(near)) = error.remove(ContextKind::SuggestedSubcommand)
                && names.is_empty()
            {
                let is_public = |name: &String| program.find_subcommand(name).is_some_and(|c| !c.is_hide_set());
                names = near.into_iter().filter(is_public).collect();
            }
            if !names.is_empty() {
                error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(names));
            }
        }
        // `train.steps=5`, `--train.steps 5` or `--lr=3e-4`, as in other programs.
        ErrorKind::UnknownArgument => {
            let argument = error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
            let command = std::env::args().nth(1).and_then(|name| program.find_subcommand(name));
            let has_set = command.is_some_and(|command| command.get_arguments().any(|a| a.get_long() == Some("set")));
            let is_key = argument.contains(['=', '.']);
            if has_set && (is_key || argument.starts_with("--") && error.get(ContextKind::SuggestedArg).is_none()) {
                let tip = "a key of the experiment is set with `--set KEY=VALUE`".to_owned();
                error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
            }
        }
        _ => {}
    }
    error
}
