//! Models known by name: what `model.preset` stands for.

use serde_json::{Value, json};

use runner_spec::experiment::Family;

struct Preset {
    name: &'static str,
    family: Family,
    /// Given for the published models only; a small one takes its tokenizer's.
    vocab_size: Option<usize>,
    context_length: usize,
    layers: usize,
    heads: usize,
    kv_heads: Option<usize>,
    d_model: usize,
    d_ff: Option<usize>,
}

const fn gpt2(name: &'static str, layers: usize, heads: usize, d_model: usize) -> Preset {
    let vocab_size = Some(50257);
    Preset {
        name,
        family: Family::Gpt2,
        vocab_size,
        context_length: 1024,
        layers,
        heads,
        kv_heads: None,
        d_model,
        d_ff: None,
    }
}

const fn small(
    name: &'static str,
    family: Family,
    context_length: usize,
    layers: usize,
    heads: usize,
    d_model: usize,
) -> Preset {
    let kv_heads = match family {
        Family::Gpt2 => None,
        Family::Llama => Some(heads / 2),
    };
    Preset { name, family, vocab_size: None, context_length, layers, heads, kv_heads, d_model, d_ff: None }
}

const PRESETS: [Preset; 11] = [
    gpt2("gpt2-124m", 12, 12, 768),
    gpt2("gpt2-355m", 24, 16, 1024),
    gpt2("gpt2-774m", 36, 20, 1280),
    gpt2("gpt2-1558m", 48, 25, 1600),
    Preset {
        name: "llama-179m",
        family: Family::Llama,
        vocab_size: Some(50_000),
        context_length: 512,
        layers: 12,
        heads: 12,
        kv_heads: Some(3),
        d_model: 768,
        d_ff: Some(3072),
    },
    small("gpt2-nano", Family::Gpt2, 64, 3, 4, 64),
    small("gpt2-micro", Family::Gpt2, 128, 4, 4, 128),
    small("gpt2-mini", Family::Gpt2, 256, 6, 6, 192),
    small("llama-nano", Family::Llama, 64, 3, 4, 64),
    small("llama-micro", Family::Llama, 128, 4, 4, 128),
    small("llama-mini", Family::Llama, 256, 6, 6, 192),
];

/// All names, the published models first.
pub(crate) fn names() -> Vec<&'static str> {
    PRESETS.iter().map(|p| p.name).collect()
}

/// Family of a preset.
pub(crate) fn family(name: &str) -> Option<Family> {
    PRESETS.iter().find(|p| p.name == name).map(|p| p.family)
}

/// The preset as sections of an experiment file.
pub(crate) fn layer(name: &str) -> Option<Value> {
    let p = PRESETS.iter().find(|p| p.name == name)?;
    let mut model = json!({
        "family": p.family,
        "context_length": p.context_length,
        "layers": p.layers,
        "heads": p.heads,
        "d_model": p.d_model,
    });
    for (key, value) in [("vocab_size", p.vocab_size), ("kv_heads", p.kv_heads), ("d_ff", p.d_ff)] {
        if let Some(value) = value {
            model[key] = value.into();
        }
    }
    Some(json!({ "model": model }))
}
