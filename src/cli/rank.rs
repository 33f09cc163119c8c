//! `runner rank`: one rank of a run, as a process that `runner apply` starts. Hidden: nobody types it.

use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;

use super::common;
use super::exit::{Exit, RequestError};
use super::output::complain;
use runner_comm::Region;
use runner_engine::launch::child;
use runner_engine::launch::child::Parent;
use runner_engine::launch::message::{Done, FailureKind, Start, ToParent};
use runner_engine::launch::where_in;
use runner_exec::Resources;
use runner_exec::parameter_layout;
use runner_machine::host::peak_rss_bytes;
use runner_report::{OutputMode, Screen};
use runner_store::checkpoint;
use runner_store::run_dir::CHECKPOINTS;

#[derive(Debug, Clone, Args)]
pub(crate) struct RankArgs {
    /// The run directory, which the parent holds.
    #[arg(long)]
    pub run: PathBuf,
    #[arg(long)]
    pub rank: usize,
    /// The descriptor of the memory that the ranks share.
    #[arg(long)]
    pub fd: RawFd,
}

/// # Errors
/// If it was not started by `runner apply`; what goes wrong later is told the parent.
pub(crate) fn run(args: &RankArgs) -> anyhow::Result<Exit> {
    let Some((mut parent, start)) = Parent::meet(args.rank)? else {
        bail!(RequestError("a rank is started by `runner apply`".to_owned()));
    };
    let (result, region) = match Region::attach(args.fd, &start.topology()) {
        Ok(region) => (seen(args, &mut parent, &start, &region), Some(region)),
        Err(error) => (Err(error.into()), None),
    };
    let (message, exit) = match result {
        Ok(done) => (ToParent::Done(done), Exit::Done),
        Err(error) => {
            let by = region.as_ref().and_then(|region| region.aborted());
            let failure = child::failure(error.as_ref(), by);
            // To this rank's log, which is all that is left of it if the parent ends, too.
            let view = region.as_ref().and_then(|region| region.snapshot(args.rank)).unwrap_or_default();
            let place = where_in(&start.program, &view);
            complain(&match by.filter(|_| failure.kind == FailureKind::Followed) {
                Some(rank) if rank < start.program.world_size() => format!("ended {place} because of rank {rank}"),
                Some(_) => format!("ended {place} because the run's record could not be kept"),
                None => format!("failed {place}: {}", failure.text),
            });
            (ToParent::Error(failure), Exit::Failed)
        }
    };
    parent.say(&message)?;
    Ok(exit)
}

/// Works where the others, and the parent, see it.
fn seen(args: &RankArgs, parent: &mut Parent, start: &Start, region: &Arc<Region>) -> anyhow::Result<Done> {
    let result = child::beat(region.clone(), args.rank).context("starting the heartbeat");
    result.and_then(|()| work(args, parent, start, region)).inspect_err(|_| region.abort(args.rank))
}

fn work(args: &RankArgs, parent: &mut Parent, start: &Start, region: &Arc<Region>) -> anyhow::Result<Done> {
    let Start { program, plan_hash, experiment, data, threads, checkpoint, faults, .. } = start;
    faults.before_data();
    let pool = rayon::ThreadPoolBuilder::new().num_threads((*threads).max(1)).stack_size(8 << 20).build();
    let pool = pool.with_context(|| format!("starting {threads} threads"))?;
    let mut screen = Screen::new(OutputMode::Quiet);
    let prepared = if checkpoint.is_none() {
        common::prepare_inputs(experiment, &pool, &mut screen)?
    } else {
        // A checkpoint holds what became of the weights that the run started from.
        let mut prepared = common::prepare_data(experiment, &pool, &mut screen)?;
        prepared.facts.weights.clone_from(&data.weights);
        prepared
    };
    if prepared.facts != *data {
        bail!("the data, or the weights to start from, changed since the run was started");
    }
    // The rank takes it to its device.
    let device = candle_core::Device::Cpu;
    let state = match checkpoint {
        Some(path) => checkpoint::load_state(
            path,
            Some(plan_hash),
            &Arc::new(parameter_layout(program)),
            program.moments(),
            &device,
        )?,
        None => pool.install(|| common::initial_state(experiment, program, data))?,
    };
    let resources =
        Resources { dataset: &prepared.dataset, tokenizer: &prepared.tokenizer, choice: prepared.choice.as_deref() };
    parent.say(&ToParent::Ready)?;
    let checkpoints = args.run.join(CHECKPOINTS);
    let outcome = pool.install(|| child::run(parent, start, region, &resources, state, &checkpoints))?;
    Ok(Done { interrupted: outcome.interrupted, peak_rss_bytes: peak_rss_bytes() })
}
