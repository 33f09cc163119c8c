//! Counter-based random numbers: Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
//!
//! A number is a function of its purpose and its index, so every rank can compute every number, and there is no generator state.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// A stream of random blocks, addressed by a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Philox {
    key: [u32; 2],
}

impl Philox {
    /// The stream for `purpose` under `seed`; the purpose is any string that names the use.
    pub fn new(seed: u64, purpose: &str) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&seed.to_le_bytes());
        hasher.update(purpose.as_bytes());
        let digest = hasher.finalize();
        let word = |i: usize| {
            let b = digest.as_bytes();
            u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]])
        };
        Self { key: [word(0), word(4)] }
    }

    /// The key of this stream: a hash of the seed and the purpose.
    pub fn key(self) -> [u32; 2] {
        self.key
    }

    /// The four words at `counter`.
    #[inline]
    pub fn block(self, counter: [u32; 4]) -> [u32; 4] {
        let (mut c, mut k) = (counter, self.key);
        for _ in 0..ROUNDS {
            let a = u64::from(c[0]) * u64::from(MULTIPLIERS[0]);
            let b = u64::from(c[2]) * u64::from(MULTIPLIERS[1]);
            c = [(b >> 32) as u32 ^ c[1] ^ k[0], b as u32, (a >> 32) as u32 ^ c[3] ^ k[1], a as u32];
            k = [k[0].wrapping_add(WEYL[0]), k[1].wrapping_add(WEYL[1])];
        }
        c
    }

    /// Four independent standard normal numbers at `index` (Box and Muller 1958).
    pub fn normals(self, index: u64) -> [f64; 4] {
        let words = self.block([index as u32, (index >> 32) as u32, 0, 0]);
        let unit = |w: u32| (f64::from(w) + 0.5) / 4_294_967_296.0;
        let pair = |a: u32, b: u32| {
            let radius = (-2.0 * unit(a).ln()).sqrt();
            let (sin, cos) = (2.0 * std::f64::consts::PI * unit(b)).sin_cos();
            (radius * cos, radius * sin)
        };
        let ((a, b), (c, d)) = (pair(words[0], words[1]), pair(words[2], words[3]));
        [a, b, c, d]
    }

    /// Four independent numbers at `index`, uniform in the open interval (-1, 1).
    pub fn uniforms(self, index: u64) -> [f64; 4] {
        let words = self.block([index as u32, (index >> 32) as u32, 0, 0]);
        words.map(|w| (f64::from(w) + 0.5) / 2_147_483_648.0 - 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers published with the authors' Random123 library.
    #[test]
    fn matches_the_published_vectors() {
        let zero = Philox { key: [0, 0] };
        assert_eq!(zero.block([0; 4]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let ones = Philox { key: [u32::MAX; 2] };
        assert_eq!(ones.block([u32::MAX; 4]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let pi = Philox { key: [0xa409_3822, 0x299f_31d0] };
        assert_eq!(
            pi.block([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    /// Mean and variance of 400,000 numbers within five standard errors.
    #[test]
    fn normals_have_the_moments_of_a_normal() {
        let stream = Philox::new(7, "test");
        let values: Vec<f64> = (0..100_000).flat_map(|i| stream.normals(i)).collect();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
        assert!(mean.abs() < 5.0 / n.sqrt(), "{mean}");
        assert!((variance - 1.0).abs() < 5.0 * (2.0 / n).sqrt(), "{variance}");
    }

    /// Mean 0 and variance 1/3 of 400,000 numbers within five standard errors; x² has the variance 4/45.
    #[test]
    fn uniforms_have_the_moments_of_a_uniform() {
        let stream = Philox::new(7, "test");
        let values: Vec<f64> = (0..100_000).flat_map(|i| stream.uniforms(i)).collect();
        let n = values.len() as f64;
        assert!(values.iter().all(|v| v.abs() < 1.0));
        let mean = values.iter().sum::<f64>() / n;
        let square = values.iter().map(|v| v * v).sum::<f64>() / n;
        assert!(mean.abs() < 5.0 * (1.0 / 3.0 / n).sqrt(), "{mean}");
        assert!((square - 1.0 / 3.0).abs() < 5.0 * (4.0 / 45.0 / n).sqrt(), "{square}");
    }

    #[test]
    fn purposes_are_different_streams() {
        assert_ne!(Philox::new(1, "a"), Philox::new(1, "b"));
        assert_ne!(Philox::new(1, "a"), Philox::new(2, "a"));
    }
}
