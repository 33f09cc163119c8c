//! The data order: a fresh permutation of the rows in every epoch, without state, so any place can be asked for.
//!
//! The permutation is a keyed Feistel network on the smallest even number of bits that covers the rows; an image past
//! the rows is sent through again until it lands inside (cycle walking), which keeps it a permutation. Its round
//! function is Philox-like: one 64-bit multiplication, high and low half mixed with the round key.

/// Rounds of the network. Four make a pseudorandom permutation of a good round function; the rest is margin for small
/// domains, where a round function has only a few bits to work with.
const ROUNDS: usize = 12;

/// The order of the rows in each epoch.
#[derive(Debug, Clone)]
pub struct Sampler {
    seed: u64,
    rows: u64,
    /// Bits in each half of the network; `None` for rows in their stored order.
    half: Option<u32>,
}

impl Sampler {
    /// An order over `rows` rows, of which there must be at least one (a sampler of none always answers 0).
    #[must_use]
    pub fn new(seed: u64, rows: u64) -> Self {
        let rows = rows.max(1);
        let bits = u64::BITS - (rows - 1).leading_zeros();
        Self { seed, rows, half: Some(bits.div_ceil(2).max(1)) }
    }

    /// Rows in their stored order, the same in every epoch.
    #[must_use]
    pub fn sequential(rows: u64) -> Self {
        Self { seed: 0, rows: rows.max(1), half: None }
    }

    /// The row at `place`, from 0, in the order of `epoch`.
    #[must_use]
    pub fn row(&self, epoch: u64, place: u64) -> u64 {
        let mut x = place % self.rows;
        let Some(half) = self.half else { return x };
        let key = mix(mix(self.seed ^ 0x6461_7461_6f72_6472).wrapping_add(epoch));
        loop {
            x = permute(x, key, half);
            if x < self.rows {
                return x;
            }
        }
    }
}

fn permute(x: u64, key: u64, half: u32) -> u64 {
    let mask = (1_u64 << half) - 1;
    let (mut left, mut right) = (x >> half, x & mask);
    let mut round_key = key;
    for _ in 0..ROUNDS {
        round_key = round_key.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let next = left ^ (mix(right ^ mix(round_key)) & mask);
        left = right;
        right = next;
    }
    (left << half) | right
}

/// A 64-bit finalizer: every input bit reaches every output bit.
fn mix(x: u64) -> u64 {
    let fold = |x: u64, factor: u64| {
        let wide = u128::from(x) * u128::from(factor);
        (wide as u64) ^ ((wide >> 64) as u64)
    };
    // The added constants keep 0 from being a fixed point; the odd factors are Philox's.
    fold(fold(x ^ 0xa076_1d64_78bd_642f, 0xd2e7_470e_e14c_6c93) ^ 0xe703_7ed1_a0b4_28db, 0xca5a_8263_9512_1157)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch(sampler: &Sampler, rows: u64, epoch: u64) -> Vec<u64> {
        (0..rows).map(|i| sampler.row(epoch, i)).collect()
    }

    #[test]
    fn every_epoch_is_a_permutation() {
        for rows in (1..70).chain([255, 256, 257, 1000, 4095, 4096, 4097, 65_537]) {
            let sampler = Sampler::new(1337, rows);
            for e in 0..3 {
                let mut seen = epoch(&sampler, rows, e);
                seen.sort_unstable();
                assert!(seen.into_iter().eq(0..rows), "{rows} rows, epoch {e}");
            }
        }
    }

    #[test]
    fn epochs_and_seeds_differ() {
        let sampler = Sampler::new(1, 1000);
        assert_ne!(epoch(&sampler, 1000, 0), epoch(&sampler, 1000, 1));
        assert_ne!(epoch(&sampler, 1000, 0), epoch(&Sampler::new(2, 1000), 1000, 0));
        assert_eq!(epoch(&sampler, 1000, 7), epoch(&Sampler::new(1, 1000), 1000, 7));
    }

    /// Chi-squared over (position, row) cells: with 16 rows and 4,000 epochs each of 256 cells expects 250 hits. The
    /// statistic has about 225 degrees of freedom (standard deviation 21); 330 is five deviations above.
    #[test]
    fn small_permutations_are_uniform() {
        let mut worst: f64 = 0.0;
        for seed in 0..4 {
            let sampler = Sampler::new(seed, 16);
            let mut cells = [0_u32; 256];
            for e in 0..4000 {
                for i in 0..16 {
                    cells[(i * 16 + sampler.row(e, i)) as usize] += 1;
                }
            }
            let chi: f64 = cells.iter().map(|&c| (f64::from(c) - 250.0).powi(2) / 250.0).sum();
            worst = worst.max(chi);
        }
        assert!(worst < 330.0, "chi-squared {worst}");
    }

    /// All orders of three rows come up: 6 of them, each expecting 1,000 of 6,000 epochs (deviation about 29).
    #[test]
    fn all_orders_come_up() {
        let sampler = Sampler::new(9, 3);
        let mut counts = std::collections::BTreeMap::new();
        for e in 0..6000 {
            *counts.entry(epoch(&sampler, 3, e)).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 6);
        assert!(counts.values().all(|&c| (850..1150).contains(&c)), "{counts:?}");
    }

    #[test]
    fn neighbours_are_scattered() {
        let rows = 100_000;
        let sampler = Sampler::new(3, rows);
        let order = epoch(&sampler, rows, 0);
        let mean = order.windows(2).map(|w| w[0].abs_diff(w[1]) as f64).sum::<f64>() / rows as f64;
        // The mean distance of two uniform draws is a third of the range.
        assert!((mean / rows as f64 - 1.0 / 3.0).abs() < 0.01, "{mean}");
    }

    #[test]
    fn far_positions_are_cheap_and_in_range() {
        let sampler = Sampler::new(5, (1 << 40) + 1);
        assert!((0..1000).all(|i| sampler.row(u64::MAX - i, (1 << 40) - i) <= 1 << 40));
    }
}
