//! `runner runs tag`: adds tags to runs, removes them, and shows them.

use std::fmt::Write as _;

use clap::Args;

use crate::cli::common::RunsFolderArgs;
use crate::cli::runs::selection::SelectionArgs;
use crate::cli::terminal::exit::{Exit, Result, refuse};
use crate::cli::terminal::output::print_result;
use runner_record::tags;
use runner_spec::format::printable;

/// Add tags to runs and remove them: `runner runs tag RUN... --add good --remove draft`. Without tags, show the runs' tags.
///
/// Tags are stored in the run's directory, and can be changed while the run is trained.
#[derive(Debug, Clone, Args)]
pub(crate) struct TagArgs {
    #[command(flatten)]
    pub selection: SelectionArgs,
    /// Add this tag; may be given several times.
    #[arg(long, value_name = "TAG")]
    pub add: Vec<String>,
    /// Remove this tag; may be given several times.
    #[arg(long, value_name = "TAG")]
    pub remove: Vec<String>,
    #[command(flatten)]
    pub root: RunsFolderArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// # Errors
/// If there is no such run, a tag is not valid, or a file cannot be written.
pub(crate) fn run(args: &TagArgs) -> Result<Exit> {
    let TagArgs { selection, add, remove, root, .. } = args;
    for tag in add.iter().chain(remove) {
        tags::check(tag)?;
    }
    if let Some(tag) = add.iter().find(|tag| remove.contains(tag)) {
        refuse!("the tag {tag} cannot be both added and removed");
    }
    // All names are resolved first: a mistake in one changes nothing.
    let mut paths = selection.resolve(&root.root())?;
    paths.sort();
    let (mut rows, mut text) = (Vec::new(), String::new());
    for path in paths {
        let tags =
            if add.is_empty() && remove.is_empty() { tags::read(&path) } else { tags::change(&path, add, remove) }?;
        let id = path.file_name().unwrap_or_default().to_string_lossy();
        let line = if tags.is_empty() { "no tags".to_owned() } else { tags.join(" ") };
        let _ = writeln!(text, "{}  {line}", printable(&id));
        rows.push(serde_json::json!({"id": id, "tags": tags}));
    }
    print_result(args.json, &rows, || text)
}
