//! Element types of weights in files, and their conversion from and to f32.

use half::{bf16, f16};

/// An element type that weights are read and written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    F32,
    F16,
    Bf16,
}

/// Each element type with its name in safetensors, its name in PyTorch, the class of its storages there, and the bytes of an element.
const TYPES: [(Dtype, &str, &str, &str, usize); 3] = [
    (Dtype::F32, "F32", "float32", "FloatStorage", 4),
    (Dtype::F16, "F16", "float16", "HalfStorage", 2),
    (Dtype::Bf16, "BF16", "bfloat16", "BFloat16Storage", 2),
];

impl Dtype {
    /// The type that safetensors calls `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        TYPES.iter().find(|(_, known, ..)| *known == name).map(|(dtype, ..)| *dtype)
    }

    /// The type of the storages whose class PyTorch calls `class`.
    pub(super) fn from_storage(class: &str) -> Option<Self> {
        TYPES.iter().find(|(_, _, _, known, _)| *known == class).map(|(dtype, ..)| *dtype)
    }

    /// The class of storages of the type in PyTorch.
    pub(super) fn storage(self) -> &'static str {
        TYPES[self as usize].3
    }

    /// The name of the type in safetensors.
    pub fn name(self) -> &'static str {
        TYPES[self as usize].1
    }

    /// The name of the type in PyTorch.
    pub fn torch_name(self) -> &'static str {
        TYPES[self as usize].2
    }

    /// The bytes of an element.
    pub fn size(self) -> usize {
        TYPES[self as usize].4
    }

    /// Writes the numbers of `bytes`, little-endian, to `out`, exactly; as many as `out` has.
    pub(super) fn decode(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Self::F32 => decode_with(bytes, out, f32::from_le_bytes),
            Self::F16 => decode_with(bytes, out, |bytes| f16::from_le_bytes(bytes).to_f32()),
            Self::Bf16 => decode_with(bytes, out, |bytes| bf16::from_le_bytes(bytes).to_f32()),
        }
    }

    /// Appends `values` to `out`, rounded to the nearest, ties to even. Returns the first that is beyond the type's range.
    pub(super) fn encode(self, values: &[f32], out: &mut Vec<u8>) -> Option<f32> {
        match self {
            Self::F32 => encode_with(values, out, |value| (value.is_infinite(), value.to_le_bytes())),
            Self::F16 => encode_with(values, out, |value| {
                let rounded = f16::from_f32(value);
                (rounded.is_infinite(), rounded.to_le_bytes())
            }),
            Self::Bf16 => encode_with(values, out, |value| {
                let rounded = bf16::from_f32(value);
                (rounded.is_infinite(), rounded.to_le_bytes())
            }),
        }
    }
}

fn decode_with<const N: usize>(bytes: &[u8], out: &mut [f32], number: impl Fn([u8; N]) -> f32) {
    for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
        *out = number(*bytes);
    }
}

/// Appends `values` to `out`. `convert` returns the bytes of a number, and whether the bytes are those of an infinite number.
fn encode_with<const N: usize>(
    values: &[f32],
    out: &mut Vec<u8>,
    convert: impl Fn(f32) -> (bool, [u8; N]),
) -> Option<f32> {
    let mut beyond = None;
    for &value in values {
        let (infinite, bytes) = convert(value);
        if infinite && value.is_finite() {
            beyond = beyond.or(Some(value));
        }
        out.extend(bytes);
    }
    beyond
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_to_the_nearest_and_come_back() {
        let values = [0.0, -1.5, 3.140_625, 65504.0, 1e-8, f32::MIN_POSITIVE];
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            assert_eq!(Dtype::from_name(dtype.name()), Some(dtype));
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
