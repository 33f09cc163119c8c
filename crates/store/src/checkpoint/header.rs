//! Safetensors headers: written as ours, read as anyone's who may lie.

use std::fs::File;
use std::ops::Range;

use super::part::PartSpec;
use runner_files::safetensors_header::{HeaderError, SafetensorsHeader, TensorInfo, read_header};
use runner_spec::model::layout::ParamEntry;

/// Suffix of each section's tensors: the weights, the first moment (momentum), the second.
const SUFFIXES: [&str; 3] = ["", ".m", ".v"];

/// No header of ours comes near this many bytes.
const MAX: u64 = 64 << 20;

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

/// Reads the header of a safetensors file of `size` bytes, whose tensors are all f32.
pub(super) fn read(file: &mut File, size: u64) -> Result<SafetensorsHeader, HeaderError> {
    let header = read_header(file, size, MAX)?;
    match header.tensors.iter().find(|(_, info)| info.dtype != "F32") {
        Some((name, info)) => {
            Err(HeaderError::Content(format!("tensor {name} is {}, a checkpoint's are F32", info.dtype)))
        }
        None => Ok(header),
    }
}
