//! The runs that a command works on: names, patterns and sweeps, and filters over what the runs record.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use glob::Pattern;

use crate::cli::common::word_parser;
use crate::cli::machine::completions::runs_and_sweeps_completer;
use crate::cli::runs::mark_queued;
use crate::cli::runs::run_groups::{find_sweep, runs_of_sweep};
use crate::cli::terminal::exit::{CommandError, Result, refuse};
use runner_housekeeping::select;
use runner_record::catalog::{ListedRun, ListedStatus};
use runner_record::{catalog, time};
use runner_sweep::stopped_points;

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct SelectionArgs {
    /// Runs: their ids or beginnings of ids, their directories, or patterns of ids and names, such as 'gpt2-*'; or sweeps, each of which stands
    /// for the runs of its points.
    #[arg(value_name = "RUN", add = runs_and_sweeps_completer())]
    pub names: Vec<String>,
    #[command(flatten)]
    pub filters: FilterArgs,
}

/// Conditions on runs, all of which must hold.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct FilterArgs {
    /// Only runs for which this expression over their settings and results is true: 'optimizer.adamw.lr > 5e-3 and val_loss < 3'.
    #[arg(long = "where", value_name = "EXPR")]
    pub expression: Option<String>,
    /// Only runs with one of these statuses, separated by commas: running, pending, requeued (both wait for a scheduler), done,
    /// interrupted, stopped, failed, broken.
    #[arg(long, value_name = "STATUS", value_delimiter = ',', hide_possible_values = true,
          value_parser = word_parser::<ListedStatus>(ListedStatus::ALL.map(ListedStatus::name)))]
    pub status: Vec<ListedStatus>,
    /// Only runs with this tag; given several times, only runs with all these tags.
    #[arg(long, value_name = "TAG")]
    pub tag: Vec<String>,
    /// Only runs that started since then: an age (90s, 30m, 12h, 7d, 2w) or a date in UTC (2026-01-31).
    #[arg(long, value_name = "WHEN", value_parser = parse_since)]
    pub since: Option<f64>,
}

impl FilterArgs {
    fn is_empty(&self) -> bool {
        let Self { expression, status, tag, since } = self;
        expression.is_none() && status.is_empty() && tag.is_empty() && since.is_none()
    }

    /// Keeps those of `runs` for which all conditions hold.
    fn keep(&self, runs: &mut Vec<ListedRun>) -> Result<()> {
        let Self { expression, status, tag, since } = self;
        runs.retain(|run| {
            let started = || run.started.as_deref().and_then(time::parse);
            (status.is_empty() || status.contains(&run.status))
                && tag.iter().all(|tag| run.tags.contains(tag))
                && since.is_none_or(|since| started().is_some_and(|started| started >= since))
        });
        if let Some(expression) = expression {
            select::keep_where(runs, expression)?;
        }
        Ok(())
    }
}

/// What one name on the command line stands for.
pub(crate) struct NamedRuns {
    pub runs: Vec<PathBuf>,
    /// The folder of the sweep that it names.
    pub sweep: Option<PathBuf>,
}

impl SelectionArgs {
    /// True if nothing is chosen.
    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty() && self.filters.is_empty()
    }

    /// The runs and sweeps that the names stand for, and the runs that filters choose. A sweep is one if there are no filters.
    ///
    /// # Errors
    /// Those of [`Self::list`].
    pub(crate) fn named(&self, root: &Path) -> Result<Vec<NamedRuns>> {
        if self.filters.is_empty() {
            self.check_not_empty()?;
            return self.each_name(root);
        }
        Ok(vec![NamedRuns { runs: self.resolve(root)?, sweep: None }])
    }

    /// The directories of the chosen runs, at least one.
    ///
    /// # Errors
    /// Those of [`Self::list`]; if nothing is chosen, or no run.
    pub(crate) fn resolve(&self, root: &Path) -> Result<Vec<PathBuf>> {
        self.check_not_empty()?;
        let paths: Vec<PathBuf> = if self.filters.is_empty() {
            self.paths(root)?
        } else {
            self.list(root)?.into_iter().map(|run| run.path).collect()
        };
        if !paths.is_empty() {
            return Ok(paths);
        }
        if self.filters.is_empty() {
            refuse!("no run of {} has started yet", self.names.join(" and "));
        }
        refuse!("no run in {} matches", root.display())
    }

    /// The chosen runs, or all runs in `root` if nothing is chosen: in the order of the names, or else from the oldest to the newest.
    ///
    /// # Errors
    /// If a name stands for no run, an expression is wrong, or the folder cannot be read.
    pub(crate) fn list(&self, root: &Path) -> Result<Vec<ListedRun>> {
        let mut runs = if self.names.is_empty() {
            let mut runs = catalog::list(root)?;
            stopped_points::mark_stopped(root, &mut runs);
            runs
        } else {
            self.paths(root)?.iter().map(|path| stopped_points::describe(path)).collect()
        };
        mark_queued(root, &mut runs);
        self.filters.keep(&mut runs)?;
        Ok(runs)
    }

    /// What each name stands for. A run belongs to the first name that stands for it.
    fn each_name(&self, root: &Path) -> Result<Vec<NamedRuns>> {
        let mut seen = HashSet::new();
        let mut named = self.names.iter().map(|wanted| find(root, wanted)).collect::<Result<Vec<_>>>()?;
        for NamedRuns { runs, .. } in &mut named {
            runs.retain(|path| seen.insert(fs::canonicalize(path).unwrap_or_else(|_| path.clone())));
        }
        Ok(named)
    }

    /// The directories that the names stand for, each once.
    fn paths(&self, root: &Path) -> Result<Vec<PathBuf>> {
        Ok(self.each_name(root)?.into_iter().flat_map(|named| named.runs).collect())
    }

    fn check_not_empty(&self) -> Result<()> {
        if self.is_empty() {
            refuse!("name runs, or choose them, for example with `--where 'val_loss < 3'`");
        }
        Ok(())
    }
}

/// The runs that `wanted` stands for.
fn find(root: &Path, wanted: &str) -> Result<NamedRuns> {
    let of_runs = |runs: Vec<PathBuf>| Ok(NamedRuns { runs, sweep: None });
    let matching = |is_wanted: &dyn Fn(&ListedRun) -> bool| -> Result<Vec<PathBuf>> {
        Ok(catalog::list(root)?.into_iter().filter(is_wanted).map(|run| run.path).collect())
    };
    if wanted.contains(['*', '?', '[']) && !Path::new(wanted).exists() {
        let pattern = Pattern::new(wanted)
            .map_err(|error| CommandError::request(format!("`{wanted}` is not a pattern: {}", error.msg)))?;
        let is_like = |text: &str| pattern.matches(text);
        let runs = matching(&|run| is_like(&run.id) || run.name.as_deref().is_some_and(is_like))?;
        if runs.is_empty() {
            refuse!("no run in {} matches {wanted}", root.display());
        }
        return of_runs(runs);
    }
    if let Some(folder) = find_sweep(root, wanted)? {
        return Ok(NamedRuns { runs: runs_of_sweep(&folder)?, sweep: Some(folder) });
    }
    match catalog::resolve(root, wanted) {
        Ok(path) => of_runs(vec![path]),
        Err(error) => {
            // Runs record the id of their sweep, whose folder may be elsewhere.
            let runs = matching(&|run| run.sweep.as_ref().is_some_and(|sweep| sweep.id == wanted))?;
            if runs.is_empty() { Err(error.into()) } else { of_runs(runs) }
        }
    }
}

/// Parses an age or a date as a time in seconds since 1970.
fn parse_since(text: &str) -> Result<f64, String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let moment = time::parse_span(text).map(|age| (now.as_secs_f64() - age.as_secs_f64()).max(0.0));
    moment.or_else(|| time::parse(text)).ok_or_else(|| {
        "must be an age such as 90s, 30m, 12h, 7d or 2w, or a date such as 2026-01-31 or 2026-01-31T09:30".to_owned()
    })
}
