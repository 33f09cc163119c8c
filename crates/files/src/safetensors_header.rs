//! The header of a safetensors file that anyone may have written: which tensors it has, and where. Nothing in the header is
//! believed before the size of the file confirms it.

use std::fs::File;
use std::io::{self, Read as _};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::strict_json;

/// One tensor of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorInfo {
    pub dtype: String,
    pub shape: Vec<usize>,
    /// The first byte and the byte after the last, counted from the end of the header.
    pub data_offsets: [u64; 2],
}

/// A header whose tensors fill the data of its file without gap or overlap.
#[derive(Debug)]
pub struct SafetensorsHeader {
    /// All bytes before the data: the length of the header, and the header.
    pub bytes: Vec<u8>,
    /// Names and tensors in the order of their bytes.
    pub tensors: Vec<(String, TensorInfo)>,
    /// The value of `__metadata__`, or null.
    pub metadata: Value,
}

/// Why a header cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    #[error("{0}")]
    Content(String),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Reads the header of a safetensors file of `size` bytes. The memory needed is proportional to the bytes that the file really
/// has; a header of more than `limit` bytes is refused.
///
/// # Errors
/// If the file cannot be read, is not a safetensors file, or its bytes do not match its header.
pub fn read_header(file: &mut File, size: u64, limit: u64) -> Result<SafetensorsHeader, HeaderError> {
    let content = |message: String| Err(HeaderError::Content(message));
    let Some(after_length) = size.checked_sub(8) else {
        return content(format!(
            "not a safetensors file: it has {size} bytes, and the length of the header alone \
            takes 8"
        ));
    };
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let header = u64::from_le_bytes(length);
    let Some(data) = after_length.checked_sub(header).filter(|_| header > 0) else {
        return content(format!(
            "cut short, or not a safetensors file: it has {size} bytes, but its header should have {header}"
        ));
    };
    if header > limit {
        return content(format!("its header must have at most {limit} bytes, got {header}"));
    }
    let mut bytes = length.to_vec();
    if file.take(header).read_to_end(&mut bytes)? as u64 != header {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    parse(&bytes[8..], data)
        .map(|(tensors, metadata)| SafetensorsHeader { bytes, tensors, metadata })
        .map_err(HeaderError::Content)
}

type Tensors = Vec<(String, TensorInfo)>;

/// The tensors, in the order of their bytes, and the metadata of the header `json`, whose data has `data` bytes.
fn parse(json: &[u8], data: u64) -> Result<(Tensors, Value), String> {
    let invalid = |error: serde_json::Error| format!("its header is invalid: {error}");
    let Value::Object(mut entries) = strict_json::parse(json).map_err(invalid)? else {
        return Err("its header is invalid: expected an object of tensors".to_owned());
    };
    let metadata = entries.remove("__metadata__").unwrap_or_default();
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, value) in entries {
        let info = TensorInfo::deserialize(value)
            .map_err(|error| format!("its header is invalid: tensor {name:?}: {error}"))?;
        tensors.push((name, info));
    }
    tensors.sort_by_key(|(_, info)| info.data_offsets);
    check_layout(&tensors, data)?;
    Ok((tensors, metadata))
}

/// The bytes of a safetensors file before its data: the length of the header, and the header, padded with blanks to a multiple of
/// eight bytes. `metadata` is a JSON object. The tensors are listed in the order given.
#[expect(clippy::expect_used, reason = "a stated invariant: the description of a tensor is plain data")]
pub fn header_bytes<'a, T: Serialize>(metadata: &str, tensors: impl IntoIterator<Item = (&'a str, T)>) -> Vec<u8> {
    let mut json = format!("{{\"__metadata__\":{metadata}");
    for (name, info) in tensors {
        let info = serde_json::to_string(&info).expect("plain data is JSON");
        json.extend([",", &Value::from(name).to_string(), ":", &info]);
    }
    json.push('}');
    let padded = json.len().next_multiple_of(8);
    let mut out = (padded as u64).to_le_bytes().to_vec();
    out.extend(json.bytes());
    out.resize(8 + padded, b' ');
    out
}

/// Bits of one element; `None` for types that this program does not know.
fn element_bits(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" => 8,
        "I16" | "U16" | "F16" | "BF16" => 16,
        "I32" | "U32" | "F32" => 32,
        "I64" | "U64" | "F64" | "C64" => 64,
        _ => return None,
    })
}

/// Checks that `tensors`, in the order of their bytes, fill `data` bytes without gap or overlap.
fn check_layout(tensors: &[(String, TensorInfo)], data: u64) -> Result<(), String> {
    let mut position = 0;
    for (name, TensorInfo { dtype, shape, data_offsets: [begin, end] }) in tensors {
        if begin > end || *end > data {
            return Err(format!(
                "tensor {name} is at bytes {begin} to {end} of {data}: the file is cut short, or its header is invalid"
            ));
        }
        let elements = shape.iter().try_fold(1u64, |product, &n| product.checked_mul(n as u64));
        let bytes = elements.zip(element_bits(dtype)).and_then(|(n, bits)| n.checked_mul(bits)).map(|bits| bits / 8);
        if elements.is_none() || (element_bits(dtype).is_some() && bytes != Some(end - begin)) {
            let have = end - begin;
            return Err(format!("tensor {name} has {have} bytes, which do not match the shape {shape:?} of {dtype}"));
        }
        if *begin != position {
            let how = if *begin < position { "overlaps the one before it" } else { "leaves a gap before it" };
            return Err(format!("tensor {name} at bytes {begin} to {end} {how}"));
        }
        position = *end;
    }
    if position == data { Ok(()) } else { Err(format!("its tensors end at byte {position} instead of {data}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(shape: &[usize], begin: u64, end: u64) -> TensorInfo {
        TensorInfo { dtype: "F32".into(), shape: shape.to_vec(), data_offsets: [begin, end] }
    }

    #[test]
    fn tensors_must_fill_the_data_exactly() {
        let check_two = |b: TensorInfo| check_layout(&[("a".into(), info(&[2], 0, 8)), ("b".into(), b)], 16);
        assert_eq!(check_two(info(&[2, 1], 8, 16)), Ok(()));
        for (b, text) in [
            (info(&[2], 4, 12), "tensor b at bytes 4 to 12 overlaps"),
            (info(&[1], 12, 16), "leaves a gap"),
            (info(&[1], 8, 12), "end at byte 12 instead of 16"),
            (info(&[3], 8, 20), "tensor b is at bytes 8 to 20 of 16"),
            (info(&[2], 16, 8), "tensor b is at bytes 16 to 8 of 16"),
            (info(&[3], 8, 16), "do not match the shape [3]"),
            (info(&[usize::MAX, usize::MAX], 8, 16), "do not match the shape"),
            (TensorInfo { dtype: "BF16".into(), ..info(&[2], 8, 16) }, "do not match the shape [2] of BF16"),
        ] {
            let error = check_two(b).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn names_occur_once_and_errors_name_the_tensor() {
        for (json, text) in [
            ("{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},\"a\":1}", "duplicate key \"a\""),
            ("{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", "tensor \"a\": "),
            ("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", "tensor \"a\": missing field"),
            ("[]", "an object of tensors"),
        ] {
            let error = parse(json.as_bytes(), 4).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
    }
}
