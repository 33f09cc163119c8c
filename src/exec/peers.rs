//! The others: how a rank reaches them, and who looks on.

use candle_core::Tensor;

use super::error::ExecError;
use crate::comm::{Communicator, GroupId, Lane};
use crate::plan::mesh::{Group, Mesh};

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

    pub(super) fn receive(&self, stage: usize, lane: Lane, shape: &[usize]) -> Result<Tensor, ExecError> {
        Ok(self.comm.receive(self.mesh.rank(stage, self.replica), lane, shape)?)
    }

    /// What each rank of the world says, in the order of ranks.
    pub(super) fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, ExecError> {
        Ok(self.comm.all_gather(self.group(Group::World), bytes)?)
    }

    /// Numbers of each rank of the world, in the order of ranks.
    pub(super) fn gather_numbers<const N: usize>(&self, mine: [f64; N]) -> Result<Vec<[f64; N]>, ExecError> {
        let bytes: Vec<u8> = mine.iter().flat_map(|x| x.to_le_bytes()).collect();
        let all = self.gather(&bytes)?;
        all.iter().map(|bytes| numbers(bytes)).collect()
    }
}

fn numbers<const N: usize>(bytes: &[u8]) -> Result<[f64; N], ExecError> {
    let mut out = [0.0; N];
    if bytes.len() != 8 * N {
        return Err(ExecError::Program(format!("a rank sent {} bytes where {} were expected", bytes.len(), 8 * N)));
    }
    for (x, chunk) in out.iter_mut().zip(bytes.chunks_exact(8)) {
        let mut eight = [0; 8];
        eight.copy_from_slice(chunk);
        *x = f64::from_le_bytes(eight);
    }
    Ok(out)
}
