//! An experiment with all that a run of it needs here: data, threads, and the plan for this machine.

use super::common::{self, ThreadArgs};
use super::exit::RequestError;
use super::plan::local;
use super::world;
use runner_data::Prepared;
use runner_engine::launch::World;
use runner_report::Screen;
use runner_spec::cluster::ClusterFacts;
use runner_spec::data::WeightsFacts;
use runner_spec::experiment::Experiment;
use runner_spec::plan::Plan;

/// What a run can be started or resumed with.
#[derive(Debug)]
pub(super) struct Ready {
    pub plan: Plan,
    pub prepared: Prepared,
    pub pool: rayon::ThreadPool,
}

impl Ready {
    /// Prepares the data of `experiment` and plans it for this machine, or for the machines of the `world` that a launcher
    /// started; what the plan notes is told on `screen`.
    ///
    /// # Errors
    /// As `prepare_inputs` and `runner_plan::compile`; if the world has another number of ranks.
    pub(super) fn new(
        experiment: &Experiment,
        threads: ThreadArgs,
        world: Option<&World>,
        screen: &mut Screen,
    ) -> anyhow::Result<Self> {
        let (cluster, pool) = (here(experiment, threads, world)?, threads.pool()?);
        let prepared = common::prepare_inputs(experiment, &pool, screen)?;
        Self::with(experiment, &cluster, screen, pool, prepared)
    }

    /// As `new`, of a run that has a checkpoint: the weights that it started from, of which `weights` is known, are not needed.
    ///
    /// # Errors
    /// As `prepare_data` and `runner_plan::compile`.
    pub(super) fn going_on(
        experiment: &Experiment,
        weights: Option<WeightsFacts>,
        threads: ThreadArgs,
        world: Option<&World>,
        screen: &mut Screen,
    ) -> anyhow::Result<Self> {
        let (cluster, pool) = (here(experiment, threads, world)?, threads.pool()?);
        let mut prepared = common::prepare_data(experiment, &pool, screen)?;
        prepared.facts.weights = weights;
        Self::with(experiment, &cluster, screen, pool, prepared)
    }

    fn with(
        experiment: &Experiment,
        cluster: &ClusterFacts,
        screen: &mut Screen,
        pool: rayon::ThreadPool,
        prepared: Prepared,
    ) -> anyhow::Result<Self> {
        let plan = runner_plan::compile(experiment, &prepared.facts, cluster)?;
        for note in &plan.notes {
            screen.line(&format!("plan   {note}"));
        }
        Ok(Self { plan, prepared, pool })
    }

    /// # Errors
    /// If the plan needs more memory than its device has: the run would end in the middle of a step.
    pub(super) fn refuse_what_cannot_fit(&self) -> anyhow::Result<()> {
        match &self.plan.shortage {
            Some(shortage) => Err(RequestError(shortage.clone()).into()),
            None => Ok(()),
        }
    }
}

/// The devices of this machine, or of those of `world`. Preparing data may take long: what is wrong without looking at them is
/// said before.
///
/// # Errors
/// If they are not those that the experiment asks for, or the world has another number of ranks.
fn here(experiment: &Experiment, threads: ThreadArgs, world: Option<&World>) -> anyhow::Result<ClusterFacts> {
    let mut cluster = local(threads.count())?;
    if let Some(world) = world {
        // Before the plan looks for as many devices as it has ranks.
        if let Ok(mesh) = runner_plan::mesh(&experiment.parallel, experiment.batch.sequences) {
            world::as_many(world, mesh)?;
        }
        cluster = runner_machine::local_cluster::with_seats(cluster, world.seats());
    }
    runner_plan::check_devices(experiment, &cluster)?;
    Ok(cluster)
}
