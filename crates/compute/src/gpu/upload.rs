//! From the host to a GPU without waiting: copies start from pinned memory, which is used again when the copy is over.

use std::sync::PoisonError;

use candle_core::cuda_backend::cudarc::driver::{CudaEvent, PinnedHostSlice, result};
use candle_core::{DType, Result, Tensor};

use super::memory::address;
use super::{Gpu, driver};

/// Buffers that may still be on their way, oldest first.
#[derive(Debug, Default)]
pub(super) struct Uploads(Vec<Upload>);

#[derive(Debug)]
struct Upload {
    /// Pinned.
    from: PinnedHostSlice<u32>,
    /// Where that begins. Asking for it each time would ask the driver whether an event is over that nobody records.
    start: usize,
    /// Behind the copy.
    over: CudaEvent,
}

/// Smaller buffers are not worth telling apart.
const SMALLEST: usize = 1 << 12;

impl Gpu {
    /// The numbers as a tensor, [values.len()]. Returns before they are there; kernels launched later see them.
    ///
    /// # Errors
    /// If memory is short.
    #[expect(unsafe_code, reason = "FFI")]
    pub fn upload(&self, values: &[u32]) -> Result<Tensor> {
        let tensor = self.empty(DType::U32, values.len())?;
        if values.is_empty() {
            return Ok(tensor);
        }
        let (stream, to) = (self.stream(), address(&tensor)?);
        let mut uploads = self.uploads.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |u: &Upload| u.from.len() >= values.len() && u.over.is_complete();
        let upload = if let Some(i) = uploads.0.iter().position(fits) {
            uploads.0.remove(i)
        } else {
            let len = values.len().next_power_of_two().max(SMALLEST);
            // SAFETY: memory of the host, of a type for which any bits are a value.
            let mut from = unsafe { stream.context().alloc_pinned_with_flags(len, 0).map_err(driver)? };
            let start = from.as_mut_ptr().map_err(driver)? as usize;
            Upload { from, start, over: stream.context().new_event(None).map_err(driver)? }
        };
        // SAFETY: `from` is as long and lives, and nobody else has it: the copy that last read it is over. `to` has room; the
        // buffer is not written to again before the event behind the copy.
        unsafe {
            std::ptr::copy_nonoverlapping(values.as_ptr(), upload.start as *mut u32, values.len());
            let from = std::slice::from_raw_parts(upload.start as *const u32, values.len());
            result::memcpy_htod_async(to, from, stream.cu_stream()).map_err(driver)?;
        }
        upload.over.record(stream).map_err(driver)?;
        uploads.0.push(upload);
        Ok(tensor)
    }
}
