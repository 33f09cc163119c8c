//! The entries of a model's block list: embedding, layers, head, made of a decoder's parts.

use candle_core::{Result, Tensor, bail};

use crate::kernels::embedding::sinusoids;
use crate::kernels::pointwise::Rope;
use crate::nn::head::HeadActivations;
use crate::nn::parameter_index;
use crate::nn::transformer::LayerActivations;
use crate::nn::{Attention, DropoutSite, Embedding, Head, Linear, Mlp, Norm, Positions, TransformerLayer};
use runner_spec::experiment::Recompute;
use runner_spec::model::Decoder;
use runner_spec::model::layout::ParamLayout;
use runner_spec::model::parts::{self, LayerPart, MlpKind, Rotary};

/// One entry of the block list.
#[derive(Debug, Clone)]
pub enum Block {
    Embedding(Embedding),
    Layer(Box<TransformerLayer>),
    Head(Head),
}

/// The activations that one block's backward needs.
#[derive(Debug)]
pub enum SavedActivations {
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
        Ok(Block::Embedding(Embedding { tokens, scale: part.scale, positions, dropout }))
    }

    fn layer(&self, index: usize) -> Result<Block> {
        let Some(layer) = self.decoder.layers.iter().nth(index - 1) else { bail!("the model has no layer {index}") };
        let [first, second] = layer.sublayers.as_slice() else { bail!("layer {index} does not have two parts") };
        let (LayerPart::Attention(attention), LayerPart::Mlp(mlp)) = (&first.part, &second.part) else {
            bail!("layer {index} is not attention and an MLP")
        };
        let prefix = layer.place(index - 1).prefix;
        let rope = attention.rotary.and_then(|rotary| self.ropes.iter().find(|(of, _)| *of == rotary));
        let [up, down] = [self.linear(&prefix, &mlp.up)?, self.linear(&prefix, &mlp.down)?];
        Ok(Block::Layer(Box::new(TransformerLayer {
            norm_place: layer.norm_place,
            norm1: self.norm(&prefix, &first.norm)?,
            attention: Attention {
                qkv: self.linear(&prefix, &attention.qkv)?,
                out: self.linear(&prefix, &attention.out)?,
                heads: attention.heads,
                mask: attention.mask,
                rope: rope.map(|(_, rope)| rope.clone()),
                dropout: self.dropout(index, "attention", attention.dropout),
            },
            norm2: self.norm(&prefix, &second.norm)?,
            mlp: match mlp.kind {
                MlpKind::Plain(activation, p) => {
                    Mlp::Plain { up, activation, dropout: self.dropout(index, "mlp", p), down }
                }
                MlpKind::SwiGlu => Mlp::SwiGlu { gate_up: up, down },
            },
            dropout: [
                self.dropout(index, "attention.output", first.dropout),
                self.dropout(index, "mlp.output", second.dropout),
            ],
            recompute: Recompute::None,
        })))
    }

    fn head(&self) -> Result<Block> {
        let part = &self.decoder.head;
        let weight = self.parameter(if part.tied { self.decoder.embedding.tokens } else { parts::Head::WEIGHT })?;
        let bias = part.project.has_bias().then(|| self.parameter(parts::Head::BIAS)).transpose()?;
        let norm = part.norm.map(|norm| self.norm("", &norm)).transpose()?;
        Ok(Block::Head(Head { norm, project: Linear { weight, stacked: 1, bias } }))
    }

    fn parameter(&self, name: &str) -> Result<usize> {
        parameter_index(self.layout, name)
    }

    fn dropout(&self, block: usize, site: &str, p: f64) -> DropoutSite {
        DropoutSite::new(self.seed, &format!("{block}.{site}"), p)
    }

    fn norm(&self, prefix: &str, part: &parts::Norm) -> Result<Norm> {
        let parameter = |end: &str| self.parameter(&format!("{prefix}{}.{end}", part.name));
        let bias = part.has_bias().then(|| parameter("bias")).transpose()?;
        Ok(Norm { weight: parameter("weight")?, bias, eps: part.eps })
    }

    /// Stacked matrices lie next to each other: the first one's index stands for all.
    fn linear(&self, prefix: &str, part: &parts::Linear) -> Result<Linear> {
        let parameter = |end: &str| self.parameter(&format!("{prefix}{}.{end}", part.names[0]));
        let bias = part.has_bias().then(|| parameter("bias")).transpose()?;
        Ok(Linear { weight: parameter("weight")?, stacked: part.names.len(), bias })
    }
}
