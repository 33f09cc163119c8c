//! The safetensors headers of checkpoints. Files that are read may have been written by any program.

use std::fs::File;
use std::ops::Range;

use super::part::PartSpec;
use runner_files::safetensors_header::{HeaderError, SafetensorsHeader, TensorInfo, header_bytes, read_header};
use runner_spec::model::layout::ParamEntry;

/// Suffix of each section's tensors: the weights, the first moment (momentum), the second.
const SUFFIXES: [&str; 3] = ["", ".m", ".v"];

/// A longer header is refused: none that this program writes comes near it.
const MAX_HEADER_BYTES: u64 = 64 << 20;

/// The name of the tensor of parameter `name` in section `section`.
pub(super) fn tensor_name(name: &str, section: usize) -> String {
    match SUFFIXES.get(section) {
        Some(suffix) => format!("{name}{suffix}"),
        None => format!("{name}.{section}"),
    }
}

/// The bytes of a part's file before its data: `sections` of the parameters `entries`, section after section, each in the order
/// given, without gaps. If that is all of a buffer, the data is the buffer itself. The file of one part among several says which
/// part it is, and of which step.
pub(super) fn header_of_part(part: PartSpec, step: u64, entries: &[&ParamEntry], sections: Range<usize>) -> Vec<u8> {
    let metadata = match part {
        PartSpec { count: 1, .. } => r#"{"matrices":"[out, in]"}"#.to_owned(),
        PartSpec { index, count } => {
            format!(r#"{{"matrices":"[out, in]","step":"{step}","part":"{} of {count}"}}"#, index + 1)
        }
    };
    let mut position = 0;
    let mut tensors = Vec::new();
    for section in sections {
        for entry in entries {
            let begin = position;
            position += 4 * entry.spec.len() as u64;
            let (dtype, shape) = ("F32".to_owned(), entry.spec.shape.clone());
            let info = TensorInfo { dtype, shape, data_offsets: [begin, position] };
            tensors.push((tensor_name(&entry.spec.name, section), info));
        }
    }
    header_bytes(&metadata, tensors.iter().map(|(name, info)| (name.as_str(), info)))
}

/// Reads the header of a safetensors file of `size` bytes, whose tensors are all f32.
pub(super) fn read(file: &mut File, size: u64) -> Result<SafetensorsHeader, HeaderError> {
    let header = read_header(file, size, MAX_HEADER_BYTES)?;
    match header.tensors.iter().find(|(_, info)| info.dtype != "F32") {
        Some((name, info)) => {
            Err(HeaderError::Content(format!("tensor {name} is {}, a checkpoint's are F32", info.dtype)))
        }
        None => Ok(header),
    }
}
