//! `apply` starts the run of an experiment, resumes it, or finds it done.

use runner_config::{Loaded, ModelFetcher};
use runner_inputs::{Host, PreparedInputs, PreparedRun, RunEvent, RunObserver, model_fetcher, pin_hub_commits};
use runner_ranks::World;
use runner_record::catalog::{self, ListedRun};
use runner_record::manifest::{Manifest, SweepPoint};
use runner_spec::diagnostic::ConfigError;
use runner_spec::error::{CommandError, Result};
use runner_spec::format::{shell_word, short_hash};
use runner_spec::plan::Plan;
use runner_threads::stop::StopSwitch;

use crate::changed_file::describe_earlier_run;
use crate::continuation::{ContinueRequest, ContinueSource};
use crate::launched::{LaunchedRank, agree_on_training, check_memory, find_devices, follow, work_as_rank};
use crate::outcome::RunReport;
use crate::resume::check_same_plan;
use crate::run_opening::FoundRun;
use crate::run_start::{Beginning, Claim, RunStart};
use crate::session::{RunSession, SessionOptions};

/// A request to `apply`.
pub struct ApplyRequest<'a> {
    /// Loads the experiment. Ranks that a launcher started meet before this is called, so that a mistake that only one of them finds
    /// reaches all.
    pub load: &'a LoadExperiment<'a>,
    /// True to start another run even if this experiment has one.
    pub start_new: bool,
    /// The run whose record and checkpoint a new run continues.
    pub continue_from: Option<ContinueRequest>,
    pub options: SessionOptions,
    /// The hash that the plan must have, or how it must begin.
    pub expected_plan: Option<String>,
    /// The point of a sweep that the run is.
    pub sweep_point: Option<SweepPoint>,
    /// The rank that a launcher made this process; `None` if this process starts the ranks itself.
    pub launched: Option<LaunchedRank>,
}

/// Loads an experiment. The argument, for `LoadOptions::fetch_model`, finds models of the hub.
pub type LoadExperiment<'a> = dyn Fn(&ModelFetcher<'_>) -> Result<Loaded, ConfigError> + 'a;

impl<'a> ApplyRequest<'a> {
    /// True if another run starts even if this experiment has one. Ranks that are restarted resume the run that they started before.
    fn starts_new(&self) -> bool {
        self.start_new && self.options.restarts == 0
    }

    /// The run of the experiment that `load` loads, to its last step.
    pub fn new(load: &'a LoadExperiment<'a>) -> Self {
        Self {
            load,
            start_new: false,
            continue_from: None,
            options: SessionOptions::default(),
            expected_plan: None,
            sweep_point: None,
            launched: None,
        }
    }
}

/// Starts or resumes the run that `request` describes, or finds it done; `observer` receives its events, and `stop` requests an early stop.
///
/// # Errors
/// A wrong request, a machine that refuses, or a run that failed (which its record then shows, too).
pub fn apply(
    request: &ApplyRequest<'_>,
    host: &Host,
    stop: &StopSwitch,
    observer: &mut dyn RunObserver,
) -> Result<RunReport> {
    work_as_rank(request.launched.as_ref(), host, stop, observer, |world, host, observer| {
        let is_leader = world.is_none_or(World::is_leader);
        let (mut loaded, host) = load_experiment(request, host, observer)?;
        let host = &host;
        if let Some(other) = request.continue_from.as_ref().filter(|_| is_leader) {
            // A mistake in the name shows before anything takes long.
            catalog::resolve(&host.runs, &other.run)?;
        }
        let inherited = request.continue_from.as_ref().map_or(0, |other| other.inherited_steps(&host.runs));
        let devices = find_devices(&loaded.experiment, host, world)?;
        let inputs = PreparedInputs::new(&loaded.experiment, None, devices, host, observer)?;
        let ready = inputs.plan_file(&mut loaded, inherited, observer)?;
        if let Some(hash) = &request.expected_plan {
            check_plan_hash(hash, &ready.plan)?;
        }
        let (experiment, options) = (&loaded.experiment, &request.options);
        let agree = |world| agree_on_training(world, experiment, &ready, host, stop);
        let launched = world.map(agree).transpose()?;
        check_memory(&ready.plan, world)?;
        if let Some(training) = launched.as_ref().filter(|_| !is_leader) {
            return follow(training, stop);
        }
        let source = request.continue_from.as_ref().map(|other| other.find(&host.runs, &ready.plan)).transpose()?;
        let session = RunSession { options, host, experiment, ready: &ready, stop, launched: launched.as_ref() };
        let run = match open_run_of_file(request, &loaded, &session, source.as_ref(), observer)? {
            FoundRun::Unfinished(run) => run,
            FoundRun::Done(path) => return Ok(RunReport::up_to_date(path)),
        };
        // The sweep resumes its points, so they keep a layout that `resume --parallel` gave them.
        let newest = run.manifest().sessions.last().and_then(|session| session.layout.as_ref());
        let moved = newest.filter(|_| request.sweep_point.is_some()).map(|layout| layout.apply(experiment));
        if let Some(moved) = moved.filter(|moved| moved != experiment) {
            let devices = find_devices(&moved, host, world)?;
            let ready = PreparedRun::new(&moved, None, run.manifest().inherited_steps(), devices, host, observer)?;
            check_same_plan(run.manifest(), &ready.plan, run.path(), Claim::SameNumbers)?;
            check_memory(&ready.plan, world)?;
            return RunSession { experiment: &moved, ready: &ready, launched: None, ..session }.work(run, observer);
        }
        session.work(run, observer)
    })
}

/// Loads the experiment of `request`, and returns it with the host that its run records, which also has the environment variables that had
/// effect on the file.
///
/// # Errors
/// The mistakes of the experiment; a hub that cannot be reached.
pub(crate) fn load_experiment(
    request: &ApplyRequest<'_>,
    host: &Host,
    observer: &mut dyn RunObserver,
) -> Result<(Loaded, Host)> {
    let fetch = model_fetcher(host, observer);
    let mut loaded = (request.load)(&fetch)?;
    drop(fetch);
    let mut host = host.clone();
    // The program's own variables stay.
    let own = std::mem::take(&mut host.recorded_environment);
    host.recorded_environment = loaded.env_read.iter().cloned().chain(own).collect();
    pin_hub_commits(&mut loaded.experiment, None, &host, observer)?;
    Ok((loaded, host))
}

/// Opens the run that `request` starts; with `source`, from the checkpoint of another run.
///
/// # Errors
/// If it cannot be read or created, or another process works on it.
pub(crate) fn open_run_of_file(
    request: &ApplyRequest<'_>,
    loaded: &Loaded,
    session: &RunSession<'_>,
    source: Option<&ContinueSource>,
    observer: &mut dyn RunObserver,
) -> Result<FoundRun> {
    let (plan, sweep, is_new) = (&session.ready.plan, request.sweep_point.as_ref(), request.starts_new());
    let announce = |existing: Option<&Manifest>, observer: &mut dyn RunObserver| {
        if existing.is_some() || sweep.is_some() || source.is_some() || is_new {
            return Ok(());
        }
        let name_run = |run: &ListedRun| shell_word(&request.options.name_of(&run.path, session.host)).into_owned();
        for line in describe_earlier_run(&session.host.runs, loaded, plan, name_run) {
            observer.observe(&RunEvent::Note(&line));
        }
        Ok(())
    };
    let (beginning, claim) = source.map_or((Beginning::Scratch, Claim::SamePlan), |source| source.beginning(plan));
    let start = RunStart { beginning, claim, sweep, is_new, ..RunStart::new(loaded, session) };
    start.open(&announce, observer)
}

/// # Errors
/// If the hash of `plan` does not begin with `expected`.
fn check_plan_hash(expected: &str, plan: &Plan) -> Result<()> {
    if plan.hash.starts_with(expected) {
        return Ok(());
    }
    Err(CommandError::request(format!(
        "the plan is {}, not {}: the file, its data or the program has changed; nothing was started; training data: {}",
        short_hash(&plan.hash),
        short_hash(expected),
        short_hash(&plan.data.train.hash)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_plan::testing::{compiled, experiment};

    #[test]
    fn another_plan_is_refused() {
        let plan = compiled(&experiment());
        check_plan_hash(&plan.hash, &plan).unwrap();
        check_plan_hash(&plan.hash[..8], &plan).unwrap();
        let error = check_plan_hash(&"0".repeat(64), &plan).unwrap_err().to_string();
        assert!(error.contains(&plan.hash[..12]) && error.contains("000000000000"), "{error}");
    }
}
