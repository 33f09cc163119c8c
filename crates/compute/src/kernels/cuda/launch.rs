//! One launch: arguments in the order of the kernel's parameters, whose types and lengths are checked.

use std::ffi::c_void;
use std::sync::Arc;

use candle_core::cuda_backend::cudarc::driver::{result, sys};
use candle_core::{DType, Device, Result, Tensor, bail};

use crate::gpu::{self, Gpu};

/// The blocks of a launch, the threads of a block, and the bytes of dynamic shared memory for each block.
#[derive(Debug, Clone, Copy)]
pub(super) struct LaunchDims {
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) shared: u32,
}

impl LaunchDims {
    /// `blocks` of `threads` threads each, in one dimension.
    pub(super) fn linear(blocks: usize, threads: usize) -> Self {
        Self { grid: [blocks.max(1) as u32, 1, 1], block: [threads as u32, 1, 1], shared: 0 }
    }
}

/// Bytes of shared memory that a block may use without asking for more.
const DEFAULT_SHARED_BYTES: u32 = 48 << 10;

/// A launch in preparation: the arguments given so far.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) gpu: Arc<Gpu>,
    /// The bits of each argument.
    args: Vec<u64>,
}

/// Elements that a thread reads or writes at once; `PIECE` of rows.cuh.
const PIECE: usize = 8;

impl Launch {
    /// A launch without arguments on the GPU of `tensor`.
    pub(super) fn for_tensor(tensor: &Tensor) -> Result<Self> {
        Ok(Self { gpu: gpu::gpu_of(tensor)?, args: Vec::with_capacity(16) })
    }

    /// The address of a contiguous tensor of exactly `len` elements, or a null pointer.
    pub(super) fn array<'a>(
        mut self,
        what: &str,
        tensor: impl Into<Option<&'a Tensor>>,
        dtype: DType,
        len: usize,
    ) -> Result<Self> {
        let Some(tensor) = tensor.into() else {
            self.args.push(0);
            return Ok(self);
        };
        if tensor.dtype() != dtype {
            bail!("{what} is {:?}, not {dtype:?}", tensor.dtype())
        }
        if tensor.elem_count() != len {
            bail!("{what} has {} elements, not {len}", tensor.elem_count())
        }
        self.check_device(what, tensor)?;
        self.args.push(gpu::address(tensor)?);
        Ok(self)
    }

    /// The address of a matrix of this GPU, of the type that the kernel is for, whose rows may have gaps between them.
    pub(super) fn rows(mut self, what: &str, matrix: &Tensor) -> Result<Self> {
        self.check_device(what, matrix)?;
        self.args.push(gpu::address_of_rows(matrix)?.0);
        Ok(self)
    }

    fn check_device(&self, what: &str, tensor: &Tensor) -> Result<()> {
        match tensor.device() {
            Device::Cuda(device) if device.id() == self.gpu.device().id() => Ok(()),
            _ => bail!("{what} is on another device"),
        }
    }

    /// The address of element `start` of a tensor that has at least `len` elements from there on.
    pub(super) fn array_part(
        mut self,
        what: &str,
        tensor: &Tensor,
        dtype: DType,
        start: usize,
        len: usize,
    ) -> Result<Self> {
        if tensor.elem_count() < start + len {
            bail!("{what} has {} elements, not {}", tensor.elem_count(), start + len)
        }
        self = self.array(what, tensor, dtype, tensor.elem_count())?;
        if let Some(address) = self.args.last_mut() {
            *address += (start * dtype.size_in_bytes()) as u64;
        }
        Ok(self)
    }

    /// Numbers that the kernel takes as `int`.
    pub(super) fn ints<const N: usize>(mut self, values: [usize; N]) -> Result<Self> {
        for value in values {
            let Ok(x) = i32::try_from(value) else { bail!("{value} is too large for a kernel's index") };
            self.args.push(x as u64);
        }
        Ok(self)
    }

    pub(super) fn longs<const N: usize>(mut self, values: [usize; N]) -> Self {
        self.args.extend(values.map(|x| x as u64));
        self
    }

    pub(super) fn floats<const N: usize>(mut self, values: [f64; N]) -> Self {
        self.args.extend(values.map(|x| u64::from((x as f32).to_bits())));
        self
    }

    pub(super) fn uints<const N: usize>(mut self, values: [u32; N]) -> Self {
        self.args.extend(values.map(u64::from));
        self
    }

    /// Launches `kernel` on the compute stream; does not wait for it. Nothing is launched for a grid without blocks.
    ///
    /// # Safety
    /// The arguments are the kernel's parameters in number, order and type, and it touches no elements of arrays beyond the lengths
    /// that were checked.
    ///
    /// # Errors
    /// If there is no such kernel, or the device refuses the launch.
    pub(super) unsafe fn run(self, kernel: &str, dims: LaunchDims) -> Result<()> {
        if dims.grid.contains(&0) {
            return Ok(());
        }
        let (function, stream) = (self.gpu.function(kernel)?, self.gpu.stream());
        let with_name = |e| gpu::driver_error(e).context(format!("kernel {kernel}"));
        stream.context().bind_to_thread().map_err(with_name)?;
        if dims.shared > DEFAULT_SHARED_BYTES {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            function.set_attribute(attribute, dims.shared as i32).map_err(with_name)?;
        }
        // A parameter of four bytes is read from the lower half, as processors with CUDA are little-endian.
        let mut params: Vec<*mut c_void> =
            self.args.iter().map(|arg| std::ptr::from_ref(arg).cast_mut().cast()).collect();
        let [[gx, gy, gz], [bx, by, bz]] = [dims.grid, dims.block];
        let (function, shared, stream) = (function.cu_function(), dims.shared, stream.cu_stream());
        // SAFETY: the caller's promise about the arguments, which the driver copies before it returns; the arrays are on this device and
        // have the checked lengths; the GPU keeps function and stream.
        let launched =
            unsafe { result::launch_kernel(function, (gx, gy, gz), (bx, by, bz), shared, stream, &mut params) };
        launched.map_err(with_name)
    }

    /// Blocks of 256 threads for a pass over `n` elements.
    pub(super) fn dims_for_elements(&self, n: usize) -> LaunchDims {
        const THREADS: usize = 256;
        LaunchDims::linear(n.div_ceil(THREADS * PIECE).clamp(1, self.gpu.multiprocessors() * 16), THREADS)
    }
}

/// The name of the kernel `name` for tensors of type `dtype`.
pub(super) fn kernel_for_type(name: &str, dtype: DType) -> Result<String> {
    match dtype {
        DType::F32 => Ok(format!("{name}_f32")),
        DType::BF16 => Ok(format!("{name}_bf16")),
        other => bail!("GPU kernels take f32 or bf16, not {other:?}"),
    }
}

/// `count` threads, rounded up to whole warps.
pub(super) fn whole_warps(count: usize) -> usize {
    count.max(1).next_multiple_of(32)
}

/// Blocks whose warps take one row each.
pub(super) fn warp_per_row(rows: usize) -> LaunchDims {
    const WARPS: usize = 8;
    LaunchDims::linear(rows.div_ceil(WARPS), WARPS * 32)
}

/// One block per row of `width` elements.
pub(super) fn block_per_row(rows: usize, width: usize) -> LaunchDims {
    let threads = whole_warps(width.div_ceil(PIECE)).min(256);
    LaunchDims { grid: [rows as u32, 1, 1], block: [threads as u32, 1, 1], shared: 0 }
}
