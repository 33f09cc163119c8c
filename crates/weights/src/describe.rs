//! What weights say of the model that they are of: the numbers of a folder's `config.json`, or of llm.c's header.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::error::WeightsError;
use super::{folder, gpt2, json, llama, llmc};
use runner_spec::experiment::Family;
use runner_spec::model::ModelSpec;
use runner_spec::model::variant::Variant;

/// A folder's description of its model.
pub(super) const CONFIG: &str = "config.json";
/// A larger one is none.
const MOST: u64 = 1 << 20;

/// A model as its weights' own file describes it. Sizes are counts of elements.
#[derive(Debug, Clone, PartialEq)]
pub struct Described {
    /// The file that says so.
    pub file: PathBuf,
    pub family: Family,
    /// Tokens: rows of the embedding without the padding of llm.c's files.
    pub vocab_size: usize,
    pub context_length: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub d_model: usize,
    pub d_ff: usize,
    /// Where it says one.
    pub dropout: Option<f64>,
    pub tie_embeddings: bool,
    pub norm_eps: f64,
    /// Llama only.
    pub rope_theta: Option<f64>,
}

/// Reads what the weights at `path`, a folder or a model file of llm.c, say of their model; not the weights.
///
/// # Errors
/// If there are none, they are of a model that cannot be trained here, or their numbers cannot be.
pub fn describe(path: &Path) -> Result<Described, WeightsError> {
    let meta = std::fs::metadata(path).map_err(WeightsError::io(path))?;
    if !meta.is_dir() {
        return llmc::read_header(path)?.described(path);
    }
    let file = path.join(CONFIG);
    let config = match json::object(&file, MOST) {
        Ok(map) => Config { file: &file, map },
        Err(WeightsError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            return Err(WeightsError::file(path, format!("there is no {CONFIG}: not a folder of weights")));
        }
        Err(error) => return Err(error),
    };
    if config.map.get("quantization_config").is_some_and(|q| !q.is_null()) {
        return Err(config.wrong("its weights are quantized; weights in f32, f16 or bf16 are read".to_owned()));
    }
    let described = match config.text("model_type")? {
        Some("gpt2") => gpt2::described(&config)?,
        Some("llama") => llama::described(&config)?,
        Some(other) => {
            let message = format!("model_type is {other:?}; weights of `gpt2` and `llama` are read");
            return Err(config.wrong(message));
        }
        None => return Err(config.wrong("`model_type` is missing; `gpt2` and `llama` are read".to_owned())),
    };
    folder::look(path)?;
    described.checked()
}

impl Described {
    /// # Errors
    /// If its numbers cannot be those of a model.
    pub(super) fn checked(self) -> Result<Self, WeightsError> {
        let wrong = |message: String| Err(WeightsError::file(&self.file, message));
        // As in the experiment file.
        let sizes = [
            ("vocabulary", self.vocab_size, 100_000_000),
            ("context length", self.context_length, 16_777_216),
            ("number of layers", self.layers, 10_000),
            ("number of heads", self.heads, 10_000),
            ("number of key-value heads", self.kv_heads, 10_000),
            ("width", self.d_model, 1_000_000),
            ("feed-forward width", self.d_ff, 10_000_000),
        ];
        for (what, size, most) in sizes {
            if size == 0 || size > most {
                return wrong(format!("the {what} is {size}; 1 to {most} are possible"));
            }
        }
        if !self.d_model.is_multiple_of(self.heads) {
            return wrong(format!("a width of {} is not divided by {} heads", self.d_model, self.heads));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return wrong(format!("{} heads are not divided by {} key-value heads", self.heads, self.kv_heads));
        }
        if self.family == Family::Llama && !(self.d_model / self.heads).is_multiple_of(2) {
            return wrong(format!("heads of odd width: {} / {}", self.d_model, self.heads));
        }
        if !(self.norm_eps > 0.0 && self.norm_eps <= 1.0) {
            return wrong(format!("the norm's epsilon is {}; above 0, up to 1 is possible", self.norm_eps));
        }
        if let Some(theta) = self.rope_theta.filter(|theta| !(*theta > 0.0 && *theta <= 1e12)) {
            return wrong(format!("rope_theta is {theta}; above 0, up to 1e12 is possible"));
        }
        if let Some(dropout) = self.dropout.filter(|p| !(0.0..1.0).contains(p)) {
            return wrong(format!("a dropout of {dropout}; from 0, below 1 is possible"));
        }
        Ok(self)
    }

    /// What it says, in the vocabulary of the experiment file.
    #[must_use]
    pub fn model(&self) -> Value {
        let mut model = json!({
            "family": self.family,
            "vocab_size": self.vocab_size,
            "context_length": self.context_length,
            "layers": self.layers,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "d_model": self.d_model,
            "d_ff": self.d_ff,
            "tie_embeddings": self.tie_embeddings,
            "norm_eps": self.norm_eps,
        });
        for (key, value) in [("dropout", self.dropout), ("rope_theta", self.rope_theta)] {
            if let Some(value) = value {
                model[key] = value.into();
            }
        }
        model
    }

    /// The model that the files hold.
    #[must_use]
    pub fn spec(&self) -> ModelSpec {
        ModelSpec {
            family: self.family,
            vocab_size: self.vocab_size,
            context_length: self.context_length,
            layers: self.layers,
            heads: self.heads,
            kv_heads: self.kv_heads,
            d_model: self.d_model,
            d_ff: self.d_ff,
            dropout: self.dropout.unwrap_or(0.0),
            tie_embeddings: self.tie_embeddings,
            norm_eps: self.norm_eps,
            rope_theta: self.rope_theta.unwrap_or(10_000.0),
            variant: Variant::default(),
        }
    }
}

/// A `config.json`, looked up with errors in its own words.
pub(super) struct Config<'a> {
    pub(super) file: &'a Path,
    pub(super) map: Map<String, Value>,
}

impl Config<'_> {
    pub(super) fn wrong(&self, message: String) -> WeightsError {
        WeightsError::file(self.file, message)
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// A size; `None` if it is missing or null.
    pub(super) fn size(&self, key: &str) -> Result<Option<usize>, WeightsError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let size = value.as_u64().and_then(|n| usize::try_from(n).ok());
        size.map(Some).ok_or_else(|| self.mismatch(key, "a whole number", value))
    }

    /// A size that must be there.
    pub(super) fn needed(&self, key: &str) -> Result<usize, WeightsError> {
        self.size(key)?.ok_or_else(|| self.wrong(format!("`{key}` is missing")))
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, WeightsError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_f64().map(Some).ok_or_else(|| self.mismatch(key, "a number", value))
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, WeightsError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.mismatch(key, "true or false", value))
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&str>, WeightsError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.mismatch(key, "a text", value))
    }

    /// # Errors
    /// If the flag `key`, `absent` where it is missing, is not `wanted`; `why` says what that would need.
    pub(super) fn must_be(&self, key: &str, absent: bool, wanted: bool, why: &str) -> Result<(), WeightsError> {
        if self.flag(key)?.unwrap_or(absent) == wanted {
            return Ok(());
        }
        Err(self.wrong(format!("`{key}` is {}: {why}", !wanted)))
    }

    pub(super) fn mismatch(&self, key: &str, wanted: &str, value: &Value) -> WeightsError {
        let shown: String = value.to_string().chars().take(60).collect();
        self.wrong(format!("`{key}` is {} ({shown}), not {wanted}", json::kind(value)))
    }
}
