//! One rank of a run, as a process that the run's own process starts.

use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::Arc;

use runner_comm::Region;
use runner_exec::Resources;
use runner_exec::parameter_layout;
use runner_machine::host::peak_rss_bytes;
use runner_store::checkpoint;
use runner_store::run_dir::CHECKPOINTS;

use crate::error::EngineError;
use crate::launch::child::{self, Parent};
use crate::launch::message::{Done, FailureKind, Start, ToParent};
use crate::launch::where_in;
use crate::observer::Silent;
use crate::prepare::{Host, initial_state, prepare_data, prepare_inputs, thread_pool};

/// What the process that starts a rank tells it on the command line.
#[derive(Debug, Clone)]
pub struct RankProcess {
    /// The run directory, which the parent holds.
    pub run: PathBuf,
    pub rank: usize,
    /// The descriptor of the memory that the ranks share.
    pub shared_memory: RawFd,
}

impl RankProcess {
    /// Works as this rank, under the parent at the other end of standard input and output. Returns the line for the rank's log if
    /// it did not reach its end.
    ///
    /// # Errors
    /// If no run started this process, or the parent has ended. What else goes wrong is told the parent.
    pub fn work(&self, host: &Host) -> Result<Option<String>, EngineError> {
        let Some((mut parent, start)) = Parent::meet(self.rank).map_err(EngineError::io("listening to the run"))?
        else {
            return Err(EngineError::Request("a rank is started by `runner apply`".to_owned()));
        };
        let (result, region) = match Region::attach(self.shared_memory, &start.topology()) {
            Ok(region) => (self.train_with_heartbeat(&mut parent, &start, &region, host), Some(region)),
            Err(error) => (Err(EngineError::Other(error.to_string())), None),
        };
        let (message, line) = match result {
            Ok(done) => (ToParent::Done(done), None),
            Err(error) => {
                let by = region.as_ref().and_then(|region| region.aborted());
                let failure = child::failure(&error, by);
                let view = region.as_ref().and_then(|region| region.snapshot(self.rank)).unwrap_or_default();
                let place = where_in(&start.program, &view);
                let line = match by.filter(|_| failure.kind == FailureKind::Followed) {
                    Some(rank) if rank < start.program.world_size() => format!("ended {place} because of rank {rank}"),
                    Some(_) => format!("ended {place} because the run's record could not be kept"),
                    None => format!("failed {place}: {}", failure.text),
                };
                (ToParent::Error(failure), Some(line))
            }
        };
        // The log is all that is left of the rank if the parent has ended, too.
        parent.say(&message).map_err(EngineError::io(line.clone().unwrap_or_else(|| "telling the run".to_owned())))?;
        Ok(line)
    }

    /// Trains while a thread of its own shows the parent and the other ranks that this rank is alive.
    fn train_with_heartbeat(
        &self,
        parent: &mut Parent,
        start: &Start,
        region: &Arc<Region>,
        host: &Host,
    ) -> Result<Done, EngineError> {
        let result = child::beat(region.clone(), self.rank).map_err(EngineError::io("starting the heartbeat"));
        result.and_then(|()| self.train(parent, start, region, host)).inspect_err(|_| region.abort(self.rank))
    }

    fn train(
        &self,
        parent: &mut Parent,
        start: &Start,
        region: &Arc<Region>,
        host: &Host,
    ) -> Result<Done, EngineError> {
        let Start { program, plan_hash, experiment, data, threads, checkpoint, faults, .. } = start;
        faults.before_data();
        let pool = thread_pool(*threads)?;
        let observer = &mut Silent;
        let prepared = if checkpoint.is_none() {
            prepare_inputs(experiment, &pool, host, observer)?
        } else {
            // A checkpoint holds what became of the weights that the run started from.
            let mut prepared = prepare_data(experiment, &pool, host, observer)?;
            prepared.facts.weights.clone_from(&data.weights);
            prepared
        };
        if prepared.facts != *data {
            let message = "the data, or the weights to start from, changed since the run was started";
            return Err(EngineError::Other(message.to_owned()));
        }
        // The state is read to the host's memory; the rank takes it to its device.
        let device = candle_core::Device::Cpu;
        let state = match checkpoint {
            Some(path) => checkpoint::load_state(
                path,
                Some(plan_hash),
                &Arc::new(parameter_layout(program)),
                program.moments(),
                &device,
            )?,
            None => pool.install(|| initial_state(experiment, program, data, &host.cache))?,
        };
        let resources = Resources {
            dataset: &prepared.dataset,
            tokenizer: &prepared.tokenizer,
            choice: prepared.choice.as_deref(),
        };
        parent.say(&ToParent::Ready).map_err(EngineError::io("telling the run"))?;
        let checkpoints = self.run.join(CHECKPOINTS);
        let outcome = pool.install(|| child::run(parent, start, region, &resources, state, &checkpoints))?;
        Ok(Done { interrupted: outcome.interrupted, peak_rss_bytes: peak_rss_bytes() })
    }
}
