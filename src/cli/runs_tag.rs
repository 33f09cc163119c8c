//! `runner runs tag`: words on runs, to find them by.

use std::ffi::OsString;

use clap::Args;

use super::common::RootArgs;
use super::exit::{Exit, RequestError};
use super::output::{print, print_json};
use runner_spec::format::printable;
use runner_store::{catalog, tags};

/// Put tags on runs and take them off: `runner runs tag RUN... +good -draft`. Without any, show them.
///
/// Tags are in the run's own folder, and may change while the run is trained.
#[derive(Debug, Clone, Args)]
pub(crate) struct TagArgs {
    /// Runs, and +TAG to put a tag on all of them, -TAG to take it off.
    #[arg(required = true, value_name = "RUN|+TAG|-TAG")]
    pub words: Vec<String>,
    /// As +TAG.
    #[arg(long, value_name = "TAG")]
    pub add: Vec<String>,
    /// As -TAG.
    #[arg(long, value_name = "TAG")]
    pub remove: Vec<String>,
    #[command(flatten)]
    pub root: RootArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// The command line `line` with `--remove=TAG` for each `-TAG` of `runner runs tag`: else it would be taken for flags of one
/// letter each. Other commands' lines are as they were.
#[must_use]
pub(crate) fn spelled_out(line: Vec<OsString>) -> Vec<OsString> {
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
/// If there is no such run, a tag's name is none, or a file cannot be written.
pub(crate) fn run(args: &TagArgs) -> anyhow::Result<Exit> {
    let (mut runs, mut add, remove) = (Vec::new(), args.add.clone(), args.remove.clone());
    for word in &args.words {
        match word.strip_prefix('+') {
            Some(tag) => add.push(tag.to_owned()),
            None => runs.push(word),
        }
    }
    for tag in add.iter().chain(&remove) {
        tags::check(tag).map_err(RequestError)?;
    }
    if let Some(tag) = add.iter().find(|tag| remove.contains(tag)) {
        return Err(RequestError(format!("the tag {tag} cannot be both put on and taken off")).into());
    }
    if runs.is_empty() {
        return Err(RequestError("no run is given: runner runs tag RUN... +good -draft".to_owned()).into());
    }
    // All names first: with a mistake in one nothing is changed.
    let root = args.root.root();
    let mut paths = catalog::resolve_all(&root, &runs)?;
    paths.sort();
    let mut lines = Vec::new();
    for path in paths {
        let now =
            if add.is_empty() && remove.is_empty() { tags::read(&path) } else { tags::change(&path, &add, &remove) };
        let id = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        lines.push((id, now?));
    }
    if args.json {
        let rows: Vec<_> = lines.iter().map(|(id, tags)| serde_json::json!({"id": id, "tags": tags})).collect();
        print_json(&rows)?;
    } else {
        let text = lines.iter().map(|(id, tags)| {
            let tags = if tags.is_empty() { "no tags".to_owned() } else { tags.join(" ") };
            format!("{}  {tags}\n", printable(id))
        });
        print(&text.collect::<String>())?;
    }
    Ok(Exit::Done)
}
