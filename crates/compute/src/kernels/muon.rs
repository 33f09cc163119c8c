//! The passes of Muon: the momentum's direction, the polynomial of its iteration, and the update of the weights.

use candle_core::{DType, Result, Tensor, bail};
use half::bf16;

use super::access::{tensor, write};
use super::cpu::simd::inlined;
use super::cpu::{Real, Stored, elementwise};

/// Directions with a smaller norm are divided by this one, as in `torch.optim.Muon`.
const SMALLEST_NORM: f64 = 1e-7;

/// The numbers of a momentum's update.
#[derive(Debug, Clone, Copy)]
pub struct Momentum {
    pub momentum: f64,
    pub nesterov: bool,
    /// Factor on the gradients.
    pub grad_scale: f64,
}

/// The numbers of an update of weights.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// Factor on the direction.
    pub rate: f64,
    /// The part of a weight that decays.
    pub decay: f64,
    /// True if only weights decay that the update moves towards zero.
    pub cautious: bool,
}

/// m becomes momentum·m + (1−momentum)·g. Returns that mean, or with Nesterov the mean after one more such update, divided by its L2 norm,
/// as a tensor of `shape` and type `dtype`: the type of `m`, or bf16. `m` and `g` are flat and of one type.
///
/// # Errors
/// If types or lengths differ from this, or an error of the device.
pub fn direction(m: &Tensor, g: &Tensor, shape: [usize; 2], rule: Momentum, dtype: DType) -> Result<Tensor> {
    if m.elem_count() != g.elem_count() || m.elem_count() != shape[0] * shape[1] {
        bail!("{} moments and {} gradients of a matrix {shape:?}", m.elem_count(), g.elem_count())
    }
    on_gpu!(m => super::cuda::muon::direction(m, g, shape, rule, dtype, SMALLEST_NORM));
    let Momentum { momentum, nesterov, grad_scale } = rule;
    with_type!(m, S => {
        type R = real!(S);
        let (momentum, rest) = (R::real(momentum), R::real((1.0 - momentum) * grad_scale));
        read!(S; g = g);
        write::<S>(m, "momentum", |m| elementwise::zip_real(m, g, inlined!(|m: R, g: R| momentum.fma(m, rest * g))))?;
        read!(S; m = m);
        let mut direction: Vec<R> = elementwise::map(m, inlined!(|m: S| m.load()));
        if nesterov {
            elementwise::zip(&mut direction, g, inlined!(|m: &mut R, g: S| *m = momentum.fma(*m, rest * g.load())));
        }
        let squares: f64 = elementwise::squares_by_task::<R>(&direction).iter().sum();
        let inverse = R::real(1.0 / squares.sqrt().max(SMALLEST_NORM));
        if dtype == DType::BF16 {
            let rounded = inlined!(|x: R| <bf16 as Stored>::store((x * inverse).double() as f32));
            tensor(elementwise::map(&direction, rounded), shape.as_slice())
        } else {
            tensor(elementwise::map(&direction, inlined!(|x: R| x * inverse)), shape.as_slice())
        }
    })
}

/// `square` becomes a·1 + b·`gram` + c·`square`, of matrices `[n, n]`.
///
/// # Errors
/// If types or shapes differ, or an error of the device.
pub fn polynomial(square: &Tensor, gram: &Tensor, [a, b, c]: [f64; 3]) -> Result<()> {
    let (n, width) = gram.dims2()?;
    if n != width || square.dims2()? != (n, n) {
        bail!("a polynomial of matrices {:?} and {:?}", gram.dims(), square.dims())
    }
    on_gpu!(gram => super::cuda::muon::polynomial(square, gram, [a, b, c]));
    with_type!(gram, S; gram = gram => {
        type R = real!(S);
        let [a, b, c] = [a, b, c].map(R::real);
        write::<S>(square, "polynomial", |square| {
            let diagonal: Vec<R> = (0..n).map(|i| b * gram[i * n + i].load() + c * square[i * n + i].load() + a).collect();
            elementwise::zip_real(square, gram, inlined!(|square: R, gram: R| b * gram + c * square));
            diagonal.into_iter().enumerate().for_each(|(i, value)| square[i * n + i] = S::store(value));
        })
    })
}

/// w becomes w − decay·w − rate·x. `x` is of the type of `w`, or bf16.
///
/// # Errors
/// If lengths differ, or an error of the device.
pub fn step(w: &Tensor, x: &Tensor, step: Step) -> Result<()> {
    if w.elem_count() != x.elem_count() {
        bail!("{} weights and {} directions", w.elem_count(), x.elem_count())
    }
    on_gpu!(w => super::cuda::muon::step(w, x, step));
    if x.dtype() == w.dtype() {
        with_type!(w, S; x = x => write::<S>(w, "muon", |w| step_of::<S, S>(w, x, step)))
    } else {
        read!(bf16; x = x);
        with_type!(w, S => write::<S>(w, "muon", |w| step_of::<S, bf16>(w, x, step)))
    }
}

fn step_of<S: Stored, X: Stored>(w: &mut [S], x: &[X], step: Step) {
    let [rate, decay] = [step.rate, step.decay].map(<S::Real as Real>::real);
    let (keep, cautious) = (<S::Real as Real>::ONE - decay, step.cautious);
    elementwise::zip(
        w,
        x,
        inlined!(|w: &mut S, x: X| {
            let (old, x) = (w.load(), <S::Real as Real>::real(x.load().double()));
            let kept = if cautious && old * x < <S::Real as Real>::ZERO { old } else { old * keep };
            *w = S::store(kept - rate * x);
        }),
    );
}
