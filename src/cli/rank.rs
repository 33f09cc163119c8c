//! `runner rank`: one rank of a run, as a process that `runner apply` starts. Hidden: nobody types it.

use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;

use super::common;
use super::exit::{Exit, RequestError};
use crate::comm::Region;
use crate::exec::step::layout;
use crate::exec::{self, Resources, topology};
use crate::launch::child::{self, Parent};
use crate::launch::message::{Done, Start, ToParent};
use crate::report::{Mode, Screen};
use crate::store::run_dir::CHECKPOINTS;
use crate::store::{checkpoint, machine};

#[derive(Debug, Clone, Args)]
pub struct RankArgs {
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
pub fn run(args: &RankArgs) -> anyhow::Result<Exit> {
    let Some((mut parent, start)) = Parent::meet(args.rank)? else {
        bail!(RequestError("a rank is started by `runner apply`".to_owned()));
    };
    let topology = topology(&start.program, start.channel_slots, size_of::<f32>());
    let result = Region::attach(args.fd, &topology).map_err(anyhow::Error::from).and_then(|region| {
        child::beat(region.clone(), args.rank).context("starting the heartbeat")?;
        work(args, &mut parent, &start, &region).inspect_err(|_| region.abort(args.rank))
    });
    let (message, exit) = match result {
        Ok(done) => (ToParent::Done(done), Exit::Done),
        Err(error) => (ToParent::Error(child::failure(&error)), Exit::Failed),
    };
    parent.say(&message)?;
    Ok(exit)
}

fn work(args: &RankArgs, parent: &mut Parent, start: &Start, region: &Arc<Region>) -> anyhow::Result<Done> {
    let Start { program, plan_hash, experiment, data, threads, checkpoint, .. } = start;
    let pool = rayon::ThreadPoolBuilder::new().num_threads((*threads).max(1)).stack_size(8 << 20).build();
    let pool = pool.with_context(|| format!("starting {threads} threads"))?;
    let prepared = common::prepare_data(experiment, &pool, &mut Screen::new(Mode::Quiet))?;
    if prepared.facts != *data {
        bail!("the data changed since the run was started");
    }
    let device = common::device(program.device)?;
    let state = match checkpoint {
        Some(path) => checkpoint::load(path, Some(plan_hash), &Arc::new(layout(program)), program.moments(), &device)?,
        None => pool.install(|| exec::initial_state(program))?,
    };
    let resources =
        Resources { dataset: &prepared.dataset, tokenizer: &prepared.tokenizer, choice: prepared.choice.as_deref() };
    parent.say(&ToParent::Ready)?;
    let checkpoints = args.run.join(CHECKPOINTS);
    let outcome = pool.install(|| child::run(parent, program, region, &resources, state, &checkpoints))?;
    Ok(Done { interrupted: outcome.interrupted, peak_rss_bytes: machine::peak_rss_bytes() })
}
