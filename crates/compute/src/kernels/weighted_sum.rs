//! Σ coefficient × tensor over rows, where coefficients are numbers, trained scalars, and gates, one for each group of a row's channels.

use candle_core::{Result, Tensor, bail};

use super::access::{copied, tensor};
use super::cpu::{Real, weighted_sum as cpu};
pub use runner_spec::model::MOST_TERMS;

/// One term.
#[derive(Debug, Clone, Copy)]
pub struct Term<'a> {
    /// `[rows, width]`.
    pub x: &'a Tensor,
    pub number: f64,
    /// A trained number of one element, f32 or f64, and whether its sigmoid is the coefficient.
    pub scalar: Option<(&'a Tensor, bool)>,
    /// `[rows, groups]`: the sigmoid of each is the coefficient of one of the equal groups of a row's channels.
    pub gate: Option<&'a Tensor>,
    /// True if each row reads the row before it, and the first row of a sequence zeros.
    pub is_previous: bool,
}

/// The gradients of a term: of its tensor, `[rows, width]`; of its gate's logits, `[rows, groups]`; of its scalar, the part of each row and
/// group, `[rows·groups, 1]`.
#[derive(Debug)]
pub struct TermGradients {
    pub x: Tensor,
    pub gate: Option<Tensor>,
    pub scalar: Option<Tensor>,
}

impl Term<'_> {
    pub(super) fn groups(&self) -> Result<usize> {
        let ((rows, width), groups) = (self.x.dims2()?, self.gate.map_or(Ok((self.x.dim(0)?, 1)), Tensor::dims2)?);
        if groups.0 != rows || groups.1 == 0 || !width.is_multiple_of(groups.1) {
            bail!("gates {groups:?} of a term of {rows} rows of {width}")
        }
        Ok(groups.1)
    }
}

/// The sum of `terms`, of which there are at most [`MOST_TERMS`], in rows of which `seq` follow each other.
pub fn weighted_sum(terms: &[Term<'_>], seq: usize) -> Result<Tensor> {
    let Some(first) = terms.first().filter(|_| terms.len() <= MOST_TERMS) else {
        bail!("a sum of {} terms", terms.len())
    };
    let (rows, width) = first.x.dims2()?;
    if terms.iter().any(|term| term.x.dims() != first.x.dims()) || seq == 0 || rows % seq != 0 {
        bail!("terms of different shapes, or {rows} rows in sequences of {seq}")
    }
    on_gpu!(first.x => super::cuda::weighted_sum::weighted_sum(terms, seq));
    with_type!(first.x, S => {
        let mut scalars = Vec::new();
        for term in terms {
            scalars.push(copied::<real!(S)>(term.scalar.map(|(scalar, _)| scalar))?);
        }
        let guards: Vec<_> = terms.iter().map(|term| (term.x.storage_and_layout(), term.gate.map(Tensor::storage_and_layout))).collect();
        let mut inputs = Vec::new();
        for ((term, scalar), (x, gate)) in terms.iter().zip(&scalars).zip(&guards) {
            let gate = gate.as_ref().map(|gate| super::access::elements::<S>(&gate.0, gate.1)).transpose()?;
            inputs.push(cpu::Term {
                x: super::access::elements::<S>(&x.0, x.1)?,
                coefficient: coefficient(term, scalar.as_deref(), gate)?,
                is_previous: term.is_previous,
            });
        }
        tensor(cpu::weighted_sum(&inputs, width, seq), (rows, width))
    })
}

/// The gradients of `term`, one of a sum whose gradient is `dy`.
pub fn weighted_sum_backward(term: &Term<'_>, dy: &Tensor, seq: usize) -> Result<TermGradients> {
    let ((rows, width), groups) = (dy.dims2()?, term.groups()?);
    if term.x.dims() != dy.dims() || seq == 0 || rows % seq != 0 {
        bail!("a gradient of another shape than its term, or {rows} rows in sequences of {seq}")
    }
    on_gpu!(dy => super::cuda::weighted_sum::weighted_sum_backward(term, dy, seq));
    with_type!(dy, S => {
        let scalar = copied::<real!(S)>(term.scalar.map(|(scalar, _)| scalar))?;
        read!(S; dy = dy, x = term.x);
        read_optional!(S; gate = term.gate);
        let input = cpu::Term { x, coefficient: coefficient(term, scalar.as_deref(), gate)?, is_previous: term.is_previous };
        let (dx, dgate, dscalar) = cpu::weighted_sum_backward(&input, dy, width, seq);
        Ok(TermGradients {
            x: tensor(dx, (rows, width))?,
            gate: dgate.map(|gate| tensor(gate, (rows, groups))).transpose()?,
            scalar: dscalar.map(|scalar| tensor(scalar, (rows * groups, 1))).transpose()?,
        })
    })
}

fn coefficient<'a, S: super::cpu::Stored>(
    term: &Term<'_>,
    scalar: Option<&[S::Real]>,
    gate: Option<&'a [S]>,
) -> Result<cpu::Coefficient<'a, S>> {
    let scalar = match (scalar, term.scalar) {
        (Some(&[scalar]), Some((_, sigmoid))) => Some((scalar, sigmoid)),
        (Some(_), _) => bail!("a scalar has one element"),
        (None, _) => None,
    };
    Ok(cpu::Coefficient { number: S::Real::real(term.number), scalar, gate, groups: term.groups()? })
}
