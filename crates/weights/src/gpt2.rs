//! A `config.json` of GPT-2.

use super::describe::{DescribedModel, HfConfig, base_spec};
use super::error::WeightsError;
use runner_spec::model::ModelSpec;

/// The keys of vocabulary, context length, layers, heads and width.
pub(super) const SIZE_KEYS: [&str; 5] = ["vocab_size", "n_positions", "n_layer", "n_head", "n_embd"];

/// The model that `config` describes. Missing keys have the defaults of `transformers`.
pub(super) fn described(config: &HfConfig<'_>) -> Result<DescribedModel, WeightsError> {
    let base = base_spec(config.required_sizes(SIZE_KEYS)?);
    let activation = config.text("activation_function")?.unwrap_or("gelu_new");
    if !["gelu_new", "gelu_pytorch_tanh"].contains(&activation) {
        let message = format!("activation_function is {activation:?}; `gelu_new` is computed here");
        return Err(config.wrong(message));
    }
    config.check_flag("scale_attn_weights", true, true, "scores are divided by the root of the head's width here")?;
    config.check_flag("scale_attn_by_inverse_layer_idx", false, false, "scores are not scaled by layer here")?;
    config.check_flag("add_cross_attention", false, false, "there is no encoder here")?;
    let mut dropouts = Vec::new();
    for key in ["resid_pdrop", "embd_pdrop", "attn_pdrop"] {
        dropouts.push(config.number(key)?.unwrap_or(0.1));
    }
    // A model here has one dropout. If the three differ, the experiment file gives it.
    let same = dropouts.iter().all(|p| p == &dropouts[0]);
    Ok(DescribedModel {
        file: config.file.to_owned(),
        gives_dropout: same,
        spec: ModelSpec {
            d_ff: config.size("n_inner")?.unwrap_or(base.d_ff),
            dropout: if same { dropouts[0] } else { 0.0 },
            tie_embeddings: config.flag("tie_word_embeddings")?.unwrap_or(base.tie_embeddings),
            norm_eps: config.number("layer_norm_epsilon")?.unwrap_or(base.norm_eps),
            ..base
        },
    })
}
