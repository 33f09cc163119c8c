//! Launches of kernels by name.

use std::ffi::c_void;

use candle_core::Result;
use candle_core::cuda_backend::cudarc::driver::{result, sys};

use super::{Gpu, driver_error};

/// The blocks of a launch, the threads of a block, and the bytes of dynamic shared memory for each block.
#[derive(Debug, Clone, Copy)]
pub struct LaunchDims {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
}

impl LaunchDims {
    /// `blocks` of `threads` threads each, in one dimension.
    pub fn linear(blocks: usize, threads: usize) -> Self {
        Self { grid: [blocks.max(1) as u32, 1, 1], block: [threads as u32, 1, 1], shared: 0 }
    }
}

/// Bytes of shared memory that a block may use without asking for more.
const DEFAULT_SHARED_BYTES: u32 = 48 << 10;

impl Gpu {
    /// Launches `kernel` on the compute stream; does not wait for it. Nothing is launched for a grid without blocks. Each of `args` holds
    /// an argument's bits: a parameter of four bytes is read from the lower half, as processors with CUDA are little-endian.
    ///
    /// # Safety
    /// `args` are the kernel's parameters in number and type, and the memory at their addresses has all elements that it touches.
    ///
    /// # Errors
    /// If there is no such kernel, or the device refuses the launch.
    #[expect(unsafe_code, reason = "FFI")]
    pub unsafe fn launch(&self, kernel: &str, dims: LaunchDims, args: &[u64]) -> Result<()> {
        if dims.grid.contains(&0) {
            return Ok(());
        }
        let function = self.function(kernel)?;
        let with_name = |e| driver_error(e).context(format!("kernel {kernel}"));
        let stream = self.stream();
        stream.context().bind_to_thread().map_err(with_name)?;
        if dims.shared > DEFAULT_SHARED_BYTES {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            function.set_attribute(attribute, dims.shared as i32).map_err(with_name)?;
        }
        let mut params: Vec<*mut c_void> = args.iter().map(|arg| std::ptr::from_ref(arg).cast_mut().cast()).collect();
        let [[gx, gy, gz], [bx, by, bz]] = [dims.grid, dims.block];
        // SAFETY: the caller's promise about the arguments, which the driver copies before it returns; function and stream live.
        let launched = unsafe {
            result::launch_kernel(
                function.cu_function(),
                (gx, gy, gz),
                (bx, by, bz),
                dims.shared,
                stream.cu_stream(),
                &mut params,
            )
        };
        launched.map_err(with_name)
    }
}
