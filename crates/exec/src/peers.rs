//! The others: how a rank reaches them, and who looks on.

use candle_core::{DType, Tensor};

use super::error::ExecError;
use runner_comm::{CommError, Communicator};
use runner_spec::mesh::{Group, Mesh};
use runner_spec::topology::{GroupId, Lane};

/// Which list of a program an instruction stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum List {
    Start,
    Step,
    Periodic,
}

/// Is told where a rank is, before each instruction: what a supervisor says of a rank that died.
pub trait Monitor: Sync {
    /// `step` counts from 0.
    fn at(&self, step: u64, list: List, index: usize);

    /// Called within instructions that take long, at each part of them: a rank that hangs does not.
    fn alive(&self) {}
}

impl Monitor for () {
    fn at(&self, _: u64, _: List, _: usize) {}
}

/// What a rank communicates through.
#[derive(Clone, Copy)]
pub struct Peers<'a> {
    pub comm: &'a dyn Communicator,
    pub monitor: &'a dyn Monitor,
}

/// The ranks of one mesh, from the point of view of one of them.
#[derive(Clone, Copy)]
pub(super) struct Links<'a> {
    pub comm: &'a dyn Communicator,
    pub mesh: Mesh,
    pub stage: usize,
    pub replica: usize,
}

impl Links<'_> {
    pub(super) fn group(&self, group: Group) -> GroupId {
        GroupId(self.mesh.index(group))
    }

    /// The replicas of this stage.
    pub(super) fn replicas(&self) -> GroupId {
        self.group(Group::Replicas { stage: self.stage })
    }

    pub(super) fn tied(&self) -> GroupId {
        self.group(Group::Tied { replica: self.replica })
    }

    pub(super) fn send(&self, stage: usize, lane: Lane, data: &Tensor) -> Result<(), ExecError> {
        Ok(self.comm.send(self.mesh.rank(stage, self.replica), lane, data)?)
    }

    pub(super) fn receive(&self, stage: usize, lane: Lane, dtype: DType, shape: &[usize]) -> Result<Tensor, ExecError> {
        Ok(self.comm.receive(self.mesh.rank(stage, self.replica), lane, dtype, shape)?)
    }

    /// What each rank of the world says, in the order of ranks.
    pub(super) fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, ExecError> {
        Ok(self.comm.all_gather(self.group(Group::World), bytes)?)
    }

    /// All ranks have seen that something is wrong, and ask together who has found what. The first that found something is
    /// given its `mine`, or rank 0 is given `otherwise`.
    ///
    /// # Errors
    /// On all other ranks, that the run ends because of that one.
    pub(super) fn first_found(&self, mine: &str, otherwise: &str) -> Result<String, ExecError> {
        let all = self.gather(mine.as_bytes())?;
        let by = all.iter().position(|said| !said.is_empty());
        match by {
            _ if by.unwrap_or(0) != self.comm.rank() => Err(CommError::Aborted { by: by.unwrap_or(0) }.into()),
            Some(_) => Ok(mine.to_owned()),
            None => Ok(otherwise.to_owned()),
        }
    }

    /// Numbers of each rank of the world, in the order of ranks.
    pub(super) fn gather_numbers(&self, mine: &[f64]) -> Result<Vec<Vec<f64>>, ExecError> {
        let bytes: Vec<u8> = mine.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.gather(&bytes)?.iter().map(|bytes| numbers(bytes, mine.len())).collect()
    }
}

/// The `expected` numbers that a rank sent.
fn numbers(bytes: &[u8], expected: usize) -> Result<Vec<f64>, ExecError> {
    if bytes.len() != 8 * expected {
        return Err(ExecError::Program(format!("a rank sent {} bytes for {expected} numbers", bytes.len())));
    }
    let eight = |chunk: &[u8]| chunk.iter().rev().fold(0_u64, |n, &b| n << 8 | u64::from(b));
    Ok(bytes.chunks_exact(8).map(|chunk| f64::from_bits(eight(chunk))).collect())
}
