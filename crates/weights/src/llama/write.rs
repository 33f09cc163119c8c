//! Writes a `config.json`.

use serde_json::{Value, json};

use super::class::{BiasKeys, Class, Windows};
use super::rope::{self, LAYER_TYPES, Rope};
use runner_spec::model::{Activation, Biases, Mask, ModelSpec, RopeScaling, Rotary};

/// A layer as `transformers` describes it.
struct Layer {
    window: Option<u32>,
    rotary: Option<Rotary>,
}

pub(super) fn config(class: &Class, s: &ModelSpec) -> Value {
    let decoder = s.decoder();
    let layers = decoder.layers.map(|layer| {
        let attention = layer.attentions().next();
        let window = attention.and_then(|attention| match attention.mask {
            Mask::Window(keys) => Some(keys),
            Mask::Causal | Mask::Full => None,
        });
        (window, attention.and_then(|attention| attention.rotary))
    });
    let layers: Vec<Layer> = layers.into_iter().map(|(window, rotary)| Layer { window, rotary }).collect();
    let rope = |is_local: bool| {
        let of = layers.iter().find(|layer| layer.window.is_some() == is_local && layer.rotary.is_some());
        let rotary = of.and_then(|layer| layer.rotary);
        rotary.map(|Rotary { theta, scaling, .. }| Rope { theta, scaling })
    };
    let missing = Rope { theta: s.rope_theta, scaling: s.options.rope_scaling };
    let (global, local) = (rope(false).or(rope(true)).unwrap_or(missing), rope(true));
    let biases = s.biases();
    let mut config = json!({
        "architectures": [class.name],
        "model_type": class.model_type,
        "intermediate_size": s.d_ff,
        "num_key_value_heads": s.kv_heads,
        "head_dim": s.head_dim(),
        "rms_norm_eps": s.norm_eps,
        "rope_theta": global.theta,
        "rope_parameters": rope::written(global),
        "attention_bias": biases >= Biases::Attention,
        "attention_dropout": 0.0,
    });
    let activation = if class.activation == Activation::Gelu { "gelu_pytorch_tanh" } else { "silu" };
    config[class.activation_key] = activation.into();
    if class.biases == BiasKeys::AttentionAndMlp {
        config["mlp_bias"] = (biases >= Biases::All).into();
    }
    if class.rope_by_layer_type {
        let local = local.unwrap_or(global);
        config["rope_parameters"] =
            json!({LAYER_TYPES[0]: rope::written(global), LAYER_TYPES[1]: rope::written(local)});
        if class.query_scalar {
            config["rope_local_base_freq"] = local.theta.into();
        }
    }
    if global.scaling != RopeScaling::default() {
        let mut scaling = rope::written(global);
        if let Some(keys) = scaling.as_object_mut() {
            keys.remove("rope_theta");
        }
        config["rope_scaling"] = scaling;
    }
    if class.query_scalar {
        let scale = s.options.attention_scale.unwrap_or(1.0 / (s.head_dim() as f64).sqrt());
        // The scale is 1/√ of this number. `transformers` reads whole numbers only, so other scales do not come back.
        config["query_pre_attn_scalar"] = ((1.0 / (scale * scale)).round() as u64).into();
        config["final_logit_softcapping"] = s.options.logit_softcap.into();
    }
    add_windows(class, s.context_length, &layers, &mut config);
    if class.has_layers_without_rope() {
        let flags: Vec<u8> = layers.iter().map(|layer| u8::from(layer.rotary.is_some())).collect();
        config["no_rope_layers"] = flags.into();
    }
    config
}

/// Adds the keys of windows, under the names of all versions of `transformers`.
fn add_windows(class: &Class, context_length: usize, layers: &[Layer], config: &mut Value) {
    if class.windows != Windows::Never {
        // Gemma's class reads the number even if no layer has a window.
        let unused = class.query_scalar.then_some(context_length as u32);
        config["sliding_window"] = layers.iter().find_map(|layer| layer.window).or(unused).into();
    }
    if matches!(class.windows, Windows::Optional | Windows::AllButEvery(_)) {
        let types = layers.iter().map(|layer| LAYER_TYPES[usize::from(layer.window.is_some())]);
        config["layer_types"] = types.collect::<Vec<_>>().into();
    }
    if let Windows::AllButEvery(_) = class.windows {
        let whole = layers.iter().position(|layer| layer.window.is_none()).map_or(layers.len() + 1, |index| index + 1);
        let is_regular = |(index, layer): (usize, &Layer)| layer.window.is_none() == (index + 1).is_multiple_of(whole);
        if layers.iter().enumerate().all(is_regular) {
            config["sliding_window_pattern"] = whole.into();
        }
    }
    if class.windows == Windows::Optional {
        let first = layers.iter().position(|layer| layer.window.is_some());
        config["use_sliding_window"] = first.is_some().into();
        config["max_window_layers"] = first.unwrap_or(layers.len()).into();
    }
}
