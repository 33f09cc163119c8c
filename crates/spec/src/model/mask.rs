//! Attention's mask.

use std::ops::Range;

/// The keys of a row that a query sees, which are within a distance of the query's position. Files and plans have it as `causal`, true or false, and
/// `window`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mask {
    /// The key at the query's own position, and all before it.
    #[default]
    Causal,
    /// All keys of the row, as in an encoder.
    Full,
    /// The key at the query's own position, and those before it, up to this many in all: Hugging Face's `sliding_window`.
    Window(u32),
}

impl Mask {
    /// How many keys before and after its own position a query of a row of `length` sees, if the row has that many.
    pub fn reach(self, length: usize) -> [usize; 2] {
        match self {
            Self::Causal => [length, 0],
            Self::Full => [length, length],
            Self::Window(keys) => [(keys as usize).saturating_sub(1).min(length), 0],
        }
    }

    /// The positions of the keys that the query at position `query` of a row of `length` sees.
    pub fn keys(self, query: usize, length: usize) -> Range<usize> {
        let [before, after] = self.reach(length);
        query.saturating_sub(before)..(query + 1).saturating_add(after).min(length)
    }

    /// True if a query sees keys after its own position, among them the token that is to be predicted.
    pub fn sees_ahead(self) -> bool {
        self.reach(1)[1] > 0
    }

    /// The most keys that a query of a row of `length` sees.
    pub fn most_keys(self, length: usize) -> usize {
        let [before, after] = self.reach(length);
        before.saturating_add(after).saturating_add(1).min(length)
    }

    /// The pairs of a query and a key in a long row of `length`, relative to a causal mask's length²/2: twice the square of pairs less the two
    /// corners that are out of reach. The key at the query's own position counts as one of those before it.
    pub fn relative_pairs(self, length: usize) -> f64 {
        let corner = |reach: usize| (1.0 - reach as f64 / length as f64).max(0.0).powi(2);
        let [before, after] = self.reach(length);
        2.0 - corner(before + 1) - corner(after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_see_the_keys_of_their_mask() {
        let of = |mask: Mask| [0, 2, 4].map(|query| mask.keys(query, 5));
        assert_eq!(of(Mask::Causal), [0..1, 0..3, 0..5]);
        assert_eq!(of(Mask::Full), [0..5, 0..5, 0..5]);
        assert_eq!(of(Mask::Window(1)), [0..1, 2..3, 4..5]);
        assert_eq!(of(Mask::Window(3)), [0..1, 0..3, 2..5]);
        assert_eq!(of(Mask::Window(5)), of(Mask::Causal));
        assert_eq!(of(Mask::Window(u32::MAX)), of(Mask::Causal));
        assert_eq!([Mask::Causal, Mask::Full, Mask::Window(3)].map(Mask::sees_ahead), [false, true, false]);
    }

    /// The stated count of pairs is off by at most half the keys that a query sees.
    #[test]
    fn pairs_and_the_most_keys_follow_from_keys() {
        let length = 1000;
        let windows = [1, 2, 10, 300, 999, 1000, 5000].map(|keys| {
            let part = (f64::from(keys) / length as f64).min(1.0);
            (Mask::Window(keys), 1.0 - (1.0 - part).powi(2))
        });
        for (mask, relative) in [(Mask::Causal, 1.0), (Mask::Full, 2.0)].into_iter().chain(windows) {
            let seen = || (0..length).map(|query| mask.keys(query, length).len());
            assert_eq!(seen().max(), Some(mask.most_keys(length)));
            let stated = mask.relative_pairs(length);
            // Of the squares of a window, which are of order 1, the last places are lost.
            let is_exact = matches!(mask, Mask::Causal | Mask::Full);
            assert!((stated - relative).abs() <= if is_exact { 0.0 } else { 1e-15 }, "{mask:?}: {stated}");
            let pairs = seen().sum::<usize>() as f64 / (0.5 * (length * length) as f64);
            let most = (mask.most_keys(length) as f64 / length as f64) / length as f64;
            assert!((pairs - relative).abs() <= most * 1.0001, "{mask:?}: {pairs} for {relative}");
        }
    }
}
