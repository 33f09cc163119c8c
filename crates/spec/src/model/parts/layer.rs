//! A transformer layer: attention and MLP, each added to the residual stream, and two norms.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Attention, Buffer, Linear, Mlp, MlpKind, Names, Norm, NormKind, PartParameter, Place, buffer, statistic};
use crate::model::ModelSpec;

/// Before attention and MLP, or after them.
const NORMS: [Names; 2] = [
    Names { gpt2: &["ln_1"], llama: &["input_layernorm"] },
    Names { gpt2: &["ln_2"], llama: &["post_attention_layernorm"] },
];

/// The place of a layer's norms (gpt2): x + f(norm(x)), or norm(x + f(x)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum NormPlace {
    #[default]
    Pre,
    Post,
}

/// The part of a layer's forward that its backward computes again, instead of keeping it: nothing; attention's projections, outputs
/// and log-sum-exps; or all but the layer's input. The numbers are the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    #[default]
    None,
    Attention,
    Block,
}

/// A layer. All layers of a model are alike.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    pub norm_place: NormPlace,
    pub norms: [Norm; 2],
    pub attention: Attention,
    pub mlp: Mlp,
    /// Drops elements of attention's and of the MLP's output.
    pub dropout: f64,
    width: usize,
    prefix: &'static str,
}

impl Layer {
    pub(in crate::model) fn new(spec: &ModelSpec) -> Self {
        let defaults = spec.family.defaults();
        Self {
            norm_place: spec.options.norm,
            norms: NORMS.each_ref().map(|names| Norm::new(spec, names)),
            attention: Attention::new(spec),
            mlp: Mlp::new(spec),
            dropout: if defaults.dropout { spec.dropout } else { 0.0 },
            width: spec.d_model,
            prefix: defaults.layers,
        }
    }

    /// The place of layer `index`, from 0.
    pub fn place(&self, index: usize) -> Place {
        Place { block: index + 1, prefix: format!("{}.{index}.", self.prefix) }
    }

    /// The parameters of layer `index` in the order of registration.
    pub fn parameters(&self, index: usize) -> Vec<PartParameter> {
        let ([norm1, norm2], [qkv, out, up, down], place) = (&self.norms, self.linears(), &self.place(index));
        let attention = norm1.parameters(place).chain(qkv.parameters(place)).chain(out.parameters(place));
        let mlp = norm2.parameters(place).chain(up.parameters(place)).chain(down.parameters(place));
        attention.chain(mlp).collect()
    }

    /// The matrix products.
    pub fn linears(&self) -> [&Linear; 4] {
        [&self.attention.qkv, &self.attention.out, &self.mlp.up, &self.mlp.down]
    }

    /// Multiplications of the matrices for one position.
    pub fn products(&self) -> usize {
        self.linears().iter().map(|linear| linear.size()).sum()
    }

    /// FLOPs of the forward for one position of rows of `length`.
    pub fn forward_flops(&self, length: usize) -> f64 {
        2.0 * self.products() as f64 + self.attention.score_flops(length)
    }

    /// FLOPs that the backward computes again for each position of rows of `length`. Attention's scores are among them, unless nothing is.
    pub fn recomputed_flops(&self, recompute: Recompute, length: usize) -> f64 {
        match recompute {
            Recompute::None => 0.0,
            // No gradient reads the result of attention's output projection.
            Recompute::Attention => 2.0 * self.attention.qkv.size() as f64 + self.attention.score_flops(length),
            // No gradient reads the result of the MLP's last product, unless a norm reads the sum that it is added to.
            Recompute::Block if self.norm_place == NormPlace::Pre => {
                self.forward_flops(length) - 2.0 * self.mlp.down.size() as f64
            }
            Recompute::Block => self.forward_flops(length),
        }
    }

    /// Elements of dropout masks that the forward and the backward draw for one position of rows of `length`. Attention's backward draws its
    /// mask in each of its two kernels.
    pub fn mask_elements(&self, length: usize) -> [f64; 2] {
        let counted = |dropout: f64, elements: f64| if dropout > 0.0 { elements } else { 0.0 };
        let attention = &self.attention;
        let scores = attention.heads as f64 * length as f64 * attention.mask.relative_pairs(length) / 2.0;
        let scores = counted(attention.dropout, scores);
        let others = counted(self.dropout, 2.0 * self.width as f64)
            + match self.mlp.kind {
                MlpKind::Plain(_, dropout) => counted(dropout, self.mlp.down.inputs as f64),
                MlpKind::SwiGlu => 0.0,
            };
        [scores + others, 2.0 * scores + others]
    }

    /// The tensors that the layer keeps from its forward to its backward.
    pub fn kept(&self, recompute: Recompute) -> Vec<Buffer> {
        let input = buffer("input", self.width);
        if recompute == Recompute::Block {
            return vec![input];
        }
        let mut kept = vec![input, buffer("first norm", self.width)];
        if recompute == Recompute::None {
            kept.extend(self.attention.kept());
        }
        // If norms follow the sums, the second sum is kept instead of the second norm.
        let second = if self.norm_place == NormPlace::Post { "second residual sum" } else { "second norm" };
        let statistics = match self.norms[0].kind {
            NormKind::LayerNorm => "mean and 1/std of both norms",
            NormKind::RmsNorm => "1/rms of both norms",
        };
        kept.extend([
            buffer("first residual sum", self.width),
            buffer(second, self.width),
            statistic(statistics, self.norms.iter().map(Norm::statistics).sum()),
        ]);
        kept.extend(self.mlp.kept());
        kept
    }

    /// The tensors that the weights' gradients need when the input's gradient is computed (split backwards): the inputs of the four products
    /// and the gradients of their outputs, nearly as much as the whole backward reads.
    pub fn deferred(&self) -> [Buffer; 2] {
        let sum = |width: fn(&Linear) -> usize| self.linears().into_iter().map(width).sum();
        [
            buffer("inputs of four products", sum(|linear| linear.inputs)),
            buffer("gradients of four products", sum(Linear::width)),
        ]
    }

    /// The most that the backward holds besides what is kept: the gradients that are alive in its widest operation.
    pub fn held(&self) -> [Buffer; 2] {
        let (mlp, attention) = (self.mlp.held(), self.attention.held());
        [self.stream(), if mlp.per_position >= attention.per_position { mlp } else { attention }]
    }

    /// Everything that attention's part of the backward holds at its peak where it computes attention again: the MLP's tensors are free
    /// by then.
    pub fn held_with_attention(&self) -> Vec<Buffer> {
        let kept = [buffer("input", self.width), buffer("first norm", self.width)];
        kept.into_iter().chain(self.attention.kept()).chain([self.stream(), self.attention.held()]).collect()
    }

    fn stream(&self) -> Buffer {
        buffer("gradient of the residual stream and of the norm", 2 * self.width)
    }
}
