//! The validated experiment: every default filled in, every unit resolved.
//!
//! It serializes with the keys of the experiment file, so `resolved.yaml` is a valid experiment file. `runner_config` checks what
//! is legal. Sections that the file gives in the same form have a JSON Schema here: their doc comments are shown by an editor, and
//! their attributes become the legal ranges of the keys. Of keys that exclude each other (`x-exclusive`) exactly one is set here. The
//! planner turns the other lengths of `train` into steps (rounded down, at least one).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod data;
mod eval;
mod parallel;
mod seeds;
mod source;
mod stage;
mod task;
mod train;
mod weights_source;

use crate::model::ModelSpec;
pub use crate::model::family::Family;
pub use crate::model::parts::Recompute;
pub use crate::model::pytorch_init::PytorchEmbedding;
use crate::model::pytorch_init::embedding_schema;
pub use crate::model::{Activation, ModelOptions, NormPlace, PositionKind};
pub use crate::optimizer::Optimizer;
pub use crate::schedule::{Cooldown, Schedule, ScheduleLength, ScheduleStart, Warmup};
use crate::serde_defaults::{defaults, is_true, yes};
pub use data::{Data, HubModel, Layout, MAX_BPE_VOCABULARY, PaddingMask, Separator, Tokenizer, Validation};
pub use eval::{Eval, EvalLoss, SampleBatch, Samples};
pub use parallel::{AutoOr, Parallel, ParallelMode, Pipeline, PipelineSchedule, ShardedState};
pub use seeds::Seeds;
pub use source::{
    ColumnSeparator, Content, Corpus, CsvSource, DEFAULT_FIELD, FILE_FORMATS, FileFormat, HubSource, JsonSource,
    ParquetSource, RecordFormat, RecordTextMut, Source, TokenType,
};
pub use stage::{BatchWarmup, MAX_STAGES, TrainStage};
pub use task::{ChoiceText, HELLASWAG, HELLASWAG_FILE_ADVICE, HubChoice, Task, advice_for_file, task_key};
pub use train::{Train, TrainLength};
pub use weights_source::{ModelFolder, WeightsSource};

/// A whole experiment, ready for the planner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    pub version: u32,
    pub name: String,
    pub seed: Seeds,
    pub device: DeviceChoice,
    pub model: Model,
    pub data: Data,
    pub batch: Batch,
    pub train: Train,
    pub optimizer: Optimizer,
    pub schedule: Schedule,
    pub precision: Precision,
    /// True if the optimizer updates f32 weights. False, under `bf16` only: weights, gradients and moments are bf16.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub master_weights: bool,
    pub parallel: Parallel,
    pub eval: Eval,
    pub checkpoint: Checkpoint,
    pub log: Log,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeviceChoice {
    #[default]
    Auto,
    Cpu,
    Cuda,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    #[default]
    Fp32,
    Tf32,
    Bf16,
}

/// The model section. Sizes are counts of elements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Model {
    pub family: Family,
    /// `None`: the tokenizer's size, known once the data is there.
    pub vocab_size: Option<usize>,
    /// The vocabulary is rounded up to a multiple of this.
    pub pad_vocab_to: Option<usize>,
    pub context_length: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub d_model: usize,
    pub d_ff: usize,
    pub dropout: f64,
    pub tie_embeddings: bool,
    pub norm_eps: f64,
    /// Only where positions are rotated.
    pub rope_theta: f64,
    /// Separate keys in a file, apart from `pytorch_init`, which `init` gives.
    #[serde(flatten)]
    pub options: ModelOptions,
    /// `None`: normal(0, 0.02).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<WeightInit>,
}

impl Model {
    /// The specification of this model with a vocabulary of `vocab_size` rows.
    pub fn spec(&self, vocab_size: usize) -> ModelSpec {
        let pytorch_init = match self.init {
            Some(WeightInit::Pytorch { embedding }) => Some(embedding),
            _ => None,
        };
        ModelSpec {
            family: self.family,
            vocab_size,
            context_length: self.context_length,
            layers: self.layers,
            heads: self.heads,
            kv_heads: self.kv_heads,
            d_model: self.d_model,
            d_ff: self.d_ff,
            dropout: self.dropout,
            tie_embeddings: self.tie_embeddings,
            norm_eps: self.norm_eps,
            rope_theta: self.rope_theta,
            options: ModelOptions { pytorch_init, ..self.options.clone() },
        }
    }
}

/// The source of initial weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
#[schemars(rename = "Init")]
pub enum WeightInit {
    /// A Hugging Face folder of a supported model, a PyTorch file with a state dict, or a model of the Hugging Face hub: `hub:NAME` or
    /// `hub:NAME@REVISION`. Its numbers fill this section.
    From(#[schemars(with = "String")] WeightsSource),
    /// The initialization of PyTorch's modules: matrices uniform within ±1/√in, gpt2's attention Xavier-uniform, as in
    /// `nn.TransformerEncoderLayer`.
    Pytorch {
        /// A number: embedding and head are uniform within ± this. `normal`: as `nn.Embedding` and `nn.Linear` start, the embedding
        /// normal(0, 1), the head uniform within ±1/√in.
        #[serde(default = "embedding_range")]
        #[schemars(schema_with = "embedding_schema")]
        embedding: PytorchEmbedding,
    },
}

defaults! {
    embedding_range: PytorchEmbedding = PytorchEmbedding::Uniform(0.1);
}

/// `sequences` is the global batch of one optimizer step, `micro_batch` the sequences of one forward.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    pub sequences: usize,
    pub micro_batch: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup: Option<BatchWarmup>,
}

/// Checkpoints of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Checkpoint {
    /// Optimizer steps between checkpoints; one always follows the last step.
    #[schemars(range(min = 1, max = 1_000_000_000_000u64))]
    pub every: u64,
    /// The number of newest checkpoints that are kept; the best by validation loss is kept besides.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub keep: usize,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self { every: 500, keep: 3 }
    }
}

/// Progress lines, and other programs that show the metrics while the run trains.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Optimizer steps between progress lines; metrics are recorded for every step.
    #[schemars(range(min = 1, max = 1_000_000_000_000u64))]
    pub every: u64,
    /// True to show in each progress line how long data, forward, backward, optimizer and communication took.
    pub phases: bool,
    /// True to write a TensorBoard event file into the run directory while the run trains.
    pub tensorboard: bool,
    /// An MLflow server that receives parameters, metrics and the report while the run trains. Default: none.
    pub mlflow: Option<Mlflow>,
}

impl Default for Log {
    fn default() -> Self {
        Self { every: 10, phases: false, tensorboard: false, mlflow: None }
    }
}

/// A server that shows the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mlflow {
    /// Address of the MLflow server, such as `http://localhost:5000`, without a password. Credentials are read from MLFLOW_TRACKING_TOKEN, or
    /// from MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, and sent only if MLFLOW_TRACKING_URI names this server.
    pub uri: String,
    /// The experiment on the server, which is created if it does not exist. Default: `name`.
    #[serde(default)]
    pub experiment: Option<String>,
}

impl Mlflow {
    /// The reason why `uri` is not the address of a server; `None` if it is.
    pub fn uri_problem(uri: &str) -> Option<&'static str> {
        let Some(rest) = uri.strip_prefix("https://").or_else(|| uri.strip_prefix("http://")) else {
            return Some("must start with http:// or https://");
        };
        let host = rest.split('/').next().unwrap_or_default();
        if host.contains('@') {
            Some("must not contain a user or a password, which the record of the run would keep")
        } else if host.is_empty() || host.starts_with(':') {
            Some("has no host")
        } else if rest.contains(|c: char| !c.is_ascii_graphic() || matches!(c, '?' | '#' | '@')) {
            Some("must not contain `?`, `#`, `@`, blanks or special characters")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_embedding_of_pytorch_is_a_number_or_a_word() {
        for (value, embedding) in
            [(json!(0.1), PytorchEmbedding::Uniform(0.1)), (json!("normal"), PytorchEmbedding::Normal)]
        {
            assert_eq!(serde_json::to_value(embedding).unwrap(), value);
            assert_eq!(serde_json::from_value::<PytorchEmbedding>(value).unwrap(), embedding);
        }
        assert_eq!(serde_json::from_str::<PytorchEmbedding>("1").unwrap(), PytorchEmbedding::Uniform(1.0));
        for wrong in ["\"uniform\"", "null"] {
            assert!(serde_json::from_str::<PytorchEmbedding>(wrong).is_err());
        }
    }
}
