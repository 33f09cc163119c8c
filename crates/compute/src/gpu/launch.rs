//! Launches of kernels.

use std::ffi::c_void;

use candle_core::Result;
use candle_core::cuda_backend::cudarc::driver::{result, sys};

use super::Gpu;
use super::driver;

/// How many blocks of how many threads, and bytes of dynamic shared memory for each block.
#[derive(Debug, Clone, Copy)]
pub struct Dims {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
}

impl Dims {
    /// `blocks` of `threads` in one dimension.
    #[must_use]
    pub fn of(blocks: usize, threads: usize) -> Self {
        Self { grid: [blocks.max(1) as u32, 1, 1], block: [threads as u32, 1, 1], shared: 0 }
    }
}

/// One argument of a kernel, of exactly its parameter's type.
#[derive(Debug, Clone, Copy)]
pub enum Arg {
    /// A pointer.
    Address(u64),
    I32(i32),
    U32(u32),
    I64(i64),
    U64(u64),
    F32(f32),
    F64(f64),
}

impl Arg {
    fn pointer(&self) -> *mut c_void {
        let pointer: *const c_void = match self {
            Self::Address(x) | Self::U64(x) => std::ptr::from_ref(x).cast(),
            Self::I32(x) => std::ptr::from_ref(x).cast(),
            Self::U32(x) => std::ptr::from_ref(x).cast(),
            Self::I64(x) => std::ptr::from_ref(x).cast(),
            Self::F32(x) => std::ptr::from_ref(x).cast(),
            Self::F64(x) => std::ptr::from_ref(x).cast(),
        };
        pointer.cast_mut()
    }
}

/// What a block has without asking for more.
const PLAIN_SHARED: u32 = 48 << 10;

impl Gpu {
    /// Launches `kernel` on the compute stream; does not wait for it. Nothing is launched for a grid without blocks.
    ///
    /// # Safety
    /// `args` are the kernel's parameters in number and type, and its addresses have as many elements as it touches.
    ///
    /// # Errors
    /// If there is no such kernel, or the device refuses the launch.
    #[expect(unsafe_code, reason = "FFI")]
    pub unsafe fn launch(&self, kernel: &'static str, dims: Dims, args: &[Arg]) -> Result<()> {
        if dims.grid.contains(&0) {
            return Ok(());
        }
        let function = self.function(kernel)?;
        let named = |e| driver(e).context(format!("kernel {kernel}"));
        let stream = self.stream();
        stream.context().bind_to_thread().map_err(named)?;
        if dims.shared > PLAIN_SHARED {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            function.set_attribute(attribute, dims.shared as i32).map_err(named)?;
        }
        let mut params: Vec<*mut c_void> = args.iter().map(Arg::pointer).collect();
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
        launched.map_err(named)
    }
}
