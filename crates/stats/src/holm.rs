//! The correction of Holm (1979, "A simple sequentially rejective multiple test procedure") for the comparisons of a leader.

/// The adjusted p-values of the comparisons of a leader with each other setting, in their order, if the same results have chosen the leader.
/// Then all pairs of settings were compared: the smallest p-value is multiplied by their number, and the next by the number of pairs of the
/// settings that are left when one is set apart. The last one is not changed. Holm's proof does not cover a
/// leader that the results have chosen; simulated sweeps claim a false difference in at most 5% of cases (`benches/decisions.rs`).
#[must_use]
pub(crate) fn holm_of_leader(ps: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..ps.len()).collect();
    order.sort_by(|&a, &b| ps[a].total_cmp(&ps[b]));
    let mut adjusted = vec![0.0; ps.len()];
    let mut largest: f64 = 0.0;
    for (rank, &i) in order.iter().enumerate() {
        largest = largest.max((ps[i] * pairs_of(ps.len() - rank + 1) as f64).min(1.0));
        adjusted[i] = largest;
    }
    adjusted
}

/// The number of pairs of `settings` settings.
#[must_use]
pub(crate) fn pairs_of(settings: usize) -> usize {
    settings * settings.saturating_sub(1) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p_values_equal_those_by_hand() {
        assert_eq!(holm_of_leader(&[]), Vec::<f64>::new());
        // Three settings have three pairs, two have one.
        assert_eq!(holm_of_leader(&[0.04, 0.01]), [0.04, 0.03]);
        assert_eq!(holm_of_leader(&[0.02]), [0.02]);
    }
}
