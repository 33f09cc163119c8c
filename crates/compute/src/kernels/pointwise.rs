//! Activations, sums, rotary embedding and dropout.

use candle_core::{Result, Tensor, bail};

use super::access::{StoredPrecision, table, tensor, write};
use super::cpu::dropout::DropoutMask;
use super::cpu::elementwise::round_if;
use super::cpu::simd::inlined;
use super::cpu::{Real, activation as cpu_activation, elementwise, rope};
use runner_spec::experiment::Activation;

/// GELU in the tanh form, or max(x, 0).
pub fn activate(x: &Tensor, activation: Activation, precision: StoredPrecision) -> Result<Tensor> {
    on_gpu!(x => super::cuda::pointwise::activate(x, activation));
    with_type!(x, T; values = x => {
        let mut y = vec![T::ZERO; x.elem_count()];
        match activation {
            Activation::Gelu => cpu_activation::gelu(values, &mut y, precision.bf16),
            Activation::Relu => cpu_activation::relu(values, &mut y),
        }
        tensor(y, x.shape())
    })
}

/// `dy` becomes dL/dx.
pub fn activate_backward(dy: &Tensor, x: &Tensor, activation: Activation, precision: StoredPrecision) -> Result<()> {
    on_gpu!(x => super::cuda::pointwise::activate_backward(dy, x, activation));
    with_type!(x, T; x = x => {
        write::<T>(dy, "activate_backward", |dy| match activation {
            Activation::Gelu => cpu_activation::gelu_backward(x, dy, precision.bf16),
            Activation::Relu => cpu_activation::relu_backward(x, dy),
        })
    })
}

/// [rows, 2·width] (gate, up) gives [rows, width].
pub fn swiglu(gate_up: &Tensor, precision: StoredPrecision) -> Result<Tensor> {
    on_gpu!(gate_up => super::cuda::pointwise::swiglu(gate_up));
    let (rows, twice) = gate_up.dims2()?;
    with_type!(gate_up, T; gate_up = gate_up => {
        let mut y = vec![T::ZERO; rows * twice / 2];
        cpu_activation::swiglu(gate_up, twice / 2, &mut y, precision.bf16);
        tensor(y, (rows, twice / 2))
    })
}

/// Returns dL/d(gate_up).
pub fn swiglu_backward(gate_up: &Tensor, dy: &Tensor, precision: StoredPrecision) -> Result<Tensor> {
    on_gpu!(gate_up => super::cuda::pointwise::swiglu_backward(gate_up, dy));
    let (rows, twice) = gate_up.dims2()?;
    with_type!(gate_up, T; gate_up = gate_up, dy = dy => {
        let mut dx = vec![T::ZERO; rows * twice];
        cpu_activation::swiglu_backward(gate_up, dy, twice / 2, &mut dx, precision.bf16);
        tensor(dx, (rows, twice))
    })
}

/// y += x.
pub fn add_assign(y: &Tensor, x: &Tensor, precision: StoredPrecision) -> Result<()> {
    on_gpu!(y => super::cuda::pointwise::add_assign(y, x));
    with_type!(y, T; x = x => {
        write::<T>(y, "add_assign", |y| elementwise::zip(y, x, inlined!(|y, x| *y = round_if(*y + x, precision.bf16))))
    })
}

/// Drops elements of `x` ([samples·seq, width]) in place; a backward applies it to the gradient.
pub fn dropout(x: &Tensor, seq: usize, dropout: &DropoutMask, precision: StoredPrecision) -> Result<()> {
    on_gpu!(x => super::cuda::pointwise::dropout(x, seq, dropout));
    let (_, width) = x.dims2()?;
    with_type!(x, T => write::<T>(x, "dropout", |x| dropout.apply_all(x, seq * width, precision.bf16)))
}

/// Tables of a rotary embedding, [positions, head_dim/2] each.
#[derive(Debug, Clone)]
pub struct Rope {
    cos: Tensor,
    sin: Tensor,
}

impl Rope {
    /// Tables on the device of `like` and of its element type; f32 on a GPU.
    pub fn new(positions: usize, head_dim: usize, theta: f64, like: &Tensor) -> Result<Self> {
        let (cos, sin) = rope::tables(positions, head_dim, theta);
        let shape = (positions, head_dim / 2);
        Ok(Self { cos: table(cos, shape, like)?, sin: table(sin, shape, like)? })
    }

    /// Rotates the first `heads` heads of the rows of `x`, in place; row r is at position `start + r mod seq`.
    pub fn rotate(
        &self,
        x: &Tensor,
        heads: usize,
        seq: usize,
        start: usize,
        inverse: bool,
        precision: StoredPrecision,
    ) -> Result<()> {
        on_gpu!(x => super::cuda::pointwise::rotate(x, &self.cos, &self.sin, heads, seq, start, inverse));
        let (_, stride) = x.dims2()?;
        let (positions, half) = self.cos.dims2()?;
        if start + seq > positions {
            bail!("position {} is beyond the context length {positions}", start + seq - 1)
        }
        let head_dim = half * 2;
        with_type!(x, T; cos = self.cos, sin = self.sin => {
            write::<T>(x, "rope", |x| {
                rope::rotate(x, stride, heads, head_dim, seq, start, cos, sin, inverse, precision.bf16);
            })
        })
    }
}
