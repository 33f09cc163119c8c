//! Translates the settings of nanoGPT. The table of foreign keys names the counterparts of most; the functions here compute what nanoGPT says
//! in a different form: micro-batches and accumulation, absolute learning rates, folders of data.

use serde_json::{Value, json};

use super::draft::ExperimentDraft;
use super::settings::{Settings, UnreadStatement, changes_training, integer, is_setting, show};
use crate::foreign_keys::{counterpart_of_value, find_counterpart};
use runner_spec::diagnostic::{list, short};
use runner_spec::experiment::Train;

/// Keys of an experiment file that nanoGPT spells in the same way, without their sections.
const SAME_NAMES: [&str; 4] = ["seed", "model.dropout", "model.vocab_size", "optimizer.adamw.weight_decay"];

/// OpenAI's models by their names on the hub, which `init_from` takes, and the presets of the same sizes.
const GPT2_PRESETS: [(&str, &str); 4] =
    [("gpt2", "gpt2-124m"), ("gpt2-medium", "gpt2-355m"), ("gpt2-large", "gpt2-774m"), ("gpt2-xl", "gpt2-1558m")];

/// Translates the `settings` of a config.py.
pub(super) fn translate(mut settings: Settings, draft: &mut ExperimentDraft) {
    translate_init_from(&mut settings, draft);
    draft.set("model.family", "gpt2", "");
    translate_batch(&mut settings, draft);
    translate_optimizer(&mut settings, draft);
    translate_schedule(&mut settings, draft);
    translate_arithmetic(&mut settings, draft);
    if let Some((key, every)) = settings.take_number("eval_interval") {
        draft.set("eval.every", integer(every), key.as_str());
        draft.set("checkpoint.every", integer(every), key);
    }
    if let Some((key, value)) = settings.take("bias")
        && value == Value::Bool(false)
    {
        draft.leave_out(show(&key, &value), "GPT-2 always has biases here, like OpenAI's model");
    }
    translate_data(&mut settings, draft);
    draft.leave_out(
        "random windows",
        "nanoGPT draws the rows of a batch at random; here every epoch is a permutation of all rows",
    );
    let (rest, unread) = settings.into_rest();
    for (key, label, value) in rest {
        translate_by_table(&key, &label, value, draft);
    }
    report_unread(&unread, draft);
}

/// Adds nanoGPT's defaults, and translates `init_from`. The sizes of OpenAI's models do not come from the configuration.
fn translate_init_from(settings: &mut Settings, draft: &mut ExperimentDraft) {
    /// The settings that nanoGPT takes from the model that it starts from.
    const MODEL_SETTINGS: [&str; 4] = ["n_layer", "n_head", "n_embd", "bias"];
    let init_from = settings.take("init_from");
    let start = init_from.as_ref().and_then(|(_, value)| value.as_str());
    let model = GPT2_PRESETS.iter().find(|(name, _)| start == Some(name));
    if let Some((name, preset)) = model {
        for setting in MODEL_SETTINGS {
            if let Some((key, value)) = settings.take(setting) {
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
            settings.take(setting);
        }
    }
}

/// `batch.sequences` is the batch of a step, and `eval.loss.rows` counts rows; nanoGPT counts micro-batches.
fn translate_batch(settings: &mut Settings, draft: &mut ExperimentDraft) {
    let (micro, accumulation) =
        (settings.take_number("batch_size"), settings.take_number("gradient_accumulation_steps"));
    let batches = settings.take_number("eval_iters");
    if let Some((micro_key, micro)) = &micro {
        draft.set("batch.micro_batch", integer(*micro), micro_key);
        if let Some((key, steps)) = accumulation {
            draft.set("batch.sequences", integer(micro * steps), format!("{micro_key} · {key}"));
        }
        if let Some((key, batches)) = batches {
            draft.set("eval.loss.rows", integer(batches * micro), format!("{key} · batch.micro_batch"));
        }
    }
}

fn translate_optimizer(settings: &mut Settings, draft: &mut ExperimentDraft) {
    if let Some((key, rate)) = settings.take_number("learning_rate") {
        draft.set("optimizer.adamw.lr", rate, key);
    }
    if let (Some((key1, beta1)), Some((key2, beta2))) = (settings.take_number("beta1"), settings.take_number("beta2")) {
        draft.set("optimizer.adamw.betas", json!([beta1, beta2]), format!("{key1}, {key2}"));
    }
    // 0 turns clipping off.
    if let Some((key, norm)) = settings.take_number("grad_clip") {
        draft.set("train.clip_norm", if norm > 0.0 { json!(norm) } else { Value::Null }, key);
    }
}

/// nanoGPT's warmup is a part of its decay.
fn translate_schedule(settings: &mut Settings, draft: &mut ExperimentDraft) {
    let is_constant = settings.take("decay_lr").is_some_and(|(_, value)| value == Value::Bool(false));
    let [warmup, end, floor] = ["warmup_iters", "lr_decay_iters", "min_lr"].map(|key| settings.take_number(key));
    if is_constant {
        return;
    }
    let length = settings.get("max_iters").and_then(Value::as_f64).filter(|steps| *steps >= 1.0);
    // A run that ends within its warmup is refused here.
    let warmup = warmup.map(|(key, steps)| match length {
        Some(length) if steps > length => {
            draft.leave_out(show(&key, &json!(steps)), "cut to the length of the run");
            (key, length)
        }
        _ => (key, steps),
    });
    if let Some((key, steps)) = &warmup {
        draft.set("schedule.warmup.steps", integer(*steps), key);
    }
    if let Some((key, end)) = end {
        let steps = (end - warmup.map_or(0.0, |(_, steps)| steps)).max(1.0);
        draft.set("schedule.decay.cosine.steps", integer(steps), format!("{key} − warmup"));
    }
    let Some((key, floor)) = floor else { return };
    match draft.number("optimizer.adamw.lr").filter(|rate| *rate > 0.0) {
        Some(rate) => {
            // The text drops the rounding error of the division: 6e-5 / 6e-4 is 0.1.
            let share = format!("{:.12}", floor / rate).parse::<f64>().unwrap_or(floor / rate);
            draft.set("schedule.decay.cosine.final", share, format!("{key} / learning rate"));
        }
        None => draft.leave_out(
            show(&key, &json!(floor)),
            "`final` is a fraction of the peak learning rate, which the configuration does not give",
        ),
    }
}

fn translate_arithmetic(settings: &mut Settings, draft: &mut ExperimentDraft) {
    let device = settings.take("device");
    let is_cpu = device.as_ref().is_some_and(|(_, value)| value == "cpu");
    if let Some((key, value)) = device {
        match value.as_str() {
            Some("cpu") => draft.set("device", "cpu", key),
            Some(name) if name.starts_with("cuda") => draft.set("device", "cuda", key),
            _ => draft.leave_out(show(&key, &value), "`device` must be `cpu` or `cuda`"),
        }
    }
    match settings.take("dtype") {
        // nanoGPT has no mixed precision on a CPU.
        _ if is_cpu => {}
        None => draft.set("precision", "bf16", "nanoGPT's default on a GPU"),
        Some((key, value)) => match value.as_str().unwrap_or_default() {
            "float32" => draft.set("precision", "fp32", key),
            "bfloat16" => draft.set("precision", "bf16", key),
            name => draft.leave_out(
                show(&key, &value),
                counterpart_of_value("precision", name).unwrap_or("`precision` must be `fp32`, `tf32` or `bf16`"),
            ),
        },
    }
}

/// The data of a config.py: a folder of nanoGPT's `data/`.
fn translate_data(settings: &mut Settings, draft: &mut ExperimentDraft) {
    let Some((key, dataset)) = settings.take("dataset") else { return };
    let name = dataset.as_str().unwrap_or("openwebtext");
    let script = format!("data/{name}/prepare.py");
    // nanoGPT knows sets of characters by this file.
    let has_characters = name.ends_with("_char") || draft.folders.find(&format!("data/{name}/meta.pkl")).exists();
    if has_characters {
        draft.set_files("data.train.text.files", &[&format!("data/{name}/input.txt")], key);
        draft.set("data.validation.fraction", 0.1, script.as_str());
        draft.set("data.tokenizer.chars", json!({}), format!("{script}: one token per character"));
        draft.leave_out(
            format!("data/{name}/train.bin, val.bin, meta.pkl"),
            "this experiment reads the text that they were made from: token files do not record which character a token stands for",
        );
        return;
    }
    draft.set_files("data.train.tokens.files", &[&format!("data/{name}/train.bin")], key);
    draft.set_files("data.validation.tokens.files", &[&format!("data/{name}/val.bin")], "");
    // OpenAI's models have 50257 tokens.
    if !draft.has("model.preset") {
        draft.set("model.pad_vocab_to", 64, "nanoGPT's vocabulary of 50304");
    }
    if ["openwebtext", "shakespeare"].contains(&name) {
        draft.set("data.tokenizer.hub.name", "gpt2", script);
    } else {
        draft.set("data.tokenizer.hub.name", "gpt2", format!("assumed: {script} is not read"));
        draft.warnings.push(format!(
            "the tokenizer of data/{name} is assumed to be GPT-2's; check {script}, and set `data.tokenizer`"
        ));
    }
}

/// A setting that needs no computation: the table of foreign keys names its counterpart, or says why there is none.
fn translate_by_table(key: &str, label: &str, value: Value, draft: &mut ExperimentDraft) {
    if let Some(own) = SAME_NAMES.into_iter().find(|own| own.rsplit('.').next() == Some(key)) {
        return draft.set(own, value, label);
    }
    let Some(counterpart) = find_counterpart("", key) else {
        return draft.leave_out(show(label, &value), "runner has no such setting");
    };
    // Samples need prompts, which no other configuration has.
    let is_usable = |own: &&str| !value.is_array() && !own.starts_with("eval.samples");
    let Some(own) = counterpart.equivalent_key().filter(is_usable) else {
        return draft.leave_out(show(label, &value), counterpart.help(key, counterpart.key.as_deref()));
    };
    // A second choice of how long to train would be a mistake.
    let lengths = Train::LENGTH_KEYS;
    if lengths.contains(&own) && lengths.iter().any(|length| draft.has(length)) {
        draft.leave_out(show(label, &value), "a different setting already gives the length of the training");
    } else {
        draft.set(own, value, label);
    }
}

/// Lists the statements that could not be read, and warns of those that may change the experiment.
fn report_unread(unread: &[UnreadStatement], draft: &mut ExperimentDraft) {
    /// Lines that a warning numbers; the comments of the experiment have all of them.
    const MAX_NUMBERS: usize = 10;
    let mut opaque = Vec::new();
    for UnreadStatement { line, text, names } in unread {
        let is_import = ["import ", "from "].iter().any(|word| text.starts_with(word));
        if is_import && !names.is_empty() && !names.iter().any(|name| is_setting(name)) {
            // It names a module or a function.
            continue;
        }
        draft.leave_out(format!("line {line}: {}", short(text)), "skipped: the file is not executed");
        let changed: Vec<&str> = names.iter().map(String::as_str).filter(|name| changes_training(name)).collect();
        if !changed.is_empty() {
            let (text, names) = (short(text), list(&changed, "and"));
            draft
                .warnings
                .push(format!("line {line} was skipped, because the file is not executed: {text}; check {names}"));
        } else if names.is_empty() {
            opaque.push(line.to_string());
        }
    }
    if !opaque.is_empty() {
        let (lines, were) = if opaque.len() == 1 { ("line", "was") } else { ("lines", "were") };
        let more = if opaque.len() > MAX_NUMBERS { ", …" } else { "" };
        let numbers = opaque[..opaque.len().min(MAX_NUMBERS)].join(", ") + more;
        draft.warnings.push(format!(
            "{lines} {numbers} {were} skipped, because the file is not executed; any setting may be changed there, so check the experiment"
        ));
    }
}
