//! How long the GPU took for what was launched, without waiting for it.

use std::time::Duration;

use candle_core::Result;
use candle_core::cuda_backend::cudarc::driver::{CudaEvent, sys};

use super::{Gpu, driver};

/// A moment in the order of the compute stream.
#[derive(Debug)]
pub struct Moment(CudaEvent);

impl Gpu {
    /// The moment at which all that was launched so far is done.
    ///
    /// # Errors
    /// That of the device.
    pub fn moment(&self) -> Result<Moment> {
        let event = self.stream().context().new_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT)).map_err(driver)?;
        event.record(self.stream()).map_err(driver)?;
        Ok(Moment(event))
    }
}

impl Moment {
    /// The time from `earlier` until now; `None` if the GPU has not come so far.
    ///
    /// # Errors
    /// That of a kernel before it.
    pub fn since(&self, earlier: &Self) -> Result<Option<Duration>> {
        if !self.0.try_is_complete().map_err(driver)? {
            return Ok(None);
        }
        let ms = earlier.0.elapsed_ms(&self.0).map_err(driver)?;
        Ok(Some(Duration::from_secs_f32(ms.max(0.0) / 1e3)))
    }
}
