//! `runner runs tag`: adds tags to runs, removes them, and shows them.

use std::ffi::OsString;
use std::fmt::Write as _;

use clap::Args;

use crate::cli::common::RunsFolderArgs;
use crate::cli::machine::completions::runs_completer;
use crate::cli::terminal::exit::{Exit, Result, refuse};
use crate::cli::terminal::output::print_result;
use runner_record::{catalog, tags};
use runner_spec::format::printable;

/// Add tags to runs and remove them: `runner runs tag RUN... +good -draft`. Without tags, show the runs' tags.
///
/// Tags are stored in the run's directory, and can be changed while the run is trained.
#[derive(Debug, Clone, Args)]
pub(crate) struct TagArgs {
    /// The runs, then +TAG to add a tag to all of them, and -TAG to remove one.
    #[arg(required = true, value_name = "RUN|+TAG|-TAG", add = runs_completer())]
    pub words: Vec<String>,
    /// Add this tag; the same as +TAG.
    #[arg(long, value_name = "TAG")]
    pub add: Vec<String>,
    /// Remove this tag; the same as -TAG.
    #[arg(long, value_name = "TAG")]
    pub remove: Vec<String>,
    #[command(flatten)]
    pub root: RunsFolderArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Replaces each `-TAG` of `runner runs tag` with `--remove=TAG`, because clap would read it as flags of one letter each. The
/// arguments of other commands are returned unchanged.
#[must_use]
pub(crate) fn expand_removed_tags(line: Vec<OsString>) -> Vec<OsString> {
    if line.get(1).is_none_or(|word| word != "runs") || line.get(2).is_none_or(|word| word != "tag") {
        return line;
    }
    let flag = |word: OsString| match word.to_str().and_then(|w| w.strip_prefix('-')) {
        Some(tag) if !tag.is_empty() && !tag.starts_with('-') && !["h", "V"].contains(&tag) => {
            OsString::from(format!("--remove={tag}"))
        }
        _ => word,
    };
    line.into_iter().map(flag).collect()
}

/// # Errors
/// If there is no such run, a tag is not valid, or a file cannot be written.
pub(crate) fn run(args: &TagArgs) -> Result<Exit> {
    let (mut runs, mut add, remove) = (Vec::new(), args.add.clone(), args.remove.clone());
    for word in &args.words {
        match word.strip_prefix('+') {
            Some(tag) => add.push(tag.to_owned()),
            None => runs.push(word),
        }
    }
    for tag in add.iter().chain(&remove) {
        tags::check(tag)?;
    }
    if let Some(tag) = add.iter().find(|tag| remove.contains(tag)) {
        refuse!("the tag {tag} cannot be both added and removed");
    }
    if runs.is_empty() {
        refuse!("no run was named; for example: `runner runs tag RUN... +good -draft`");
    }
    // All names are resolved first: a mistake in one changes nothing.
    let root = args.root.root();
    let mut paths = catalog::resolve_all(&root, &runs)?;
    paths.sort();
    let (mut rows, mut text) = (Vec::new(), String::new());
    for path in paths {
        let tags =
            if add.is_empty() && remove.is_empty() { tags::read(&path) } else { tags::change(&path, &add, &remove) }?;
        let id = path.file_name().unwrap_or_default().to_string_lossy();
        let line = if tags.is_empty() { "no tags".to_owned() } else { tags.join(" ") };
        let _ = writeln!(text, "{}  {line}", printable(&id));
        rows.push(serde_json::json!({"id": id, "tags": tags}));
    }
    print_result(args.json, &rows, || text)
}
