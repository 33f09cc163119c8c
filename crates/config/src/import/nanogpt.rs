//! Translates a config.py of nanoGPT. The table of foreign keys names the counterparts of most settings; the functions here compute what
//! nanoGPT says in a different form: micro-batches and accumulation, absolute learning rates, folders of data.

#![expect(clippy::expect_used, reason = "NANOGPT_DEFAULTS is part of the program, and a test reads it")]

use std::path::Path;

use serde_json::{Map, Value, json};

use super::draft::ExperimentDraft;
use super::python::{PythonFile, read_assignments};
use crate::foreign_keys::{counterpart_of_value, find_counterpart};
use runner_spec::diagnostic::short;

/// The defaults of nanoGPT's train.py, for the settings that a config.py leaves out.
const NANOGPT_DEFAULTS: &str = r#"{
    "eval_interval": 2000, "log_interval": 1, "eval_iters": 200, "dataset": "openwebtext", "gradient_accumulation_steps": 40,
    "batch_size": 12, "block_size": 1024, "n_layer": 12, "n_head": 12, "n_embd": 768, "dropout": 0.0, "bias": false,
    "learning_rate": 6e-4, "max_iters": 600000, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.95, "grad_clip": 1.0, "decay_lr": true,
    "warmup_iters": 2000, "lr_decay_iters": 600000, "min_lr": 6e-5
}"#;

/// Keys of an experiment file that nanoGPT spells in the same way, without their sections.
const SAME_NAMES: [&str; 4] = ["seed", "model.dropout", "model.vocab_size", "optimizer.adamw.weight_decay"];

/// OpenAI's models by their names on the hub, which `init_from` takes, and the presets of the same sizes.
const GPT2_PRESETS: [(&str, &str); 4] =
    [("gpt2", "gpt2-124m"), ("gpt2-medium", "gpt2-355m"), ("gpt2-large", "gpt2-774m"), ("gpt2-xl", "gpt2-1558m")];

/// The settings that are not translated yet.
struct Settings {
    given: Map<String, Value>,
    /// Those that the configuration leaves out.
    defaults: Map<String, Value>,
}

impl Settings {
    /// Removes the setting `key`. Returns its name for a comment, and its value.
    fn take(&mut self, key: &str) -> Option<(String, Value)> {
        if let Some(value) = self.given.remove(key) {
            return Some((key.to_owned(), value));
        }
        Some((format!("{key} (nanoGPT's default)"), self.defaults.remove(key)?))
    }

    /// Removes the setting `key` if it is a number.
    fn take_number(&mut self, key: &str) -> Option<(String, f64)> {
        let number = self.given.get(key).or_else(|| self.defaults.get(key))?.as_f64()?;
        Some((self.take(key)?.0, number))
    }
}

/// Translates the config.py `text`. False if it has no setting of nanoGPT.
pub(super) fn translate(text: &str, draft: &mut ExperimentDraft) -> bool {
    let PythonFile { values: given, unread } = read_assignments(text);
    let mut defaults: Map<String, Value> = serde_json::from_str(NANOGPT_DEFAULTS).expect("NANOGPT_DEFAULTS is JSON");
    if !given.keys().any(|key| defaults.contains_key(key) || find_counterpart("", key).is_some()) {
        return false;
    }
    defaults.retain(|key, _| !given.contains_key(key));
    let mut settings = Settings { given, defaults };
    draft.set("model.family", "gpt2", "");
    translate_init_from(&mut settings, draft);
    translate_batch(&mut settings, draft);
    translate_optimizer(&mut settings, draft);
    translate_schedule(&mut settings, draft);
    translate_arithmetic(&mut settings, draft);
    if let Some((key, every)) = settings.take_number("eval_interval") {
        draft.set("eval.every", integer(every), key.as_str());
        draft.set("checkpoint.every", integer(every), key);
    }
    if let Some((key, Value::Bool(false))) = settings.take("bias") {
        draft.set("model.biases", "none", key);
    }
    translate_data(&mut settings, draft);
    let windows = "nanoGPT draws the rows of a batch at random; here every epoch is a permutation of all rows";
    draft.leave_out("random windows", windows);
    let rest: Vec<String> = settings.given.keys().chain(settings.defaults.keys()).cloned().collect();
    for key in rest {
        if let Some((label, value)) = settings.take(&key) {
            translate_by_table(&key, &label, value, draft);
        }
    }
    for (line, text) in &unread {
        draft.leave_out(&format!("line {line}: {}", short(text)), "not read: the file is not executed");
    }
    if !unread.is_empty() {
        let text = "some lines were not read, because the file is not executed; check them: the end of the experiment lists them";
        draft.warnings.push(text.to_owned());
    }
    true
}

/// Training that starts from one of OpenAI's models has its sizes, which do not come from the configuration.
fn translate_init_from(settings: &mut Settings, draft: &mut ExperimentDraft) {
    let Some((key, value)) = settings.take("init_from").filter(|(_, value)| value != "scratch") else { return };
    let Some((name, preset)) = GPT2_PRESETS.iter().find(|(name, _)| value == *name) else {
        let advice = "`runner resume RUN` resumes a run, and `model.init.from` names weights to start from";
        return draft.leave_out(&show(&key, &value), advice);
    };
    draft.set("model.preset", *preset, format!("the sizes of {name}"));
    draft.set("model.init.from", format!("hub:{name}"), key);
    for setting in ["n_layer", "n_head", "n_embd", "bias"] {
        let given = settings.take(setting).filter(|(label, _)| label == setting);
        if let Some((key, value)) = given {
            draft.leave_out(&show(&key, &value), &format!("nanoGPT takes it from the model {name}"));
        }
    }
}

/// `batch.sequences` is the batch of a step, and `eval.loss.rows` counts rows; nanoGPT counts micro-batches.
fn translate_batch(settings: &mut Settings, draft: &mut ExperimentDraft) {
    let Some((micro_key, micro)) = settings.take_number("batch_size") else { return };
    draft.set("batch.micro_batch", integer(micro), micro_key.as_str());
    if let Some((key, steps)) = settings.take_number("gradient_accumulation_steps") {
        draft.set("batch.sequences", integer(micro * steps), format!("{micro_key} · {key}"));
    }
    if let Some((key, batches)) = settings.take_number("eval_iters") {
        draft.set("eval.loss.rows", integer(batches * micro), format!("{key} · batch.micro_batch"));
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
    if settings.take("decay_lr").is_some_and(|(_, value)| value == false) {
        let _ = ["warmup_iters", "lr_decay_iters", "min_lr"].map(|key| settings.take(key));
        return;
    }
    let length = settings.given.get("max_iters").and_then(Value::as_f64).unwrap_or(f64::INFINITY);
    let mut warmup = 0.0;
    if let Some((key, steps)) = settings.take_number("warmup_iters") {
        // A warmup longer than the run is refused here.
        warmup = steps.min(length);
        let cut = if warmup < steps { ", cut to the length of the run" } else { "" };
        draft.set("schedule.warmup.steps", integer(warmup), format!("{key}{cut}"));
    }
    if let Some((key, end)) = settings.take_number("lr_decay_iters") {
        draft.set("schedule.decay.cosine.steps", integer((end - warmup).max(1.0)), format!("{key} − warmup"));
    }
    if let Some(rate) = draft.number("optimizer.adamw.lr").filter(|rate| *rate > 0.0)
        && let Some((key, floor)) = settings.take_number("min_lr")
    {
        // The text drops the rounding error of the division: 6e-5 / 6e-4 is 0.1.
        let share = format!("{:.12}", floor / rate).parse::<f64>().unwrap_or(floor / rate);
        draft.set("schedule.decay.cosine.final", share, format!("{key} / learning rate"));
    }
}

fn translate_arithmetic(settings: &mut Settings, draft: &mut ExperimentDraft) {
    let device = settings.take("device");
    let is_cpu = device.as_ref().is_some_and(|(_, value)| value == "cpu");
    if let Some((key, value)) = device {
        match value.as_str() {
            Some("cpu") => draft.set("device", "cpu", key),
            Some(name) if name.starts_with("cuda") => draft.set("device", "cuda", key),
            _ => draft.leave_out(&show(&key, &value), "`device` must be `cpu` or `cuda`"),
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
                &show(&key, &value),
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
    if name.ends_with("_char") || Path::new(&format!("data/{name}/meta.pkl")).exists() {
        draft.set("data.train.text.files", vec![draft.file(&format!("data/{name}/input.txt"))], key);
        draft.set("data.validation.fraction", 0.1, script.as_str());
        draft.set("data.tokenizer.chars", json!({}), format!("{script}: one token per character"));
        return;
    }
    draft.set("data.train.tokens.files", vec![draft.file(&format!("data/{name}/train.bin"))], key);
    draft.set("data.validation.tokens.files", vec![draft.file(&format!("data/{name}/val.bin"))], "");
    // OpenAI's models have 50257 tokens.
    if !draft.has("model.preset") {
        draft.set("model.pad_vocab_to", 64, "nanoGPT's vocabulary of 50304");
    }
    draft.set("data.tokenizer.hub.name", "gpt2", format!("assumed: {script} is not read"));
    if !["openwebtext", "shakespeare"].contains(&name) {
        let text =
            format!("the tokenizer of data/{name} is assumed to be GPT-2's; check {script}, and set `data.tokenizer`");
        draft.warnings.push(text);
    }
}

/// A setting that needs no computation: the table of foreign keys names its counterpart, or says why there is none.
fn translate_by_table(key: &str, label: &str, value: Value, draft: &mut ExperimentDraft) {
    if let Some(own) = SAME_NAMES.into_iter().find(|own| own.rsplit('.').next() == Some(key)) {
        return draft.set(own, value, label);
    }
    let Some(counterpart) = find_counterpart("", key) else {
        return draft.leave_out(&show(label, &value), "runner has no such setting");
    };
    // Samples need prompts, which no other configuration has.
    let is_usable = |own: &&str| !value.is_array() && !own.starts_with("eval.samples");
    match counterpart.equivalent_key().filter(is_usable) {
        Some(own) => draft.set(own, value, label),
        None => draft.leave_out(&show(label, &value), &counterpart.help(key, counterpart.key.as_deref())),
    }
}

/// A whole number, as it stands in a file.
fn integer(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() < 1e15 { json!(number as i64) } else { json!(number) }
}

/// A setting and its value, on one line.
fn show(key: &str, value: &Value) -> String {
    format!("{key} = {value}")
}
