//! A `config.json` of Llama.

use serde_json::{Value, json};

use super::described_model::{DescribedModel, FolderFormat, HfConfig};
use super::error::WeightsError;
use runner_files::strict_json::non_finite;
use runner_spec::model::{DEFAULT_ROPE_THETA, ModelSpec};

pub(super) static FORMAT: FolderFormat = FolderFormat {
    size_keys: ["vocab_size", "max_position_embeddings", "num_hidden_layers", "num_attention_heads", "hidden_size"],
    describe: described,
    config: written,
};

/// The keys of a file that are Llama's own. Keys that `transformers` renamed are given under both names, for its older and newer versions.
fn written(s: &ModelSpec) -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "intermediate_size": s.d_ff,
        "num_key_value_heads": s.kv_heads,
        "head_dim": s.head_dim(),
        "rms_norm_eps": s.norm_eps,
        "rope_theta": s.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": s.rope_theta},
        "attention_bias": false,
        "attention_dropout": 0.0,
        "mlp_bias": false,
    })
}

/// The model that `config` describes, which has the sizes of `base`. Missing keys have the defaults of `transformers`.
fn described(config: &HfConfig<'_>, base: &ModelSpec) -> Result<DescribedModel, WeightsError> {
    let (d_model, heads) = (base.d_model, base.heads);
    if let Some(head_dim) = config.size("head_dim")?
        && head_dim.checked_mul(heads) != Some(d_model)
    {
        let message =
            format!("`head_dim` must be hidden_size / num_attention_heads = {d_model} / {heads}, got {head_dim}");
        return Err(config.wrong(message));
    }
    let activation = config.text("hidden_act")?.unwrap_or("silu");
    if !["silu", "swish"].contains(&activation) {
        return Err(
            config.wrong(format!("unsupported `hidden_act` {activation:?}; only `silu` (`swish`) is supported"))
        );
    }
    config.check_flag("attention_bias", false, "runner's Llama has no biases in attention")?;
    config.check_flag("mlp_bias", false, "runner's Llama has no biases in feed-forward layers")?;
    if let Some(dropout) = config.number("attention_dropout")?.filter(|p| *p != 0.0) {
        return Err(config.wrong(format!("`attention_dropout` must be 0, got {dropout}")));
    }
    Ok(DescribedModel {
        file: config.file.to_owned(),
        unknown: vec!["dropout"],
        spec: ModelSpec {
            kv_heads: config.size("num_key_value_heads")?.unwrap_or(heads),
            d_ff: config.required_size("intermediate_size")?,
            tie_embeddings: config.flag("tie_word_embeddings")?.unwrap_or(false),
            norm_eps: config.number("rms_norm_eps")?.unwrap_or(1e-6),
            rope_theta: rope_theta(config)?,
            ..base.clone()
        },
    })
}

/// The base of the rotary embedding: at the top level in files of older versions, in `rope_parameters` in newer ones, and
/// sometimes in `rope_scaling`.
fn rope_theta(config: &HfConfig<'_>) -> Result<f64, WeightsError> {
    let mut found: Option<(&str, f64)> = config.number("rope_theta")?.map(|theta| ("rope_theta", theta));
    for key in ["rope_parameters", "rope_scaling"] {
        let Some(value) = config.map.get(key).filter(|value| !value.is_null()) else { continue };
        let Some(rope) = value.as_object().filter(|_| non_finite(value).is_none()) else {
            return Err(config.mismatch(key, "an object", value));
        };
        let kind = rope.get("rope_type").or_else(|| rope.get("type")).filter(|kind| !kind.is_null());
        match kind {
            None => {}
            Some(Value::String(kind)) if kind == "default" => {}
            Some(Value::String(kind)) => {
                let message = format!("unsupported rope type {kind:?} in `{key}`; only `default` is supported");
                return Err(config.wrong(message));
            }
            Some(other) => return Err(config.mismatch(&format!("{key}.rope_type"), "a string", other)),
        }
        if let Some((other, _)) = rope.iter().find(|(_, value)| value.is_object() && non_finite(value).is_none()) {
            return Err(config.wrong(format!(
                "`{key}` has an object for {other:?}; different positions per layer type are not supported"
            )));
        }
        if let Some(part) =
            rope.get("partial_rotary_factor").filter(|part| !part.is_null() && part.as_f64() != Some(1.0))
        {
            return Err(config.mismatch(&format!("{key}.partial_rotary_factor"), "1", part));
        }
        let Some(theta) = rope.get("rope_theta").filter(|theta| !theta.is_null()) else { continue };
        let theta = theta.as_f64().ok_or_else(|| config.mismatch(&format!("{key}.rope_theta"), "a number", theta))?;
        if let Some((first, other)) = found.filter(|(_, other)| *other != theta) {
            return Err(config.wrong(format!(
                "`{first}` gives a rope_theta of {other}, but `{key}.rope_theta` is {theta}; make them equal"
            )));
        }
        found = Some((key, theta));
    }
    Ok(found.map_or(DEFAULT_ROPE_THETA, |(_, theta)| theta))
}
