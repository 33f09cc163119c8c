//! `runner plan --search`: the layout with the shortest forecast on this machine or a cluster, and the file that has it.

use std::cell::Cell;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::cli::experiment::plan::{PlanArgs, PlanData};
use crate::cli::terminal::exit::{Exit, Result};
use crate::cli::terminal::output::{print_result, print_to_stderr, write_file};
use runner_config::{Loaded, to_yaml};
use runner_plan::search::{SearchProgress, search};
use runner_report::plan::render_search;
use runner_spec::cluster::ClusterFacts;
use runner_spec::format::{count, counted, duration};

/// A search says how far it is each time so much time has passed.
const NOTICED_TIME: Duration = Duration::from_secs(5);

/// Flags of `runner plan` for the search.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct SearchArgs {
    /// Compare every layout that fits: mode, replicas, stages, schedule, micro-batch, recomputation and sharding. Shows those with the
    /// shortest forecasts, and those that need less memory or send less.
    #[arg(long, conflicts_with_all = ["price", "rank", "program", "plot"])]
    pub search: bool,
    /// Write an experiment with all settings of the file and the layout of the shortest forecast.
    #[arg(long, value_name = "OUT.yaml", requires = "search")]
    pub write: Option<PathBuf>,
    /// Replace the file that `--write` names.
    #[arg(long, requires = "write")]
    pub force: bool,
}

/// Searches, shows the result, and writes the layout with the shortest forecast if `args` ask for it.
///
/// # Errors
/// Those of [`search`]; a file that cannot be written.
pub(crate) fn run(args: &PlanArgs, loaded: &Loaded, data: &PlanData, cluster: &ClusterFacts) -> Result<Exit> {
    let experiment = &loaded.experiment;
    let (started, next) = (Instant::now(), Cell::new(NOTICED_TIME));
    let report = |progress: SearchProgress| {
        let elapsed = started.elapsed();
        if elapsed > next.get() {
            next.set(elapsed + NOTICED_TIME);
            let SearchProgress { layouts, simulated } = progress;
            let (layouts, simulated) = (counted(layouts as u64, "layout"), count(simulated as u64));
            print_to_stderr(&format!(
                "searching: {layouts} compared, {simulated} of them simulated, in {}",
                duration(elapsed)
            ));
        }
    };
    let result = search(experiment, &data.facts, cluster, &report)?;
    for line in data.warning.iter().map(|warning| format!("warning: {warning}\n")) {
        print_to_stderr(&line);
    }
    let exit = print_result(args.json, &result, || render_search(&result))?;
    if let (Some(path), Some(shortest)) = (&args.search.write, result.shortest_forecasts.first()) {
        let text = to_yaml(&shortest.layout.apply(experiment));
        write_file(path, text.as_bytes(), args.search.force)?;
        let (file, from) = (path.display(), loaded.path.display());
        print_to_stderr(&format!("wrote {file}: all settings of {from} with the layout of the shortest forecast\n"));
    }
    Ok(exit)
}
