//! A folder that `transformers` loads: configuration, weights in one file or several, tokenizer.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;

use super::difference::beyond_format;
use super::dtype::Dtype;
use super::error::WeightsError;
use super::export::{WeightSource, WrittenFiles, refuse_extensions, write_weights};
use super::folder::{CONFIG, INDEX, SINGLE};
use super::staged_folder::StagedFolder;
use super::writer::{FileForm, NewFile, TensorDestination};
use super::{gpt2, llama};
use runner_files::safetensors_header::header_bytes;
use runner_files::write_atomic;
use runner_spec::data::{HfTokenizer, SpecialTokens};
use runner_spec::diagnostic::list;
use runner_spec::error::{CommandError, PlainError};
use runner_spec::format::pretty_json;
use runner_spec::model::layout::ParamLayout;
use runner_spec::model::parts::{PartParameter, Rows};
use runner_spec::model::{Family, ModelSpec, ParamSpec};

const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const GENERATION: &str = "generation_config.json";

/// A model to write as a Hugging Face folder.
#[derive(Debug)]
pub struct HfExport<'a> {
    pub spec: &'a ModelSpec,
    /// The layout of the whole model.
    pub layout: &'a ParamLayout,
    pub dtype: Dtype,
    /// The most bytes of weights of a file that has more than one tensor.
    pub shard_bytes: u64,
    /// The number of rows of the vocabulary that are written.
    pub vocab_size: usize,
    /// The tokenizer, or the reason why there is none that `transformers` reads.
    pub tokenizer: Result<HfTokenizer, PlainError>,
    pub special: SpecialTokens,
}

/// Compares a folder's logits with the run's. Returns the largest difference relative to the largest logit, or nothing if it skips the comparison.
pub type FolderCheck<'a> = &'a mut dyn FnMut(&Path) -> Result<Option<f64>, CommandError>;

/// A tensor of a file.
struct ShardTensor {
    index: usize,
    name: String,
    shape: Vec<usize>,
    bytes: u64,
    /// True if the file has the matrix as `[in, out]`.
    transposed: bool,
}

impl HfExport<'_> {
    /// Writes the folder `to`, first under a temporary name, at which `check` gets it. With `force`, replaces files that are there.
    ///
    /// # Errors
    /// If the model has no such form, files are there, or something cannot be read or written; errors of `check`.
    pub fn write(
        &self,
        to: &Path,
        force: bool,
        source: WeightSource<'_>,
        check: FolderCheck<'_>,
    ) -> Result<WrittenFiles, WeightsError> {
        let config = self.config()?;
        let shards = self.shards();
        let name = |i: usize| match shards.len() {
            1 => SINGLE.to_owned(),
            n => format!("model-{:05}-of-{n:05}.safetensors", i + 1),
        };
        let mut texts = vec![(CONFIG, config)];
        let mut notes = Vec::new();
        if shards.len() > 1 {
            texts.push((INDEX, Self::index(&shards, &name)));
        }
        if self.special.eos.is_some() {
            texts.push((GENERATION, self.generation()));
        }
        match &self.tokenizer {
            Ok(tokenizer) => {
                texts.push((TOKENIZER, tokenizer.tokenizer.clone()));
                texts.push((TOKENIZER_CONFIG, tokenizer.config.clone()));
            }
            Err(why) => notes.push(format!("without {TOKENIZER}: {why}")),
        }
        let names: Vec<String> =
            (0..shards.len()).map(&name).chain(texts.iter().map(|(name, _)| (*name).to_owned())).collect();
        let folder = StagedFolder::begin(to, names.clone(), is_own, &LOADED_BESIDE, force)?;
        let (mut files, mut targets, mut bytes) = (Vec::new(), vec![None; self.layout.entries.len()], 0);
        for (file, shard) in shards.iter().enumerate() {
            let header = self.header(shard);
            let mut at = header.len() as u64;
            for placed in shard {
                let elements = placed.shape.iter().product();
                targets[placed.index] = Some(TensorDestination { file, at, elements, transposed: placed.transposed });
                at += placed.bytes;
            }
            let form = FileForm::Plain { header, bytes: at };
            files.push(NewFile { path: folder.path(&name(file)), target: to.join(name(file)), form });
            bytes += at;
        }
        bytes += texts.iter().map(|(_, text)| text.len() as u64).sum::<u64>();
        let step = write_weights(self.layout, self.dtype, &files, targets, source)?;
        for (name, text) in &texts {
            write_atomic(&folder.path(name), text.as_bytes()).map_err(WeightsError::io(&to.join(name)))?;
        }
        let logit_difference = check(folder.unfinished()).map_err(WeightsError::Source)?;
        folder.finish()?;
        let files = names.iter().map(|name| to.join(name)).collect();
        Ok(WrittenFiles { files, bytes, step, logit_difference, notes })
    }

    /// The parameters as files hold them, in the order of the model, cut where a file is full.
    fn shards(&self) -> Vec<Vec<ShardTensor>> {
        let mut shards: Vec<Vec<ShardTensor>> = vec![Vec::new()];
        let mut filled = 0;
        for PartParameter { spec, rows, transposed } in self.spec.decoder().parameters() {
            let Some(index) = self.layout.index(&spec.name) else { continue };
            let ParamSpec { name, mut shape, .. } = spec;
            if rows == Rows::Tokens {
                shape[0] = self.vocab_size.min(shape[0]);
            }
            if transposed {
                shape.reverse();
            }
            let bytes = (shape.iter().product::<usize>() * self.dtype.size()) as u64;
            if filled > 0 && filled + bytes > self.shard_bytes {
                shards.push(Vec::new());
                filled = 0;
            }
            filled += bytes;
            if let Some(last) = shards.last_mut() {
                last.push(ShardTensor { index, name, shape, bytes, transposed });
            }
        }
        shards
    }

    /// The bytes of a shard's file before its data.
    fn header(&self, shard: &[ShardTensor]) -> Vec<u8> {
        let mut at = 0;
        let mut tensors = BTreeMap::new();
        for placed in shard {
            let begin = at;
            at += placed.bytes;
            let info = json!({"dtype": self.dtype.name(), "shape": placed.shape, "data_offsets": [begin, at]});
            tensors.insert(placed.name.as_str(), info);
        }
        // `transformers` refuses files without this format.
        header_bytes(r#"{"format":"pt"}"#, tensors)
    }

    fn index(shards: &[Vec<ShardTensor>], name: &dyn Fn(usize) -> String) -> String {
        let all = || shards.iter().flatten();
        let map: BTreeMap<&str, String> = shards
            .iter()
            .enumerate()
            .flat_map(|(i, shard)| shard.iter().map(move |p| (p.name.as_str(), name(i))))
            .collect();
        let parameters: usize = all().map(|p| p.shape.iter().product::<usize>()).sum();
        let total: u64 = all().map(|p| p.bytes).sum();
        pretty_json(&json!({
            "metadata": {"total_parameters": parameters, "total_size": total},
            "weight_map": map,
        }))
    }

    /// `config.json`. Keys that `transformers` renamed are given under both names, for its older and newer versions.
    ///
    /// # Errors
    /// If no class of `transformers` has such a model.
    fn config(&self) -> Result<String, WeightsError> {
        let s = self.spec;
        let (mut config, size_keys) = match s.family {
            Family::Gpt2 => {
                refuse_extensions(s, "a Hugging Face folder")?;
                (gpt2::config(s), gpt2::SIZE_KEYS)
            }
            Family::Llama => {
                let Some(class) = llama::class_of(s) else {
                    let names: Vec<&str> = llama::CLASSES.iter().map(|class| class.model_type).collect();
                    let options = beyond_format(&s.options).into_iter();
                    let options: Vec<String> = options.map(|(key, value)| format!("{key}: {value}")).collect();
                    return Err(WeightsError::Request(format!(
                        "no architecture of `transformers` that runner writes ({}) combines {}; use `--to safetensors`",
                        names.join(", "),
                        list(&options, "and")
                    )));
                };
                (class.config(s), llama::SIZE_KEYS)
            }
        };
        for (key, size) in size_keys.into_iter().zip([self.vocab_size, s.context_length, s.layers, s.heads, s.d_model])
        {
            config[key] = size.into();
        }
        let SpecialTokens { bos, eos, pad } = self.special;
        for (key, value) in [
            ("tie_word_embeddings", json!(s.tie_embeddings)),
            ("initializer_range", json!(0.02)),
            ("bos_token_id", json!(bos)),
            ("eos_token_id", json!(eos)),
            ("pad_token_id", json!(pad)),
            ("dtype", json!(self.dtype.torch_name())),
            ("torch_dtype", json!(self.dtype.torch_name())),
            ("use_cache", json!(true)),
        ] {
            config[key] = value;
        }
        Ok(pretty_json(&config))
    }

    fn generation(&self) -> String {
        let SpecialTokens { bos, eos, pad } = self.special;
        let mut value = json!({"_from_model_config": true, "eos_token_id": eos});
        for (key, id) in [("bos_token_id", bos), ("pad_token_id", pad)] {
            if let Some(id) = id {
                value[key] = id.into();
            }
        }
        pretty_json(&value)
    }
}

/// Files that exports do not write, and that `transformers` applies to the tokenizer or the weights beside them.
const LOADED_BESIDE: [&str; 3] = ["added_tokens.json", "special_tokens_map.json", "adapter_config.json"];

/// True if an export may have written the file `name`. Such a file of an earlier export would be read with the new one.
fn is_own(name: &str) -> bool {
    let shard = name.starts_with("model-") && name.ends_with(".safetensors");
    shard || [SINGLE, INDEX, GENERATION, TOKENIZER, TOKENIZER_CONFIG].contains(&name)
}
