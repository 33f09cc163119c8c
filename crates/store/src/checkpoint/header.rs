//! Safetensors headers: written as ours, read as anyone's who may lie.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::ops::Range;

use serde::Serialize;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};

use super::part::PartSpec;
use runner_spec::model::layout::ParamEntry;

/// Suffix of each section's tensors: the weights, the first moment (momentum), the second.
const SUFFIXES: [&str; 3] = ["", ".m", ".v"];

/// No header of ours comes near this many bytes.
const MAX: u64 = 64 << 20;

/// A tensor in a header.
#[derive(Debug, Clone, PartialEq, Serialize, serde::Deserialize)]
pub(super) struct TensorInfo {
    pub(super) dtype: String,
    pub(super) shape: Vec<usize>,
    /// Begin and end in the data, in bytes.
    pub(super) data_offsets: [u64; 2],
}

/// What the tensor of parameter `name` in section `section` is called.
pub(super) fn tensor_name(name: &str, section: usize) -> String {
    match SUFFIXES.get(section) {
        Some(suffix) => format!("{name}{suffix}"),
        None => format!("{name}.{section}"),
    }
}

/// The tensors of `sections` of the parameters `entries`, in the order of their bytes: section after section, each in the
/// order given, without gaps. If that is all of a buffer, the data is the buffer itself.
pub(super) fn tensors(entries: &[&ParamEntry], sections: Range<usize>) -> Vec<(String, TensorInfo)> {
    let mut at = 0;
    let all = sections.flat_map(|section| entries.iter().map(move |entry| (section, entry)));
    all.map(|(section, entry)| {
        let begin = at;
        at += 4 * entry.spec.len() as u64;
        let info = TensorInfo { dtype: "F32".into(), shape: entry.spec.shape.clone(), data_offsets: [begin, at] };
        (tensor_name(&entry.spec.name, section), info)
    })
    .collect()
}

/// What a header says beside its tensors: of one part among several also which, and of which step.
pub(super) fn metadata(part: PartSpec, step: u64) -> Vec<(&'static str, String)> {
    let mut out = vec![("matrices", "[out, in]".to_owned())];
    if part.count > 1 {
        out.push(("step", step.to_string()));
        out.push(("part", format!("{} of {}", part.index + 1, part.count)));
    }
    out
}

/// A safetensors file up to its data: the length of the header, and the header, padded with blanks to a multiple of
/// eight bytes.
pub(super) fn write(
    tensors: &[(String, TensorInfo)],
    metadata: Vec<(&'static str, String)>,
) -> serde_json::Result<Vec<u8>> {
    let mut json = String::from("{\"__metadata__\":{");
    for (n, (key, value)) in metadata.into_iter().enumerate() {
        json.push_str(if n == 0 { "\"" } else { ",\"" });
        json.push_str(key);
        json.push_str("\":");
        json.push_str(&serde_json::to_string(&value)?);
    }
    json.push('}');
    for (name, info) in tensors {
        json.push(',');
        json.push_str(&serde_json::to_string(name)?);
        json.push(':');
        json.push_str(&serde_json::to_string(info)?);
    }
    json.push('}');
    let padded = json.len().next_multiple_of(8);
    let mut out = Vec::with_capacity(8 + padded);
    out.extend_from_slice(&(padded as u64).to_le_bytes());
    out.extend_from_slice(json.as_bytes());
    out.resize(8 + padded, b' ');
    Ok(out)
}

/// A header that was read and found to describe its file: f32 tensors side by side, without gap or overlap.
#[derive(Debug)]
pub(super) struct Header {
    /// As in the file, with its length before it.
    pub(super) bytes: Vec<u8>,
    /// In the order of their bytes.
    pub(super) tensors: Vec<(String, TensorInfo)>,
    /// The step in its metadata.
    pub(super) step: Option<String>,
}

/// Why a header cannot be used.
#[derive(Debug)]
pub(super) enum BadHeader {
    Content(String),
    Io(std::io::Error),
}

impl From<std::io::Error> for BadHeader {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

/// Reads the header of a safetensors file of `size` bytes. What is allocated is bounded by what is really there.
pub(super) fn read(file: &mut File, size: u64) -> Result<Header, BadHeader> {
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let header = u64::from_le_bytes(length);
    let Some(data) = size.checked_sub(8).and_then(|rest| rest.checked_sub(header)).filter(|_| header > 0) else {
        let message = format!("{size} bytes with a header of {header} do not hold any tensors");
        return Err(BadHeader::Content(message));
    };
    if header > MAX {
        return Err(BadHeader::Content(format!("a header of {header} bytes is none of ours")));
    }
    let mut bytes = length.to_vec();
    if file.take(header).read_to_end(&mut bytes)? as u64 != header {
        return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
    }
    let parsed: Parsed =
        serde_json::from_slice(&bytes[8..]).map_err(|e| BadHeader::Content(format!("its header is not right: {e}")))?;
    let mut tensors = parsed.tensors;
    tensors.sort_by_key(|(_, info)| info.data_offsets);
    check(&tensors, data).map_err(BadHeader::Content)?;
    Ok(Header { bytes, tensors, step: parsed.metadata.get("step").cloned() })
}

/// Whether `tensors`, in the order of their offsets, fill `data` bytes.
fn check(tensors: &[(String, TensorInfo)], data: u64) -> Result<(), String> {
    let mut at = 0;
    for (name, info) in tensors {
        if info.dtype != "F32" {
            return Err(format!("tensor {name} is {}, a checkpoint's are F32", info.dtype));
        }
        let [begin, end] = info.data_offsets;
        let bytes = info.shape.iter().try_fold(4u64, |bytes, &n| bytes.checked_mul(n as u64));
        if bytes.is_none() || end.checked_sub(begin) != bytes {
            return Err(format!("tensor {name}: bytes {begin} to {end} do not hold {:?}", info.shape));
        }
        if end > data {
            return Err(format!("tensor {name} ends at byte {end} of {data}"));
        }
        if begin != at {
            let how = if begin < at { "overlaps the one before" } else { "leaves a gap before it" };
            return Err(format!("tensor {name} at bytes {begin} to {end} {how}"));
        }
        at = end;
    }
    if at == data { Ok(()) } else { Err(format!("its tensors end at byte {at} of {data}")) }
}

/// A header's JSON. A name that comes twice is an error, which maps of serde would hide.
struct Parsed {
    metadata: BTreeMap<String, String>,
    tensors: Vec<(String, TensorInfo)>,
}

impl<'de> Deserialize<'de> for Parsed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;

        impl<'de> Visitor<'de> for Names {
            type Value = Parsed;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of tensors")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Parsed, M::Error> {
                let mut parsed = Parsed { metadata: BTreeMap::new(), tensors: Vec::new() };
                let mut names = HashSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    if !names.insert(name.clone()) {
                        return Err(de::Error::custom(format!("{name} comes twice")));
                    }
                    if name == "__metadata__" {
                        parsed.metadata = map.next_value()?;
                    } else {
                        let info = map.next_value();
                        let info = info.map_err(|e: M::Error| de::Error::custom(format!("tensor {name}: {e}")))?;
                        parsed.tensors.push((name, info));
                    }
                }
                Ok(parsed)
            }
        }

        deserializer.deserialize_map(Names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(shape: &[usize], begin: u64, end: u64) -> TensorInfo {
        TensorInfo { dtype: "F32".into(), shape: shape.to_vec(), data_offsets: [begin, end] }
    }

    #[test]
    fn tensors_must_fill_the_data_exactly() {
        let two = |b: TensorInfo| check(&[("a".into(), info(&[2], 0, 8)), ("b".into(), b)], 16);
        assert_eq!(two(info(&[2, 1], 8, 16)), Ok(()));
        for (b, text) in [
            (info(&[2], 4, 12), "tensor b at bytes 4 to 12 overlaps"),
            (info(&[1], 12, 16), "leaves a gap"),
            (info(&[1], 8, 12), "end at byte 12 of 16"),
            (info(&[3], 8, 20), "tensor b ends at byte 20 of 16"),
            (info(&[2], 16, 8), "do not hold [2]"),
            (info(&[3], 8, 16), "do not hold [3]"),
            (info(&[usize::MAX, usize::MAX], 8, 16), "do not hold"),
            (TensorInfo { dtype: "BF16".into(), ..info(&[2], 8, 16) }, "tensor b is BF16"),
        ] {
            let error = two(b).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn names_come_once_and_say_what_is_wrong_with_them() {
        for (json, text) in [
            ("{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},\"a\":1}", "a comes twice"),
            ("{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", "tensor a: "),
            ("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", "tensor a: missing field"),
            ("[]", "a map of tensors"),
        ] {
            let error = serde_json::from_str::<Parsed>(json).err().unwrap().to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
