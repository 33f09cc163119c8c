//! Sums that replace a tensor at a place of a model: coefficients times tensors.

use candle_core::{Result, Tensor, bail};

use super::{BackwardPass, ForwardPass, Linear, Norm, WeightGradientTask};
use crate::kernels::pointwise::{add_assign, put_columns, take_columns};
use crate::kernels::weighted_sum::{self, weighted_sum, weighted_sum_backward};
use crate::kernels::{embedding, matmul};

/// Tensors that blocks hand on for later ones in addition to the residual stream, or their gradients, by their places in [`runner_spec::model::Decoder::carried`].
pub type Carried = Vec<(usize, Tensor)>;

/// What flows from block to block, or its gradient.
#[derive(Debug, Clone)]
pub struct Stream {
    /// `[batch·seq, d_model]`.
    pub x: Tensor,
    pub carried: Carried,
}

/// The equations at one place, in their order.
#[derive(Debug, Clone, Default)]
pub struct Sums(pub Vec<Equation>);

/// One replacement.
#[derive(Debug, Clone)]
pub enum Equation {
    Norm(Norm),
    /// The terms, and whether the backward reads the tensor that is replaced.
    Sum(Vec<Term>, bool),
}

/// A coefficient times a tensor.
#[derive(Debug, Clone)]
pub struct Term {
    pub number: f64,
    /// The index of a trained number, and whether its sigmoid is the coefficient.
    pub scalar: Option<(usize, bool)>,
    /// The product whose sigmoid is the coefficient, and how many channels it reads.
    pub gate: Option<(Linear, usize)>,
    pub tensor: TermTensor,
}

/// The tensor of a term.
#[derive(Debug, Clone, Copy)]
pub enum TermTensor {
    /// The one that is replaced.
    Own,
    /// The one that is replaced, of the token before.
    Previous,
    Carried(usize),
    /// Rows of the table of this index.
    Table(usize),
}

/// The tensors that equations replaced, where the backward reads them.
pub(crate) type SumInputs = Vec<Option<Tensor>>;

/// The tensors of a term.
struct TermTensors {
    x: Tensor,
    scalar: Option<(Tensor, bool)>,
    gate: Option<Tensor>,
    is_previous: bool,
}

impl From<Tensor> for Stream {
    fn from(x: Tensor) -> Self {
        Self { x, carried: Vec::new() }
    }
}

impl Stream {
    /// All tensors side by side, `[batch·seq, width]`, as ranks send them.
    pub fn packed(&self) -> Result<Tensor> {
        if self.carried.is_empty() {
            return Ok(self.x.clone());
        }
        let parts = || [&self.x].into_iter().chain(self.carried.iter().map(|(_, tensor)| tensor));
        let (mut at, mut width) = (0, 0);
        for part in parts() {
            width += part.dim(1)?;
        }
        let packed = Tensor::zeros((self.x.dim(0)?, width), self.x.dtype(), self.x.device())?;
        for part in parts() {
            put_columns(&packed, part, at)?;
            at += part.dim(1)?;
        }
        Ok(packed)
    }

    /// The tensors that were `packed`: the residual stream of `d_model` channels, and those `carried`, with their widths.
    pub fn unpacked(packed: Tensor, d_model: usize, carried: &[(usize, usize)]) -> Result<Self> {
        let width = d_model + carried.iter().map(|(_, width)| width).sum::<usize>();
        if packed.dim(1)? != width {
            bail!("expected rows of {width} numbers from another chunk, got {}", packed.dim(1)?)
        }
        if carried.is_empty() {
            return Ok(packed.into());
        }
        let (mut all, mut at) = (Vec::new(), d_model);
        for (index, width) in carried {
            all.push((*index, take_columns(&packed, at, *width)?));
            at += width;
        }
        Ok(Self { x: take_columns(&packed, 0, d_model)?, carried: all })
    }
}

/// The tensor `index` of `carried`.
fn find(carried: &Carried, index: usize) -> Result<&Tensor> {
    match carried.iter().find(|(of, _)| *of == index) {
        Some((_, tensor)) => Ok(tensor),
        None => bail!("a tensor that a sum reads was not handed on"),
    }
}

/// Adds a gradient to the sum for tensor `index`, in place: no deferred task holds that buffer.
fn add_gradient(carried: &mut Carried, index: usize, gradient: Tensor) -> Result<()> {
    if let Some((_, sum)) = carried.iter().find(|(of, _)| *of == index) {
        return add_assign(sum, &gradient);
    }
    carried.push((index, gradient));
    carried.sort_by_key(|(of, _)| *of);
    Ok(())
}

impl Sums {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many tokens before the first one of a row its values depend on.
    pub(crate) fn tokens_back(&self) -> usize {
        let reads_previous = |equation: &&Equation| match equation {
            Equation::Norm(_) => false,
            Equation::Sum(terms, _) => terms.iter().any(|term| matches!(term.tensor, TermTensor::Previous)),
        };
        self.0.iter().filter(reads_previous).count()
    }

    /// Replaces `x`, `[batch·seq, width]`. Gates read `gated_by`, or without it the tensor itself. Also returns the
    /// tensors that the backward reads.
    pub fn forward(
        &self,
        pass: ForwardPass<'_>,
        mut x: Tensor,
        gated_by: Option<&Tensor>,
    ) -> Result<(Tensor, SumInputs)> {
        let mut inputs = Vec::with_capacity(self.0.len());
        for equation in &self.0 {
            let (y, is_read) = match equation {
                Equation::Norm(norm) => (norm.forward(pass, &x)?.0, true),
                Equation::Sum(terms, is_read) => {
                    let gated_by = gated_by.unwrap_or(&x);
                    let tensors = terms.iter().map(|term| term.tensors(pass, term.read(pass, Some(&x))?, gated_by));
                    let tensors = tensors.collect::<Result<Vec<_>>>()?;
                    let terms: Vec<_> = terms.iter().zip(&tensors).map(|(term, tensors)| term.of(tensors)).collect();
                    (weighted_sum(&terms, pass.mb.seq)?, *is_read)
                }
            };
            inputs.push(is_read.then_some(x));
            x = y;
        }
        Ok((x, inputs))
    }

    /// Returns dL/dx, and what gates add to the gradient of `gated_by`.
    pub fn backward(
        &self,
        pass: &mut BackwardPass<'_>,
        mut inputs: SumInputs,
        gated_by: Option<&Tensor>,
        mut dy: Tensor,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let mut dgated_by = None;
        for equation in self.0.iter().rev() {
            let x = inputs.pop().flatten();
            dy = match (equation, x) {
                (Equation::Norm(norm), Some(x)) => {
                    let stats = norm.forward(pass.forward(), &x)?.1;
                    norm.backward(pass, &x, &stats, &dy, None)?.tensor
                }
                (Equation::Norm(_), None) => bail!("the input of a norm is missing"),
                (Equation::Sum(terms, _), x) => {
                    let (dx, dgates) = sum_backward(pass, terms, x.as_ref(), gated_by, &dy)?;
                    if gated_by.is_some() {
                        dgated_by = added(dgated_by, dgates)?;
                        dx
                    } else {
                        added(Some(dx), dgates)?.unwrap_or(dy)
                    }
                }
            };
        }
        Ok((dy, dgated_by))
    }
}

/// The sum of both, in the buffer of the first.
fn added(sum: Option<Tensor>, other: Option<Tensor>) -> Result<Option<Tensor>> {
    match (sum, other) {
        (Some(sum), Some(other)) => {
            add_assign(&sum, &other)?;
            Ok(Some(sum))
        }
        (sum, other) => Ok(sum.or(other)),
    }
}

/// Returns the gradient of the tensor that the sum of `terms` replaces, `x` where it is needed; and of what gates read.
fn sum_backward(
    pass: &mut BackwardPass<'_>,
    terms: &[Term],
    x: Option<&Tensor>,
    gated_by: Option<&Tensor>,
    dy: &Tensor,
) -> Result<(Tensor, Option<Tensor>)> {
    let seq = pass.mb.seq;
    let (mut dx, mut dgates) = (None, None);
    for term in terms {
        let gate_input = gated_by.or(x).unwrap_or(dy);
        // Only the gradient of a trained coefficient depends on the tensor.
        let read = if term.is_trained() { term.read(pass.forward(), x)? } else { dy.clone() };
        let tensors = term.tensors(pass.forward(), read, gate_input)?;
        let gradients = weighted_sum_backward(&term.of(&tensors), dy, seq)?;
        if let (Some((parameter, _)), Some((scalar, _)), Some(parts)) = (term.scalar, &tensors.scalar, gradients.scalar)
        {
            let gradient = scalar.zeros_like()?;
            matmul::bias_backward(&gradient, &parts.into())?;
            pass.grads.accept(WeightGradientTask::Vector { parameter, gradient })?;
        }
        if let (Some((gate, channels)), Some(gradient)) = (&term.gate, gradients.gate) {
            let read = take_columns(gate_input, 0, *channels)?;
            let dread = gate.backward(pass, &read, &gradient.into())?;
            if dgates.is_none() {
                dgates = Some(gate_input.zeros_like()?);
            }
            if let Some(dgates) = &dgates {
                let sum = take_columns(dgates, 0, *channels)?;
                add_assign(&sum, &dread)?;
                put_columns(dgates, &sum, 0)?;
            }
        }
        match term.tensor {
            TermTensor::Own | TermTensor::Previous => dx = added(dx, Some(gradients.x))?,
            TermTensor::Carried(index) => add_gradient(&mut pass.carried_gradients, index, gradients.x)?,
            TermTensor::Table(parameter) => {
                let ids = pass.mb.ids.clone();
                pass.grads.accept(WeightGradientTask::Table { parameter, ids, dy: gradients.x })?;
            }
        }
    }
    let dx = dx.map_or_else(|| dy.zeros_like(), Ok)?;
    Ok((dx, dgates))
}

impl Term {
    fn is_trained(&self) -> bool {
        self.scalar.is_some() || self.gate.is_some()
    }

    /// The tensor of the term, where `own` is replaced.
    fn read(&self, pass: ForwardPass<'_>, own: Option<&Tensor>) -> Result<Tensor> {
        match (self.tensor, own) {
            (TermTensor::Previous, _) if pass.mb.documents.is_some() => {
                bail!("the token before is of another document where one begins")
            }
            (TermTensor::Own | TermTensor::Previous, Some(own)) => Ok(own.clone()),
            (TermTensor::Own | TermTensor::Previous, None) => bail!("the tensor that a sum replaced is missing"),
            (TermTensor::Carried(index), _) => Ok(find(pass.carried, index)?.clone()),
            (TermTensor::Table(table), _) => {
                let (mb, table) = (pass.mb, pass.params.parameter(table)?);
                embedding::embed(&mb.ids, &table, None, None, mb.seq, 0)
            }
        }
    }

    fn tensors(&self, pass: ForwardPass<'_>, x: Tensor, gated_by: &Tensor) -> Result<TermTensors> {
        let params = pass.params;
        let gate =
            self.gate.as_ref().map(|(gate, channels)| gate.forward(pass, &take_columns(gated_by, 0, *channels)?));
        let scalar =
            self.scalar.map(|(index, sigmoid)| Ok::<_, candle_core::Error>((params.parameter(index)?, sigmoid)));
        Ok(TermTensors {
            x,
            scalar: scalar.transpose()?,
            gate: gate.transpose()?,
            is_previous: matches!(self.tensor, TermTensor::Previous),
        })
    }

    fn of<'a>(&self, tensors: &'a TermTensors) -> weighted_sum::Term<'a> {
        weighted_sum::Term {
            x: &tensors.x,
            number: self.number,
            scalar: tensors.scalar.as_ref().map(|(scalar, sigmoid)| (scalar, *sigmoid)),
            gate: tensors.gate.as_ref(),
            is_previous: tensors.is_previous,
        }
    }
}
