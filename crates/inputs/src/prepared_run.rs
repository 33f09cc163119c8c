//! A plan for the devices of a run, and what the run needs before it begins.

use runner_config::Loaded;
use runner_data::Prepared;
use runner_plan::PlanError;
use runner_plan::search::largest_micro_batch;
use runner_spec::cluster::ClusterFacts;
use runner_spec::data::DataFacts;
use runner_spec::experiment::Experiment;
use runner_spec::plan::Plan;

use crate::host::Host;
use crate::inputs::{RecordedInputs, prepare_rank_inputs};
use crate::observer::{RunEvent, RunObserver};
use runner_spec::error::Result;

/// The inputs of a plan: devices, data, and threads to work with.
#[derive(Debug)]
pub struct PreparedInputs {
    pub prepared: Prepared,
    cluster: ClusterFacts,
    pool: rayon::ThreadPool,
}

impl PreparedInputs {
    /// Prepares the inputs of `experiment` for the devices of `cluster`, as [`PreparedRun::new`] does.
    ///
    /// # Errors
    /// If the data or the initial weights cannot be read.
    pub fn new(
        experiment: &Experiment,
        recorded_inputs: Option<&RecordedInputs>,
        cluster: ClusterFacts,
        host: &Host,
        observer: &mut dyn RunObserver,
    ) -> Result<Self> {
        let pool = host.pool()?;
        let prepared = prepare_rank_inputs(experiment, recorded_inputs, &pool, host, observer)?;
        Ok(Self { prepared, cluster, pool })
    }

    /// Plans the experiment of `loaded`, which has these inputs, and settles its micro-batch. Other runs did the first `inherited_steps`.
    ///
    /// # Errors
    /// If it cannot be planned.
    pub fn plan_file(
        self,
        loaded: &mut Loaded,
        inherited_steps: u64,
        observer: &mut dyn RunObserver,
    ) -> Result<PreparedRun> {
        let note = settle_micro_batch(loaded, &self.prepared.facts, &self.cluster)?;
        self.plan(&loaded.experiment, note, inherited_steps, observer)
    }

    /// Plans `experiment`, which has these inputs. `note` is the first note of the plan.
    fn plan(
        self,
        experiment: &Experiment,
        note: Option<String>,
        inherited_steps: u64,
        observer: &mut dyn RunObserver,
    ) -> Result<PreparedRun> {
        let Self { prepared, cluster, pool } = self;
        let mut plan = runner_plan::compile_continuation(experiment, &prepared.facts, &cluster, inherited_steps)?;
        plan.notes.splice(0..0, note);
        for warning in &plan.warnings {
            observer.observe(&RunEvent::Warning(warning));
        }
        for note in &plan.notes {
            observer.observe(&RunEvent::Note(&format!("plan   {note}")));
        }
        let split = plan.data.validation.as_ref().filter(|split| split.text.is_none());
        if split.is_some() && plan.ranks.first().is_some_and(|rank| rank.program.eval.loss.is_some()) {
            observer.observe(&RunEvent::Note(
                "data   bits per byte are unknown: the validation data's tokens do not show how many bytes of text they stand for",
            ));
        }
        Ok(PreparedRun { plan, prepared, pool })
    }
}

/// Gives the experiment of `loaded` the largest micro-batch that fits the devices of `cluster`, if the file leaves it open. Returns the plan's
/// note about it.
///
/// # Errors
/// If the experiment cannot be planned.
pub fn settle_micro_batch(
    loaded: &mut Loaded,
    data: &DataFacts,
    cluster: &ClusterFacts,
) -> Result<Option<String>, PlanError> {
    if !std::mem::take(&mut loaded.has_auto_micro_batch) {
        return Ok(None);
    }
    let fitting = largest_micro_batch(&loaded.experiment, data, cluster)?;
    loaded.experiment.batch.micro_batch = fitting.rows;
    Ok(Some(fitting.note))
}

/// A plan, the data it was made for, and threads to work with.
#[derive(Debug)]
pub struct PreparedRun {
    pub plan: Plan,
    pub prepared: Prepared,
    pub pool: rayon::ThreadPool,
}

impl PreparedRun {
    /// Prepares `experiment` and plans it for the devices of `cluster`. There are `recorded_inputs` if the run begins with a checkpoint.
    /// Other runs did the first `inherited_steps`.
    ///
    /// # Errors
    /// If the data or the initial weights cannot be read, or the experiment cannot be planned.
    pub fn new(
        experiment: &Experiment,
        recorded_inputs: Option<&RecordedInputs>,
        inherited_steps: u64,
        cluster: ClusterFacts,
        host: &Host,
        observer: &mut dyn RunObserver,
    ) -> Result<Self> {
        let inputs = PreparedInputs::new(experiment, recorded_inputs, cluster, host, observer)?;
        inputs.plan(experiment, None, inherited_steps, observer)
    }
}
