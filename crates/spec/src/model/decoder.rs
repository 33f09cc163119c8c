//! A decoder as a composition of parts.

use super::ModelSpec;
use super::parts::{Embedding, Head, Layer, PartParameter};

/// The parts of a model: the embedding, layers that are all alike, the head.
#[derive(Debug, Clone)]
pub struct Decoder {
    pub embedding: Embedding,
    pub layers: usize,
    pub layer: Layer,
    pub head: Head,
}

impl ModelSpec {
    /// The composition of this model: its sizes and options, with the defaults of its family.
    pub fn decoder(&self) -> Decoder {
        let (embedding, layer, head) = (Embedding::new(self), Layer::new(self), Head::new(self));
        Decoder { embedding, layers: self.layers, layer, head }
    }
}

impl Decoder {
    /// All parameters in registration order. A tied head has no matrix.
    pub fn parameters(&self) -> Vec<PartParameter> {
        let layers = (0..self.layers).flat_map(|index| self.layer.parameters(index));
        self.embedding.parameters().into_iter().chain(layers).chain(self.head.parameters(self.layers + 1)).collect()
    }
}
