//! `runner sweep rm`: shows a sweep, and removes it when a person has confirmed.

use serde_json::json;

use super::args::RmArgs;
use crate::cli::terminal::confirm::confirmed;
use crate::cli::terminal::exit::{Exit, Result, refuse};
use crate::cli::terminal::output::{print_result, print_to_stderr};
use runner_files::FreedBytes;
use runner_housekeeping::remove;
use runner_housekeeping::remove_sweep::{self, SweepRuns};
use runner_record::RunLock;
use runner_record::files::file_name;
use runner_spec::format::{bytes, counted, printable};
use runner_sweep::{ladder, sweep_dir};

/// # Errors
/// If there is no such sweep, a process runs it, nobody can confirm, or a file cannot be removed.
pub(super) fn run(args: &RmArgs) -> Result<Exit> {
    let root = args.root.root();
    let path = sweep_dir::resolve_one(&root, &args.sweep)?;
    let id = file_name(&path);
    if let forecasts @ 1.. = ladder::count_forecasts(&path)? {
        refuse!(
            "{} has {}, the only record of when they were made; move {} elsewhere first",
            printable(&id),
            counted(forecasts as u64, "recorded forecast"),
            path.join(ladder::FORECASTS).display()
        );
    }
    remove_sweep::check(&root, &path)?;
    if RunLock::is_held(&path) {
        refuse!("another process is running sweep {}; stop it first", printable(&id));
    }
    let runs = if args.with_runs { remove_sweep::runs_of_sweep(&root, &path)? } else { SweepRuns::default() };
    let mut freed = FreedBytes::default();
    let own = freed.add(&path);
    let sizes: Vec<u64> = runs.removable.iter().map(|run| freed.add(&run.path)).collect();
    let total = own + sizes.iter().sum::<u64>();
    let mut lines = vec![format!("sweep {}  {}", printable(&id), bytes(own))];
    let named = runs.removable.iter().zip(&sizes);
    lines.extend(
        named.map(|(run, size)| format!("run {}  {}  {}", printable(&run.id), run.status.name(), bytes(*size))),
    );
    for (run, reason) in &runs.kept {
        print_to_stderr(&printable(&format!("{} stays: {reason}", run.id)));
    }
    if !args.yes {
        print_to_stderr(&lines.join("\n"));
        let with = match runs.removable.len() {
            0 => String::new(),
            n => format!(" and {}", counted(n as u64, "run")),
        };
        if !confirmed(&format!("remove the sweep{with}, {}?", bytes(total)))? {
            print_to_stderr("nothing was removed");
            return Ok(Exit::Done);
        }
    }
    // Runs first: after a kill the same command removes the rest.
    for run in &runs.removable {
        remove::remove(&root, &run.path)?;
    }
    remove_sweep::remove_sweep(&root, &path)?;
    let ids: Vec<&str> = runs.removable.iter().map(|run| run.id.as_str()).collect();
    let kept: Vec<_> = runs.kept.iter().map(|(run, reason)| json!({"id": run.id, "reason": reason})).collect();
    print_result(args.json, &json!({"sweep": id, "removed": ids, "kept": kept, "bytes": total}), || {
        format!("removed {}\n", lines.join("\nremoved "))
    })
}
