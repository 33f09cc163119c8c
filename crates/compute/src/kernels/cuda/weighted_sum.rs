//! Sums of coefficients times tensors.

use candle_core::{DType, Result, Tensor};

use super::launch::{Launch, SumTerms, WeightedSum, WeightedSumBackward, block_per_row, int, warp_per_row};
use crate::kernels::weighted_sum::{MOST_TERMS, Term, TermGradients};

/// See `kernels::weighted_sum::weighted_sum`.
pub fn weighted_sum(terms: &[Term<'_>], seq: usize) -> Result<Tensor> {
    let (rows, width) = terms[0].x.dims2()?;
    let launch = Launch::for_tensor(terms[0].x)?;
    let y = launch.gpu.empty(launch.dtype, (rows, width))?;
    let at = |index: usize| terms.get(index);
    let x = |index| launch.array("term", at(index).map(|term| term.x), rows * width);
    let gate = |index| {
        let gate = at(index).and_then(|term| term.gate);
        launch.array("gate", gate, gate.map_or(0, Tensor::elem_count))
    };
    let scalar = |index| launch.array("scalar", at(index).and_then(|term| Some(term.scalar?.0)), 1);
    let mut numbers = SumTerms {
        number: [0.0; MOST_TERMS],
        is_sigmoid: [0; MOST_TERMS],
        is_previous: [0; MOST_TERMS],
        groups: [1; MOST_TERMS],
    };
    for (index, term) in terms.iter().enumerate() {
        numbers.number[index] = term.number as f32;
        numbers.is_sigmoid[index] = i32::from(term.scalar.is_some_and(|(_, sigmoid)| sigmoid));
        numbers.is_previous[index] = i32::from(term.is_previous);
        numbers.groups[index] = int(term.groups()?)?;
    }
    let parameters = WeightedSum {
        y: launch.array("sum", &y, rows * width)?,
        x0: x(0)?,
        x1: x(1)?,
        x2: x(2)?,
        x3: x(3)?,
        g0: gate(0)?,
        g1: gate(1)?,
        g2: gate(2)?,
        g3: gate(3)?,
        s0: scalar(0)?,
        s1: scalar(1)?,
        s2: scalar(2)?,
        s3: scalar(3)?,
        terms: numbers,
        width: int(width)?,
        seq: int(seq)?,
    };
    // SAFETY: a block for each row; `Term::groups` has checked the gates' lengths.
    unsafe { launch.run(&parameters, block_per_row(rows, width))? }
    Ok(y)
}

/// See `kernels::weighted_sum::weighted_sum_backward`.
pub fn weighted_sum_backward(term: &Term<'_>, dy: &Tensor, seq: usize) -> Result<TermGradients> {
    let ((rows, width), groups) = (dy.dims2()?, term.groups()?);
    let launch = Launch::for_tensor(dy)?;
    let dx = launch.gpu.empty(launch.dtype, (rows, width))?;
    let dgate = term.gate.map(|_| launch.gpu.empty(launch.dtype, (rows, groups))).transpose()?;
    let dscalar = term.scalar.map(|_| launch.gpu.empty(DType::F32, (rows * groups, 1))).transpose()?;
    let parameters = WeightedSumBackward {
        dx: launch.array("gradient of the term", &dx, rows * width)?,
        dgate: launch.array("gradient of the gate", dgate.as_ref(), rows * groups)?,
        dscalar: launch.array("gradient of the scalar", dscalar.as_ref(), rows * groups)?,
        dy: launch.array("gradient", dy, rows * width)?,
        x: launch.array("term", term.x, rows * width)?,
        gate: launch.array("gate", term.gate, rows * groups)?,
        scalar: launch.array("scalar", term.scalar.map(|(scalar, _)| scalar), 1)?,
        number: term.number as f32,
        is_sigmoid: i32::from(term.scalar.is_some_and(|(_, sigmoid)| sigmoid)),
        is_previous: i32::from(term.is_previous),
        rows: rows as i64,
        groups: int(groups)?,
        width: int(width)?,
        seq: int(seq)?,
    };
    // SAFETY: a warp for each row and group of `groups` equal ones.
    unsafe { launch.run(&parameters, warp_per_row(rows * groups))? }
    Ok(TermGradients { x: dx, gate: dgate, scalar: dscalar })
}
