//! The safetensors headers of checkpoints. Files that are read may have been written by any program.

use std::fs::File;
use std::ops::Range;

use super::part::PartSpec;
use runner_files::safetensors_header::{HeaderError, SafetensorsHeader, TensorInfo, header_bytes, read_header};
use runner_spec::model::layout::{ParamEntry, ParamLayout};

/// Suffix of each section's tensors: the weights, the first moment (momentum), the second.
const SUFFIXES: [&str; 3] = ["", ".m", ".v"];

/// A longer header is refused: none that this program writes comes near it.
const MAX_HEADER_BYTES: u64 = 64 << 20;

/// The type of a training state's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumberType {
    F32,
    Bf16,
}

impl NumberType {
    const ALL: [Self; 2] = [Self::F32, Self::Bf16];

    /// Its name in safetensors files.
    fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::Bf16 => "BF16",
        }
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// The name of the tensor of parameter `name` in section `section`.
pub(super) fn tensor_name(name: &str, section: usize) -> String {
    match SUFFIXES.get(section) {
        Some(suffix) => format!("{name}{suffix}"),
        None => format!("{name}.{section}"),
    }
}

/// The bytes of a part's file before its data: `sections` of the parameters `entries`, section after section, each in the order
/// given, without gaps. If that is all of a buffer, the data is the buffer itself. The file of one part
/// among several records which part it is, and of which step.
pub(super) fn header_of_part(
    part: PartSpec,
    step: u64,
    layout: &ParamLayout,
    entries: &[&ParamEntry],
    sections: Range<usize>,
    number_type: NumberType,
) -> Vec<u8> {
    let mut position = 0;
    let mut tensors = Vec::new();
    for section in sections {
        for entry in layout.having(section, entries) {
            let begin = position;
            position += (number_type.bytes() * entry.spec.len()) as u64;
            let (dtype, shape) = (number_type.name().to_owned(), entry.spec.shape.clone());
            let info = TensorInfo { dtype, shape, data_offsets: [begin, position] };
            tensors.push((tensor_name(&entry.spec.name, section), info));
        }
    }
    header_bytes(&metadata(part, step), tensors.iter().map(|(name, info)| (name.as_str(), info)))
}

/// The metadata of a part's file, as JSON.
fn metadata(part: PartSpec, step: u64) -> String {
    match part {
        PartSpec { count: 1, .. } => r#"{"matrices":"[out, in]"}"#.to_owned(),
        PartSpec { index, count } => {
            format!(r#"{{"matrices":"[out, in]","step":"{step}","part":"{} of {count}"}}"#, index + 1)
        }
    }
}

/// True if `header` is what this program writes before its tensors, and nothing else.
pub(super) fn is_as_written(header: &SafetensorsHeader, part: PartSpec, step: u64) -> bool {
    header.bytes == header_bytes(&metadata(part, step), header.tensors.iter().map(|(name, info)| (name.as_str(), info)))
}

/// Reads the header of a safetensors file of `size` bytes, whose tensors are all f32 or all bf16. Returns this type, too.
pub(super) fn read(file: &mut File, size: u64) -> Result<(SafetensorsHeader, NumberType), HeaderError> {
    let header = read_header(file, size, MAX_HEADER_BYTES)?;
    let mut dtype = None;
    for (name, info) in &header.tensors {
        let Some(this) = NumberType::ALL.into_iter().find(|known| known.name() == info.dtype) else {
            let message = format!("tensor {name} must be F32 or BF16, found {}", info.dtype);
            return Err(HeaderError::Content(message));
        };
        if *dtype.get_or_insert(this) != this {
            return Err(HeaderError::Content(format!(
                "all tensors must have the same type, but {name} is {}",
                info.dtype
            )));
        }
    }
    Ok((header, dtype.unwrap_or(NumberType::F32)))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn tensors_of_one_file_are_of_one_type() {
        let read_types = |types: [&str; 2]| {
            let (mut position, mut tensors) = (0, Vec::new());
            for (name, dtype) in ["a", "b"].into_iter().zip(types) {
                let begin = position;
                position += if dtype == "F32" { 8 } else { 4 };
                let data_offsets = [begin, position];
                tensors.push((name, TensorInfo { dtype: dtype.to_owned(), shape: vec![2], data_offsets }));
            }
            let mut bytes = header_bytes("{}", tensors.iter().map(|(name, info)| (*name, info)));
            bytes.resize(bytes.len() + position as usize, 0);
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&bytes).unwrap();
            std::io::Seek::rewind(&mut file).unwrap();
            match read(&mut file, bytes.len() as u64) {
                Ok((_, dtype)) => Ok(dtype),
                Err(HeaderError::Content(message)) => Err(message),
                Err(HeaderError::Io(error)) => panic!("{error}"),
            }
        };
        assert_eq!(read_types(["F32", "F32"]), Ok(NumberType::F32));
        assert_eq!(read_types(["BF16", "BF16"]), Ok(NumberType::Bf16));
        assert_eq!(read_types(["F32", "BF16"]), Err("all tensors must have the same type, but b is BF16".to_owned()));
        let other = read_types(["F16", "F16"]).unwrap_err();
        assert_eq!(other, "tensor a must be F32 or BF16, found F16");
    }
}
