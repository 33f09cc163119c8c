//! What is held out for validation: the first shard, a part, another source, or nothing.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How validation comes about.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldOut {
    /// The first shard is validation, as llm.c and build-nanogpt have it.
    FirstShard,
    /// This part, as nanoGPT has it: of a single text the last characters, of several documents some drawn at random.
    Fraction(f64),
    /// The validation source of the experiment.
    Source,
    Nothing,
}

impl fmt::Display for HeldOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FirstShard => f.write_str("the first shard"),
            Self::Fraction(fraction) => write!(f, "a fraction of {fraction}"),
            Self::Source => f.write_str("a source of its own"),
            Self::Nothing => f.write_str("nothing"),
        }
    }
}

/// Whether document `index` is among the `fraction` that is held out. A draw of its own for each document, so that nobody has to
/// know how many there are.
pub(super) fn is_drawn(index: u64, fraction: f64) -> bool {
    // The finalizer of MurmurHash3's 64-bit variant, which mixes all bits.
    let mut x = index.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ x >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^= x >> 33;
    // 53 bits: what f64 holds exactly.
    ((x >> 11) as f64) < fraction * (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_the_fraction_is_drawn() {
        for fraction in [0.0, 0.0005, 0.1, 0.5, 1.0] {
            let n = 200_000;
            let drawn = (0..n).filter(|&i| is_drawn(i, fraction)).count() as f64;
            // Five standard deviations of a binomial.
            let (mean, deviation) = (n as f64 * fraction, (n as f64 * fraction * (1.0 - fraction)).sqrt());
            assert!((drawn - mean).abs() <= 5.0 * deviation, "{fraction}: {drawn}");
        }
        let first: Vec<u64> = (0..60).filter(|&i| is_drawn(i, 0.1)).collect();
        assert_eq!(first, (0..60).filter(|&i| is_drawn(i, 0.1)).collect::<Vec<_>>());
    }
}
