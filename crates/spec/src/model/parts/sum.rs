//! The sums that replace a tensor at a place of a model.

use super::part::{Buffer, PartParameter, Place, buffer};
use crate::model::initial::ParamInit;

/// The equations at one place, in their order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sums {
    pub equations: Vec<Equation>,
    /// The width of the tensor.
    pub width: usize,
    /// True if gates read attention's input, and not the tensor.
    pub is_in_attention: bool,
}

/// One replacement.
#[derive(Debug, Clone, PartialEq)]
pub enum Equation {
    /// RMSNorm without a gain, with this eps.
    Norm(f64),
    Sum(Vec<Term>),
}

/// A coefficient times a tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Term {
    pub number: f64,
    pub scalar: Option<ScalarCoefficient>,
    pub gate: Option<GateCoefficient>,
    pub tensor: TermTensor,
}

/// A trained number.
#[derive(Debug, Clone, PartialEq)]
pub struct ScalarCoefficient {
    pub name: String,
    pub initial: f64,
    /// True if the coefficient is its sigmoid.
    pub sigmoid: bool,
}

/// sigmoid(W·c), with c the first `channels` of the tensor that the gate reads.
#[derive(Debug, Clone, PartialEq)]
pub struct GateCoefficient {
    pub name: String,
    pub channels: usize,
    /// Numbers for one position: each is the coefficient of as many neighbouring channels of the term.
    pub groups: usize,
}

/// The tensor of a term.
#[derive(Debug, Clone, PartialEq)]
pub enum TermTensor {
    /// The one that is replaced.
    Own,
    /// The one that is replaced, of the token before.
    Previous,
    /// Entry of [`super::super::Decoder::carried`].
    Carried(usize),
    /// Rows of the layer's table of this name.
    Table { name: String, vocab_size: usize, init: ParamInit },
}

impl Term {
    /// True if the coefficient is trained, so that its gradient needs the tensor.
    pub fn is_trained(&self) -> bool {
        self.scalar.is_some() || self.gate.is_some()
    }
}

impl Sums {
    pub fn is_empty(&self) -> bool {
        self.equations.is_empty()
    }

    pub fn terms(&self) -> impl Iterator<Item = &Term> {
        self.equations.iter().flat_map(|equation| match equation {
            Equation::Norm(_) => &[],
            Equation::Sum(terms) => terms.as_slice(),
        })
    }

    pub fn gates(&self) -> impl Iterator<Item = &GateCoefficient> {
        self.terms().filter_map(|term| term.gate.as_ref())
    }

    /// The entries of [`super::super::Decoder::carried`] that are read.
    pub fn carried(&self) -> impl Iterator<Item = usize> {
        self.terms().filter_map(|term| match term.tensor {
            TermTensor::Carried(index) => Some(index),
            _ => None,
        })
    }

    /// Numbers in the largest table.
    pub fn largest_table(&self) -> usize {
        let tables = self.terms().map(|term| match term.tensor {
            TermTensor::Table { vocab_size, .. } => vocab_size * self.width,
            _ => 0,
        });
        tables.max().unwrap_or(0)
    }

    /// True if what is replaced is kept for the backward, also where nothing is replaced.
    pub(in crate::model) fn keeps_input(&self) -> bool {
        self.equations.first().is_none_or(|equation| equation.keeps_input(!self.is_in_attention))
    }

    /// Numbers in matrices of gates, which is also the number of their multiplications for one position.
    pub fn gate_size(&self) -> usize {
        self.gates().map(|gate| gate.channels * gate.groups).sum()
    }

    /// FLOPs of the gates' products for one position.
    pub(super) fn gate_flops(&self) -> f64 {
        2.0 * self.gate_size() as f64
    }

    pub(super) fn parameters(&self, place: &Place) -> Vec<PartParameter> {
        let mut all = Vec::new();
        for Term { scalar, gate, tensor, .. } in self.terms() {
            if let TermTensor::Table { name, vocab_size, init } = tensor {
                all.push(place.table(name, *vocab_size, self.width, *init));
            }
            if let Some(ScalarCoefficient { name, initial, .. }) = scalar {
                all.push(place.coefficient(name, vec![1], ParamInit::Constant { value: *initial }));
            }
            if let Some(GateCoefficient { name, channels, groups }) = gate {
                let name = format!("{name}.weight");
                all.push(place.coefficient(&name, vec![*groups, *channels], ParamInit::Zeros));
            }
        }
        all
    }

    /// The tensors that the backward reads: of an equation with trained coefficients of the tensor itself, or with gates that read it, what it
    /// replaces, and of a norm, its input.
    pub fn kept(&self) -> Vec<Buffer> {
        let kept = self.equations.iter().filter(|equation| equation.keeps_input(!self.is_in_attention));
        kept.map(|_| buffer("input of a sum", self.width)).collect()
    }

    /// Numbers for one position in the inputs and the output gradients of the products that a split backward leaves: gates and tables.
    pub(super) fn deferred(&self) -> [usize; 2] {
        let channels = self.gates().map(|gate| gate.channels).sum();
        let tables = self.terms().filter(|term| matches!(term.tensor, TermTensor::Table { .. })).count();
        [channels, self.gates().map(|gate| gate.groups).sum::<usize>() + tables * self.width]
    }
}

impl Equation {
    /// True if the backward reads the tensor that the equation replaces.
    pub fn keeps_input(&self, gates_read_it: bool) -> bool {
        let Self::Sum(terms) = self else { return true };
        terms.iter().any(|term| {
            let is_own = matches!(term.tensor, TermTensor::Own | TermTensor::Previous);
            (is_own && term.is_trained()) || (gates_read_it && term.gate.is_some())
        })
    }
}
