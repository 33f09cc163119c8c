//! Activations, sums, casts, rotary embedding and dropout.

use candle_core::{DType, Result, Tensor, bail};

use super::launch::{
    Activate, ActivateBackward, Add, AddBias, Cast, CopyColumns, Dropout, Gated, GatedBackward, Launch, LaunchDims,
    Rope, Softcap, block_per_row, int,
};
use crate::kernels::cpu::dropout::DropoutMask;
use runner_spec::experiment::Activation;

pub fn activate(x: &Tensor, activation: Activation) -> Result<Tensor> {
    let launch = Launch::for_tensor(x)?;
    let (y, n) = (launch.gpu.empty(x.dtype(), x.shape())?, x.elem_count());
    let parameters = Activate { y: launch.array("y", &y, n)?, x: launch.array("x", x, n)?, n: n as i64 };
    let name = [launch.dtype.as_str(), activation.names().name];
    // SAFETY: n elements of each.
    unsafe { launch.run_named(&name, &parameters, launch.dims_for_elements(n))? }
    Ok(y)
}

pub fn activate_backward(dy: &Tensor, x: &Tensor, activation: Activation) -> Result<()> {
    let (launch, n) = (Launch::for_tensor(dy)?, dy.elem_count());
    let parameters = ActivateBackward { dy: launch.array("dy", dy, n)?, x: launch.array("x", x, n)?, n: n as i64 };
    let name = [launch.dtype.as_str(), activation.names().name];
    // SAFETY: n elements of each.
    unsafe { launch.run_named(&name, &parameters, launch.dims_for_elements(n)) }
}

pub fn add_assign(y: &Tensor, x: &Tensor) -> Result<()> {
    let (launch, n) = (Launch::for_tensor(y)?, y.elem_count());
    let parameters = Add { y: launch.array("y", y, n)?, x: launch.array("x", x, n)?, n: n as i64 };
    // SAFETY: n elements of each.
    unsafe { launch.run(&parameters, launch.dims_for_elements(n)) }
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
    let (launch, n) = (Launch::for_tensor(x)?, x.elem_count());
    let parameters = Cast { y: launch.array_of("y", y, y.dtype(), n)?, x: launch.array("x", x, n)?, n: n as i64 };
    // SAFETY: n elements of each, of the types that the name says.
    unsafe { launch.run_named(&[x.dtype().as_str(), y.dtype().as_str()], &parameters, launch.dims_for_elements(n)) }
}

/// Adds the f32 `bias` to the rows of `x` (`[rows, bias.len()]`), in place. With `activated`, returns the GELU of the result.
pub(super) fn add_bias(x: &Tensor, bias: &Tensor, activated: bool) -> Result<Option<Tensor>> {
    let (rows, width) = x.dims2()?;
    let launch = Launch::for_tensor(x)?;
    let y = if activated { Some(launch.gpu.empty(x.dtype(), x.shape())?) } else { None };
    let parameters = AddBias {
        x: launch.array("x", x, rows * width)?,
        y: launch.array("y", y.as_ref(), rows * width)?,
        bias: launch.array("bias", bias, width)?,
        width: int(width)?,
    };
    // SAFETY: a block for each row.
    unsafe { launch.run(&parameters, block_per_row(rows, width))? }
    Ok(y)
}

pub fn gated(gate_up: &Tensor, activation: Activation) -> Result<Tensor> {
    let (rows, twice) = gate_up.dims2()?;
    let (width, dtype) = (twice / 2, gate_up.dtype());
    let launch = Launch::for_tensor(gate_up)?;
    let y = launch.gpu.empty(dtype, (rows, width))?;
    let parameters = Gated {
        y: launch.array("y", &y, rows * width)?,
        gate_up: launch.array("gate_up", gate_up, rows * 2 * width)?,
        width: int(width)?,
    };
    // SAFETY: a block for each row.
    unsafe { launch.run_named(&[dtype.as_str(), activation.names().name], &parameters, block_per_row(rows, width))? }
    Ok(y)
}

pub fn gated_backward(gate_up: &Tensor, dy: &Tensor, activation: Activation) -> Result<Tensor> {
    let (rows, twice) = gate_up.dims2()?;
    let (width, dtype) = (twice / 2, gate_up.dtype());
    let launch = Launch::for_tensor(gate_up)?;
    let dx = launch.gpu.empty(dtype, (rows, twice))?;
    let parameters = GatedBackward {
        dgate_up: launch.array("dx", &dx, rows * 2 * width)?,
        gate_up: launch.array("gate_up", gate_up, rows * 2 * width)?,
        dy: launch.array("dy", dy, rows * width)?,
        width: int(width)?,
    };
    // SAFETY: a block for each row.
    unsafe { launch.run_named(&[dtype.as_str(), activation.names().name], &parameters, block_per_row(rows, width))? }
    Ok(dx)
}

pub fn softcap(x: &Tensor, cap: f64) -> Result<()> {
    let (launch, n) = (Launch::for_tensor(x)?, x.elem_count());
    let parameters = Softcap { x: launch.array("x", x, n)?, cap: cap as f32, n: n as i64 };
    // SAFETY: n elements.
    unsafe { launch.run(&parameters, launch.dims_for_elements(n)) }
}

pub fn take_columns(x: &Tensor, from: usize, width: usize) -> Result<Tensor> {
    let (rows, stride) = x.dims2()?;
    if from + width > stride {
        bail!("columns {from} to {} of rows of {stride}", from + width)
    }
    let launch = Launch::for_tensor(x)?;
    let taken = launch.gpu.empty(x.dtype(), (rows, width))?;
    let parameters = CopyColumns {
        to: launch.array("columns", &taken, rows * width)?,
        from: launch.array_part("rows", x, from, rows * stride - from)?,
        to_stride: int(width)?,
        from_stride: int(stride)?,
        width: int(width)?,
    };
    // SAFETY: a block for each row.
    unsafe { launch.run(&parameters, block_per_row(rows, width))? }
    Ok(taken)
}

pub fn put_columns(x: &Tensor, part: &Tensor, from: usize) -> Result<()> {
    let ((rows, stride), (parts, width)) = (x.dims2()?, part.dims2()?);
    if from + width > stride || rows != parts {
        bail!("columns {from} to {} of {parts} rows in {rows} rows of {stride}", from + width)
    }
    let launch = Launch::for_tensor(x)?;
    let parameters = CopyColumns {
        to: launch.array_part("rows", x, from, rows * stride - from)?,
        from: launch.array("columns", part, rows * width)?,
        to_stride: int(stride)?,
        from_stride: int(width)?,
        width: int(width)?,
    };
    // SAFETY: a block for each row.
    unsafe { launch.run(&parameters, block_per_row(rows, width)) }
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
    let parameters = Dropout {
        x: launch.array("x", x, samples * width)?,
        samples: int(samples)?,
        width: width as i64,
        key0,
        key1,
        threshold: dropout.threshold(),
        keep: (1.0 / (1.0 - dropout.p)) as f32,
        first: dropout.first_sample,
        stride: dropout.sample_stride,
        step: dropout.step as u32,
    };
    // SAFETY: `samples` rows of `width`.
    unsafe { launch.run(&parameters, dims) }
}

/// `cos` and `sin`, f32, have a row for each position, of half as many numbers as dimensions of a head are rotated.
pub fn rotate(
    x: &Tensor,
    [cos, sin]: [&Tensor; 2],
    heads: usize,
    head_dim: usize,
    seq: usize,
    start: usize,
    inverse: bool,
) -> Result<()> {
    let (rows, stride) = x.dims2()?;
    let (positions, half) = cos.dims2()?;
    if seq == 0 || start + seq > positions || heads * head_dim > stride || 2 * half > head_dim {
        bail!("{heads} heads of {head_dim} in rows of {stride}, positions to {} of {positions}", start + seq)
    }
    let launch = Launch::for_tensor(x)?;
    let parameters = Rope {
        x: launch.array("x", x, rows * stride)?,
        cos: launch.array("cos", cos, positions * half)?,
        sin: launch.array("sin", sin, positions * half)?,
        stride: int(stride)?,
        heads: int(heads)?,
        width: int(head_dim)?,
        half: int(half)?,
        seq: int(seq)?,
        start: int(start)?,
        sign: if inverse { -1.0 } else { 1.0 },
    };
    // SAFETY: a block for each row; positions are below start + seq.
    unsafe { launch.run(&parameters, block_per_row(rows, heads * half)) }
}
