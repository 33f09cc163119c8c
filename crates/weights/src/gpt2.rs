//! A `config.json` of GPT-2.

use serde_json::{Value, json};

use super::described_model::{DescribedModel, HfConfig};
use super::error::WeightsError;
use runner_spec::model::{Family, ModelSpec};

pub(super) const MODEL_TYPE: &str = "gpt2";

/// The keys of vocabulary, context length, layers, heads and width.
pub(super) const SIZE_KEYS: [&str; 5] = ["vocab_size", "n_positions", "n_layer", "n_head", "n_embd"];

/// The keys of a file that are GPT-2's own.
pub(super) fn config(s: &ModelSpec) -> Value {
    json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": MODEL_TYPE,
        "activation_function": "gelu_new",
        "n_inner": s.d_ff,
        "resid_pdrop": s.dropout,
        "embd_pdrop": s.dropout,
        "attn_pdrop": s.dropout,
        "layer_norm_epsilon": s.norm_eps,
    })
}

/// The model that `config` describes. Missing keys have the defaults of `transformers`.
pub(super) fn describe(config: &HfConfig<'_>) -> Result<DescribedModel, WeightsError> {
    let base = ModelSpec::with_defaults(Family::Gpt2, config.required_sizes(SIZE_KEYS)?);
    let activation = config.text("activation_function")?.unwrap_or("gelu_new");
    if !["gelu_new", "gelu_pytorch_tanh"].contains(&activation) {
        let message = format!("unsupported `activation_function` {activation:?}; only `gelu_new` is supported");
        return Err(config.wrong(message));
    }
    config.check_flag("scale_attn_weights", true, "runner always divides scores by √(head width)")?;
    config.check_flag("scale_attn_by_inverse_layer_idx", false, "runner scales the scores of all layers alike")?;
    config.check_flag("add_cross_attention", false, "runner trains decoders without an encoder")?;
    let mut dropouts = Vec::new();
    for key in ["resid_pdrop", "embd_pdrop", "attn_pdrop"] {
        dropouts.push(config.number(key)?.unwrap_or(0.1));
    }
    // A model here has one dropout. If the three differ, the experiment file gives it.
    let same = dropouts.iter().all(|p| p == &dropouts[0]);
    Ok(DescribedModel {
        file: config.file.to_owned(),
        unknown: if same { Vec::new() } else { vec!["dropout"] },
        spec: ModelSpec {
            d_ff: config.size("n_inner")?.unwrap_or(base.d_ff),
            dropout: if same { dropouts[0] } else { 0.0 },
            tie_embeddings: config.flag("tie_word_embeddings")?.unwrap_or(base.tie_embeddings),
            norm_eps: config.number("layer_norm_epsilon")?.unwrap_or(base.norm_eps),
            ..base
        },
    })
}
