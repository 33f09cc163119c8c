//! The entries of a model's block list: embedding, layers, head, made of a decoder's parts.

use candle_core::{Result, Tensor, bail};

use crate::kernels::access::table;
use crate::kernels::embedding::sinusoids;
use crate::kernels::loss::LossOptions;
use crate::kernels::pointwise::Rope;
use crate::nn::head::HeadActivations;
use crate::nn::transformer::LayerActivations;
use crate::nn::{self, parameter_index};
use crate::nn::{
    Attention, Carried, DropoutSite, Embedding, Equation, Head, Linear, Mlp, Norm, NormVector, Positions, QkNorm, Sums,
    Term, TermTensor, TransformerLayer,
};
use runner_spec::experiment::Recompute;
use runner_spec::model::family::NormKind;
use runner_spec::model::layout::ParamLayout;
use runner_spec::model::parts::{self, LayerPart, MlpKind};
use runner_spec::model::{Decoder, NormGain, Rotary};

/// One entry of the block list.
#[derive(Debug, Clone)]
pub enum Block {
    Embedding(Embedding),
    Layer(Box<TransformerLayer>),
    Head(Head),
}

/// The activations that one block's backward needs, and the carried tensors that it read.
#[derive(Debug)]
pub struct SavedActivations {
    pub of: BlockActivations,
    pub carried: Carried,
}

/// The activations that one block's backward needs.
#[derive(Debug)]
pub enum BlockActivations {
    Embedding,
    Layer(Box<LayerActivations>),
    Head(HeadActivations),
}

/// Makes blocks of a decoder's parts.
pub(super) struct BlockBuilder<'a> {
    pub decoder: &'a Decoder,
    pub layout: &'a ParamLayout,
    /// Keys dropout.
    pub seed: u64,
    /// The tables of angles, where attention rotates.
    pub ropes: &'a [(Rotary, Rope)],
    /// Gives element type and device of tables.
    pub like: &'a Tensor,
}

impl BlockBuilder<'_> {
    /// Entry `index` of the block list.
    ///
    /// # Errors
    /// If the layout lacks a parameter.
    pub(super) fn block(&self, index: usize) -> Result<Block> {
        if index == 0 {
            return self.embedding();
        }
        if index > self.decoder.layers.len() { self.head() } else { self.layer(index) }
    }

    fn embedding(&self) -> Result<Block> {
        let part = &self.decoder.embedding;
        let positions = match part.positions {
            parts::Positions::None => Positions::None,
            parts::Positions::Learned(name) => Positions::Learned(self.parameter(name)?),
            parts::Positions::Sinusoidal => Positions::Fixed(sinusoids(part.context_length, part.width, self.like)?),
        };
        let (tokens, dropout) = (self.parameter(part.tokens)?, self.dropout(0, "embedding", part.dropout));
        let norm = part.norm.map(|norm| self.norm("", &norm)).transpose()?;
        let tables = part.tables.iter().map(|(place, table)| Ok((*place, self.parameter(&table.spec.name)?)));
        let (tables, sums) = (tables.collect::<Result<_>>()?, self.sums(&part.place().prefix, &part.sums)?);
        Ok(Block::Embedding(Embedding { tokens, scale: part.scale, positions, norm, sums, tables, dropout }))
    }

    fn layer(&self, index: usize) -> Result<Block> {
        let Some(layer) = self.decoder.layers.iter().nth(index - 1) else { bail!("the model has no layer {index}") };
        let prefix = layer.place(index - 1).prefix;
        let sublayer = |part: &parts::Sublayer| {
            let norm = |norm: &Option<parts::Norm>| norm.map(|norm| self.norm(&prefix, &norm)).transpose();
            let (name, of) = match &part.part {
                LayerPart::Attention(attention) => {
                    let attention = self.attention(index, &prefix, attention)?;
                    ("attention.output", nn::LayerPart::Attention(Box::new(attention)))
                }
                LayerPart::Mlp(mlp) => ("mlp.output", nn::LayerPart::Mlp(self.mlp(index, &prefix, mlp)?)),
            };
            let dropout = self.dropout(index, name, part.dropout);
            Ok(nn::Sublayer { before: norm(&part.before)?, part: of, after: norm(&part.after)?, dropout })
        };
        let sublayers = layer.sublayers.iter().map(sublayer).collect::<Result<_>>()?;
        let (norm_place, recompute) = (layer.norm_place, Recompute::None);
        let input = self.sums(&prefix, &layer.input)?;
        Ok(Block::Layer(Box::new(TransformerLayer { norm_place, input, sublayers, recompute })))
    }

    fn attention(&self, index: usize, prefix: &str, part: &parts::Attention) -> Result<Attention> {
        let rope = part.rotary.and_then(|rotary| self.ropes.iter().find(|(of, _)| *of == rotary));
        let norm = |norm: &parts::Norm| -> Result<_> { Ok((self.norm(prefix, norm)?, norm.width)) };
        let qk_norm = match &part.qk_norm {
            Some([queries, keys]) => {
                Some(QkNorm { norms: [norm(queries)?, norm(keys)?], rotates_first: part.rotates_first })
            }
            None => None,
        };
        Ok(Attention {
            qkv: self.linear(prefix, &part.qkv)?,
            out: self.linear(prefix, &part.out)?,
            heads: part.heads,
            mask: part.mask,
            scale: part.scale,
            qk_norm,
            rope: rope.map(|(_, rope)| rope.clone()),
            dropout: self.dropout(index, "attention", part.dropout),
            value: self.sums(prefix, &part.value)?,
            attended: self.sums(prefix, &part.attended)?,
        })
    }

    fn mlp(&self, index: usize, prefix: &str, part: &parts::Mlp) -> Result<Mlp> {
        let [up, down] = [self.linear(prefix, &part.up)?, self.linear(prefix, &part.down)?];
        Ok(match part.kind {
            MlpKind::Plain(activation, p) => {
                Mlp::Plain { up, activation, dropout: self.dropout(index, "mlp", p), down }
            }
            MlpKind::Gated(activation, p) => {
                Mlp::Gated { gate_up: up, activation, dropout: self.dropout(index, "mlp", p), down }
            }
        })
    }

    fn head(&self) -> Result<Block> {
        let part = &self.decoder.head;
        let weight = self.parameter(if part.tied { self.decoder.embedding.tokens } else { parts::Head::WEIGHT })?;
        let bias = part.project.has_bias().then(|| self.parameter(parts::Head::BIAS)).transpose()?;
        let norm = part.norm.map(|norm| self.norm("", &norm)).transpose()?;
        Ok(Block::Head(Head {
            sums: self.sums(&part.place(self.decoder.layers.len() + 1).prefix, &part.sums)?,
            norm,
            project: Linear { weight, stacked: 1, bias },
            loss: LossOptions { cap: part.softcap, z: part.z_loss },
        }))
    }

    fn sums(&self, prefix: &str, part: &parts::Sums) -> Result<Sums> {
        let parameter = |name: &str| self.parameter(&format!("{prefix}{name}"));
        let term = |term: &parts::Term| -> Result<Term> {
            let gate = term.gate.as_ref().map(|gate| {
                let weight = parameter(&format!("{}.weight", gate.name))?;
                Ok::<_, candle_core::Error>((Linear { weight, stacked: 1, bias: None }, gate.channels))
            });
            let scalar = term.scalar.as_ref();
            let scalar = scalar.map(|scalar| Ok::<_, candle_core::Error>((parameter(&scalar.name)?, scalar.sigmoid)));
            Ok(Term {
                number: term.number,
                scalar: scalar.transpose()?,
                gate: gate.transpose()?,
                tensor: match &term.tensor {
                    parts::TermTensor::Own => TermTensor::Own,
                    parts::TermTensor::Previous => TermTensor::Previous,
                    parts::TermTensor::Carried(place) => TermTensor::Carried(*place),
                    parts::TermTensor::Table { name, .. } => TermTensor::Table(parameter(&format!("{name}.weight"))?),
                },
            })
        };
        let in_attention = part.is_in_attention;
        let equation = |equation: &parts::Equation| {
            Ok(match equation {
                parts::Equation::Norm(eps) => {
                    let gain = NormVector::Fixed(table(vec![1.0; part.width], part.width, self.like)?);
                    Equation::Norm(Norm { gain, bias: None, eps: *eps })
                }
                parts::Equation::Sum(terms) => {
                    let all = terms.iter().map(term).collect::<Result<_>>()?;
                    Equation::Sum(all, equation.keeps_input(!in_attention))
                }
            })
        };
        Ok(Sums(part.equations.iter().map(equation).collect::<Result<_>>()?))
    }

    fn parameter(&self, name: &str) -> Result<usize> {
        parameter_index(self.layout, name)
    }

    fn dropout(&self, block: usize, site: &str, p: f64) -> DropoutSite {
        DropoutSite::new(self.seed, &format!("{block}.{site}"), p)
    }

    fn norm(&self, prefix: &str, part: &parts::Norm) -> Result<Norm> {
        let parameter = |end: &str| self.parameter(&format!("{prefix}{}.{end}", part.name));
        let constant = |number: f64| table(vec![number; part.width], part.width, self.like);
        let gain = match part.gain {
            NormGain::Weight => NormVector::Parameter(parameter("weight")?),
            NormGain::OnePlusWeight => NormVector::Sum(constant(1.0)?, parameter("weight")?),
            NormGain::None => NormVector::Fixed(constant(1.0)?),
        };
        let bias = match part.kind {
            NormKind::LayerNorm if part.has_bias => Some(NormVector::Parameter(parameter("bias")?)),
            NormKind::LayerNorm => Some(NormVector::Fixed(constant(0.0)?)),
            NormKind::RmsNorm => None,
        };
        Ok(Norm { gain, bias, eps: part.eps })
    }

    /// Stacked matrices lie next to each other: the first one's index stands for all.
    fn linear(&self, prefix: &str, part: &parts::Linear) -> Result<Linear> {
        let parameter = |end: &str| self.parameter(&format!("{prefix}{}.{end}", part.names[0]));
        let bias = part.has_bias().then(|| parameter("bias")).transpose()?;
        Ok(Linear { weight: parameter("weight")?, stacked: part.names.len(), bias })
    }
}
