//! A `config.json` of GPT-2.

use serde_json::{Value, json};

use super::described_model::{DescribedModel, FolderFormat, HfConfig};
use super::error::WeightsError;
use runner_spec::model::ModelSpec;

pub(super) static FORMAT: FolderFormat = FolderFormat {
    size_keys: ["vocab_size", "n_positions", "n_layer", "n_head", "n_embd"],
    describe: described,
    config: written,
};

/// The keys of a file that are GPT-2's own.
fn written(s: &ModelSpec) -> Value {
    json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "n_inner": s.d_ff,
        "resid_pdrop": s.dropout,
        "embd_pdrop": s.dropout,
        "attn_pdrop": s.dropout,
        "layer_norm_epsilon": s.norm_eps,
    })
}

/// The model that `config` describes, which has the sizes of `base`. Missing keys have the defaults of `transformers`.
fn described(config: &HfConfig<'_>, base: &ModelSpec) -> Result<DescribedModel, WeightsError> {
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
            ..base.clone()
        },
    })
}
