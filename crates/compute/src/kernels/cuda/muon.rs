//! The passes of Muon.

use candle_core::{DType, Result, Tensor};

use super::launch::{Launch, LaunchDims, MuonDirection, MuonNormalize, MuonPolynomial, MuonStep, int, whole_warps};
use super::optimizer::sum_of_squares;
use crate::kernels::muon::{Momentum, Step};

/// See `kernels::muon::direction`. The norm stays on the device.
pub fn direction(
    m: &Tensor,
    g: &Tensor,
    shape: [usize; 2],
    rule: Momentum,
    dtype: DType,
    smallest: f64,
) -> Result<Tensor> {
    let (launch, n) = (Launch::for_tensor(m)?, m.elem_count());
    let sum = launch.gpu.empty(DType::F32, n)?;
    let parameters = MuonDirection {
        m: launch.array("moment", m, n)?,
        g: launch.array("gradients", g, n)?,
        u: launch.array("direction", &sum, n)?,
        n: n as i64,
        momentum: rule.momentum as f32,
        rest: ((1.0 - rule.momentum) * rule.grad_scale) as f32,
        nesterov: i32::from(rule.nesterov),
    };
    // SAFETY: n elements of each.
    unsafe { launch.run(&parameters, launch.dims_for_elements(n))? }
    let squares = sum_of_squares(&sum)?;
    let x = launch.gpu.empty(dtype, (shape[0], shape[1]))?;
    let launch = Launch::for_tensor(&x)?;
    let parameters = MuonNormalize {
        x: launch.array("direction", &x, n)?,
        u: launch.array("sum", &sum, n)?,
        squares: launch.array("squares", &squares, 1)?,
        n: n as i64,
        smallest: smallest as f32,
    };
    // SAFETY: n elements of x and u, and one of squares.
    unsafe { launch.run(&parameters, launch.dims_for_elements(n))? }
    Ok(x)
}

/// See `kernels::muon::polynomial`.
pub fn polynomial(square: &Tensor, gram: &Tensor, [a, b, c]: [f64; 3]) -> Result<()> {
    let (launch, n) = (Launch::for_tensor(gram)?, gram.dim(0)?);
    let parameters = MuonPolynomial {
        square: launch.array("square", square, n * n)?,
        gram: launch.array("gram", gram, n * n)?,
        n: int(n)?,
        a: a as f32,
        b: b as f32,
        c: c as f32,
    };
    // SAFETY: a block for each row of n elements.
    unsafe { launch.run(&parameters, LaunchDims::linear(n, whole_warps(n).min(256))) }
}

/// See `kernels::muon::step`.
pub fn step(w: &Tensor, x: &Tensor, step: Step) -> Result<()> {
    let (launch, n) = (Launch::for_tensor(w)?, w.elem_count());
    let parameters = MuonStep {
        w: launch.array("weights", w, n)?,
        x: launch.array_of("direction", x, x.dtype(), n)?,
        n: n as i64,
        rate: step.rate as f32,
        decay: step.decay as f32,
        cautious: i32::from(step.cautious),
    };
    // SAFETY: n elements of each, of the types that the name says.
    unsafe { launch.run_named(&[w.dtype().as_str(), x.dtype().as_str()], &parameters, launch.dims_for_elements(n)) }
}
