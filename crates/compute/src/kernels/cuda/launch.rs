//! One launch: arguments whose types and lengths are looked at, in the order of the kernel's parameters.

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor, bail};

use crate::gpu;
use crate::gpu::{Arg, Dims, Gpu};

/// Arguments of a kernel, as far as they are given.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) gpu: Arc<Gpu>,
    args: Vec<Arg>,
}

/// How many elements a thread takes at once.
const PIECE: usize = 8;

impl Launch {
    /// On the GPU of `tensor`.
    pub(super) fn on(tensor: &Tensor) -> Result<Self> {
        Ok(Self { gpu: gpu::of(tensor)?, args: Vec::with_capacity(16) })
    }

    /// The address of a contiguous tensor of exactly `len` elements.
    pub(super) fn array(mut self, what: &str, tensor: &Tensor, dtype: DType, len: usize) -> Result<Self> {
        if tensor.dtype() != dtype {
            bail!("{what} is {:?}, not {dtype:?}", tensor.dtype())
        }
        if tensor.elem_count() != len {
            bail!("{what} has {} elements, not {len}", tensor.elem_count())
        }
        match tensor.device() {
            Device::Cuda(device) if device.id() == self.gpu.device().id() => {}
            _ => bail!("{what} is on another device"),
        }
        self.args.push(Arg::Address(gpu::address(tensor)?));
        Ok(self)
    }

    /// As `array`, or a null pointer.
    pub(super) fn maybe(mut self, what: &str, tensor: Option<&Tensor>, dtype: DType, len: usize) -> Result<Self> {
        if let Some(tensor) = tensor {
            return self.array(what, tensor, dtype, len);
        }
        self.args.push(Arg::Address(0));
        Ok(self)
    }

    /// The address of element `start` of a tensor that has at least `len` elements from there on.
    pub(super) fn part(mut self, what: &str, tensor: &Tensor, dtype: DType, start: usize, len: usize) -> Result<Self> {
        if tensor.elem_count() < start + len {
            bail!("{what} has {} elements, not {}", tensor.elem_count(), start + len)
        }
        self = self.array(what, tensor, dtype, tensor.elem_count())?;
        if let Some(Arg::Address(address)) = self.args.last_mut() {
            *address += (start * dtype.size_in_bytes()) as u64;
        }
        Ok(self)
    }

    /// A number that the kernel takes as `int`.
    pub(super) fn int(mut self, x: usize) -> Result<Self> {
        let Ok(x) = i32::try_from(x) else { bail!("{x} is more than a kernel can count") };
        self.args.push(Arg::I32(x));
        Ok(self)
    }

    pub(super) fn long(mut self, x: usize) -> Self {
        self.args.push(Arg::I64(x as i64));
        self
    }

    pub(super) fn float(mut self, x: f64) -> Self {
        self.args.push(Arg::F32(x as f32));
        self
    }

    pub(super) fn word(mut self, x: u32) -> Self {
        self.args.push(Arg::U32(x));
        self
    }

    pub(super) fn words(mut self, x: u64) -> Self {
        self.args.push(Arg::U64(x));
        self
    }

    /// Launches `kernel`.
    ///
    /// # Safety
    /// The arguments are the kernel's parameters in number, order and type, and the lengths that were asked of the arrays are
    /// those that it touches.
    pub(super) unsafe fn run(self, kernel: &'static str, dims: Dims) -> Result<()> {
        // SAFETY: the caller's promise; the arrays are on this device and as long as was asked.
        unsafe { self.gpu.launch(kernel, dims, &self.args) }
    }

    /// Blocks of 256 threads for a pass over `n` elements.
    pub(super) fn flat(&self, n: usize) -> Dims {
        const THREADS: usize = 256;
        Dims::of(n.div_ceil(THREADS * PIECE).clamp(1, self.gpu.multiprocessors() * 16), THREADS)
    }
}

/// The one of two kernels that takes tensors of type `dtype`: f32 or bf16.
pub(super) fn of_type(dtype: DType, [f32, bf16]: [&'static str; 2]) -> Result<&'static str> {
    match dtype {
        DType::F32 => Ok(f32),
        DType::BF16 => Ok(bf16),
        other => bail!("GPU kernels take f32 or bf16, not {other:?}"),
    }
}

/// `count` threads, as whole warps.
pub(super) fn warps(count: usize) -> usize {
    count.max(1).next_multiple_of(32)
}

/// Blocks whose warps take one row each.
pub(super) fn warp_per_row(rows: usize) -> Dims {
    const WARPS: usize = 8;
    Dims::of(rows.div_ceil(WARPS), WARPS * 32)
}

/// One block per row of `width` elements.
pub(super) fn block_per_row(rows: usize, width: usize) -> Dims {
    let threads = warps(width.div_ceil(PIECE)).min(256);
    Dims { grid: [rows as u32, 1, 1], block: [threads as u32, 1, 1], shared: 0 }
}
