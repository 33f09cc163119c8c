//! A decoder as a composition of parts.

use super::family::FamilyDefaults;
use super::parts::{Embedding, Head, Layer, PartParameter, Rows};
use super::{ModelSpec, ParamSpec};

/// The parts of a model: the embedding, layers that are all alike, the head.
#[derive(Debug, Clone)]
pub struct Decoder {
    pub embedding: Embedding,
    pub layers: usize,
    pub layer: Layer,
    pub head: Head,
    defaults: &'static FamilyDefaults,
}

/// A parameter, and how folders of weights hold it.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredParameter {
    pub spec: ParamSpec,
    pub rows: Rows,
    /// True if a folder holds it as [in, out].
    pub transposed: bool,
}

impl ModelSpec {
    /// The composition of this model: its sizes and options, with the defaults of its family.
    pub fn decoder(&self) -> Decoder {
        Decoder {
            embedding: Embedding::new(self),
            layers: self.layers,
            layer: Layer::new(self),
            head: Head::new(self),
            defaults: self.family.defaults(),
        }
    }
}

impl Decoder {
    /// All parameters in registration order. A tied head has no matrix.
    pub fn parameters(&self) -> Vec<StoredParameter> {
        let layer: Vec<PartParameter> = self.layer.parameters().collect();
        let outside = |parameter, block| self.stored(parameter, None, block);
        let mut all: Vec<_> = self.embedding.parameters().into_iter().map(|p| outside(p, 0)).collect();
        for i in 0..self.layers {
            all.extend(layer.iter().map(|p| self.stored(p.clone(), Some(i), i + 1)));
        }
        all.extend(self.head.parameters().map(|p| outside(p, self.layers + 1)));
        all
    }

    /// The parameter called `name`; `None` if the model has none.
    pub fn parameter(&self, name: &str) -> Option<StoredParameter> {
        let Some((layer, rest)) = self.split_layer(name) else {
            let embedding = self.embedding.parameters().into_iter().map(|p| (p, 0));
            let mut all = embedding.chain(self.head.parameters().map(|p| (p, self.layers + 1)));
            return all.find(|(p, _)| p.name == name).map(|(p, block)| self.stored(p, None, block));
        };
        let part = self.layer.parameters().find(|p| p.name == rest)?;
        (layer < self.layers).then(|| self.stored(part, Some(layer), layer + 1))
    }

    /// The name of layer `index`, which the names of its parameters begin with.
    pub fn layer_name(&self, index: usize) -> String {
        format!("{}.{index}", self.defaults.layers)
    }

    /// The layer of the parameter `name`, and its name within the layer.
    fn split_layer<'a>(&self, name: &'a str) -> Option<(usize, &'a str)> {
        let (index, rest) = name.strip_prefix(self.defaults.layers)?.strip_prefix('.')?.split_once('.')?;
        Some((index.parse().ok()?, rest))
    }

    fn stored(&self, part: PartParameter, layer: Option<usize>, block: usize) -> StoredParameter {
        let PartParameter { name, shape, init, rows } = part;
        let name = layer.map_or_else(|| name.clone(), |index| format!("{}.{name}", self.layer_name(index)));
        let transposed = self.defaults.transposes && layer.is_some() && shape.len() == 2;
        StoredParameter { spec: ParamSpec { name, shape, init, block }, rows, transposed }
    }
}
