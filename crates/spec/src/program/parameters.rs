//! The parameters of a rank: their places, their groups, and what Muon does with them.

use std::collections::BTreeMap;
use std::ops::Range;

use super::Program;
use crate::model::layout::ParamLayout;
use crate::model::parameters;
use crate::model::stage::stage_parameters;
use crate::optimizer::{GroupRules, Optimizer, ParameterGroup};

impl Program {
    /// The layout of the parameters that this rank's model has.
    pub fn parameter_layout(&self) -> ParamLayout {
        let chunks: Vec<Range<usize>> = self.chunks.iter().map(|chunk| chunk.range()).collect();
        let moments = self.optimizer.description().moments();
        let mut parameters = stage_parameters(&self.model, &chunks);
        if let Some(rules) = self.transfer.map(|transfer| transfer.rules(&self.model)) {
            parameters = parameters.into_iter().map(|spec| rules.initial(spec)).collect();
        }
        ParamLayout::with_fewer_moments(parameters, |spec| {
            self.optimizer.update_of(spec, self.model.layers).moments < moments
        })
    }

    /// The shapes of the matrices that Muon updates on this rank.
    pub fn orthogonalized(&self) -> Vec<[usize; 2]> {
        if !matches!(self.optimizer, Optimizer::Muon(_)) || !self.owns_optimizer() {
            return Vec::new();
        }
        let layout = self.state_layout();
        let entries = layout.entries.iter().filter(|entry| entry.offset < layout.one_moment);
        entries.filter_map(|entry| entry.spec.shape.as_slice().try_into().ok()).collect()
    }

    /// Elements of the rank's state that have only the first moment.
    pub fn one_moment(&self) -> usize {
        self.orthogonalized().into_iter().map(|[rows, cols]| rows * cols).sum()
    }

    /// FLOPs of making the directions of this rank's matrices orthogonal in a step.
    pub fn orthogonalization_flops(&self) -> f64 {
        let Optimizer::Muon(muon) = self.optimizer else { return 0.0 };
        self.orthogonalized().into_iter().map(|shape| muon.flops(shape)).sum()
    }

    /// Factors on the learning rate, by groups of the whole model; none if there is one rate.
    pub fn lr_scales(&self) -> BTreeMap<String, f64> {
        let scales = self.group_rules().lr_scales(&parameters(&self.model));
        if scales.values().all(|scale| *scale == 1.0) { BTreeMap::new() } else { scales }
    }

    fn group_rules(&self) -> GroupRules<'_> {
        let transfer = self.transfer.map(|transfer| transfer.rules(&self.model));
        GroupRules { optimizer: self.optimizer, options: &self.groups, transfer, layers: self.model.layers }
    }

    /// The groups of the parameters in `layout`, which has some of this rank's.
    pub fn parameter_groups(&self, layout: &ParamLayout) -> Vec<ParameterGroup> {
        self.group_rules().groups(layout)
    }

    /// The layout of the parameters whose optimizer state this rank holds: all of its model's, or a shard of them.
    pub fn state_layout(&self) -> ParamLayout {
        let all = self.parameter_layout();
        self.shard().map_or_else(|| all.clone(), |shard| all.part(&shard))
    }
}
