//! `runner gc`: shows files that are no longer needed, and removes them on request.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use crate::cli::common::{RunsFolderArgs, cache_dir};
use crate::cli::runs::selection::SelectionArgs;
use crate::cli::terminal::exit::{Context as _, Exit, Result, refuse};
use crate::cli::terminal::output::{print_result, print_to_stderr};
use runner_housekeeping::gc;
use runner_record::time;
use runner_report::table::{Align, table};
use runner_spec::format::{bytes, counted, printable};

/// Free disk space: prepared data that no run needs, old checkpoints of finished runs, and leftovers of killed processes.
///
/// The newest and the best checkpoint of each run stay. With runs, it frees only old checkpoints of these. Without --yes the command only shows what it would remove.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct GcArgs {
    /// Remove the files instead of only showing them.
    #[arg(long, short)]
    pub yes: bool,
    /// Only data that was last used, and checkpoints of runs that ended, longer ago than this: 12h, 30d, 8w.
    #[arg(long, value_name = "AGE", value_parser = parse_age)]
    pub older_than: Option<Duration>,
    /// Only prepared data in the cache.
    #[arg(long)]
    pub cache: bool,
    /// Only checkpoints of runs.
    #[arg(long)]
    pub checkpoints: bool,
    #[command(flatten)]
    pub selection: SelectionArgs,
    #[command(flatten)]
    pub root: RunsFolderArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// A line of the output.
#[derive(Debug, Clone, Serialize)]
struct Item {
    kind: &'static str,
    path: PathBuf,
    bytes: u64,
}

/// # Errors
/// If a folder cannot be read or changed.
pub(crate) fn run(args: &GcArgs) -> Result<Exit> {
    let age = args.older_than;
    let root = args.root.root();
    // Without a folder of runs, all of the cache would count as unneeded.
    if !root.is_dir() {
        refuse!("{} is not a folder; name the folder of runs with `--runs DIR`", root.display());
    }
    if args.cache && !args.selection.is_empty() {
        refuse!("the cache belongs to no run; give either runs or --cache");
    }
    let chosen = if args.selection.is_empty() { None } else { Some(args.selection.resolve(&root)?) };
    let all = !args.cache && !args.checkpoints && chosen.is_none();
    let (mut items, mut unknown) = (Vec::new(), 0);
    if !args.cache {
        let wanted = |item: &gc::UnneededItem| {
            all || matches!(item.kind, gc::UnneededKind::Checkpoint | gc::UnneededKind::Damaged)
        };
        let mut survey = gc::survey(&root, age)?;
        for problem in &survey.problems {
            print_to_stderr(&printable(&format!("warning: {problem}")));
        }
        survey.unneeded.retain(wanted);
        let is_chosen = |path: &Path| chosen.as_ref().is_none_or(|runs| runs.iter().any(|run| contains(run, path)));
        survey.unneeded.retain(|item| is_chosen(&item.path));
        let found = if args.yes { gc::free(&root, &survey, age)? } else { survey.unneeded };
        items.extend(found.into_iter().map(|item| Item { kind: item.kind.name(), path: item.path, bytes: item.bytes }));
    }
    if all || args.cache {
        let cache = cache_dir()?;
        let known = gc::used_data_keys(&root)?;
        let survey = runner_data::gc::survey(&cache, &known, age)?;
        unknown = survey.unknown;
        let mut found = survey.unneeded;
        // A folder without runs may be new or wrong, so it does not show that data is unneeded.
        if known.is_empty() && !args.cache {
            found.retain(runner_data::gc::UnneededPart::is_leftover);
            print_to_stderr(&format!(
                "{} has no runs that show which prepared data is needed; use `--cache` to free all of it",
                printable(&root.display().to_string())
            ));
        }
        if found.iter().any(|item| !item.is_leftover()) {
            print_to_stderr(
                "this includes the prepared data of runs in other folders, which is prepared again when it is needed",
            );
        }
        if args.yes && !found.is_empty() {
            found = runner_data::gc::free(&cache, &found).context(format!("freeing {}", cache.display()))?;
        }
        let kind = |item: &runner_data::gc::UnneededPart| if item.is_leftover() { "leftover" } else { "data" };
        items.extend(found.into_iter().map(|item| Item { kind: kind(&item), path: item.path, bytes: item.bytes }));
    }
    if unknown > 0 {
        let entries = if unknown == 1 { "1 entry" } else { &format!("{unknown} entries") };
        let stay = if unknown == 1 { "it stays" } else { "they stay" };
        print_to_stderr(&format!(
            "{entries} of the cache may belong to runs of a different version of runner, so {stay}"
        ));
    }
    let total: u64 = items.iter().map(|item| item.bytes).sum();
    let json = serde_json::json!({"freed": args.yes, "bytes": total, "items": items});
    print_result(args.json, &json, || items_text(&items, total, args.yes))
}

/// True if `path` is in the folder `run`, however the two are spelled.
fn contains(run: &Path, path: &Path) -> bool {
    match (run.canonicalize(), path.canonicalize()) {
        (Ok(run), Ok(path)) => path.starts_with(run),
        _ => path.starts_with(run),
    }
}

fn items_text(items: &[Item], total: u64, freed: bool) -> String {
    if items.is_empty() {
        return "nothing to free\n".to_owned();
    }
    let rows: Vec<Vec<String>> = items
        .iter()
        .map(|item| vec![item.kind.to_owned(), bytes(item.bytes), printable(&item.path.display().to_string())])
        .collect();
    let table = table(&[("what", Align::Left), ("size", Align::Right), ("where", Align::Left)], &rows);
    let things = counted(items.len() as u64, "item");
    if freed {
        format!("{table}freed {}, {things}\n", bytes(total))
    } else {
        format!("{table}would free {}, {things}; use `--yes` to remove them\n", bytes(total))
    }
}

fn parse_age(text: &str) -> Result<Duration, String> {
    time::parse_span(text).ok_or_else(|| "must be an age such as 12h, 30d or 8w".to_owned())
}
