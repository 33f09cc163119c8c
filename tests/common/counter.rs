//! Numbers that tests/golden/shared.py makes alike, so that fixtures need not hold them.

/// 32 random bits: SplitMix64's output function over stream and index.
pub fn mix(stream: u64, index: u64) -> u32 {
    let mut z = index.wrapping_add(stream << 32).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((z ^ (z >> 31)) >> 32) as u32
}

/// `count` numbers in [-1, 1), multiples of 2^-15: exact in f32, and so is their product with a power of two.
pub fn centred(stream: u64, count: usize) -> Vec<f64> {
    (0..count as u64).map(|i| f64::from(mix(stream, i) >> 16) / 32_768.0 - 1.0).collect()
}

/// `count` whole numbers below `limit`.
pub fn below(stream: u64, count: usize, limit: u32) -> Vec<u32> {
    (0..count as u64).map(|i| ((u64::from(mix(stream, i)) * u64::from(limit)) >> 32) as u32).collect()
}
