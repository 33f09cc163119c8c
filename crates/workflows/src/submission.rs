//! Opens the run of an experiment so that a job of a scheduler can train it.

use std::path::PathBuf;

use runner_inputs::{Host, PreparedInputs, PreparedRun, RunObserver, local_devices};
use runner_machine::local_cluster::without_memory_limit;
use runner_record::manifest::{Manifest, RunStatus};
use runner_record::run_dir::{self, RunDir};
use runner_spec::cluster::ClusterFacts;
use runner_spec::error::{CommandError, Result};
use runner_spec::plan::Plan;
use runner_threads::stop::StopSwitch;

use crate::apply::{ApplyRequest, load_experiment, open_run_of_file};
use crate::launched::check_memory;
use crate::run_opening::FoundRun;
use crate::session::RunSession;

/// The machines that a run is planned for.
#[derive(Debug, Clone)]
pub struct SubmissionTarget {
    /// `None`: machines like this one.
    pub cluster: Option<ClusterFacts>,
    /// True if the run must fit in the memory of the cluster or of this machine.
    pub checks_memory: bool,
    /// True to write nothing.
    pub dry_run: bool,
}

/// The run that a job is to train.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one of it at a time")]
pub enum RunToSubmit {
    /// A dry run: the folder that the run has or would have.
    Planned(PathBuf),
    /// It is not done, and this process holds it.
    Opened(RunDir),
    Done(PathBuf),
}

/// Plans the experiment of `request`, and creates or finds its run.
///
/// # Errors
/// A wrong request, a folder that cannot be written, or a run that another process works on.
pub fn open_to_submit(
    request: &ApplyRequest<'_>,
    target: SubmissionTarget,
    host: &Host,
    observer: &mut dyn RunObserver,
) -> Result<(Plan, RunToSubmit)> {
    let (mut loaded, host) = load_experiment(request, host, observer)?;
    let cluster = target.cluster.unwrap_or_else(|| without_memory_limit(local_devices(&host)));
    runner_plan::check_devices(&loaded.experiment, &cluster)?;
    let inputs = PreparedInputs::new(&loaded.experiment, None, cluster.clone(), &host, observer)?;
    let ready = inputs.plan_file(&mut loaded, 0, observer)?;
    let plan = &ready.plan;
    // A run that has moved to another layout continues under it.
    let plan_of_job = |manifest: Option<&Manifest>, observer: &mut dyn RunObserver| {
        let newest = manifest.and_then(|manifest| manifest.sessions.last()?.layout.as_ref());
        let moved = newest.map(|layout| layout.apply(&loaded.experiment)).filter(|moved| *moved != loaded.experiment);
        let plan = match moved {
            Some(moved) => PreparedRun::new(&moved, None, 0, cluster.clone(), &host, observer)?.plan,
            None => plan.clone(),
        };
        if target.checks_memory {
            check_memory(&plan, None)?;
        }
        Ok::<_, CommandError>(plan)
    };
    if target.dry_run {
        let found = run_dir::find_run(&host.runs, plan).run.filter(|_| !request.start_new);
        let plan_of_job = plan_of_job(found.as_ref().map(|(_, manifest)| manifest), observer)?;
        let new = || host.runs.join(run_dir::base_id(&plan.experiment_name, &plan.hash));
        let run = match found {
            Some((path, manifest)) if manifest.status == RunStatus::Done => RunToSubmit::Done(path),
            found => RunToSubmit::Planned(found.map_or_else(new, |(path, _)| path)),
        };
        return Ok((plan_of_job, run));
    }
    if target.checks_memory && run_dir::find_run(&host.runs, plan).run.is_none() {
        check_memory(plan, None)?;
    }
    let (options, stop) = (&request.options, &StopSwitch::default());
    let session =
        RunSession { options, host: &host, experiment: &loaded.experiment, ready: &ready, stop, launched: None };
    Ok(match open_run_of_file(request, &loaded, &session, None, observer)? {
        FoundRun::Unfinished(run) => (plan_of_job(Some(run.manifest()), observer)?, RunToSubmit::Opened(run)),
        FoundRun::Done(path) => (plan.clone(), RunToSubmit::Done(path)),
    })
}
