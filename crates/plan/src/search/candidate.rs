//! Layouts during a search, and those of them for which no other stands.

use std::cmp::Ordering;

use super::evaluate::LayoutCosts;
use super::layout::{Layout, PipelineShape};

/// From the fastest layout on, each joins the front unless a layout on it needs and sends at most this share more.
const FRONT_TOLERANCE: f64 = 0.25;

/// A layout during the search.
pub(super) struct Candidate {
    pub(super) layout: Layout,
    pub(super) shape: PipelineShape,
    pub(super) costs: LayoutCosts,
}

impl Candidate {
    /// The faster one first; of equally fast ones, that with less memory.
    pub(super) fn order(&self, other: &Self) -> Ordering {
        let (a, b) = (&self.costs, &other.costs);
        a.seconds.total_cmp(&b.seconds).then(a.memory.cmp(&b.memory)).then(a.sent.cmp(&b.sent))
    }
}

/// Inserts `candidate` in the order of times.
pub(super) fn insert(simulated: &mut Vec<Candidate>, candidate: Candidate) {
    let place = simulated.partition_point(|other| other.order(&candidate).is_le());
    simulated.insert(place, candidate);
}

/// True if a reader who sees `one` need not see `other`: `one` is at least as fast, and needs and sends hardly more.
pub(super) fn stands_for(one: &LayoutCosts, other: &LayoutCosts) -> bool {
    let hardly_more = |a: u64, b: u64| a as f64 <= b as f64 * (1.0 + FRONT_TOLERANCE);
    one.seconds <= other.seconds && hardly_more(one.memory, other.memory) && hardly_more(one.sent, other.sent)
}

/// The layouts of `simulated`, the fastest first, for which no faster one stands.
pub(super) fn front(simulated: &[Candidate]) -> Vec<&Candidate> {
    let mut front: Vec<&Candidate> = Vec::new();
    for candidate in simulated {
        if !front.iter().any(|faster| stands_for(&faster.costs, &candidate.costs)) {
            front.push(candidate);
        }
    }
    front
}
