//! The tensors of a Hugging Face folder, in one file of safetensors or PyTorch, or in several with an index.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::error::WeightsError;
use super::file_tensor::FileTensor;
use super::torch_file::TorchFile;
use runner_files::safetensors_header::{HeaderError, TensorInfo, read_header};
use runner_files::{open_regular, strict_json, without_byte_order_mark};
use runner_spec::experiment::Tokenizer;
use runner_spec::format::quoted_line;

/// A folder's description of its model.
pub(super) const CONFIG: &str = "config.json";
/// The weights in one file.
pub(super) const SINGLE: &str = "model.safetensors";
/// The index of weights in several files: the file of each tensor.
pub(super) const INDEX: &str = "model.safetensors.index.json";
/// The names of weights in one file, of an index of several, and the ends of their names. The first that is there is read.
const FORMS: [[&str; 3]; 2] =
    [[SINGLE, INDEX, ".safetensors"], ["pytorch_model.bin", "pytorch_model.bin.index.json", ".bin"]];
/// A larger index is refused.
const MAX_INDEX_BYTES: u64 = 16 << 20;

/// The limit that the format sets for a header.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The tensors of `path`, which is number `file` of its folder; those of a safetensors file in the order of their bytes.
fn tensors_of_file(file: usize, path: &Path) -> Result<Vec<FileTensor>, WeightsError> {
    if path.extension().is_some_and(|end| end == "bin") {
        return Ok(TorchFile::open(file, path)?.tensors);
    }
    let mut opened = open_regular(path).map_err(WeightsError::io(path))?;
    let metadata = opened.metadata().map_err(WeightsError::io(path))?;
    if !metadata.is_file() {
        return WeightsError::invalid(path, "not a file");
    }
    let header = read_header(&mut opened, metadata.len(), MAX_HEADER_BYTES).map_err(|error| match error {
        HeaderError::Content(message) => WeightsError::file(path, message),
        HeaderError::Io(error) => WeightsError::io(path)(error),
    })?;
    let data_start = header.bytes.len() as u64;
    let located = |(name, TensorInfo { dtype, shape, data_offsets: [begin, _] })| FileTensor {
        file,
        name,
        dtype,
        shape,
        start: data_start + begin,
        transposed: false,
    };
    Ok(header.tensors.into_iter().map(located).collect())
}

/// The files of the folder `folder`, and every tensor in them.
///
/// # Errors
/// If there are no weights, or files, headers and index do not fit one another.
pub(super) fn tensors(folder: &Path) -> Result<(Vec<PathBuf>, Vec<FileTensor>), WeightsError> {
    let [single, index, end] = form(folder)?;
    let single = folder.join(single);
    if single.symlink_metadata().is_ok() {
        let found = tensors_of_file(0, &single)?;
        return Ok((vec![single], found));
    }
    let index = folder.join(index);
    let map = weight_map(&index, end)?;
    let mut names: Vec<&String> = map.values().collect();
    names.sort_unstable();
    names.dedup();
    let files: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
    if let Some((_, absent)) = files.iter().zip(&names).find(|(path, _)| !path.exists()) {
        return WeightsError::invalid(
            &index,
            format!("it lists {}, which is missing; download it again", absent.escape_debug()),
        );
    }
    let (mut found, mut seen) = (Vec::new(), BTreeMap::new());
    for (file, path) in files.iter().enumerate() {
        for tensor in tensors_of_file(file, path)? {
            let name = &tensor.name;
            if let Some(other) = seen.insert(name.clone(), file) {
                let message = format!("tensor {name} is in {} and in {}", names[other], names[file]);
                return WeightsError::invalid(&index, message);
            }
            if map.get(name) != Some(names[file]) {
                let message = format!("{} contains tensor {name}, which the index does not list", names[file]);
                return WeightsError::invalid(&index, message);
            }
            found.push(tensor);
        }
    }
    if let Some((name, shard)) = map.iter().find(|(name, _)| !seen.contains_key(*name)) {
        return WeightsError::invalid(
            &index,
            format!("the index places {name} in {shard}, but {shard} does not contain it"),
        );
    }
    Ok((files, found))
}

/// The name of each tensor's file, which has the end `end`, by the name of the tensor. Every file is in the folder itself.
fn weight_map(index: &Path, end: &str) -> Result<BTreeMap<String, String>, WeightsError> {
    let wrong = |message: String| WeightsError::file(index, message);
    let map = read_object(index, MAX_INDEX_BYTES)?.remove("weight_map").unwrap_or_default();
    let map: BTreeMap<String, String> = serde_json::from_value(map)
        .map_err(|error| wrong(format!("`weight_map` must be an object that gives each tensor its file: {error}")))?;
    for (tensor, file) in &map {
        let plain = !file.is_empty() && !file.contains(['/', '\\', '\0']) && file != "." && file != "..";
        if !plain {
            let message =
                format!("`weight_map` places {tensor} in {file:?}; shards must be in the same folder as the index");
            return Err(wrong(message));
        }
        if !file.ends_with(end) {
            return Err(wrong(format!(
                "`weight_map` places {tensor} in {file:?}; the name of a shard must end in `{end}`"
            )));
        }
    }
    if map.is_empty() {
        return Err(wrong("its `weight_map` is empty".into()));
    }
    Ok(map)
}

/// The tokenizer beside the `config.json` at `config`, if there is one: `tokenizer.json`, or else GPT-2's two files.
pub(super) fn tokenizer_beside(config: &Path) -> Option<Tokenizer> {
    let named = |name: &str| Some(config.with_file_name(name)).filter(|file| file.is_file());
    if let Some(file) = named("tokenizer.json") {
        return Some(Tokenizer::File(file));
    }
    let (vocab, merges) = named("vocab.json").zip(named("merges.txt"))?;
    Some(Tokenizer::Gpt2 { vocab, merges })
}

/// The form of the weights in the folder, which has their one file or an index of such files.
///
/// # Errors
/// If it has neither.
pub(super) fn form(folder: &Path) -> Result<[&'static str; 3], WeightsError> {
    let is_there = |name: &str| folder.join(name).symlink_metadata().is_ok();
    let found = FORMS.into_iter().find(|[single, index, _]| is_there(single) || is_there(index));
    found.ok_or_else(|| no_weights(folder))
}

/// The error for a folder without weights that can be read.
fn no_weights(folder: &Path) -> WeightsError {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .take(10_000)
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    let ends = |name: &String, end: &str| name.ends_with(end);
    if let Some(name) = names.iter().find(|n| [".bin", ".pt", ".pth", ".ckpt"].iter().any(|end| ends(n, end))) {
        let (name, pickle) = (quoted_line(name), quoted_line(&folder.join(name).to_string_lossy()));
        let message = format!("no {SINGLE} or pytorch_model.bin here; to read {name}, use `{pickle}`");
        return WeightsError::file(folder, message);
    }
    if let Some(shard) = names.iter().find(|n| ends(n, ".safetensors")) {
        let shard = quoted_line(shard);
        let message = format!("found {shard}, but neither {SINGLE} nor {INDEX}; download the index of the shards");
        return WeightsError::file(folder, message);
    }
    let names = FORMS.as_flattened().iter().filter(|name| !name.starts_with('.')).copied().collect::<Vec<_>>();
    WeightsError::file(folder, format!("no weights here; expected one of {}", names.join(", ")))
}

/// Reads the JSON object in the file `path`, which has at most `most` bytes. A byte order mark in front of it is skipped.
///
/// # Errors
/// If it is missing, larger, or no object.
pub(super) fn read_object(path: &Path, most: u64) -> Result<Map<String, Value>, WeightsError> {
    let file = open_regular(path).map_err(WeightsError::io(path))?;
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(WeightsError::io(path))?;
    if bytes.len() as u64 > most {
        return Err(WeightsError::file(path, format!("it must be at most {most} bytes")));
    }
    match strict_json::parse(without_byte_order_mark(&bytes)) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => Err(WeightsError::file(
            path,
            format!("it must be a JSON object, got {}", strict_json::describe_type(&other)),
        )),
        Err(error) => Err(WeightsError::file(path, format!("invalid JSON: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_order_mark_is_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        std::fs::write(&path, "\u{feff}{\"model_type\": \"gpt2\"}").unwrap();
        assert_eq!(read_object(&path, 100).unwrap()["model_type"], "gpt2");
        std::fs::write(&path, "{\"a\": \u{feff}1}").unwrap();
        assert!(read_object(&path, 100).is_err());
    }

    /// Python's `json` writes such numbers.
    #[test]
    fn numbers_that_are_not_finite_matter_only_where_they_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        let sizes = r#""vocab_size": 8, "n_positions": 6, "n_layer": 1, "n_head": 2, "n_embd": 4"#;
        let describe = |more: &str| {
            std::fs::write(&path, format!(r#"{{"model_type": "gpt2", {sizes}, {more}}}"#)).unwrap();
            crate::describe_config(&path, read_object(&path, 1000).unwrap()).map_err(|error| error.to_string())
        };
        assert!(describe(r#""summary": {"scale": [NaN, -Infinity]}, "best_metric": Infinity"#).is_ok());
        let error = describe(r#""resid_pdrop": -Infinity"#).unwrap_err();
        assert!(error.ends_with("`resid_pdrop` must be a number, got -Infinity"), "{error}");
    }
}
