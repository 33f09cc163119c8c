//! One launch: the parameters of a kernel, whose addresses have their types and lengths checked.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

use candle_core::cuda_backend::cudarc::driver::{result, sys};
use candle_core::{DType, Device, Result, Tensor, WithDType, bail};
use half::bf16;

use crate::gpu::{self, Gpu, Kernel};

// A struct for each family of kernels, with the names and types of their parameters, as the sources have them.
include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// The parameters of a family of kernels.
pub(super) trait Parameters {
    const KERNELS: &'static [Kernel];

    /// The address of each, in order.
    fn addresses(&self) -> impl AsMut<[*mut c_void]>;
}

/// The address of elements of one type, or a null pointer.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct Array<T>(u64, PhantomData<T>);

/// The address of elements of a type by which the family's kernels differ, or a null pointer.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct Elements(u64);

/// An address that a kernel takes.
pub(super) trait Address {
    /// The type of its elements, for kernels that differ by `dtype`.
    fn dtype(dtype: DType) -> DType;
    fn new(address: u64) -> Self;
}

impl<T: WithDType> Address for Array<T> {
    fn dtype(_: DType) -> DType {
        T::DTYPE
    }

    fn new(address: u64) -> Self {
        Self(address, PhantomData)
    }
}

impl Address for Elements {
    fn dtype(dtype: DType) -> DType {
        dtype
    }

    fn new(address: u64) -> Self {
        Self(address)
    }
}

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

/// Elements that a thread reads or writes at once; `PIECE` of rows.cuh.
pub(super) const PIECE: usize = 8;

/// Where a kernel is launched, and the type of the tensors that it is for.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) gpu: Arc<Gpu>,
    pub(super) dtype: DType,
}

impl Launch {
    /// A launch on the GPU of `tensor`, and for its type.
    pub(super) fn for_tensor(tensor: &Tensor) -> Result<Self> {
        Ok(Self { gpu: gpu::gpu_of(tensor)?, dtype: tensor.dtype() })
    }

    /// The address of a contiguous tensor of exactly `len` elements, or a null pointer.
    pub(super) fn array<'a, A: Address>(
        &self,
        what: &str,
        tensor: impl Into<Option<&'a Tensor>>,
        len: usize,
    ) -> Result<A> {
        self.array_of(what, tensor, A::dtype(self.dtype), len)
    }

    /// [`array`](Self::array) of elements of type `dtype`.
    pub(super) fn array_of<'a, A: Address>(
        &self,
        what: &str,
        tensor: impl Into<Option<&'a Tensor>>,
        dtype: DType,
        len: usize,
    ) -> Result<A> {
        let Some(tensor) = tensor.into() else { return Ok(A::new(0)) };
        if tensor.elem_count() != len {
            bail!("{what} has {} elements, not {len}", tensor.elem_count())
        }
        self.check(what, tensor, dtype)?;
        Ok(A::new(gpu::address(tensor)?))
    }

    /// The address of element `start` of a tensor that has at least `len` elements from there on.
    pub(super) fn array_part<A: Address>(&self, what: &str, tensor: &Tensor, start: usize, len: usize) -> Result<A> {
        if tensor.elem_count() < start + len {
            bail!("{what} has {} elements, not {}", tensor.elem_count(), start + len)
        }
        let dtype = A::dtype(self.dtype);
        self.check(what, tensor, dtype)?;
        Ok(A::new(gpu::address(tensor)? + (start * dtype.size_in_bytes()) as u64))
    }

    /// The address of a matrix whose rows may have gaps between them.
    pub(super) fn rows(&self, what: &str, matrix: &Tensor) -> Result<Elements> {
        self.check(what, matrix, self.dtype)?;
        Ok(Elements(gpu::address_of_rows(matrix)?.0))
    }

    fn check(&self, what: &str, tensor: &Tensor, dtype: DType) -> Result<()> {
        if tensor.dtype() != dtype {
            bail!("{what} is {:?}, not {dtype:?}", tensor.dtype())
        }
        match tensor.device() {
            Device::Cuda(device) if device.id() == self.gpu.device().id() => Ok(()),
            _ => bail!("{what} is on another device"),
        }
    }

    /// Launches the family's kernel for this launch's type, or its only one; see [`run_named`](Self::run_named).
    ///
    /// # Safety
    /// As for `run_named`.
    pub(super) unsafe fn run<P: Parameters>(&self, parameters: &P, dims: LaunchDims) -> Result<()> {
        let name: &[&str] = if let [Kernel { rest: "", .. }] = P::KERNELS { &[] } else { &[self.dtype.as_str()] };
        // SAFETY: the caller's promise.
        unsafe { self.run_named(name, parameters, dims) }
    }

    /// Launches a kernel on the compute stream; does not wait for it. Nothing is launched for a grid without blocks. The words of `name`, joined by
    /// `_`, are what the kernel's name has after the family's. Empty ones do not count.
    ///
    /// # Safety
    /// The kernel touches no elements of arrays beyond the lengths that were checked.
    ///
    /// # Errors
    /// If there is no such kernel, or the device refuses the launch.
    pub(super) unsafe fn run_named<P: Parameters>(
        &self,
        name: &[&str],
        parameters: &P,
        dims: LaunchDims,
    ) -> Result<()> {
        if dims.grid.contains(&0) {
            return Ok(());
        }
        let Some(kernel) = P::KERNELS.iter().find(|kernel| kernel.is_named(name)) else {
            let family = P::KERNELS.first().map_or("", |kernel| kernel.family);
            bail!("there is no kernel `{family}` for {}", name.join(" "))
        };
        let stream = self.gpu.stream();
        let with_name = |e| gpu::driver_error(e).context(format!("kernel {kernel}"));
        stream.context().bind_to_thread().map_err(with_name)?;
        let function = self.gpu.function(kernel)?;
        if dims.shared > DEFAULT_SHARED_BYTES {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            function.set_attribute(attribute, dims.shared as i32).map_err(with_name)?;
        }
        let mut addresses = parameters.addresses();
        let [[gx, gy, gz], [bx, by, bz]] = [dims.grid, dims.block];
        let (function, shared, stream) = (function.cu_function(), dims.shared, stream.cu_stream());
        // SAFETY: the parameters have the kernel's names and types, and the driver copies them before it returns; the arrays are on this
        // device and have the checked lengths, which are enough, as the caller promises; the GPU keeps function and stream.
        let launched =
            unsafe { result::launch_kernel(function, (gx, gy, gz), (bx, by, bz), shared, stream, addresses.as_mut()) };
        launched.map_err(with_name)
    }

    /// Blocks of 256 threads for a pass over `n` elements.
    pub(super) fn dims_for_elements(&self, n: usize) -> LaunchDims {
        const THREADS: usize = 256;
        LaunchDims::linear(n.div_ceil(THREADS * PIECE).clamp(1, self.gpu.multiprocessors() * 16), THREADS)
    }
}

/// A number that a kernel takes as `int`.
pub(super) fn int(value: usize) -> Result<i32> {
    match i32::try_from(value) {
        Ok(value) => Ok(value),
        Err(_) => bail!("{value} is too large for a kernel's index"),
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
