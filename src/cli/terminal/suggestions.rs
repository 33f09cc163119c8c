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
            let given = context_text(&error, ContextKind::InvalidSubcommand).unwrap_or_default();
            let own = FOREIGN_COMMANDS.iter().find(|(_, names)| names.split(' ').any(|name| name == given));
            if let Some((own, _)) = own {
                set_suggestions(&mut error, vec![(*own).to_owned()]);
            } else if let Some(ContextValue::Strings(near)) = error.get(ContextKind::SuggestedSubcommand) {
                let public: Vec<String> = near.iter().filter(|name| !is_hidden(program, name)).cloned().collect();
                set_suggestions(&mut error, public);
            }
        }
        ErrorKind::UnknownArgument => {
            let given = context_text(&error, ContextKind::InvalidArg).unwrap_or_default();
            let arguments: Vec<String> = std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect();
            let has_set = arguments
                .iter()
                .find_map(|name| program.find_subcommand(name))
                .is_some_and(|command| command.get_arguments().any(|argument| argument.get_long() == Some("set")));
            if !has_set {
                return error;
            }
            let argument = arguments.into_iter().find(|argument| argument.starts_with(&given)).unwrap_or(given);
            // `train.steps=5`, `--train.steps=5`, `--train.steps 5`: a key of the experiment, or of another trainer.
            let assignment = argument.trim_start_matches('-');
            let (key, value) = assignment.split_once('=').unwrap_or((assignment, "VALUE"));
            if (argument.starts_with("--") || assignment.contains('='))
                && let Some(tip) = runner_config::suggest_set(key, value)
            {
                error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
                let _ = error.remove(ContextKind::SuggestedArg);
            }
        }
        _ => {}
    }
    error
}

fn is_hidden(program: &Command, name: &str) -> bool {
    program.find_subcommand(name).is_some_and(Command::is_hide_set)
}

/// The text that `error` has for `kind`.
fn context_text(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text.clone()),
        _ => None,
    }
}

/// Makes `error` suggest the commands `names`, or none.
fn set_suggestions(error: &mut clap::Error, names: Vec<String>) {
    let _ = error.remove(ContextKind::SuggestedSubcommand);
    if !names.is_empty() {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(names));
    }
}
