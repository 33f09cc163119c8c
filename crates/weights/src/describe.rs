//! The description of a model that stands beside its weights, a `config.json`, or is in them: a state dict's shapes.

use std::path::Path;

use serde_json::{Map, Value};

use super::described_model::{DescribedModel, HfConfig};
use super::error::WeightsError;
use super::folder::{self, CONFIG};
use super::torch_file::check_is_archive;
use super::{gpt2, llama, state_dict};
use runner_files::is_absent;
use runner_spec::diagnostic::list;

/// The key of every description.
const MODEL_TYPE: &str = "model_type";
/// A larger description is refused.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// Reads the description of the model whose weights are at `path`: a folder, or a file of `torch.save`. The weights
/// are not read, except to see whether a head in a state dict is the embedding.
///
/// # Errors
/// If there are none, they are of a model that cannot be trained here, or their numbers cannot be.
pub fn describe(path: &Path) -> Result<DescribedModel, WeightsError> {
    let meta = std::fs::metadata(path).map_err(WeightsError::io(path))?;
    if !meta.is_dir() {
        check_is_archive(path)?;
        let file = path.with_file_name(CONFIG);
        let map = if is_absent(&file) { Map::new() } else { folder::read_object(&file, MAX_CONFIG_BYTES)? };
        // Other programs have files of this name, too.
        if !map.contains_key(MODEL_TYPE) {
            return state_dict::describe(path);
        }
        return describe_config(&file, map).map_err(|error| error.of_file_beside(path));
    }
    let file = path.join(CONFIG);
    let map = folder::read_object(&file, MAX_CONFIG_BYTES).map_err(|error| match error {
        WeightsError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            let message = format!("no {CONFIG} in this folder; name a Hugging Face folder, or a file of PyTorch");
            WeightsError::file(path, message)
        }
        error => error,
    })?;
    let described = describe_config(&file, map)?;
    folder::form(path)?;
    Ok(described)
}

/// The model that `map`, the content of the `config.json` at `file`, describes. Weights need not be there.
///
/// # Errors
/// If it is of a model that cannot be trained here, or its numbers cannot be.
pub fn describe_config(file: &Path, map: Map<String, Value>) -> Result<DescribedModel, WeightsError> {
    described(&HfConfig { file, map })
}

fn described(config: &HfConfig<'_>) -> Result<DescribedModel, WeightsError> {
    if config.map.get("quantization_config").is_some_and(|q| !q.is_null()) {
        return Err(
            config.wrong("its weights are quantized, which is not supported; use f32, f16 or bf16 weights".to_owned())
        );
    }
    let types = std::iter::once(gpt2::MODEL_TYPE).chain(llama::CLASSES.iter().map(|class| class.model_type));
    let types = || list(&types.clone().collect::<Vec<_>>(), "or");
    let Some(name) = config.text(MODEL_TYPE)? else {
        return Err(config.wrong(format!("`model_type` is missing; it must be {}", types())));
    };
    if name == gpt2::MODEL_TYPE {
        return gpt2::describe(config)?.checked();
    }
    match llama::CLASSES.iter().find(|class| class.model_type == name) {
        Some(class) => llama::describe(class, config)?.checked(),
        None => Err(config.wrong(format!("`model_type` must be {}, got {name:?}", types()))),
    }
}
