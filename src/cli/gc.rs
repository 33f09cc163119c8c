//! `runner gc`: shows what takes room and nobody needs, and frees it when told to.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use super::common::{RootArgs, cache_dir};
use super::exit::{Exit, RequestError};
use super::output::{complain, print, print_json};
use runner_lab::gc;
use runner_report::table::{Align, table};
use runner_spec::format::{bytes, count, printable};
use runner_store::{catalog, run_dir, time};

/// Free room: prepared data that no run needs, checkpoints of finished runs but the newest and the best, and leftovers of
/// killed processes. Shows what would go; --yes removes it.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct GcArgs {
    /// Remove what is shown.
    #[arg(long, short)]
    pub yes: bool,
    /// Only prepared data that was not used, and checkpoints of runs that ended, longer ago than this: 12h, 30d, 8w.
    #[arg(long, value_name = "AGE")]
    pub older_than: Option<String>,
    /// Only the cache of prepared data.
    #[arg(long)]
    pub cache: bool,
    /// Only the runs' checkpoints.
    #[arg(long)]
    pub checkpoints: bool,
    #[command(flatten)]
    pub root: RootArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// A line of what is shown.
#[derive(Debug, Clone, Serialize)]
struct Item {
    kind: &'static str,
    path: PathBuf,
    bytes: u64,
}

/// # Errors
/// If an age is none, or a folder cannot be read or changed.
pub(crate) fn run(args: &GcArgs) -> anyhow::Result<Exit> {
    let age = args.older_than.as_deref().map(age).transpose()?;
    let root = args.root.root();
    // In the wrong folder there are no runs, and all of the cache would be nobody's.
    if !root.is_dir() {
        return Err(RequestError(format!("{} is no folder of runs: --runs DIR names it", root.display())).into());
    }
    let all = !args.cache && !args.checkpoints;
    let (mut items, mut unknown) = (Vec::new(), 0);
    if all || args.checkpoints {
        let wanted = |item: &gc::UnneededItem| {
            all || matches!(item.kind, gc::UnneededKind::Checkpoint | gc::UnneededKind::Damaged)
        };
        let mut found: Vec<gc::UnneededItem> = gc::survey(&root, age)?.into_iter().filter(wanted).collect();
        if args.yes {
            found = gc::free(&root, &found, age)?;
        }
        items.extend(found.into_iter().map(|item| Item { kind: kind(item.kind), path: item.path, bytes: item.bytes }));
    }
    if all || args.cache {
        let cache = cache_dir()?;
        let known = known_data(&root)?;
        let survey = runner_data::gc::survey(&cache, &known, age);
        unknown = survey.unknown;
        let mut found = survey.unneeded;
        // Without runs all of the cache is nobody's, which says little in a new or a wrong folder.
        if known.is_empty() && !args.cache {
            found.retain(runner_data::gc::Unneeded::is_leftover);
            complain(&format!(
                "{} has no runs, so nothing says what prepared data is needed: --cache frees it all the same",
                printable(&root.display().to_string())
            ));
        }
        if found.iter().any(|item| !item.is_leftover()) {
            complain("prepared data of runs in other folders goes as well; it is only prepared again");
        }
        if args.yes && !found.is_empty() {
            found = runner_data::gc::free(&cache, &found).with_context(|| format!("freeing {}", cache.display()))?;
        }
        let kind = |item: &runner_data::gc::Unneeded| if item.is_leftover() { "leftover" } else { "data" };
        items.extend(found.into_iter().map(|item| Item { kind: kind(&item), path: item.path, bytes: item.bytes }));
    }
    if unknown > 0 {
        let entries = if unknown == 1 { "1 entry" } else { &format!("{unknown} entries") };
        complain(&format!(
            "{entries} of the cache may be of runs whose data was prepared by another version, and stay"
        ));
    }
    let total: u64 = items.iter().map(|item| item.bytes).sum();
    if args.json {
        print_json(&serde_json::json!({"freed": args.yes, "bytes": total, "items": items}))?;
        return Ok(Exit::Done);
    }
    print(&text(&items, total, args.yes))?;
    Ok(Exit::Done)
}

fn text(items: &[Item], total: u64, freed: bool) -> String {
    if items.is_empty() {
        return "nothing to free\n".to_owned();
    }
    let rows: Vec<Vec<String>> = items
        .iter()
        .map(|item| vec![item.kind.to_owned(), bytes(item.bytes), printable(&item.path.display().to_string())])
        .collect();
    let table = table(&[("what", Align::Left), ("size", Align::Right), ("where", Align::Left)], &rows);
    let things = if items.len() == 1 { "1 thing".to_owned() } else { format!("{} things", count(items.len() as u64)) };
    if freed {
        format!("{table}freed {}, {things}\n", bytes(total))
    } else {
        format!("{table}would free {}, {things}: --yes does it\n", bytes(total))
    }
}

fn kind(kind: gc::UnneededKind) -> &'static str {
    match kind {
        gc::UnneededKind::Checkpoint => "checkpoint",
        gc::UnneededKind::Damaged => "damaged",
        gc::UnneededKind::Leftover => "leftover",
        gc::UnneededKind::Lock => "lock",
    }
}

fn age(text: &str) -> Result<Duration, RequestError> {
    time::parse_span(text).ok_or_else(|| {
        RequestError(format!("--older-than {}: take an age such as 12h, 30d or 8w", text.escape_default()))
    })
}

/// What the data of the runs in `root` is known as in the cache.
fn known_data(root: &std::path::Path) -> anyhow::Result<BTreeSet<String>> {
    let runs = catalog::list(root)?;
    let mut out = BTreeSet::new();
    for run in runs {
        match run_dir::manifest(&run.path) {
            Ok(manifest) => {
                let data = &manifest.data;
                out.insert(runner_data::gc::data_key(
                    &data.train,
                    data.validation.as_ref(),
                    data.choice.as_ref(),
                    data.test.as_ref(),
                ));
            }
            // What it needs is not known, which is a reason to keep more.
            Err(_) => {
                out.insert(String::new());
            }
        }
    }
    Ok(out)
}
