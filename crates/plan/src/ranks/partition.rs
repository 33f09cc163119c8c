//! The division of the layers among the parts of the pipeline.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::forecast::block_time::PerBlockKind;
use runner_spec::experiment::AutoOr;
use runner_spec::program::BlockRange;

/// The costs of a model's blocks, forward and backward, in any one unit.
pub(crate) type BlockCosts = PerBlockKind<f64>;

/// Layers per part that make the most expensive part as cheap as it can be; each part has at least one. Layers cost the
/// same, so giving each next layer to the part that is then the cheapest is optimal.
pub(crate) fn balance(layers: usize, parts: usize, costs: &BlockCosts) -> Vec<usize> {
    let mut counts = vec![1; parts];
    let fixed = part_costs(&vec![0; parts], costs);
    // Costs are not negative, so their bits as integers have the same order; of equal costs the first part is taken.
    let with_one_more = |counts: &[usize], part: usize| {
        let cost = fixed[part] + (counts[part] + 1) as f64 * costs.layer;
        Reverse((cost.max(0.0).to_bits(), part))
    };
    let mut heap: BinaryHeap<_> = (0..parts).map(|part| with_one_more(&counts, part)).collect();
    for _ in parts..layers {
        if let Some(Reverse((_, part))) = heap.pop() {
            counts[part] += 1;
            heap.push(with_one_more(&counts, part));
        }
    }
    counts
}

/// The cost of each part.
pub(crate) fn part_costs(counts: &[usize], costs: &BlockCosts) -> Vec<f64> {
    let last = counts.len().saturating_sub(1);
    let cost = |(part, &count): (usize, &usize)| {
        let embedding = if part == 0 { costs.embedding } else { 0.0 };
        let head = if part == last { costs.head } else { 0.0 };
        count as f64 * costs.layer + embedding + head
    };
    counts.iter().enumerate().map(cost).collect()
}

/// The layers of each part, given or balanced, and for a balanced one what was chosen and why.
pub(crate) fn partition(
    wanted: &AutoOr<Vec<usize>>,
    layers: usize,
    parts: usize,
    costs: &BlockCosts,
) -> (Vec<usize>, Option<String>) {
    match wanted {
        AutoOr::Given(counts) => (counts.clone(), None),
        AutoOr::Auto => {
            let counts = balance(layers, parts, costs);
            let shares = part_costs(&counts, costs);
            let total: f64 = shares.iter().sum();
            let percent: Vec<String> = shares.iter().map(|c| format!("{:.0}%", 100.0 * c / total)).collect();
            let why = format!(
                "partition: {counts:?} layers; the head costs as much as {:.1} layers, so the parts take {} of the work",
                costs.head / costs.layer,
                percent.join(", ")
            );
            (counts, Some(why))
        }
    }
}

/// The blocks of each part: the embedding belongs to the first layers, norm and head to the last.
pub(crate) fn parts(counts: &[usize]) -> Vec<BlockRange> {
    let layers: usize = counts.iter().sum();
    let mut out = Vec::with_capacity(counts.len());
    let mut start = 0;
    let mut layer = 1;
    for (part, &count) in counts.iter().enumerate() {
        layer += count;
        let end = if part + 1 == counts.len() { layers + 2 } else { layer };
        out.push(BlockRange { start, end });
        start = end;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_counts() {
        let costs = BlockCosts { embedding: 0.0, layer: 1.0, head: 3.0 };
        assert_eq!(balance(12, 3, &costs), [5, 5, 2]);
        let even = BlockCosts { head: 0.0, ..costs };
        assert_eq!(balance(12, 3, &even), [4, 4, 4]);
        assert_eq!(balance(3, 3, &BlockCosts { head: 99.0, ..costs }), [1, 1, 1]);
    }

    /// Against all partitions of up to 9 layers.
    #[test]
    fn no_other_partition_is_better() {
        fn all(layers: usize, parts: usize) -> Vec<Vec<usize>> {
            match parts {
                1 => vec![vec![layers]],
                _ => (1..=layers - (parts - 1))
                    .flat_map(|first| {
                        all(layers - first, parts - 1).into_iter().map(move |rest| [vec![first], rest].concat())
                    })
                    .collect(),
            }
        }
        let worst = |counts: &[usize], costs: &BlockCosts| part_costs(counts, costs).into_iter().fold(0.0, f64::max);
        for head in [0.0, 0.7, 2.5, 6.0] {
            let costs = BlockCosts { embedding: 0.3, layer: 1.0, head };
            for layers in 1..10 {
                for parts in 1..=layers.min(4) {
                    let others = all(layers, parts);
                    let best = others.iter().map(|c| worst(c, &costs)).fold(f64::INFINITY, f64::min);
                    assert_eq!(worst(&balance(layers, parts, &costs), &costs), best, "{layers} {parts} {head}");
                }
            }
        }
    }

    #[test]
    fn parts_cover_the_block_list() {
        let blocks = parts(&[2, 1, 3]);
        assert_eq!(
            blocks,
            [BlockRange { start: 0, end: 3 }, BlockRange { start: 3, end: 4 }, BlockRange { start: 4, end: 8 }]
        );
        assert_eq!(parts(&[4]), [BlockRange { start: 0, end: 6 }]);
    }
}
