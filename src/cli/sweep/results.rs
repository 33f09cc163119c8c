//! `runner sweep results`: what came out of a sweep, the best first.

use serde::Serialize;

use super::args::ResultsArgs;
use super::closing::Closing;
use super::find;
use crate::cli::exit::Exit;
use crate::cli::output::{print, print_json};
use runner_lab::sweep::standing::read_all;
use runner_lab::sweep::{Importance, Results, ResultsRow};
use runner_lab::sweep_dir;

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Found<'a> {
    id: &'a str,
    results: &'a Results,
    best: Option<&'a ResultsRow>,
    importance: &'a [Importance],
}

/// # Errors
/// If there is no such sweep, or its record is damaged.
pub(super) fn run(args: &ResultsArgs) -> anyhow::Result<Exit> {
    let path = find::resolve(&args.root.root(), args.sweep.as_deref())?;
    let frozen = sweep_dir::frozen(&path)?;
    let standings = read_all(&sweep_dir::root(&path), &frozen);
    let closing = Closing::new(&path, &frozen, &standings, args.root.runs.as_deref());
    if args.csv {
        print(&closing.results.csv()?)?;
    } else if args.json {
        let (results, importance) = (&closing.results, closing.importance.as_slice());
        print_json(&Found { id: &frozen.id, results, best: results.best(), importance })?;
    } else {
        let parts = [
            closing.table(),
            closing.mattered(),
            closing.saved().map(|line| line + "\n").unwrap_or_default(),
            closing.best().map(|text| text + "\n").unwrap_or_default(),
        ];
        print(&parts.concat())?;
    }
    Ok(Exit::Done)
}
