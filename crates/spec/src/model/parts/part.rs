//! What the parts of a model say about themselves.

use crate::model::family::Names;
use crate::model::initial::ParamInit;
use crate::model::options::Biases;
use crate::model::parameter::{ParamRole, ParamSpec};
use crate::model::spec::ModelSpec;

/// The rows of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// One for each token of the vocabulary.
    Tokens,
    /// One for each position.
    Positions,
    /// As many as the widths of the model say.
    Fixed,
}

/// A parameter of a part, and how folders of weights hold it.
#[derive(Debug, Clone, PartialEq)]
pub struct PartParameter {
    pub spec: ParamSpec,
    pub rows: Rows,
    /// True if a folder holds it as `[in, out]`.
    pub transposed: bool,
}

/// Where a part is: the entry of the block list, and what the names of its parameters begin with.
#[derive(Debug, Clone)]
pub struct Place {
    pub block: usize,
    pub prefix: String,
}

impl Place {
    pub(super) fn parameter(&self, name: &str, shape: Vec<usize>, init: ParamInit) -> PartParameter {
        let name = format!("{}{name}", self.prefix);
        let spec = ParamSpec { name, shape, init, block: self.block, role: ParamRole::Weight };
        PartParameter { spec, rows: Rows::Fixed, transposed: false }
    }

    /// A table with a row for each token, which a sum reads.
    pub(super) fn table(&self, name: &str, vocab_size: usize, width: usize, init: ParamInit) -> PartParameter {
        let mut table = self.parameter(&format!("{name}.weight"), vec![vocab_size, width], init);
        (table.rows, table.spec.role) = (Rows::Tokens, ParamRole::Table);
        table
    }

    /// A parameter of a coefficient.
    pub(super) fn coefficient(&self, name: &str, shape: Vec<usize>, init: ParamInit) -> PartParameter {
        let mut parameter = self.parameter(name, shape, init);
        parameter.spec.role = ParamRole::Coefficient;
        parameter
    }
}

/// The product of activations and one or several matrices that lie next to each other.
#[derive(Debug, Clone, PartialEq)]
pub struct Linear {
    /// The names of the matrices.
    pub names: &'static [&'static str],
    pub inputs: usize,
    /// Rows of each matrix.
    pub outputs: Vec<usize>,
    pub(super) init: ParamInit,
    pub(super) bias: Option<ParamInit>,
    pub(super) rows: Rows,
    pub(super) transposed: bool,
}

impl Linear {
    /// A product of a layer, with biases where the model has `biases` or more. A family that has one name for several `outputs` has them in
    /// one matrix.
    pub(super) fn new(
        spec: &ModelSpec,
        names: &Names,
        inputs: usize,
        outputs: &[usize],
        init: [ParamInit; 2],
        biases: Biases,
    ) -> Self {
        let names = names.of(spec.family);
        let outputs = if names.len() == outputs.len() { outputs.to_vec() } else { vec![outputs.iter().sum()] };
        let bias = (spec.biases() >= biases).then_some(init[1]);
        let transposed = spec.family.defaults().transposes;
        Self { names, inputs, outputs, init: init[0], bias, rows: Rows::Fixed, transposed }
    }

    pub fn has_bias(&self) -> bool {
        self.bias.is_some()
    }

    /// The width of the output.
    pub fn width(&self) -> usize {
        self.outputs.iter().sum()
    }

    /// Numbers in the matrices, which is also the number of multiplications for one position.
    pub fn size(&self) -> usize {
        self.inputs * self.width()
    }

    pub(super) fn parameters(&self, place: &Place) -> impl Iterator<Item = PartParameter> {
        let Self { rows, transposed, .. } = *self;
        self.names.iter().zip(&self.outputs).flat_map(move |(name, &out)| {
            let matrix = place.parameter(&format!("{name}.weight"), vec![out, self.inputs], self.init);
            let bias = self.bias.map(|init| place.parameter(&format!("{name}.bias"), vec![out], init));
            let matrix = PartParameter { rows, transposed, ..matrix };
            [matrix].into_iter().chain(bias.map(|bias| PartParameter { rows, ..bias }))
        })
    }
}

/// What a part of a layer says about itself. Counts, FLOPs, times and memory are sums of it over a model's parts.
pub trait Part {
    /// The matrix products, in the order of registration. The last one makes the part's output.
    fn products(&self) -> Vec<&Linear>;

    /// The tensors that the backward reads besides the part's input.
    fn kept(&self) -> Vec<Buffer>;

    /// The gradients that the backward holds at its peak.
    fn held(&self) -> Buffer;

    /// Elements of dropout masks that the forward and the backward draw for one position of rows of `length`, without the mask of the output.
    fn mask_elements(&self, length: usize) -> [f64; 2];

    /// FLOPs of products without weights for one position of rows of `length`.
    fn score_flops(&self, _length: usize) -> f64 {
        0.0
    }

    /// FLOPs of the products of gates for one position.
    fn gate_flops(&self) -> f64 {
        0.0
    }

    fn parameters(&self, place: &Place) -> Vec<PartParameter> {
        self.products().into_iter().flat_map(|linear| linear.parameters(place)).collect()
    }

    /// FLOPs of the forward for one position of rows of `length`.
    fn forward_flops(&self, length: usize) -> f64 {
        let products = 2.0 * self.products().into_iter().map(Linear::size).sum::<usize>() as f64;
        products + self.score_flops(length) + self.gate_flops()
    }

    /// The FLOPs of [`Self::forward_flops`] whose results the part's own backward reads: all but those of the last product.
    fn read_flops(&self, length: usize) -> f64 {
        self.forward_flops(length) - 2.0 * self.products().last().map_or(0, |linear| linear.size()) as f64
    }
}

/// `elements` where there is dropout, which draws a mask for them.
pub(super) fn masked(dropout: f64, elements: f64) -> f64 {
    if dropout > 0.0 { elements } else { 0.0 }
}

/// A tensor that a part keeps from its forward to its backward, or holds for a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    pub name: &'static str,
    /// Elements for one position of the micro-batch.
    pub per_position: usize,
    /// Activations and logits are kept in the run's precision; statistics (means, log-sum-exps) in f32 always.
    pub always_f32: bool,
}

pub(in crate::model) fn buffer(name: &'static str, per_position: usize) -> Buffer {
    Buffer { name, per_position, always_f32: false }
}

pub(super) fn statistic(name: &'static str, per_position: usize) -> Buffer {
    Buffer { name, per_position, always_f32: true }
}
