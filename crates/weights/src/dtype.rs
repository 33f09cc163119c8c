//! Element types of weights in files, and their way from and to f32.

use half::{bf16, f16};

/// An element type that weights are read and written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    F32,
    F16,
    Bf16,
}

impl Dtype {
    /// The type that safetensors calls `name`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "F32" => Self::F32,
            "F16" => Self::F16,
            "BF16" => Self::Bf16,
            _ => return None,
        })
    }

    /// What safetensors calls it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
        }
    }

    /// What PyTorch calls it.
    #[must_use]
    pub fn torch_name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
        }
    }

    /// Bytes of an element.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// The numbers of `bytes`, little-endian, exactly; as many as `out` has.
    pub(super) fn decode(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Self::F32 => {
                for (out, b) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                    *out = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
                }
            }
            Self::F16 => {
                for (out, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                    *out = f16::from_le_bytes([b[0], b[1]]).to_f32();
                }
            }
            Self::Bf16 => {
                for (out, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                    *out = bf16::from_le_bytes([b[0], b[1]]).to_f32();
                }
            }
        }
    }

    /// Appends `values` to `out`, rounded to the nearest, ties to even. Returns the first that is beyond the type's range.
    pub(super) fn encode(self, values: &[f32], out: &mut Vec<u8>) -> Option<f32> {
        let mut beyond = None;
        match self {
            Self::F32 => values.iter().for_each(|v| out.extend(v.to_le_bytes())),
            Self::F16 => {
                for v in values {
                    let h = f16::from_f32(*v);
                    if h.is_infinite() && v.is_finite() {
                        beyond = beyond.or(Some(*v));
                    }
                    out.extend(h.to_le_bytes());
                }
            }
            Self::Bf16 => {
                for v in values {
                    let h = bf16::from_f32(*v);
                    if h.is_infinite() && v.is_finite() {
                        beyond = beyond.or(Some(*v));
                    }
                    out.extend(h.to_le_bytes());
                }
            }
        }
        beyond
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_to_the_nearest_and_come_back() {
        let values = [0.0, -1.5, 3.140_625, 65504.0, 1e-8, f32::MIN_POSITIVE];
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            assert_eq!(Dtype::named(dtype.name()), Some(dtype));
            let (mut bytes, mut back) = (Vec::new(), [0.0; 6]);
            assert_eq!(dtype.encode(&values, &mut bytes), None);
            assert_eq!(bytes.len(), 6 * dtype.size());
            dtype.decode(&bytes, &mut back);
            let steps = match dtype {
                Dtype::F32 => 0.0,
                Dtype::F16 => 1.0 / 2048.0,
                Dtype::Bf16 => 1.0 / 256.0,
            };
            for (a, b) in values.iter().zip(back) {
                // Below f16's normal numbers the step is 2^-24.
                assert!(
                    (a - b).abs() <= steps * a.abs() + if dtype == Dtype::F16 { 3e-8 } else { 0.0 },
                    "{dtype:?} {a} {b}"
                );
            }
        }
        assert_eq!(Dtype::F16.encode(&[1.0, 70000.0, f32::INFINITY], &mut Vec::new()), Some(70000.0));
        assert_eq!(Dtype::Bf16.encode(&[f32::MAX], &mut Vec::new()), Some(f32::MAX));
        // Halfway between two bf16 numbers: to the even one.
        let mut bytes = Vec::new();
        Dtype::Bf16.encode(&[f32::from_bits(0x3f80_8000), f32::from_bits(0x3f81_8000)], &mut bytes);
        assert_eq!(bytes, [0x80, 0x3f, 0x82, 0x3f]);
    }
}
