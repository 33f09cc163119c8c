//! `runner sweep status`: how the points of a sweep stand, whoever runs them.

use serde::Serialize;

use super::args::StatusArgs;
use super::closing::Closing;
use super::find;
use super::preview::many;
use crate::cli::exit::Exit;
use crate::cli::output::{print, print_json};
use runner_lab::sweep::Results;
use runner_lab::sweep::standing::read_all;
use runner_lab::sweep_dir;
use runner_spec::format::printable;
use runner_store::RunLock;

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Status<'a> {
    id: &'a str,
    path: &'a std::path::Path,
    /// The sweep file.
    file: &'a std::path::Path,
    /// Whether a process drives it now.
    running: bool,
    results: &'a Results,
}

/// # Errors
/// If there is no such sweep, or its record is damaged.
pub(super) fn run(args: &StatusArgs) -> anyhow::Result<Exit> {
    let path = find::resolve(&args.root.root(), args.sweep.as_deref())?;
    let frozen = sweep_dir::frozen(&path)?;
    let standings = read_all(&sweep_dir::root(&path), &frozen);
    let mut closing = Closing::new(&path, &frozen, &standings, args.root.runs.as_deref());
    let running = RunLock::is_held(&path);
    closing.results.rows.sort_by_key(|row| row.point);
    if args.json {
        let (id, file, results) = (frozen.id.as_str(), frozen.file.as_path(), &closing.results);
        print_json(&Status { id, path: &path, file, running, results })?;
        return Ok(Exit::Done);
    }
    let state = if running { "running" } else { "not running" };
    let head = format!(
        "sweep {}, {state}, of {}: {}, {}\n",
        printable(&frozen.id),
        frozen.file.display(),
        many(frozen.points.len(), "point"),
        closing.counts()
    );
    print(&(closing.table() + &head))?;
    Ok(Exit::Done)
}
