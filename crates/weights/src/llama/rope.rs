//! Rotary positions in a `config.json`: at the top level and in `rope_scaling` in files of older versions of `transformers`, in
//! `rope_parameters` in newer ones, where layers with a window may have their own.

use serde_json::{Map, Value, json};

use super::class::Class;
use crate::described_model::HfConfig;
use crate::error::WeightsError;
use runner_files::strict_json::non_finite;
use runner_spec::model::RopeScaling;

/// The base and the scaling of some layers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rope {
    pub(super) theta: f64,
    pub(super) scaling: RopeScaling,
}

/// The keys of `rope_parameters` by the type of the layer.
pub(super) const LAYER_TYPES: [&str; 2] = ["full_attention", "sliding_attention"];
/// The base of Gemma's layers with a window, where it is not given.
const LOCAL_THETA: f64 = 1e4;

/// The rotary positions of layers without a window, and of those with one.
pub(super) fn read(class: &Class, config: &HfConfig<'_>) -> Result<[Rope; 2], WeightsError> {
    let mut theta = config.number("rope_theta")?.map(|theta| ("rope_theta".to_owned(), theta));
    let mut scaling = RopeScaling::None {};
    // Of layers with a window: the base, if it is given, and the scaling.
    let mut local = (config.number("rope_local_base_freq")?, RopeScaling::None {});
    for key in ["rope_parameters", "rope_scaling"] {
        let Some(value) = config.map.get(key).filter(|value| !value.is_null()) else { continue };
        let Some(rope) = value.as_object().filter(|_| non_finite(value).is_none()) else {
            return Err(config.mismatch(key, "an object", value));
        };
        let [full, sliding] = LAYER_TYPES.map(|kind| rope.get(kind).and_then(Value::as_object));
        if class.rope_by_layer_type && full.or(sliding).is_some() {
            if let Some(full) = full {
                let (given, kind) = parameters(config, &format!("{key}.{}", LAYER_TYPES[0]), full)?;
                theta = given.map(|given| (key.to_owned(), given)).or(theta);
                scaling = kind;
            }
            if let Some(sliding) = sliding {
                let (given, kind) = parameters(config, &format!("{key}.{}", LAYER_TYPES[1]), sliding)?;
                local = (given.or(local.0), kind);
            }
            continue;
        }
        if let Some((other, _)) = rope.iter().find(|(_, value)| value.is_object() && non_finite(value).is_none()) {
            return Err(config.wrong(format!(
                "`{key}` has an object for {other:?}, but {} has one rotary setting for all layers",
                class.model_type
            )));
        }
        let (given, kind) = parameters(config, key, rope)?;
        if kind != RopeScaling::default() {
            scaling = kind;
        }
        let Some(given) = given else { continue };
        if let Some((first, other)) = theta.as_ref().filter(|(_, other)| *other != given) {
            return Err(config.wrong(format!(
                "`{first}` gives a rope_theta of {other}, but `{key}.rope_theta` is {given}; make them equal"
            )));
        }
        theta = Some((key.to_owned(), given));
    }
    let global = Rope { theta: theta.map_or(class.theta, |(_, theta)| theta), scaling };
    if !class.rope_by_layer_type {
        return Ok([global; 2]);
    }
    let missing = if class.query_scalar { LOCAL_THETA } else { global.theta };
    Ok([global, Rope { theta: local.0.unwrap_or(missing), scaling: local.1 }])
}

/// The base, if it is given, and the scaling in `rope`, the value of `key`.
fn parameters(
    config: &HfConfig<'_>,
    key: &str,
    rope: &Map<String, Value>,
) -> Result<(Option<f64>, RopeScaling), WeightsError> {
    let number = |name: &str| match rope.get(name).filter(|value| !value.is_null()) {
        None => Ok(None),
        Some(value) => match value.as_f64() {
            Some(number) => Ok(Some(number)),
            None => Err(config.mismatch(&format!("{key}.{name}"), "a number", value)),
        },
    };
    let required = |name: &str| number(name)?.ok_or_else(|| config.wrong(format!("`{key}.{name}` is missing")));
    if let Some(part) = rope.get("partial_rotary_factor").filter(|part| !part.is_null() && part.as_f64() != Some(1.0)) {
        return Err(config.mismatch(&format!("{key}.partial_rotary_factor"), "1", part));
    }
    // The context of the pretraining, and the factor from it.
    let longest = config.size("max_position_embeddings")?;
    let original = || {
        let given = match config.size("original_max_position_embeddings")? {
            None => match rope.get("original_max_position_embeddings").filter(|value| !value.is_null()) {
                Some(value) => {
                    let Some(tokens) = value.as_u64().and_then(|tokens| usize::try_from(tokens).ok()) else {
                        let key = format!("{key}.original_max_position_embeddings");
                        return Err(config.mismatch(&key, "a whole number", value));
                    };
                    Some(tokens)
                }
                None => None,
            },
            given => given,
        };
        given.or(longest).ok_or_else(|| config.wrong(format!("`{key}.original_max_position_embeddings` is missing")))
    };
    let kind = rope.get("rope_type").or_else(|| rope.get("type")).filter(|kind| !kind.is_null());
    let scaling = match kind {
        None => RopeScaling::None {},
        Some(Value::String(kind)) => match kind.as_str() {
            "default" => RopeScaling::None {},
            "linear" => RopeScaling::Linear { factor: required("factor")? },
            "llama3" => RopeScaling::Llama3 {
                factor: required("factor")?,
                low_freq_factor: required("low_freq_factor")?,
                high_freq_factor: required("high_freq_factor")?,
                original_context: original()?,
            },
            "yarn" => {
                if rope.get("truncate").is_some_and(|truncate| truncate == &Value::Bool(false)) {
                    return Err(config.wrong(format!("`{key}.truncate: false` is not supported")));
                }
                let original_context = original()?;
                let factor = match number("factor")? {
                    Some(factor) => factor,
                    None => longest.unwrap_or(original_context) as f64 / original_context as f64,
                };
                let growth = |scale: f64| if factor > 1.0 { 0.1 * scale * factor.ln() + 1.0 } else { 1.0 };
                let scales = [number("mscale")?, number("mscale_all_dim")?].map(|scale| scale.filter(|n| *n != 0.0));
                let attention_factor = match (number("attention_factor")?, scales) {
                    (Some(given), _) => Some(given).filter(|given| *given != growth(1.0)),
                    (None, [Some(scale), Some(all)]) => Some(growth(scale) / growth(all)),
                    (None, _) => None,
                };
                RopeScaling::Yarn {
                    factor,
                    original_context,
                    beta_fast: number("beta_fast")?.filter(|beta| *beta != 0.0).unwrap_or(32.0),
                    beta_slow: number("beta_slow")?.filter(|beta| *beta != 0.0).unwrap_or(1.0),
                    attention_factor,
                }
            }
            other => {
                let message = format!(
                    "unsupported rope type {other:?} in `{key}`; `default`, `linear`, `llama3` and `yarn` are supported"
                );
                return Err(config.wrong(message));
            }
        },
        Some(other) => return Err(config.mismatch(&format!("{key}.rope_type"), "a string", other)),
    };
    Ok((number("rope_theta")?, scaling))
}

/// The value of `rope_parameters`, or of a type of layers in it.
pub(super) fn written(rope: Rope) -> Value {
    let mut value = match rope.scaling {
        RopeScaling::None {} => json!({"rope_type": "default"}),
        RopeScaling::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor,
            "original_max_position_embeddings": original_context,
        }),
        RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor } => {
            let mut yarn = json!({
                "rope_type": "yarn",
                "factor": factor,
                "original_max_position_embeddings": original_context,
                "beta_fast": beta_fast,
                "beta_slow": beta_slow,
            });
            if let Some(attention_factor) = attention_factor {
                yarn["attention_factor"] = attention_factor.into();
            }
            yarn
        }
    };
    value["rope_theta"] = rope.theta.into();
    value
}
