//! Copies from the host to a GPU without waiting: they start from pinned memory, which is used again when the copy is over.

use candle_core::cuda_backend::cudarc::driver::{CudaEvent, PinnedHostSlice, result};
use candle_core::{DType, Result, Tensor};

use super::memory::address;
use super::{Gpu, driver_error};

/// Pinned buffers whose copies may still be under way, oldest first.
#[derive(Debug, Default)]
pub(super) struct PinnedBuffers(Vec<PinnedBuffer>);

#[derive(Debug)]
struct PinnedBuffer {
    memory: PinnedHostSlice<u32>,
    /// The address of `memory`. Asking `memory` for it would query an event that is never recorded.
    start: usize,
    /// Recorded after the copy.
    copied: CudaEvent,
}

/// Elements of the smallest buffer.
const MIN_LENGTH: usize = 1 << 12;

impl Gpu {
    /// Copies the numbers to a tensor, `[values.len()]`. Returns before the copy is done; kernels launched later see them.
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
        let mut uploads = self.uploads.lock();
        let fits = |buffer: &PinnedBuffer| buffer.memory.len() >= values.len() && buffer.copied.is_complete();
        let upload = if let Some(i) = uploads.0.iter().position(fits) {
            uploads.0.remove(i)
        } else {
            let len = values.len().next_power_of_two().max(MIN_LENGTH);
            // SAFETY: memory of the host, of a type for which any bits are a value.
            let mut memory = unsafe { stream.context().alloc_pinned_with_flags(len, 0).map_err(driver_error)? };
            let start = memory.as_mut_ptr().map_err(driver_error)? as usize;
            PinnedBuffer { memory, start, copied: stream.context().new_event(None).map_err(driver_error)? }
        };
        // SAFETY: the buffer is long enough and lives, and the copy that last read it is over. `to` has as many elements; the
        // buffer is not written to again before the event after the copy.
        unsafe {
            std::ptr::copy_nonoverlapping(values.as_ptr(), upload.start as *mut u32, values.len());
            let from = std::slice::from_raw_parts(upload.start as *const u32, values.len());
            result::memcpy_htod_async(to, from, stream.cu_stream()).map_err(driver_error)?;
        }
        upload.copied.record(stream).map_err(driver_error)?;
        uploads.0.push(upload);
        Ok(tensor)
    }
}
