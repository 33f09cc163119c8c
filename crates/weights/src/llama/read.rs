//! Reads a `config.json`. Missing keys have the defaults of `transformers`.

use serde_json::Value;

use super::class::{BiasKeys, Class, SIZE_KEYS, Windows};
use super::rope::{self, LAYER_TYPES, Rope};
use crate::described_model::{DescribedModel, HfConfig};
use crate::error::WeightsError;
use runner_spec::model::{Activation, Biases, Family, LayerOptions, ModelOptions, ModelSpec};

/// More layers are refused before they are listed.
const MAX_LAYERS: usize = 10_000;
/// The window where `sliding_window` is missing.
const WINDOW: u32 = 4096;

pub(super) fn describe(class: &Class, config: &HfConfig<'_>) -> Result<DescribedModel, WeightsError> {
    let sizes = config.required_sizes(SIZE_KEYS)?;
    let [_, _, layers, heads, d_model] = sizes;
    if layers > MAX_LAYERS {
        return Err(config.wrong(format!("the number of layers must be 1 to {MAX_LAYERS}, got {layers}")));
    }
    check_activation(class, config)?;
    if let Some(dropout) = config.number("attention_dropout")?.filter(|p| *p != 0.0) {
        return Err(config.wrong(format!("`attention_dropout` must be 0, got {dropout}")));
    }
    config.check_flag("use_bidirectional_attention", false, "runner reads decoders")?;
    for (key, wanted) in [("attn_logit_softcapping", None), ("partial_rotary_factor", Some(1.0))] {
        if let Some(number) = config.number(key)?.filter(|number| Some(*number) != wanted) {
            return Err(config.wrong(format!("`{key}: {number}` is not supported")));
        }
    }
    let given = |key: &str, missing: Option<usize>| -> Result<Option<usize>, WeightsError> {
        Ok(if config.map.contains_key(key) { config.size(key)? } else { missing })
    };
    let head_dim = given("head_dim", class.head_dim)?;
    let scale = if class.query_scalar {
        Some(1.0 / config.number("query_pre_attn_scalar")?.unwrap_or(256.0).sqrt())
    } else {
        None
    };
    let base = ModelOptions {
        norm: class.norm,
        norm_gain: class.gain,
        activation: Some(class.activation),
        biases: Some(biases(class, config)?),
        embedding_scale: class.embedding_scale,
        head_dim,
        qk_norm: class.qk_norm,
        attention_scale: scale,
        logit_softcap: config.number("final_logit_softcapping")?,
        ..ModelOptions::default()
    };
    let [global, local] = rope::read(class, config)?;
    let windows = windows(class, config, layers)?;
    let rotated = rotated_layers(class, config, layers)?;
    let listed: Vec<LayerOptions> = windows
        .iter()
        .zip(rotated)
        .map(|(&window, rope)| {
            let Rope { theta, scaling } = if window.is_some() { local } else { global };
            LayerOptions {
                window,
                rope,
                rope_theta: Some(theta),
                rope_scaling: Some(scaling),
                ..LayerOptions::default()
            }
        })
        .collect();
    if heads == 0 {
        return Err(config.wrong("the number of heads must be 1 to 10000, got 0".to_owned()));
    }
    let options = ModelOptions { rope_scaling: global.scaling, pattern: listed, ..base };
    let (options, theta) = options.canonical(Family::Llama, layers, d_model / heads, global.theta);
    let kv_heads = given("num_key_value_heads", class.kv_heads)?.unwrap_or(heads);
    Ok(DescribedModel {
        file: config.file.to_owned(),
        unknown: vec!["dropout"],
        spec: ModelSpec {
            kv_heads,
            d_ff: config.required_size("intermediate_size")?,
            tie_embeddings: config.flag("tie_word_embeddings")?.unwrap_or(class.tied),
            norm_eps: config.number("rms_norm_eps")?.unwrap_or(class.eps),
            rope_theta: theta,
            options,
            ..ModelSpec::with_defaults(Family::Llama, sizes)
        },
    })
}

fn check_activation(class: &Class, config: &HfConfig<'_>) -> Result<(), WeightsError> {
    let names: &[&str] = match class.activation {
        Activation::Gelu => &["gelu_pytorch_tanh", "gelu_new"],
        _ => &["silu", "swish"],
    };
    let key = class.activation_key;
    match config.text(key)? {
        Some(activation) if !names.contains(&activation) => Err(config
            .wrong(format!("unsupported `{key}` {activation:?}; only `{}` (`{}`) is supported", names[0], names[1]))),
        _ => Ok(()),
    }
}

fn biases(class: &Class, config: &HfConfig<'_>) -> Result<Biases, WeightsError> {
    let attention = || Ok(config.flag("attention_bias")?.unwrap_or(false));
    Ok(match class.biases {
        BiasKeys::Never => Biases::None,
        BiasKeys::Qkv => Biases::Qkv,
        BiasKeys::Attention => {
            if attention()? {
                Biases::Attention
            } else {
                Biases::None
            }
        }
        BiasKeys::AttentionAndMlp => match (attention()?, config.flag("mlp_bias")?.unwrap_or(false)) {
            (false, false) => Biases::None,
            (true, false) => Biases::Attention,
            (true, true) => Biases::All,
            (false, true) => {
                let message = "`mlp_bias: true` without `attention_bias: true` is not supported".to_owned();
                return Err(config.wrong(message));
            }
        },
    })
}

/// The window of each layer, if it has one.
fn windows(class: &Class, config: &HfConfig<'_>, layers: usize) -> Result<Vec<Option<u32>>, WeightsError> {
    let is_used = match class.windows {
        Windows::Never => false,
        Windows::All | Windows::AllButEvery(_) => true,
        Windows::Optional => config.flag("use_sliding_window")?.unwrap_or(false),
    };
    let size = match config.map.get("sliding_window") {
        None if class.has_layers_without_rope() => None,
        None => Some(WINDOW),
        Some(_) => match config.size("sliding_window")? {
            None => None,
            Some(size) => match u32::try_from(size).ok().filter(|size| *size > 0) {
                Some(size) => Some(size),
                None => return Err(config.wrong(format!("`sliding_window` must be 1 to {}, got {size}", u32::MAX))),
            },
        },
    };
    let (true, Some(size)) = (is_used, size) else { return Ok(vec![None; layers]) };
    if class.windows == Windows::All {
        return Ok(vec![Some(size); layers]);
    }
    if let Some(types) = config.map.get("layer_types").filter(|types| !types.is_null()) {
        let is_local = |kind: &Value| LAYER_TYPES.iter().position(|known| kind == known).map(|index| index == 1);
        let listed: Option<Vec<bool>> = types.as_array().and_then(|types| types.iter().map(is_local).collect());
        let Some(listed) = listed.filter(|listed| listed.len() == layers) else {
            let wanted = format!("a list of {layers} of `full_attention` and `sliding_attention`");
            return Err(config.mismatch("layer_types", &wanted, types));
        };
        return Ok(listed.into_iter().map(|is_local| is_local.then_some(size)).collect());
    }
    let is_local: Box<dyn Fn(usize) -> bool> = match class.windows {
        Windows::AllButEvery(n) => {
            let n = config.size("sliding_window_pattern")?.unwrap_or(n).max(1);
            Box::new(move |layer| !(layer + 1).is_multiple_of(n))
        }
        _ if class.has_layers_without_rope() => {
            let rotated = rotated_layers(class, config, layers)?;
            Box::new(move |layer| !rotated[layer])
        }
        _ => {
            let first = config.size("max_window_layers")?.unwrap_or(28);
            Box::new(move |layer| layer >= first)
        }
    };
    Ok((0..layers).map(|layer| is_local(layer).then_some(size)).collect())
}

/// Whether each layer rotates its queries and keys.
fn rotated_layers(class: &Class, config: &HfConfig<'_>, layers: usize) -> Result<Vec<bool>, WeightsError> {
    if !class.has_layers_without_rope() {
        return Ok(vec![true; layers]);
    }
    let Some(listed) = config.map.get("no_rope_layers").filter(|listed| !listed.is_null()) else {
        let every = config.size("no_rope_layer_interval")?.unwrap_or(4).max(1);
        return Ok((0..layers).map(|layer| !(layer + 1).is_multiple_of(every)).collect());
    };
    let flags = listed.as_array().and_then(|listed| {
        listed.iter().map(|flag| flag.as_u64().filter(|flag| *flag <= 1).map(|flag| flag == 1)).collect()
    });
    match flags.filter(|flags: &Vec<bool>| flags.len() == layers) {
        Some(flags) => Ok(flags),
        None => Err(config.mismatch("no_rope_layers", &format!("a list of {layers} of 0 and 1"), listed)),
    }
}
