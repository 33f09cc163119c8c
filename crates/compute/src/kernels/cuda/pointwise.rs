//! Activations, sums, casts, rotary embedding and dropout.

use candle_core::{DType, Result, Tensor, bail};

use super::launch::{Launch, block_per_row, kernel_for_type, typed};
use crate::gpu::LaunchDims;
use crate::kernels::cpu::dropout::DropoutMask;

/// y = f(x), of the shape of `x` and of type `dtype`.
fn map(x: &Tensor, dtype: DType, kernel: &'static str) -> Result<Tensor> {
    let launch = Launch::for_tensor(x)?;
    let (n, dims) = (x.elem_count(), launch.dims_for_elements(x.elem_count()));
    let y = launch.gpu.empty(dtype, x.shape())?;
    let launch = launch.array("y", &y, dtype, n)?.array("x", x, x.dtype(), n)?.longs([n]);
    // SAFETY: (y, x, n).
    unsafe { launch.run(kernel, dims)? }
    Ok(y)
}

/// y = f(y, x).
fn zip(y: &Tensor, x: &Tensor, kernels: [&'static str; 2]) -> Result<()> {
    let launch = Launch::for_tensor(y)?;
    let (n, dims) = (y.elem_count(), launch.dims_for_elements(y.elem_count()));
    let launch = launch.array("y", y, y.dtype(), n)?.array("x", x, y.dtype(), n)?.longs([n]);
    // SAFETY: (y, x, n).
    unsafe { launch.run(kernel_for_type(y.dtype(), kernels)?, dims) }
}

pub fn gelu(x: &Tensor) -> Result<Tensor> {
    map(x, x.dtype(), kernel_for_type(x.dtype(), typed!("gelu"))?)
}

pub fn gelu_backward(dy: &Tensor, x: &Tensor) -> Result<()> {
    zip(dy, x, typed!("gelu_backward"))
}

pub fn relu(x: &Tensor) -> Result<Tensor> {
    map(x, x.dtype(), kernel_for_type(x.dtype(), typed!("relu"))?)
}

pub fn relu_backward(dy: &Tensor, x: &Tensor) -> Result<()> {
    zip(dy, x, typed!("relu_backward"))
}

pub fn add_assign(y: &Tensor, x: &Tensor) -> Result<()> {
    zip(y, x, typed!("add"))
}

/// Converts f32 to bf16, or bf16 to f32.
pub fn cast(x: &Tensor) -> Result<Tensor> {
    match x.dtype() {
        DType::F32 => map(x, DType::BF16, "cast_f32_bf16"),
        _ => map(x, DType::F32, kernel_for_type(x.dtype(), ["", "cast_bf16_f32"])?),
    }
}

/// Adds the f32 `bias` to the rows of `x` ([rows, bias.len()]), in place. With `activated`, returns the GELU of the result.
pub(super) fn add_bias(x: &Tensor, bias: &Tensor, activated: bool) -> Result<Option<Tensor>> {
    let (rows, width) = x.dims2()?;
    let launch = Launch::for_tensor(x)?;
    let y = if activated { Some(launch.gpu.empty(x.dtype(), x.shape())?) } else { None };
    let launch = launch
        .array("x", x, x.dtype(), rows * width)?
        .optional_array("y", y.as_ref(), x.dtype(), rows * width)?
        .array("bias", bias, DType::F32, width)?
        .ints([width])?;
    // SAFETY: (x, y, bias, width), a block for each row.
    unsafe { launch.run(kernel_for_type(x.dtype(), typed!("add_bias"))?, block_per_row(rows, width))? }
    Ok(y)
}

pub fn swiglu(gate_up: &Tensor) -> Result<Tensor> {
    let (rows, twice) = gate_up.dims2()?;
    let (width, dtype) = (twice / 2, gate_up.dtype());
    let launch = Launch::for_tensor(gate_up)?;
    let y = launch.gpu.empty(dtype, (rows, width))?;
    let launch = launch
        .array("y", &y, dtype, rows * width)?
        .array("gate_up", gate_up, dtype, rows * 2 * width)?
        .ints([width])?;
    // SAFETY: (y, gate_up, width), a block for each row.
    unsafe { launch.run(kernel_for_type(dtype, typed!("swiglu"))?, block_per_row(rows, width))? }
    Ok(y)
}

pub fn swiglu_backward(gate_up: &Tensor, dy: &Tensor) -> Result<Tensor> {
    let (rows, twice) = gate_up.dims2()?;
    let (width, dtype) = (twice / 2, gate_up.dtype());
    let launch = Launch::for_tensor(gate_up)?;
    let dx = launch.gpu.empty(dtype, (rows, twice))?;
    let launch = launch
        .array("dx", &dx, dtype, rows * 2 * width)?
        .array("gate_up", gate_up, dtype, rows * 2 * width)?
        .array("dy", dy, dtype, rows * width)?
        .ints([width])?;
    // SAFETY: (dx, gate_up, dy, width), a block for each row.
    unsafe { launch.run(kernel_for_type(dtype, typed!("swiglu_backward"))?, block_per_row(rows, width))? }
    Ok(dx)
}

/// Applies the same mask as on a CPU, bit for bit.
pub fn dropout(x: &Tensor, seq: usize, dropout: &DropoutMask) -> Result<()> {
    const THREADS: usize = 256;
    let (rows, width) = x.dims2()?;
    if seq == 0 || rows % seq != 0 {
        bail!("{rows} rows are no samples of {seq}")
    }
    let (samples, width) = (rows / seq, seq * width);
    let launch = Launch::for_tensor(x)?;
    let wide = launch.dims_for_elements(width);
    let dims =
        LaunchDims { grid: [wide.grid[0], samples.min(65_535) as u32, 1], block: [THREADS as u32, 1, 1], shared: 0 };
    let [key0, key1] = dropout.stream.key();
    let launch = launch
        .array("x", x, x.dtype(), samples * width)?
        .ints([samples])?
        .longs([width])
        .uints([key0, key1])
        .ulongs([dropout.threshold()])
        .floats([1.0 / (1.0 - dropout.p)])
        .ulongs([dropout.first_sample])
        .ulongs([dropout.sample_stride])
        .uints([dropout.step as u32]);
    // SAFETY: (x, samples, width, key0, key1, threshold, keep, first, stride, step).
    unsafe { launch.run(kernel_for_type(x.dtype(), typed!("dropout"))?, dims) }
}

/// `cos` and `sin`, f32, have a row of head_dim/2 for each position.
pub fn rotate(
    x: &Tensor,
    cos: &Tensor,
    sin: &Tensor,
    heads: usize,
    seq: usize,
    start: usize,
    inverse: bool,
) -> Result<()> {
    let (rows, stride) = x.dims2()?;
    let (positions, half) = cos.dims2()?;
    if seq == 0 || start + seq > positions || heads * 2 * half > stride {
        bail!("{heads} heads of {} in rows of {stride}, positions to {} of {positions}", 2 * half, start + seq)
    }
    let dims = block_per_row(rows, heads * half);
    let launch = Launch::for_tensor(x)?
        .array("x", x, x.dtype(), rows * stride)?
        .array("cos", cos, DType::F32, positions * half)?
        .array("sin", sin, DType::F32, positions * half)?
        .ints([stride, heads, half, seq, start])?
        .floats([if inverse { -1.0 } else { 1.0 }]);
    // SAFETY: (x, cos, sin, stride, heads, half, seq, start, sign), a block for each row; positions are below start + seq.
    unsafe { launch.run(kernel_for_type(x.dtype(), typed!("rope"))?, dims) }
}
