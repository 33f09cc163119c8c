//! Sums over ranks: token counts, gradients of buckets, and of a tied embedding.

use super::error::ExecError;
use super::rank::Rank;

impl Rank<'_> {
    /// Valid tokens of the global batch, from the first stage of each replica. The request to stop travels along, so that
    /// all ranks stop after the same step.
    pub(super) fn count_tokens(&mut self, numerator: u32) -> Result<(), ExecError> {
        if numerator != 1 {
            return Err(ExecError::Program(format!("a token cannot weigh {numerator}")));
        }
        let first = self.links.stage == 0;
        let tokens = if first { self.step.own_tokens } else { 0 };
        let mut mine = tokens.to_le_bytes().to_vec();
        mine.push(u8::from(self.asked_to_stop()));
        for theirs in self.links.gather(&mine)? {
            let Ok([count @ .., stop]) = <[u8; 9]>::try_from(theirs.as_slice()) else {
                return Err(ExecError::Program(format!("a rank sent {} bytes for its tokens", theirs.len())));
            };
            self.step.tokens += u64::from_le_bytes(count);
            self.step.stopping |= stop == 1;
        }
        // Alone, a request counts when the step is done.
        self.step.stopping &= self.links.mesh.world_size() > 1;
        Ok(())
    }

    pub(super) fn all_reduce(&mut self, bucket: usize) -> Result<(), ExecError> {
        let ranges = self.trainer.ranges(&self.program.buckets[bucket].range());
        let flat = &self.trainer.grads.flat;
        let views = ranges.into_iter().map(|r| flat.narrow(0, r.start, r.len())).collect::<Result<Vec<_>, _>>()?;
        let pending = self.links.comm.start_all_reduce(self.links.replicas(), views)?;
        self.step.cells.pending.push(pending);
        Ok(())
    }

    pub(super) fn wait_buckets(&mut self) -> Result<(), ExecError> {
        for pending in std::mem::take(&mut self.step.cells.pending) {
            self.links.comm.wait(pending)?;
        }
        Ok(())
    }

    pub(super) fn reduce_to_root(&mut self, bucket: usize) -> Result<(), ExecError> {
        for range in self.trainer.ranges(&self.program.buckets[bucket].range()) {
            let view = self.trainer.grads.flat.narrow(0, range.start, range.len())?;
            self.links.comm.reduce(self.links.replicas(), 0, &view)?;
        }
        Ok(())
    }

    pub(super) fn sum_tied(&mut self) -> Result<(), ExecError> {
        let Some(range) = self.trainer.tied(self.program) else {
            return Err(ExecError::Program("this rank holds no tied embedding".to_owned()));
        };
        let view = self.trainer.grads.flat.narrow(0, range.start, range.len())?;
        Ok(self.links.comm.all_reduce(self.links.tied(), &view)?)
    }
}
