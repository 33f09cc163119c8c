//! The communicator of a world of one rank, which has nothing to exchange.

use candle_core::{DType, Tensor};

use super::communicator::{Communicator, Pending};
use super::error::CommError;
use runner_spec::topology::{GroupId, Lane};

/// The communicator of a run without parallelism, so that the executor treats all runs alike.
#[derive(Debug, Clone, Copy, Default)]
pub struct Alone;

impl Communicator for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn world_size(&self) -> usize {
        1
    }

    fn all_reduce(&self, _: GroupId, _: &Tensor) -> Result<(), CommError> {
        Ok(())
    }

    fn start_all_reduce(&self, _: GroupId, _: Vec<Tensor>) -> Result<Pending, CommError> {
        Ok(Pending::completed())
    }

    fn reduce(&self, _: GroupId, _: usize, _: &Tensor) -> Result<(), CommError> {
        Ok(())
    }

    fn broadcast(&self, _: GroupId, _: usize, _: &Tensor) -> Result<(), CommError> {
        Ok(())
    }

    fn all_gather(&self, _: GroupId, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        Ok(vec![bytes.to_vec()])
    }

    fn barrier(&self, _: GroupId) -> Result<(), CommError> {
        Ok(())
    }

    fn send(&self, to: usize, lane: Lane, _: &Tensor) -> Result<(), CommError> {
        Err(CommError::NoChannel { from: 0, to, lane })
    }

    fn receive(&self, from: usize, lane: Lane, _: DType, _: &[usize]) -> Result<Tensor, CommError> {
        Err(CommError::NoChannel { from, to: 0, lane })
    }
}
