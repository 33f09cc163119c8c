//! Activations, sums, casts, rotary embedding and dropout.

use candle_core::{DType, Result, Tensor, bail};

use super::launch::{Launch, LaunchDims, block_per_row, kernel_for_type};
use crate::kernels::cpu::dropout::DropoutMask;
use runner_spec::experiment::Activation;

/// y = f(x), of the shape of `x` and of type `dtype`.
fn map(x: &Tensor, dtype: DType, kernel: &str) -> Result<Tensor> {
    let y = Launch::for_tensor(x)?.gpu.empty(dtype, x.shape())?;
    map_into(&y, x, kernel)?;
    Ok(y)
}

/// y = f(x). `kernel` must be for the types of both.
fn map_into(y: &Tensor, x: &Tensor, kernel: &str) -> Result<()> {
    let launch = Launch::for_tensor(x)?;
    let (n, dims) = (x.elem_count(), launch.dims_for_elements(x.elem_count()));
    let launch = launch.array("y", y, y.dtype(), n)?.array("x", x, x.dtype(), n)?.longs([n]);
    // SAFETY: (y, x, n).
    unsafe { launch.run(kernel, dims) }
}

/// y = f(y, x).
fn zip(y: &Tensor, x: &Tensor, kernel: &str) -> Result<()> {
    let launch = Launch::for_tensor(y)?;
    let (n, dims) = (y.elem_count(), launch.dims_for_elements(y.elem_count()));
    let launch = launch.array("y", y, y.dtype(), n)?.array("x", x, y.dtype(), n)?.longs([n]);
    // SAFETY: (y, x, n).
    unsafe { launch.run(&kernel_for_type(kernel, y.dtype())?, dims) }
}

pub fn activate(x: &Tensor, activation: Activation) -> Result<Tensor> {
    map(x, x.dtype(), &kernel_for_type(activation.names().name, x.dtype())?)
}

pub fn activate_backward(dy: &Tensor, x: &Tensor, activation: Activation) -> Result<()> {
    zip(dy, x, &format!("{}_backward", activation.names().name))
}

pub fn add_assign(y: &Tensor, x: &Tensor) -> Result<()> {
    zip(y, x, "add")
}

/// Converts f32 to bf16, or bf16 to f32.
pub fn cast(x: &Tensor) -> Result<Tensor> {
    let dtype = if x.dtype() == DType::BF16 { DType::F32 } else { DType::BF16 };
    let y = Launch::for_tensor(x)?.gpu.empty(dtype, x.shape())?;
    cast_into(&y, x)?;
    Ok(y)
}

/// Overwrites `y` with the numbers of `x`, which is of the other of the types f32 and bf16.
pub fn cast_into(y: &Tensor, x: &Tensor) -> Result<()> {
    match (x.dtype(), y.dtype()) {
        (DType::F32, DType::BF16) => map_into(y, x, "cast_f32_bf16"),
        (DType::BF16, DType::F32) => map_into(y, x, "cast_bf16_f32"),
        (from, to) => bail!("GPU kernels convert f32 and bf16, not {from:?} to {to:?}"),
    }
}

/// Adds the f32 `bias` to the rows of `x` (`[rows, bias.len()]`), in place. With `activated`, returns the GELU of the result.
pub(super) fn add_bias(x: &Tensor, bias: &Tensor, activated: bool) -> Result<Option<Tensor>> {
    let (rows, width) = x.dims2()?;
    let launch = Launch::for_tensor(x)?;
    let y = if activated { Some(launch.gpu.empty(x.dtype(), x.shape())?) } else { None };
    let launch = launch
        .array("x", x, x.dtype(), rows * width)?
        .array("y", y.as_ref(), x.dtype(), rows * width)?
        .array("bias", bias, DType::F32, width)?
        .ints([width])?;
    // SAFETY: (x, y, bias, width), a block for each row.
    unsafe { launch.run(&kernel_for_type("add_bias", x.dtype())?, block_per_row(rows, width))? }
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
    unsafe { launch.run(&kernel_for_type("swiglu", dtype)?, block_per_row(rows, width))? }
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
    unsafe { launch.run(&kernel_for_type("swiglu_backward", dtype)?, block_per_row(rows, width))? }
    Ok(dx)
}

/// Applies the same mask as on a CPU, bit for bit.
pub fn dropout(x: &Tensor, seq: usize, dropout: &DropoutMask) -> Result<()> {
    const THREADS: usize = 256;
    let (rows, width) = x.dims2()?;
    if seq == 0 || rows % seq != 0 {
        bail!("{rows} rows cannot be divided into samples of {seq}")
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
        .longs([dropout.threshold() as usize])
        .floats([1.0 / (1.0 - dropout.p)])
        .longs([dropout.first_sample as usize, dropout.sample_stride as usize])
        .uints([dropout.step as u32]);
    // SAFETY: (x, samples, width, key0, key1, threshold, keep, first, stride, step).
    unsafe { launch.run(&kernel_for_type("dropout", x.dtype())?, dims) }
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
    unsafe { launch.run(&kernel_for_type("rope", x.dtype())?, dims) }
}
