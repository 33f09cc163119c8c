//! Groups of parameters.

use std::ops::Range;

use super::{Decays, Optimizer};
use crate::model::layout::ParamLayout;

/// Parameters with the optimizer that updates them: a range of the flat storage.
#[derive(Debug, Clone, PartialEq)]
pub struct ParameterGroup {
    pub elements: Range<usize>,
    pub optimizer: Optimizer,
    /// Multiplies the learning rate of the step.
    pub lr_scale: f64,
}

impl Optimizer {
    /// The groups of the parameters in `layout`, in its order: matrices, and the other parameters, which have no weight decay by default.
    /// Neighbours with the same settings are one group.
    pub fn groups(&self, layout: &ParamLayout) -> Vec<ParameterGroup> {
        let description = self.description();
        let others = match description.decays() {
            Decays::All => *self,
            Decays::Matrices => description.without_decay(),
        };
        let mut groups: Vec<ParameterGroup> = Vec::new();
        for (elements, optimizer) in [(0..layout.matrices, *self), (layout.matrices..layout.total, others)] {
            match groups.last_mut() {
                Some(last) if last.optimizer == optimizer => last.elements.end = elements.end,
                _ => groups.push(ParameterGroup { elements, optimizer, lr_scale: 1.0 }),
            }
        }
        groups.retain(|group| !group.elements.is_empty());
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::{AdamW, Sgd};

    #[test]
    fn parameters_with_the_same_settings_are_one_group() {
        let layout = |matrices, total| ParamLayout { entries: Vec::new(), total, matrices };
        let adamw = AdamW { weight_decay: 0.5, ..AdamW::default() };
        let all = Optimizer::Adamw(AdamW { decays: Decays::All, ..adamw });
        let group = |elements, optimizer| ParameterGroup { elements, optimizer, lr_scale: 1.0 };
        let [decayed, free] = [0.5, 0.0].map(|weight_decay| Optimizer::Adamw(AdamW { weight_decay, ..adamw }));
        assert_eq!(decayed.groups(&layout(6, 9)), [group(0..6, decayed), group(6..9, free)]);
        assert_eq!(decayed.groups(&layout(0, 9)), [group(0..9, free)], "a shard of gains");
        assert_eq!(decayed.groups(&layout(9, 9)), [group(0..9, decayed)], "a shard of matrices");
        for optimizer in [all, free, Optimizer::Sgd(Sgd { lr: 0.5, momentum: 0.5 })] {
            assert_eq!(optimizer.groups(&layout(6, 9)), [group(0..9, optimizer)]);
        }
    }
}
