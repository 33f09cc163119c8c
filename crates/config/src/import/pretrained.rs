//! Translates the settings that name the weights from which another trainer starts.

use super::draft::ExperimentDraft;
use super::settings::{Settings, show};

/// OpenAI's models by their names on the hub, which nanoGPT's `init_from` takes, and the presets of the same sizes.
const GPT2_PRESETS: [(&str, &str); 4] =
    [("gpt2", "gpt2-124m"), ("gpt2-medium", "gpt2-355m"), ("gpt2-large", "gpt2-774m"), ("gpt2-xl", "gpt2-1558m")];

/// Adds nanoGPT's defaults, and translates `init_from`. The sizes of OpenAI's models do not come from the configuration.
pub(super) fn translate_init_from(settings: &mut Settings, draft: &mut ExperimentDraft) {
    /// The settings that nanoGPT takes from the model that it starts from.
    const MODEL_SETTINGS: [&str; 4] = ["n_layer", "n_head", "n_embd", "bias"];
    let init_from = settings.take(&["init_from"]);
    let start = init_from.as_ref().and_then(|(_, value)| value.as_str());
    let model = GPT2_PRESETS.iter().find(|(name, _)| start == Some(name));
    if let Some((name, preset)) = model {
        for setting in MODEL_SETTINGS {
            if let Some((key, value)) = settings.take(&[setting]) {
                draft.leave_out(show(&key, &value), format!("nanoGPT takes it from the model {name}"));
            }
        }
        draft.set("model.preset", *preset, format!("init_from: the sizes of {name}, without its weights"));
        let command = format!("`model: {{init: {{from: hub:{name}}}}}`");
        draft.leave_out(
            format!("init_from = {name:?}"),
            format!("to start from these weights, replace `model.preset` by {command}: see docs/weights.md"),
        );
        draft.warnings.push(format!(
            "init_from starts from the weights of {name}, but this experiment starts from random weights; to start from {name}, replace \
             `model.preset` by {command} (docs/weights.md)"
        ));
    } else if let Some((key, value)) = init_from.as_ref().filter(|(_, value)| value != "scratch") {
        let reason = match start {
            Some("resume") => "to resume a run, repeat its `runner apply`, or use `runner resume RUN`",
            _ => "it must be `scratch`, `resume`, or a model of OpenAI such as `gpt2`",
        };
        draft.leave_out(show(key, value), reason);
    }
    settings.add_nanogpt_defaults();
    if model.is_some() {
        for setting in MODEL_SETTINGS {
            settings.take(&[setting]);
        }
    }
}

/// Translates axolotl's adapter, and the tokenizer of the model from which it starts.
pub(super) fn translate_base_model(settings: &mut Settings, draft: &mut ExperimentDraft) {
    let model = settings.get("base_model").and_then(|model| model.as_str()).map(str::to_owned);
    let adapter = settings.take(&["adapter"]);
    if let Some((key, value)) = &adapter {
        draft.leave_out(show(key, value), "adapters are not supported: all weights are trained");
        draft.warnings.push(format!(
            "{} trains an adapter, which is not supported; this experiment trains all weights",
            show(key, value)
        ));
    }
    if let Some(model) = &model {
        draft.warnings.push(format!(
            "base_model starts from the weights of {model}, but this experiment starts from random weights; to start from {model}, set \
             `model: {{init: {{from: …}}}}` to `hub:{model}` or its folder (docs/weights.md)"
        ));
    }
    let tokenizer = settings.take(&["tokenizer_config"]);
    let named = tokenizer.as_ref().and_then(|(key, value)| Some((key.as_str(), value.as_str()?)));
    let is_default = named.is_none();
    let Some((key, name)) = named.or(model.as_deref().map(|model| ("base_model", model))) else { return };
    let origin = if is_default { format!("{key}: the tokenizer of the model") } else { key.to_owned() };
    let is_folder = name.starts_with(['.', '/', '~']) || draft.folders.find(name).is_dir();
    if is_folder {
        draft.set_file("data.tokenizer.file", &format!("{}/tokenizer.json", name.trim_end_matches('/')), origin);
    } else {
        draft.set("data.tokenizer.hub.name", name, origin);
    }
}
