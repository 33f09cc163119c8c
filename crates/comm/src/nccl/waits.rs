//! The time that a rank's compute stream has waited for transfers. Events stand before and after each wait, and are read once the GPU
//! is past them, so that measuring delays nothing.

use std::collections::VecDeque;
use std::time::Duration;

use cudarc::driver::CudaEvent;
use parking_lot::Mutex;

use super::library::NcclError;
use runner_compute::gpu::{Gpu, GpuTimestamp};

/// The number of waits that may be unread. A step has fewer; those of a long evaluation are read while it runs.
const MAX_UNREAD: usize = 256;

#[derive(Debug, Default)]
pub(super) struct StreamWaits {
    state: Mutex<MeasuredWaits>,
}

#[derive(Debug, Default)]
struct MeasuredWaits {
    /// The beginning and the end of each wait, in the order of the stream.
    unread: VecDeque<(GpuTimestamp, GpuTimestamp)>,
    total: Duration,
}

impl StreamWaits {
    /// Makes the work from here on wait for `event`. The host does not wait.
    pub(super) fn follow(&self, gpu: &Gpu, event: &CudaEvent) -> Result<(), NcclError> {
        let began = gpu.record_timestamp().map_err(NcclError::new)?;
        gpu.stream().wait(event).map_err(NcclError::new)?;
        let ended = gpu.record_timestamp().map_err(NcclError::new)?;
        let mut state = self.state.lock();
        state.unread.push_back((began, ended));
        if state.unread.len() > MAX_UNREAD {
            state.read();
        }
        Ok(())
    }

    /// The total of the waits that the GPU is past.
    pub(super) fn total(&self) -> Duration {
        let mut state = self.state.lock();
        state.read();
        state.total
    }
}

impl MeasuredWaits {
    fn read(&mut self) {
        while let Some((began, ended)) = self.unread.front() {
            match ended.elapsed_since(began) {
                Ok(Some(held)) => self.total += held,
                Ok(None) => return,
                // The error of a kernel shows where its results are used.
                Err(_) => {}
            }
            self.unread.pop_front();
        }
    }
}
