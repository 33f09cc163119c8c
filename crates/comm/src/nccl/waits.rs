//! How long a rank's compute stream was held by what it waits for: its events before and after each wait, read once the GPU is
//! past them, so that measuring makes nobody wait.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cudarc::driver::CudaEvent;

use super::library::NcclError;
use runner_compute::gpu::{Gpu, GpuTimestamp};

/// Waits that may be unread: a step has fewer, and a long evaluation's are read as it goes.
const UNREAD: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Waits {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// In the order of the stream: when it came to the wait, and when it went on.
    unread: VecDeque<(GpuTimestamp, GpuTimestamp)>,
    total: Duration,
}

impl Waits {
    /// What is computed from here on waits for `over`; the host does not.
    pub(super) fn follow(&self, gpu: &Gpu, over: &CudaEvent) -> Result<(), NcclError> {
        let failed = |error: candle_core::Error| NcclError(error.to_string());
        let came = gpu.record_timestamp().map_err(failed)?;
        gpu.stream().wait(over).map_err(|error| NcclError(error.to_string()))?;
        let went_on = gpu.record_timestamp().map_err(failed)?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.unread.push_back((came, went_on));
        if state.unread.len() > UNREAD {
            state.read();
        }
        Ok(())
    }

    /// Of the waits that the GPU is past.
    pub(super) fn so_far(&self) -> Duration {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.read();
        state.total
    }
}

impl State {
    fn read(&mut self) {
        while let Some((came, went_on)) = self.unread.front() {
            match went_on.elapsed_since(came) {
                Ok(Some(held)) => self.total += held,
                Ok(None) => return,
                // The error of a kernel shows where its results are used.
                Err(_) => {}
            }
            self.unread.pop_front();
        }
    }
}
