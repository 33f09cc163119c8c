//! A decoder as a composition of parts.

use std::ops::Range;

use super::parts::{Embedding, Head, Layer, PartParameter, Rotary};
use super::spec::ModelSpec;

/// The parts of a model: the embedding, the layers, which are alike, and the head.
#[derive(Debug, Clone)]
pub struct Decoder {
    pub embedding: Embedding,
    pub layer: Layer,
    pub head: Head,
}

impl ModelSpec {
    /// The composition of this model: its sizes and options, with the defaults of its family.
    pub fn decoder(&self) -> Decoder {
        Decoder { embedding: Embedding::new(self), layer: Layer::new(self), head: Head::new(self) }
    }

    /// All parameters in registration order. A tied head has no matrix.
    pub fn part_parameters(&self) -> Vec<PartParameter> {
        let Decoder { embedding, layer, head } = self.decoder();
        let layers = (0..self.layers).flat_map(|index| layer.parameters(index));
        embedding.parameters().into_iter().chain(layers).chain(head.parameters(self.layers + 1)).collect()
    }

    /// The table of angles that the layers in `chunks`, parts of the block list, need.
    pub fn rotary_table(&self, mut chunks: impl Iterator<Item = Range<usize>>) -> Option<Rotary> {
        let has_layers = chunks.any(|chunk| self.layers_in(chunk) > 0);
        self.decoder().layer.attentions().find_map(|attention| attention.rotary).filter(|_| has_layers)
    }
}
