//! Activations, sums, rotary embedding and dropout.

use candle_core::{Result, Tensor, bail};

use super::access::{table, tensor, write};
use super::cpu::dropout::DropoutMask;
use super::cpu::simd::inlined;
use super::cpu::{Stored, activation as cpu_activation, elementwise, rope};
use runner_spec::experiment::Activation;

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

/// `[rows, 2·width]` (gate, up) gives `[rows, width]`.
pub fn swiglu(gate_up: &Tensor) -> Result<Tensor> {
    on_gpu!(gate_up => super::cuda::pointwise::swiglu(gate_up));
    let (rows, twice) = gate_up.dims2()?;
    with_type!(gate_up, S; gate_up = gate_up => {
        tensor(cpu_activation::swiglu(gate_up, twice / 2), (rows, twice / 2))
    })
}

/// Returns dL/d(gate_up).
pub fn swiglu_backward(gate_up: &Tensor, dy: &Tensor) -> Result<Tensor> {
    on_gpu!(gate_up => super::cuda::pointwise::swiglu_backward(gate_up, dy));
    let (rows, twice) = gate_up.dims2()?;
    with_type!(gate_up, S; gate_up = gate_up, dy = dy => {
        tensor(cpu_activation::swiglu_backward(gate_up, dy, twice / 2), (rows, twice))
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

/// Tables of a rotary embedding, `[positions, head_dim/2]` each.
#[derive(Debug, Clone)]
pub struct Rope {
    cos: Tensor,
    sin: Tensor,
}

impl Rope {
    /// Tables on the device of `like`: f64 where `like` is, otherwise f32.
    pub fn new(positions: usize, head_dim: usize, theta: f64, like: &Tensor) -> Result<Self> {
        let (cos, sin) = rope::tables(positions, head_dim, theta);
        let shape = (positions, head_dim / 2);
        Ok(Self { cos: table(cos, shape, like)?, sin: table(sin, shape, like)? })
    }

    /// Rotates the first `heads` heads of the rows of `x`, in place; row r is at position `start + r mod seq`.
    pub fn rotate(&self, x: &Tensor, heads: usize, seq: usize, start: usize, inverse: bool) -> Result<()> {
        on_gpu!(x => super::cuda::pointwise::rotate(x, &self.cos, &self.sin, heads, seq, start, inverse));
        let (_, stride) = x.dims2()?;
        let (positions, half) = self.cos.dims2()?;
        if start + seq > positions {
            bail!("position {} is beyond the context length {positions}", start + seq - 1)
        }
        let head_dim = half * 2;
        with_type!(x, S => {
            read!(real!(S); cos = self.cos, sin = self.sin);
            write::<S>(x, "rope", |x| {
                rope::rotate(x, stride, heads, head_dim, seq, start, cos, sin, inverse);
            })
        })
    }
}
