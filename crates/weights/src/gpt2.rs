//! A `config.json` of GPT-2.

use super::describe::{Config, DescribedModel};
use super::error::WeightsError;
use runner_spec::experiment::Family;
use runner_spec::model::{DEFAULT_ROPE_THETA, Gpt2Variant, ModelSpec};

/// The model that `config` describes. Missing keys have the defaults of `transformers`.
pub(super) fn described(config: &Config<'_>) -> Result<DescribedModel, WeightsError> {
    let d_model = config.required_size("n_embd")?;
    let heads = config.required_size("n_head")?;
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
            family: Family::Gpt2,
            vocab_size: config.required_size("vocab_size")?,
            context_length: config.required_size("n_positions")?,
            layers: config.required_size("n_layer")?,
            heads,
            kv_heads: heads,
            d_model,
            d_ff: config.size("n_inner")?.unwrap_or(d_model.saturating_mul(4)),
            dropout: if same { dropouts[0] } else { 0.0 },
            tie_embeddings: config.flag("tie_word_embeddings")?.unwrap_or(true),
            norm_eps: config.number("layer_norm_epsilon")?.unwrap_or(1e-5),
            rope_theta: DEFAULT_ROPE_THETA,
            variant: Gpt2Variant::default(),
        },
    })
}
