//! Times on the compute stream, measured without waiting for the GPU.

use std::time::Duration;

use candle_core::Result;
use candle_core::cuda_backend::cudarc::driver::{CudaEvent, sys};

use super::{Gpu, driver_error};

/// The time at which the GPU reached a place in the compute stream.
#[derive(Debug)]
pub struct GpuTimestamp(CudaEvent);

impl Gpu {
    /// Records the time at which everything launched so far is done.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn record_timestamp(&self) -> Result<GpuTimestamp> {
        let event =
            self.stream().context().new_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT)).map_err(driver_error)?;
        event.record(self.stream()).map_err(driver_error)?;
        Ok(GpuTimestamp(event))
    }
}

impl GpuTimestamp {
    /// The time from `earlier` to this; `None` if the GPU has not reached this yet.
    ///
    /// # Errors
    /// If a kernel before it failed.
    pub fn elapsed_since(&self, earlier: &Self) -> Result<Option<Duration>> {
        if !self.0.try_is_complete().map_err(driver_error)? {
            return Ok(None);
        }
        let ms = earlier.0.elapsed_ms(&self.0).map_err(driver_error)?;
        Ok(Some(Duration::from_secs_f32(ms.max(0.0) / 1e3)))
    }
}
