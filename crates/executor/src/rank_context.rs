//! One rank of a program: its place among the other ranks, its connections to them, and the monitor that follows it.

use candle_core::{DType, Tensor};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::ExecError;
use runner_comm::{CommError, Communicator};
use runner_spec::mesh::RankGroup;
use runner_spec::program::Program;
use runner_spec::topology::{GroupId, Lane};

/// The list of a program in which an instruction stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstructionList {
    Start,
    Step,
    Periodic,
}

/// Follows a rank's progress, so that a supervisor can report where a rank died or hangs.
pub trait ProgressMonitor: Sync {
    /// Called before each instruction. `step` counts from 0.
    fn enter_instruction(&self, step: u64, list: InstructionList, index: usize);

    /// Called at each part of an instruction that takes long.
    fn heartbeat(&self) {}
}

/// One rank's program, place in the mesh and connections.
#[derive(Clone, Copy)]
pub(super) struct RankContext<'a> {
    /// The program of the current stage.
    pub program: &'a Program,
    /// The program of the whole run.
    pub run: &'a Program,
    pub comm: &'a dyn Communicator,
    pub monitor: &'a dyn ProgressMonitor,
    pub stage: usize,
    pub replica: usize,
}

impl<'a> RankContext<'a> {
    /// The context of the rank of `run`, whose current stage is `program`, with its connections.
    ///
    /// # Errors
    /// If `comm` connects another rank, or another number of ranks, than the program is for.
    pub(super) fn new(
        program: &'a Program,
        run: &'a Program,
        comm: &'a dyn Communicator,
        monitor: &'a dyn ProgressMonitor,
    ) -> Result<Self, ExecError> {
        let (rank, world_size) = (program.rank, program.world_size());
        if (comm.rank(), comm.world_size()) != (rank, world_size) {
            return Err(ExecError::Program(format!(
                "the program is for rank {rank} of {world_size}, but the communicator is rank {} of {}",
                comm.rank(),
                comm.world_size()
            )));
        }
        Ok(Self { program, run, comm, monitor, stage: program.stage(), replica: program.replica() })
    }

    /// True if this rank is the only one of the run.
    pub(super) fn is_alone(&self) -> bool {
        self.program.world_size() == 1
    }

    fn group(&self, group: RankGroup) -> GroupId {
        GroupId(self.program.mesh.index(group))
    }

    /// The replicas of this rank's stage.
    pub(super) fn replica_group(&self) -> GroupId {
        self.group(RankGroup::Replicas { stage: self.stage })
    }

    /// The ranks that hold the tied embedding of this rank's replica.
    pub(super) fn tied_group(&self) -> GroupId {
        self.group(RankGroup::Tied { replica: self.replica })
    }

    pub(super) fn send(&self, stage: usize, lane: Lane, data: &Tensor) -> Result<(), ExecError> {
        Ok(self.comm.send(self.program.mesh.rank(stage, self.replica), lane, data)?)
    }

    pub(super) fn receive(&self, stage: usize, lane: Lane, dtype: DType, shape: &[usize]) -> Result<Tensor, ExecError> {
        Ok(self.comm.receive(self.program.mesh.rank(stage, self.replica), lane, dtype, shape)?)
    }

    /// The input of chunk `chunk` from the part of the model before it; `None` for the model's first part.
    pub(super) fn receive_chunk_input(
        &self,
        chunk: usize,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Option<Tensor>, ExecError> {
        let previous_part = self.program.virtual_stage(chunk).checked_sub(1);
        let stages = self.program.mesh.stages;
        previous_part.map(|part| self.receive(part % stages, Lane::Activation, dtype, shape)).transpose()
    }

    /// Sends the output of chunk `chunk` to the next part of the model; that of the last part goes to the first stage.
    pub(super) fn send_chunk_output(&self, chunk: usize, output: &Tensor) -> Result<(), ExecError> {
        let next_part = self.program.virtual_stage(chunk) + 1;
        self.send(next_part % self.program.mesh.stages, Lane::Activation, output)
    }

    /// The bytes that each rank of the world passes, in the order of ranks.
    pub(super) fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, ExecError> {
        Ok(self.comm.all_gather(self.group(RankGroup::World), bytes)?)
    }

    /// The values that each rank of the world passes, in the order of ranks. They travel as JSON, which holds no NaN.
    pub(super) fn gather_values<T: Serialize + DeserializeOwned>(&self, own: &T) -> Result<Vec<T>, ExecError> {
        let failed = |error: serde_json::Error| ExecError::Program(format!("values of ranks as JSON: {error}"));
        let all = self.gather(&serde_json::to_vec(own).map_err(failed)?)?;
        all.iter().map(|theirs| serde_json::from_slice(theirs).map_err(failed)).collect()
    }

    /// The numbers that each rank of the world passes, in the order of ranks. All ranks pass the same count.
    pub(super) fn gather_numbers(&self, own: &[f64]) -> Result<Vec<Vec<f64>>, ExecError> {
        let bytes: Vec<u8> = own.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.gather(&bytes)?.iter().map(|bytes| decode_numbers(bytes, own.len())).collect()
    }

    /// Chooses the rank that reports a fault which all ranks have seen: the first whose `finding` is not empty, or rank 0, which
    /// reports `fallback`. Returns the text to report.
    ///
    /// # Errors
    /// On all other ranks, that the chosen rank ended the run.
    pub(super) fn elect_fault_report(&self, finding: &str, fallback: &str) -> Result<String, ExecError> {
        let all = self.gather(finding.as_bytes())?;
        let found = all.iter().position(|finding| !finding.is_empty());
        let reporter = found.unwrap_or(0);
        if reporter != self.comm.rank() {
            return Err(CommError::Aborted { by: reporter }.into());
        }
        Ok(if found.is_some() { finding } else { fallback }.to_owned())
    }

    /// To be called before a number that is not finite is reported: a transfer that was cut short leaves arbitrary numbers.
    ///
    /// # Errors
    /// The reason why the run ended, if it has ended.
    pub(super) fn ensure_run_continues(&self) -> Result<(), ExecError> {
        Ok(self.comm.ensure_running()?)
    }
}

/// The `expected` numbers that a rank sent.
fn decode_numbers(bytes: &[u8], expected: usize) -> Result<Vec<f64>, ExecError> {
    let (numbers, rest) = bytes.as_chunks::<8>();
    if numbers.len() != expected || !rest.is_empty() {
        return Err(ExecError::Program(format!("a rank sent {} bytes for {expected} numbers", bytes.len())));
    }
    Ok(numbers.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect())
}
