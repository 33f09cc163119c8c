//! A decoder as a composition of parts.

use std::collections::BTreeSet;
use std::ops::Range;

use super::options::LayerOptions;
use super::parts::{Embedding, Head, Layer, PartParameter, Recompute, Sums};
use super::rope::Rotary;
use super::spec::ModelSpec;
use super::wiring::{Carried, CarriedTensor, LayerSums, Lowering, Shape, Wiring};

/// The parts of a model: the embedding, the layers, the head.
#[derive(Debug, Clone)]
pub struct Decoder {
    pub embedding: Embedding,
    pub layers: Layers,
    pub head: Head,
    /// The tensors that blocks hand on for later ones in addition to the residual stream.
    pub carried: Vec<Carried>,
}

/// The layers of a model: a pattern that is repeated from the first layer on. Models whose layers are alike have a pattern of one.
#[derive(Debug, Clone)]
pub struct Layers {
    pattern: Vec<Layer>,
    count: usize,
}

impl ModelSpec {
    /// The composition of this model: its sizes and options, with the defaults of its family.
    pub fn decoder(&self) -> Decoder {
        let options = &self.options.pattern;
        // The rules are checked before a model is made.
        let (Wiring { embedding, layers: sums, head, carried }, _) =
            Lowering::new(&self.options, Shape::of(self)).lower();
        let listed = options.iter().flat_map(|of| std::iter::repeat_n(of, of.layers));
        let pattern = if !sums.is_empty() {
            let plain = LayerOptions::default();
            let listed: Vec<&LayerOptions> = if options.is_empty() { vec![&plain] } else { listed.collect() };
            let layers = sums.into_iter().zip(listed.into_iter().cycle());
            shortest_period(layers.map(|(sums, of)| Layer::new(self, of, sums)).collect())
        } else if options.is_empty() {
            vec![Layer::new(self, &LayerOptions::default(), LayerSums::default())]
        } else {
            let listed = listed.take(self.layers.max(1));
            listed.map(|of| Layer::new(self, of, LayerSums::default())).collect()
        };
        let layers = Layers { pattern, count: self.layers };
        let embedding = Embedding::new(self, embedding, &carried);
        Decoder { embedding, layers, head: Head::new(self, head), carried }
    }
}

/// The shortest list that gives `layers` when it is repeated.
fn shortest_period(mut layers: Vec<Layer>) -> Vec<Layer> {
    let repeats = |period: &usize| layers.iter().enumerate().all(|(index, layer)| *layer == layers[index % period]);
    let period = (1..=layers.len()).find(repeats).unwrap_or(0);
    layers.truncate(period);
    layers
}

impl Decoder {
    /// All parameters in registration order. A tied head has no matrix.
    pub fn parameters(&self) -> Vec<PartParameter> {
        let layers = self.layers.iter().enumerate().flat_map(|(index, layer)| layer.parameters(index));
        self.embedding
            .parameters()
            .into_iter()
            .chain(layers)
            .chain(self.head.parameters(self.layers.len() + 1))
            .collect()
    }
}

impl Decoder {
    /// The carried tensors that are handed on to `block`, with their places in the list.
    pub fn carried_to(&self, block: usize) -> impl Iterator<Item = (usize, &Carried)> {
        self.carried.iter().enumerate().filter(move |(_, carried)| carried.is_handed_to(block))
    }

    /// Numbers of one position that are handed on to `block`: the residual stream, and the carried tensors.
    pub(super) fn width_to(&self, block: usize) -> usize {
        self.embedding.width + self.carried_to(block).map(|(_, carried)| carried.width).sum::<usize>()
    }

    /// The places of the carried tensors that `blocks`, a part of the block list, keep for their backward, apart from those that are the
    /// kept input of a block.
    pub fn carried_kept(&self, blocks: &Range<usize>, recompute: Recompute) -> impl Iterator<Item = usize> {
        self.carried.iter().enumerate().filter_map(move |(place, carried)| {
            let is_read = blocks.clone().any(|block| self.carried_read_by(block).contains(&place));
            let next = carried.from + 1;
            let is_input = carried.of == CarriedTensor::Output
                && blocks.contains(&carried.from)
                && blocks.contains(&next)
                && (recompute == Recompute::Block || self.input_sums(next).is_none_or(Sums::keeps_input));
            (is_read && !is_input).then_some(place)
        })
    }

    /// What replaces the input of `block`, a layer or the head.
    fn input_sums(&self, block: usize) -> Option<&Sums> {
        let layer = self.layers.iter().nth(block.checked_sub(1)?);
        Some(layer.map_or(&self.head.sums, |layer| &layer.input))
    }

    /// Numbers of one position that flow into a block, where they are most.
    pub fn widest(&self) -> usize {
        // It grows where a tensor is first handed on.
        let starts = self.carried.iter().map(|carried| self.width_to(carried.from + 1));
        starts.max().unwrap_or(self.embedding.width)
    }

    /// The carried tensors that `block` reads.
    pub fn carried_read_by(&self, block: usize) -> BTreeSet<usize> {
        match block.checked_sub(1) {
            None => BTreeSet::new(),
            Some(index) => match self.layers.iter().nth(index) {
                Some(layer) => layer.sums().flat_map(Sums::carried).collect(),
                None => self.head.sums.carried().collect(),
            },
        }
    }

    /// The names of the parameters that make what layers add to the residual stream.
    pub fn layer_outputs(&self) -> impl Iterator<Item = String> {
        self.layers.iter().enumerate().flat_map(|(index, layer)| layer.output_names(index))
    }

    /// The tables of angles that the layers in `chunks`, parts of the block list, need, each once.
    pub fn rotary_tables(&self, chunks: impl Iterator<Item = Range<usize>>) -> Vec<Rotary> {
        let mut tables = Vec::new();
        for (layer, times) in chunks.flat_map(|chunk| self.layers.count_in(chunk)) {
            for rotary in layer.attentions().filter_map(|attention| attention.rotary) {
                if times > 0 && !tables.contains(&rotary) {
                    tables.push(rotary);
                }
            }
        }
        tables
    }
}

impl Layers {
    /// The layers that differ, or may.
    pub fn pattern(&self) -> &[Layer] {
        &self.pattern
    }

    #[expect(clippy::len_without_is_empty, reason = "a model has layers")]
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn iter(&self) -> impl Iterator<Item = &Layer> {
        self.pattern.iter().cycle().take(self.count)
    }

    /// Each layer of the pattern with the number of times that it is in `blocks`, a part of the block list.
    pub fn count_in(&self, blocks: Range<usize>) -> impl Iterator<Item = (&Layer, usize)> {
        let [start, end] = [blocks.start, blocks.end].map(|block| block.saturating_sub(1).min(self.count));
        let period = self.pattern.len();
        // Of the first n layers, those whose index is `place` modulo the period.
        let before = move |n: usize, place: usize| (n + period - 1 - place) / period;
        let times = move |place| before(end, place).saturating_sub(before(start, place));
        self.pattern.iter().enumerate().map(move |(place, layer)| (layer, times(place)))
    }

    /// The largest `f` of a layer.
    pub fn most(&self, f: impl Fn(&Layer) -> u64) -> u64 {
        self.pattern.iter().map(f).max().unwrap_or(0)
    }

    /// `f` of each layer, called once for each layer of the pattern.
    pub fn map<T: Clone>(&self, f: impl Fn(&Layer) -> T) -> Vec<T> {
        let values: Vec<T> = self.pattern.iter().map(f).collect();
        values.iter().cycle().take(self.count).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Family, Mask};

    /// Seven layers, every third of which sees the whole row.
    fn mixed() -> Layers {
        let layer = |mask| {
            let mut spec = ModelSpec::with_defaults(Family::Llama, [9, 8, 7, 2, 8]);
            spec.options.mask = mask;
            Layer::new(&spec, &LayerOptions::default(), LayerSums::default())
        };
        Layers { pattern: [Mask::Causal, Mask::Causal, Mask::Full].map(layer).into(), count: 7 }
    }

    #[test]
    fn a_pattern_is_counted_as_its_layers_are_listed() {
        let layers = mixed();
        let masks: Vec<Mask> = layers.iter().flat_map(|layer| layer.attentions().map(|a| a.mask)).collect();
        assert_eq!(masks.iter().filter(|mask| **mask == Mask::Full).count(), 2);
        assert_eq!(layers.map(|layer| layer.attentions().map(|a| a.mask).collect::<Vec<_>>()).concat(), masks);
        for (start, end) in (0..10).flat_map(|start| (start..10).map(move |end| (start, end))) {
            let listed = |place: usize| {
                let indexes = (0..7).filter(|index| (start..end).contains(&(index + 1)));
                indexes.filter(|index| index % 3 == place).count()
            };
            let counted: Vec<usize> = layers.count_in(start..end).map(|(_, times)| times).collect();
            assert_eq!(counted, [0, 1, 2].map(listed), "{start}..{end}");
        }
    }

    /// The parameters of layers that differ are those of each, under its own index.
    #[test]
    fn layers_that_differ_have_their_own_parameters() {
        let spec = ModelSpec { layers: 7, ..ModelSpec::with_defaults(Family::Llama, [9, 8, 7, 2, 8]) };
        let narrow =
            Layer::new(&ModelSpec { d_ff: 16, ..spec.clone() }, &LayerOptions::default(), LayerSums::default());
        let wide = Layer::new(&ModelSpec { d_ff: 24, ..spec.clone() }, &LayerOptions::default(), LayerSums::default());
        let decoder = Decoder { layers: Layers { pattern: vec![narrow, wide], count: 7 }, ..spec.decoder() };
        let widths: Vec<usize> = decoder
            .parameters()
            .into_iter()
            .filter(|parameter| parameter.spec.name.ends_with("mlp.up_proj.weight"))
            .map(|parameter| parameter.spec.shape[0])
            .collect();
        assert_eq!(widths, [16, 24, 16, 24, 16, 24, 16]);
    }
}
