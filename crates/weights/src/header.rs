//! The header of a safetensors file that anyone may have written: which tensors there are, and where. Nothing in it is
//! believed before the file's size bears it out.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::error::WeightsError;

/// The format's own limit on a header.
const MOST: u64 = 100_000_000;

/// A tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TensorInfo {
    pub(super) name: String,
    pub(super) dtype: String,
    pub(super) shape: Vec<u64>,
    /// The first byte, from the start of the file.
    pub(super) at: u64,
}

#[derive(serde::Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// The tensors of the file `path` in the order of their bytes. What is allocated is bounded by what is there.
///
/// # Errors
/// If it is missing, or not a safetensors file whose tensors fill it.
pub(super) fn read(path: &Path) -> Result<Vec<TensorInfo>, WeightsError> {
    let wrong = |message: String| WeightsError::file(path, message);
    let mut file = File::open(path).map_err(WeightsError::io(path))?;
    let meta = file.metadata().map_err(WeightsError::io(path))?;
    if !meta.is_file() {
        return Err(wrong("not a file".into()));
    }
    let size = meta.len();
    if size < 8 {
        return Err(wrong(format!("{size} bytes are no safetensors file: it begins with 8 for the header's length")));
    }
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(WeightsError::io(path))?;
    let header = u64::from_le_bytes(length);
    if header > size - 8 {
        let message =
            format!("a header of {header} bytes in a file of {size}: it is cut short, or no safetensors file");
        return Err(wrong(message));
    }
    if header > MOST {
        return Err(wrong(format!("a header of {header} bytes; the format allows {MOST}")));
    }
    let mut bytes = Vec::new();
    file.take(header).read_to_end(&mut bytes).map_err(WeightsError::io(path))?;
    if bytes.len() as u64 != header {
        return Err(wrong("it got shorter while it was read".into()));
    }
    let Parsed(mut entries) =
        serde_json::from_slice(&bytes).map_err(|e| wrong(format!("its header is not right: {e}")))?;
    entries.sort_by_key(|(_, entry)| entry.data_offsets);
    check(&entries, size - 8 - header).map_err(wrong)?;
    let tensor = |(name, entry): (String, Entry)| TensorInfo {
        name,
        dtype: entry.dtype,
        shape: entry.shape,
        at: 8 + header + entry.data_offsets[0],
    };
    Ok(entries.into_iter().map(tensor).collect())
}

/// Bits of an element of the types that the format knows; `None` for others.
fn bits(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" => 8,
        "I16" | "U16" | "F16" | "BF16" => 16,
        "I32" | "U32" | "F32" => 32,
        "I64" | "U64" | "F64" | "C64" => 64,
        _ => return None,
    })
}

/// Whether `entries`, in the order of their bytes, fill `data` bytes, without gap or overlap.
fn check(entries: &[(String, Entry)], data: u64) -> Result<(), String> {
    let mut at = 0;
    for (name, Entry { dtype, shape, data_offsets: [begin, end] }) in entries {
        if begin > end || *end > data {
            return Err(format!(
                "tensor {name} is at bytes {begin} to {end} of {data}: the file is cut short, or it lies"
            ));
        }
        let elements = shape.iter().try_fold(1u64, |product, &n| product.checked_mul(n));
        let bytes = elements.zip(bits(dtype)).and_then(|(n, bits)| n.checked_mul(bits)).map(|bits| bits / 8);
        if elements.is_none() || (bits(dtype).is_some() && bytes != Some(end - begin)) {
            let have = end - begin;
            return Err(format!("tensor {name}: {have} bytes do not hold {shape:?} of {dtype}"));
        }
        if *begin != at {
            let how = if *begin < at { "overlaps the one before it" } else { "leaves a gap before it" };
            return Err(format!("tensor {name} at bytes {begin} to {end} {how}"));
        }
        at = *end;
    }
    if at == data { Ok(()) } else { Err(format!("its tensors end at byte {at} of {data}")) }
}

/// A header's JSON. A name that comes twice is an error.
struct Parsed(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Parsed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = Parsed;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Parsed, M::Error> {
                let (mut entries, mut names) = (Vec::new(), HashSet::new());
                while let Some(name) = map.next_key::<String>()? {
                    if !names.insert(name.clone()) {
                        return Err(de::Error::custom(format!("{name:?} comes twice")));
                    }
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    let entry = map.next_value();
                    let entry = entry.map_err(|e: M::Error| de::Error::custom(format!("tensor {name:?}: {e}")))?;
                    entries.push((name, entry));
                }
                Ok(Parsed(entries))
            }
        }
        deserializer.deserialize_map(Names)
    }
}
