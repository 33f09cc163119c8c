//! The places of parameters in a flat buffer.
//!
//! Matrices come first, then gains and biases, each in registration order. Gradients and the first moment are buffers of the same shape, so an
//! update, a norm, a bucket or a shard is a range. Matrices without a second moment (Muon) are the first ones, and the second moment begins
//! after them.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{ParamRole, ParamSpec};

/// One parameter's place in the flat buffer, in elements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ParamEntry {
    pub spec: ParamSpec,
    pub offset: usize,
}

impl ParamEntry {
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.spec.len()
    }
}

/// The places of all parameters of a rank. `entries` are in buffer order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ParamLayout {
    pub entries: Vec<ParamEntry>,
    pub total: usize,
    /// Elements of the matrices, which the buffer starts with.
    pub matrices: usize,
    /// How many elements at the start have no second moment.
    #[serde(default)]
    pub one_moment: usize,
}

impl ParamLayout {
    /// Lays out parameters given in registration order, which have all moments.
    pub fn new(specs: Vec<ParamSpec>) -> Self {
        Self::with_fewer_moments(specs, |_| false)
    }

    /// Lays out parameters given in registration order. Matrices for which `has_one` is true come first, and have only the first moment. Those
    /// of coefficients, which may have any size, come last: matrices of products begin at multiples of the widths.
    pub fn with_fewer_moments(specs: Vec<ParamSpec>, has_one: impl Fn(&ParamSpec) -> bool) -> Self {
        let (matrices, rest): (Vec<_>, Vec<_>) = specs.into_iter().partition(ParamSpec::is_matrix);
        let (first, matrices): (Vec<_>, Vec<_>) = matrices.into_iter().partition(has_one);
        let (coefficients, matrices): (Vec<_>, Vec<_>) =
            matrices.into_iter().partition(|spec: &ParamSpec| spec.role == ParamRole::Coefficient);
        let elements = |specs: &[ParamSpec]| specs.iter().map(ParamSpec::len).sum::<usize>();
        let one_moment = elements(&first);
        let in_matrices = one_moment + elements(&matrices) + elements(&coefficients);
        let mut offset = 0;
        let place = |spec: ParamSpec| {
            let entry = ParamEntry { spec, offset };
            offset = entry.range().end;
            entry
        };
        let entries = first.into_iter().chain(matrices).chain(coefficients).chain(rest).map(place).collect();
        Self { entries, total: offset, matrices: in_matrices, one_moment }
    }

    /// The first element that section `section` of a training state has: section 0 is the weights, each following one a moment.
    pub fn first_in_section(&self, section: usize) -> usize {
        if section < 2 { 0 } else { self.one_moment }
    }

    /// The `entries` that section `section` of a training state has.
    pub fn having<'a>(
        &self,
        section: usize,
        entries: &'a [&'a ParamEntry],
    ) -> impl Iterator<Item = &'a ParamEntry> + Clone {
        let first = self.first_in_section(section);
        entries.iter().copied().filter(move |entry| entry.offset >= first)
    }

    /// The place of section `section` in the buffer of a training state.
    pub fn section(&self, section: usize) -> Range<usize> {
        let start = section * self.total - section.saturating_sub(2) * self.one_moment;
        start..start + self.total - self.first_in_section(section)
    }

    /// The place of element `index` of section `section` in the buffer of a training state.
    pub fn place(&self, section: usize, index: usize) -> usize {
        self.section(section).start + index - self.first_in_section(section)
    }

    /// The length of the buffer of a training state: the weights and `moments` moments.
    pub fn state_len(&self, moments: usize) -> usize {
        self.section(moments).end
    }

    /// Divides the buffer into `parts` of about the same `cost`, each of whole tensors, the first ones first. `None` if there are fewer
    /// tensors than parts.
    pub fn divide(&self, parts: usize, cost: impl Fn(&ParamSpec) -> u64) -> Option<Vec<Range<usize>>> {
        let mut sum = 0;
        let ends: Vec<u64> = self.entries.iter().map(|entry| (sum += cost(&entry.spec), sum).1).collect();
        let (mut next, mut start) = (0, 0);
        let part = |index: usize| {
            // The parts after this one need a tensor each.
            let last = ends.len().checked_sub(parts - index)?;
            let even = (u128::from(sum) * (index as u128 + 1) / parts as u128) as u64;
            let above = ends.partition_point(|end| *end < even).clamp(next, last);
            let nearest = (above.saturating_sub(1).max(next)..=above).min_by_key(|i| ends[*i].abs_diff(even))?;
            let range = start..self.entries[nearest].range().end;
            (next, start) = (nearest + 1, range.end);
            Some(range)
        };
        (parts <= ends.len()).then(|| (0..parts).map_while(part).collect())
    }

    /// The layout of the tensors in `range`, which holds whole ones, from offset 0 on.
    #[must_use]
    pub fn part(&self, range: &Range<usize>) -> Self {
        let inside = self.entries.iter().filter(|entry| range.contains(&entry.offset));
        let moved = |entry: &ParamEntry| ParamEntry { spec: entry.spec.clone(), offset: entry.offset - range.start };
        let [matrices, one_moment] =
            [self.matrices, self.one_moment].map(|end| end.clamp(range.start, range.end) - range.start);
        Self { entries: inside.map(moved).collect(), total: range.len(), matrices, one_moment }
    }

    /// The elements of the parameters of `blocks`, in as few ranges as possible.
    pub fn block_ranges(&self, blocks: Range<usize>) -> Vec<Range<usize>> {
        let entries = self.entries.iter().filter(|entry| blocks.contains(&entry.spec.block));
        join_ranges(entries.map(ParamEntry::range))
    }

    /// The index of the parameter called `name`.
    pub fn index(&self, name: &str) -> Option<usize> {
        self.entries.iter().position(|e| e.spec.name == name)
    }

    /// The entry called `name`.
    pub fn entry(&self, name: &str) -> Option<&ParamEntry> {
        self.entries.iter().find(|e| e.spec.name == name)
    }
}

/// The elements that both ranges have, if there are any.
pub fn common_range(a: &Range<usize>, b: &Range<usize>) -> Option<Range<usize>> {
    let both = a.start.max(b.start)..a.end.min(b.end);
    (!both.is_empty()).then_some(both)
}

/// Joins ranges that follow on each other without a gap.
pub fn join_ranges(ranges: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut joined: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(range),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ParamInit;

    fn layout(lengths: &[usize]) -> ParamLayout {
        let spec = |(index, &length): (usize, &usize)| ParamSpec {
            name: index.to_string(),
            shape: vec![length],
            init: ParamInit::Zeros,
            block: 0,
            role: ParamRole::Weight,
        };
        ParamLayout::new(lengths.iter().enumerate().map(spec).collect())
    }

    #[test]
    fn parts_are_whole_tensors_of_about_the_same_length() {
        let of = |lengths: &[usize], parts| layout(lengths).divide(parts, |spec| spec.len() as u64);
        assert_eq!(of(&[10, 10, 10, 10], 2), Some(vec![0..20, 20..40]));
        assert_eq!(of(&[10, 10, 10, 10], 3), Some(vec![0..10, 10..30, 30..40]));
        assert_eq!(of(&[100, 1, 1, 1], 4), Some(vec![0..100, 100..101, 101..102, 102..103]));
        assert_eq!(of(&[1, 1, 1, 100], 3), Some(vec![0..2, 2..3, 3..103]));
        assert_eq!(of(&[7, 8], 3), None);
        for parts in 1..=9 {
            let divided = of(&[3, 50, 4, 4, 9, 1, 30, 2, 2], parts).unwrap();
            assert_eq!(divided.len(), parts);
            assert!(divided.iter().all(|part| !part.is_empty()), "{divided:?}");
            let joined = join_ranges(divided.into_iter());
            assert_eq!((joined.len(), &joined[0]), (1, &(0..105)), "without a gap");
        }
    }

    #[test]
    fn a_part_has_the_layout_of_its_tensors() {
        let mut whole = layout(&[4, 5, 6, 7]);
        whole.matrices = 9;
        let part = whole.part(&(4..15));
        assert_eq!((part.total, part.matrices), (11, 5));
        let places: Vec<_> = part.entries.iter().map(|entry| (entry.spec.name.as_str(), entry.range())).collect();
        assert_eq!(places, [("1", 0..5), ("2", 5..11)]);
        assert_eq!((whole.part(&(9..22)).matrices, whole.part(&(0..4)).matrices), (0, 4));
    }
}
