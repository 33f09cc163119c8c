//! Activations, sums, rotary embedding and dropout.

use candle_core::{Result, Tensor, bail};

use super::access::{table, tensor, write};
use super::cpu::dropout::DropoutMask;
use super::cpu::simd::inlined;
use super::cpu::{Stored, activation as cpu_activation, elementwise, rope};
use runner_spec::experiment::Activation;
use runner_spec::model::Rotary;

/// y = f(x), element by element.
pub fn activate(x: &Tensor, activation: Activation) -> Result<Tensor> {
    on_gpu!(x => super::cuda::pointwise::activate(x, activation));
    with_type!(x, S; values = x => tensor(cpu_activation::activate::<S>(activation, values), x.shape()))
}

/// `dy` becomes dL/dx.
pub fn activate_backward(dy: &Tensor, x: &Tensor, activation: Activation) -> Result<()> {
    on_gpu!(x => super::cuda::pointwise::activate_backward(dy, x, activation));
    with_type!(x, S; x = x => {
        write::<S>(dy, "activate_backward", |dy| cpu_activation::activate_backward(activation, x, dy))
    })
}

/// The activation of the gate, times up: `[rows, 2·width]` (gate, up) gives `[rows, width]`.
pub fn gated(gate_up: &Tensor, activation: Activation) -> Result<Tensor> {
    on_gpu!(gate_up => super::cuda::pointwise::gated(gate_up, activation));
    let (rows, twice) = gate_up.dims2()?;
    with_type!(gate_up, S; gate_up = gate_up => {
        tensor(cpu_activation::gated(activation, gate_up, twice / 2), (rows, twice / 2))
    })
}

/// Returns dL/d(gate_up).
pub fn gated_backward(gate_up: &Tensor, dy: &Tensor, activation: Activation) -> Result<Tensor> {
    on_gpu!(gate_up => super::cuda::pointwise::gated_backward(gate_up, dy, activation));
    let (rows, twice) = gate_up.dims2()?;
    with_type!(gate_up, S; gate_up = gate_up, dy = dy => {
        tensor(cpu_activation::gated_backward(activation, gate_up, dy, twice / 2), (rows, twice))
    })
}

/// x becomes c·tanh(x/c), in place.
pub fn softcap(x: &Tensor, cap: f64) -> Result<()> {
    on_gpu!(x => super::cuda::pointwise::softcap(x, cap));
    with_type!(x, S => write::<S>(x, "softcap", |x| cpu_activation::softcap(x, cap)))
}

/// Columns `from .. from + width` of `x`, `[rows, width]`.
pub fn take_columns(x: &Tensor, from: usize, width: usize) -> Result<Tensor> {
    on_gpu!(x => super::cuda::pointwise::take_columns(x, from, width));
    let (rows, stride) = x.dims2()?;
    with_type!(x, S; x = x => tensor(elementwise::take_columns::<S>(x, stride, from, width), (rows, width)))
}

/// Copies the rows of `part` into the columns of `x` from `from` on.
pub fn put_columns(x: &Tensor, part: &Tensor, from: usize) -> Result<()> {
    on_gpu!(x => super::cuda::pointwise::put_columns(x, part, from));
    let ((_, stride), (_, width)) = (x.dims2()?, part.dims2()?);
    with_type!(x, S; part = part => {
        write::<S>(x, "put_columns", |x| elementwise::put_columns(x, stride, from, part, width))
    })
}

/// y += x.
pub fn add_assign(y: &Tensor, x: &Tensor) -> Result<()> {
    on_gpu!(y => super::cuda::pointwise::add_assign(y, x));
    with_type!(y, S; x = x => {
        let add = inlined!(|y: &mut S, x: S| *y = S::store(y.load() + x.load()));
        write::<S>(y, "add_assign", |y| elementwise::zip(y, x, add))
    })
}

/// Drops elements of `x` (`[samples·seq, width]`) in place; a backward applies it to the gradient.
pub fn dropout(x: &Tensor, seq: usize, dropout: &DropoutMask) -> Result<()> {
    on_gpu!(x => super::cuda::pointwise::dropout(x, seq, dropout));
    let (_, width) = x.dims2()?;
    with_type!(x, S => write::<S>(x, "dropout", |x| dropout.apply_all(x, seq * width)))
}

/// Tables of a rotary embedding, `[positions, rotated dimensions / 2]` each.
#[derive(Debug, Clone)]
pub struct Rope {
    cos: Tensor,
    sin: Tensor,
    head_dim: usize,
}

impl Rope {
    /// Tables on the device of `like`: f64 where `like` is, otherwise f32.
    pub fn new(rotary: &Rotary, like: &Tensor) -> Result<Self> {
        let (cos, sin) = rope::tables(rotary.context_length, &rotary.frequencies(), rotary.factor());
        let shape = (rotary.context_length, rotary.dims / 2);
        Ok(Self { cos: table(cos, shape, like)?, sin: table(sin, shape, like)?, head_dim: rotary.head_dim })
    }

    /// Rotates the first `heads` heads of the rows of `x`, in place; row r is at position `start + r mod seq`.
    pub fn rotate(&self, x: &Tensor, heads: usize, seq: usize, start: usize, inverse: bool) -> Result<()> {
        on_gpu!(x => super::cuda::pointwise::rotate(x, [&self.cos, &self.sin], heads, self.head_dim, seq, start, inverse));
        let (_, stride) = x.dims2()?;
        let (positions, half) = self.cos.dims2()?;
        if start + seq > positions {
            bail!("position {} is beyond the context length {positions}", start + seq - 1)
        }
        with_type!(x, S => {
            read!(real!(S); cos = self.cos, sin = self.sin);
            write::<S>(x, "rope", |x| {
                rope::rotate(x, stride, heads, self.head_dim, half, seq, start, cos, sin, inverse);
            })
        })
    }
}
