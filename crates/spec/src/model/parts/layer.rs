//! A transformer layer: parts, each with a norm, whose outputs are added to the residual stream one after the other.

use std::ops::Deref;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::attention::Attention;
use super::mlp::Mlp;
use super::norm::Norm;
use super::part::{Buffer, Linear, Part, PartParameter, Place, buffer, masked, statistic};
use super::sum::Sums;
use crate::model::family::{Names, NormKind};
use crate::model::options::{LayerOptions, NormPlace};
use crate::model::spec::ModelSpec;
use crate::model::wiring::LayerSums;

/// The norms before attention and the MLP, where there are no others.
const NORMS: [Names; 2] = [
    Names { gpt2: &["ln_1"], llama: &["input_layernorm"] },
    Names { gpt2: &["ln_2"], llama: &["post_attention_layernorm"] },
];
/// The norms after them, where there are no others.
const NORMS_AFTER: [Names; 2] = [
    Names { gpt2: &["ln_1"], llama: &["post_attention_layernorm"] },
    Names { gpt2: &["ln_2"], llama: &["post_feedforward_layernorm"] },
];
/// Both: those before, and those after.
const BOTH_NORMS: [[Names; 2]; 2] = [
    [
        Names { gpt2: &["ln_1"], llama: &["input_layernorm"] },
        Names { gpt2: &["ln_1_out"], llama: &["post_attention_layernorm"] },
    ],
    [
        Names { gpt2: &["ln_2"], llama: &["pre_feedforward_layernorm"] },
        Names { gpt2: &["ln_2_out"], llama: &["post_feedforward_layernorm"] },
    ],
];

/// The part of a layer's forward that its backward computes again, instead of keeping it: nothing; attention's projections, outputs
/// and log-sum-exps; or all but the layer's input. The numbers are the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    #[default]
    None,
    Attention,
    Block,
}

/// The parts that a layer can have.
#[derive(Debug, Clone, PartialEq)]
pub enum LayerPart {
    Attention(Box<Attention>),
    Mlp(Mlp),
}

impl Deref for LayerPart {
    type Target = dyn Part;

    fn deref(&self) -> &(dyn Part + 'static) {
        match self {
            Self::Attention(part) => &**part,
            Self::Mlp(part) => part,
        }
    }
}

/// A part of a layer with its norms.
#[derive(Debug, Clone, PartialEq)]
pub struct Sublayer {
    /// The norm of the part's input.
    pub before: Option<Norm>,
    pub part: LayerPart,
    /// The norm of the part's output, or of its sum with the residual stream ([`NormPlace::Post`]).
    pub after: Option<Norm>,
    /// Drops elements of the part's output.
    pub dropout: f64,
    /// What plans call the norm's output, the part's output, and its sum with the residual stream.
    buffers: [&'static str; 3],
}

impl Sublayer {
    fn norms(&self) -> impl Iterator<Item = &Norm> {
        self.before.iter().chain(&self.after)
    }
}

/// A layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    pub norm_place: NormPlace,
    /// What replaces the layer's input.
    pub input: Sums,
    pub sublayers: Vec<Sublayer>,
    width: usize,
    prefix: &'static str,
}

impl Layer {
    /// A layer that has `options` instead of the model's own values.
    pub(in crate::model) fn new(spec: &ModelSpec, options: &LayerOptions, sums: LayerSums) -> Self {
        let LayerSums { input, value, attended } = sums;
        let (defaults, place) = (spec.family.defaults(), spec.options.norm);
        let dropout = if defaults.dropout { spec.dropout } else { 0.0 };
        let sublayer = |index: usize, part, buffers| {
            let [before, after] = match place {
                NormPlace::Pre => [Some(&NORMS[index]), None],
                NormPlace::Post | NormPlace::Output => [None, Some(&NORMS_AFTER[index])],
                NormPlace::Both => BOTH_NORMS[index].each_ref().map(Some),
            };
            let norm = |names: Option<&Names>| names.map(|names| Norm::new(spec, names));
            Sublayer { before: norm(before), part, after: norm(after), dropout, buffers }
        };
        let attention = options.attention.then(|| {
            let part = LayerPart::Attention(Box::new(Attention::new(spec, options, value, attended)));
            sublayer(0, part, ["first norm", "output of attention", "first residual sum"])
        });
        let mlp = options.mlp.then(|| {
            sublayer(1, LayerPart::Mlp(Mlp::new(spec)), ["second norm", "output of the MLP", "second residual sum"])
        });
        Self {
            norm_place: place,
            input,
            sublayers: attention.into_iter().chain(mlp).collect(),
            width: spec.d_model,
            prefix: defaults.layers,
        }
    }

    /// The place of layer `index`, from 0.
    pub fn place(&self, index: usize) -> Place {
        Place { block: index + 1, prefix: format!("{}.{index}.", self.prefix) }
    }

    /// The names of the parameters that make what layer `index` adds to the residual stream.
    pub fn output_names(&self, index: usize) -> Vec<String> {
        let place = &self.place(index);
        let outputs = self.sublayers.iter().filter_map(|sublayer| sublayer.part.products().pop());
        outputs.flat_map(|linear| linear.parameters(place)).map(|parameter| parameter.spec.name).collect()
    }

    /// The parameters of layer `index` in the order of registration.
    pub fn parameters(&self, index: usize) -> Vec<PartParameter> {
        let place = &self.place(index);
        let of = |sublayer: &Sublayer| {
            let norms = sublayer.norms().flat_map(|norm| norm.parameters(place));
            norms.chain(sublayer.part.parameters(place)).collect::<Vec<_>>()
        };
        let own = self.sublayers.iter().flat_map(of);
        own.chain(self.sums().flat_map(|sums| sums.parameters(place))).collect()
    }

    /// The sums of the layer and its attention.
    pub fn sums(&self) -> impl Iterator<Item = &Sums> {
        let in_attention = self.attentions().flat_map(|attention| [&attention.value, &attention.attended]);
        std::iter::once(&self.input).chain(in_attention)
    }

    fn parts(&self) -> impl Iterator<Item = &dyn Part> {
        self.sublayers.iter().map(|sublayer| &*sublayer.part)
    }

    pub fn attentions(&self) -> impl Iterator<Item = &Attention> {
        self.sublayers.iter().filter_map(|sublayer| match &sublayer.part {
            LayerPart::Attention(attention) => Some(&**attention),
            LayerPart::Mlp(_) => None,
        })
    }

    /// The matrix products.
    pub fn products(&self) -> Vec<&Linear> {
        self.parts().flat_map(Part::products).collect()
    }

    /// Multiplications of the matrices for one position.
    pub fn multiplications(&self) -> usize {
        let products = self.products().into_iter().map(Linear::size).sum::<usize>();
        products + self.sums().map(Sums::gate_size).sum::<usize>()
    }

    /// FLOPs of products without weights for one position of rows of `length`.
    pub fn score_flops(&self, length: usize) -> f64 {
        self.parts().map(|part| part.score_flops(length)).sum()
    }

    /// FLOPs of the forward for one position of rows of `length`.
    pub fn forward_flops(&self, length: usize) -> f64 {
        2.0 * self.multiplications() as f64 + self.score_flops(length)
    }

    /// FLOPs that the backward computes again for each position of rows of `length`. Attention's scores are among them, unless nothing is.
    pub fn recomputed_flops(&self, recompute: Recompute, length: usize) -> f64 {
        match recompute {
            Recompute::None => 0.0,
            Recompute::Attention => self.attentions().map(|attention| attention.read_flops(length)).sum(),
            // The last part's output is read only by a norm that follows the sum.
            Recompute::Block => self.sublayers.iter().enumerate().fold(
                self.input.gate_flops(),
                |sum, (index, Sublayer { part, .. })| {
                    let is_unread = index + 1 == self.sublayers.len() && self.norm_place == NormPlace::Pre;
                    sum + if is_unread { part.read_flops(length) } else { part.forward_flops(length) }
                },
            ),
        }
    }

    /// Elements of dropout masks that the forward and the backward draw for one position of rows of `length`.
    pub fn mask_elements(&self, length: usize) -> [f64; 2] {
        self.sublayers.iter().fold([0.0; 2], |[forward, backward], Sublayer { part, dropout, .. }| {
            let ([in_forward, in_backward], output) = (part.mask_elements(length), masked(*dropout, self.width as f64));
            [forward + in_forward + output, backward + in_backward + output]
        })
    }

    /// The tensors that the layer keeps from its forward to its backward: its input; for each part the norms' inputs and outputs, what the part
    /// keeps, and the sum. The last sum is the layer's output, or, if norms follow the sums, the last norm's.
    pub fn kept(&self, recompute: Recompute) -> Vec<Buffer> {
        let mut kept = vec![buffer("input", self.width)];
        if recompute == Recompute::Block {
            return kept;
        }
        kept.extend(self.input.kept());
        for (index, Sublayer { before, part, buffers: [normed, output, sum], .. }) in self.sublayers.iter().enumerate()
        {
            let is_last = index + 1 == self.sublayers.len();
            match self.norm_place {
                NormPlace::Post if is_last => kept.push(buffer(sum, self.width)),
                NormPlace::Pre | NormPlace::Post => kept.push(buffer(normed, self.width)),
                NormPlace::Output | NormPlace::Both => {
                    kept.extend(before.map(|_| buffer(normed, self.width)));
                    kept.push(buffer(output, self.width));
                }
            }
            if is_last {
                kept.push(self.statistics());
            }
            if recompute == Recompute::None || !matches!(part, LayerPart::Attention(_)) {
                kept.extend(part.kept());
            }
            if !is_last {
                kept.push(buffer(sum, self.width));
            }
        }
        kept
    }

    fn statistics(&self) -> Buffer {
        let norms: Vec<&Norm> = self.sublayers.iter().flat_map(Sublayer::norms).collect();
        let name = match (norms.len(), norms.first().map(|norm| norm.kind)) {
            (2, Some(NormKind::LayerNorm)) => "mean and 1/std of both norms",
            (2, Some(NormKind::RmsNorm)) => "1/rms of both norms",
            _ => "statistics of the norms",
        };
        statistic(name, norms.into_iter().map(Norm::statistics).sum())
    }

    /// The tensors that the weights' gradients need when the input's gradient is computed (split backwards): the inputs of the products
    /// and the gradients of their outputs, nearly as much as the whole backward reads.
    pub fn deferred(&self) -> [Buffer; 2] {
        let sum = |width: fn(&Linear) -> usize| self.products().into_iter().map(width).sum::<usize>();
        let [inputs, gradients] =
            self.sums().map(Sums::deferred).fold([0; 2], |[i, g], [inputs, gradients]| [i + inputs, g + gradients]);
        [
            buffer("inputs of four products", inputs + sum(|linear| linear.inputs)),
            buffer("gradients of four products", gradients + sum(Linear::width)),
        ]
    }

    /// The most that the backward holds besides what is kept: the gradients that are alive in its widest operation.
    pub fn held(&self) -> Vec<Buffer> {
        let widest = self.parts().map(Part::held).max_by_key(|held| held.per_position);
        [self.stream()].into_iter().chain(widest).collect()
    }

    /// Everything that attention's part of the backward holds at its peak where it computes attention again: the tensors of later parts are
    /// free by then.
    pub fn held_with_attention(&self) -> Vec<Buffer> {
        let mut held = vec![buffer("input", self.width)];
        held.extend(self.input.kept());
        for Sublayer { before, part, after, buffers: [normed, output, sum], .. } in &self.sublayers {
            held.push(buffer(normed, self.width));
            held.extend(before.and(*after).map(|_| buffer(output, self.width)));
            held.extend(part.kept());
            if matches!(part, LayerPart::Attention(_)) {
                held.extend([self.stream(), part.held()]);
                break;
            }
            held.push(buffer(sum, self.width));
        }
        held
    }

    fn stream(&self) -> Buffer {
        buffer("gradient of the residual stream and of the norm", 2 * self.width)
    }
}
