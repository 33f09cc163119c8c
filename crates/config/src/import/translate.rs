//! Translates the settings of another trainer. Keys that mean the same are found in the table of foreign keys; the functions here
//! compute what other trainers say in another form: shares and absolute learning rates, micro-batches and accumulation, sources of data.

use serde_json::{Map, Value, json};

use super::Trainer;
use super::draft::ExperimentDraft;
use crate::check::join;
use crate::foreign_keys::{counterpart_of_value, find_counterpart};

/// The settings of a configuration. Nested keys are joined by dots.
#[derive(Debug, Default)]
pub(super) struct Settings {
    values: Vec<(String, Value)>,
    /// Settings whose values could not be read, with their text.
    unread: Vec<(String, String)>,
}

/// The defaults of nanoGPT's train.py, for the settings that a config.py leaves out.
const NANOGPT_DEFAULTS: &str = r#"{
    "eval_interval": 2000, "log_interval": 1, "eval_iters": 200, "dataset": "openwebtext", "gradient_accumulation_steps": 40,
    "batch_size": 12, "block_size": 1024, "n_layer": 12, "n_head": 12, "n_embd": 768, "dropout": 0.0, "bias": false,
    "learning_rate": 6e-4, "max_iters": 600000, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.95, "grad_clip": 1.0, "decay_lr": true,
    "warmup_iters": 2000, "lr_decay_iters": 600000, "min_lr": 6e-5
}"#;

/// Keys of an experiment file that other trainers spell in the same way, in another section or in none.
const SAME_NAMES: &str = "seed train.epochs model.dropout model.vocab_size model.pad_vocab_to model.rope_theta model.norm_eps \
                          model.tie_embeddings optimizer.adamw.weight_decay optimizer.adamw.eps optimizer.adamw.betas";

/// The sections of nested configurations in which these names mean the same.
const SAME_NAME_SECTIONS: [&str; 6] = ["", "model", "model_config", "train", "optimizer", "optimizer.init_args"];

impl Settings {
    /// The leaves of a nested configuration.
    pub(super) fn flatten(value: &Value) -> Self {
        let mut settings = Self::default();
        if let Value::Object(map) = value {
            settings.add(map, "");
        }
        settings
    }

    fn add(&mut self, map: &Map<String, Value>, parent: &str) {
        for (key, value) in map {
            let path = join(parent, key);
            match value {
                Value::Object(inner) => self.add(inner, &path),
                // Null leaves a key at its default, but for clipping, which it turns off.
                Value::Null if key != "max_norm" => {}
                _ => self.insert(&path, value.clone()),
            }
        }
    }

    /// Adds a setting, or replaces the one of the same name.
    pub(super) fn insert(&mut self, key: &str, value: Value) {
        self.values.retain(|(known, _)| known != key);
        self.values.push((key.to_owned(), value));
    }

    pub(super) fn insert_unread(&mut self, key: &str, text: &str) {
        self.values.retain(|(known, _)| known != key);
        self.unread.push((key.to_owned(), text.to_owned()));
    }

    /// Removes the first of the settings `keys` that is there. A key matches the last part of a nested one.
    fn take(&mut self, keys: &[&str]) -> Option<(String, Value)> {
        let at = keys.iter().find_map(|wanted| {
            self.values
                .iter()
                .position(|(key, _)| key == wanted || key.strip_suffix(wanted).is_some_and(|k| k.ends_with('.')))
        })?;
        Some(self.values.remove(at))
    }

    /// Removes the setting `key` if it is null.
    fn take_null(&mut self, key: &str) -> Option<(String, Value)> {
        let (key, value) = self.take(&[key])?;
        if value.is_null() {
            return Some((key, value));
        }
        self.insert(&key, value);
        None
    }

    fn take_number(&mut self, keys: &[&str]) -> Option<(String, f64)> {
        let (key, value) = self.take(keys)?;
        // YAML reads `1e-4` without a point as text.
        let number = value.as_f64().or_else(|| value.as_str()?.parse().ok());
        if number.is_none() {
            self.insert(&key, value);
        }
        Some((key, number?))
    }
}

pub(super) fn translate(trainer: Trainer, mut settings: Settings, draft: &mut ExperimentDraft) {
    draft.set("version", 1, "");
    if trainer == Trainer::NanoGpt {
        add_nanogpt_defaults(&mut settings);
        draft.set("model.family", "gpt2", "");
    }
    translate_batch(trainer, &mut settings, draft);
    translate_validation_length(&mut settings, draft);
    translate_optimizer(trainer, &mut settings, draft);
    translate_schedule(trainer, &mut settings, draft);
    translate_arithmetic(trainer, &mut settings, draft);
    match trainer {
        Trainer::NanoGpt => translate_nanogpt(&mut settings, draft),
        Trainer::Litgpt | Trainer::Axolotl => translate_litgpt_and_axolotl(&mut settings, draft),
        Trainer::HuggingFace => {}
    }
    translate_data(&mut settings, draft);
    let unread = std::mem::take(&mut settings.unread);
    for (key, value) in settings.values {
        translate_by_table(&key, value, draft);
    }
    for (key, text) in unread {
        draft.leave_out(format!("{key} = {text}"), "not read: the file is not executed");
    }
    add_required_keys(trainer, draft);
}

fn add_nanogpt_defaults(settings: &mut Settings) {
    let Ok(Value::Object(defaults)) = serde_json::from_str(NANOGPT_DEFAULTS) else { return };
    for (key, value) in defaults {
        if !settings.values.iter().any(|(known, _)| *known == key) {
            settings.insert(&key, value);
        }
    }
}

/// `batch.sequences` is the batch of a step; most trainers give a micro-batch and the number of accumulations.
fn translate_batch(trainer: Trainer, settings: &mut Settings, draft: &mut ExperimentDraft) {
    let micro = settings.take_number(&["micro_batch_size", "per_device_train_batch_size", "batch_size"]);
    if let Some((key, micro)) = &micro {
        draft.set("batch.micro_batch", integer(*micro), key);
    }
    if let Some((key, sequences)) = settings.take_number(&["global_batch_size"]) {
        draft.set("batch.sequences", integer(sequences), key);
    }
    let accumulation = settings.take_number(&["gradient_accumulation_steps", "accumulate_grad_batches"]);
    match (micro, accumulation) {
        (Some((micro_key, micro)), Some((key, steps))) => {
            let ranks = if trainer == Trainer::Axolotl { ", on one GPU" } else { "" };
            draft.set("batch.sequences", integer(micro * steps), format!("{micro_key} · {key}{ranks}"));
        }
        (Some((key, micro)), None) if !draft.has("batch.sequences") => {
            draft.set("batch.sequences", integer(micro), key);
        }
        _ => {}
    }
}

fn translate_optimizer(trainer: Trainer, settings: &mut Settings, draft: &mut ExperimentDraft) {
    let kind = settings.take(&["optimizer", "optimizer.class_path"]);
    let name = kind.as_ref().and_then(|(_, value)| value.as_str()).unwrap_or("adamw").to_ascii_lowercase();
    let is_sgd = name.contains("sgd");
    let own = if is_sgd { "optimizer.sgd" } else { "optimizer.adamw" };
    if let Some((key, rate)) = settings.take_number(&["learning_rate", "lr", "max_lr"]) {
        draft.set(&format!("{own}.lr"), rate, key);
    }
    if is_sgd {
        if let Some((key, momentum)) = settings.take_number(&["momentum"]) {
            draft.set("optimizer.sgd.momentum", momentum, key);
        }
        if let Some((key, decay)) = settings.take_number(&["weight_decay"]) {
            draft.leave_out(show(&key, &json!(decay)), "`sgd` has no weight decay");
        }
    }
    let beta1 = settings.take_number(&["beta1", "adam_beta1"]);
    let beta2 = settings.take_number(&["beta2", "adam_beta2"]);
    if beta1.is_some() || beta2.is_some() {
        let second = if trainer == Trainer::NanoGpt { 0.95 } else { 0.999 };
        let betas = [beta1.map_or(0.9, |b| b.1), beta2.map_or(second, |b| b.1)];
        draft.set("optimizer.adamw.betas", json!(betas), "beta1, beta2");
    }
    // 0 turns clipping off in other trainers.
    if let Some((key, _)) = settings.take_null("max_norm") {
        draft.set("train.clip_norm", Value::Null, key);
    }
    if let Some((key, norm)) = settings.take_number(&["grad_clip", "max_norm", "max_grad_norm", "gradient_clip_val"]) {
        draft.set("train.clip_norm", if norm > 0.0 { json!(norm) } else { Value::Null }, key);
    }
    if !draft.has(&format!("{own}.lr")) && trainer == Trainer::Litgpt {
        let defaults = "where the learning rate is not given, torch's defaults hold there: lr 1e-3, betas 0.9 and 0.999, decay 0.01";
        draft.leave_out("optimizer", defaults);
    }
    if let Some((key, value)) = kind
        && !is_sgd
        && !name.contains("adamw")
    {
        draft.leave_out(show(&key, &value), "the optimizers are `adamw` and `sgd`");
    }
}

fn translate_schedule(trainer: Trainer, settings: &mut Settings, draft: &mut ExperimentDraft) {
    let is_constant = settings.take(&["decay_lr"]).is_some_and(|(_, value)| value == Value::Bool(false));
    let kind = settings.take(&["lr_scheduler", "lr_scheduler_type"]);
    let shape = match kind.as_ref().and_then(|(_, value)| value.as_str()) {
        _ if is_constant => None,
        None if kind.is_none() && trainer != Trainer::HuggingFace => Some("cosine"),
        Some("constant" | "constant_with_warmup") => None,
        Some("linear") => Some("linear"),
        Some("cosine") => Some("cosine"),
        _ => {
            if let Some((key, value)) = &kind {
                draft.leave_out(show(key, value), "the shapes are `cosine`, `linear`, `step` and `constant`");
            }
            None
        }
    };
    let warmup = settings.take_number(&["warmup_iters", "warmup_steps", "lr_warmup_steps"]);
    let end = settings.take_number(&["lr_decay_iters"]);
    let floor = settings.take_number(&["min_lr"]);
    // nanoGPT's warmup is a part of its decay.
    if is_constant && trainer == Trainer::NanoGpt {
        return;
    }
    // A run that ends within its warmup is refused here.
    let length = settings.values.iter().find(|(key, _)| key == "max_iters").and_then(|(_, value)| value.as_f64());
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
    let Some(shape) = shape else {
        for (key, value) in floor.into_iter().chain(end) {
            draft.leave_out(show(&key, &json!(value)), "the learning rate is constant after the warmup");
        }
        return;
    };
    let path = |key: &str| format!("schedule.decay.{shape}.{key}");
    if let Some((key, end)) = end {
        let steps = (end - warmup.map_or(0.0, |w| w.1)).max(1.0);
        draft.set(&path("steps"), integer(steps), format!("{key} − warmup"));
    }
    let rate = draft.number("optimizer.adamw.lr").or_else(|| draft.number("optimizer.sgd.lr"));
    match (floor, rate.filter(|rate| *rate > 0.0)) {
        (Some((key, floor)), Some(rate)) => {
            // The text drops the rounding error of the division: 6e-5 / 6e-4 is 0.1.
            let share = format!("{:.12}", floor / rate).parse::<f64>().unwrap_or(floor / rate);
            draft.set(&path("final"), share, format!("{key} / learning rate"));
        }
        (Some((key, floor)), None) => {
            draft.leave_out(
                show(&key, &json!(floor)),
                "`final` is a share of the peak learning rate, which is not given",
            );
        }
        // The schedules of `transformers`, which axolotl uses, end at 0.
        (None, _) if trainer == Trainer::Axolotl => draft.set(&path("final"), 0.0, "axolotl's default"),
        (None, _) => {}
    }
}

fn translate_arithmetic(trainer: Trainer, settings: &mut Settings, draft: &mut ExperimentDraft) {
    let device = settings.take(&["device"]);
    let is_cpu = device.as_ref().is_some_and(|(_, value)| value == "cpu");
    if let Some((key, value)) = device {
        match value.as_str() {
            Some("cpu") => draft.set("device", "cpu", key),
            Some(name) if name.starts_with("cuda") => draft.set("device", "cuda", key),
            _ => draft.leave_out(show(&key, &value), "a device is `cpu` or `cuda`"),
        }
    }
    if let Some((key, value)) = settings.take(&["precision", "dtype", "torch_dtype"]) {
        let name = value.as_str().unwrap_or_default();
        match name {
            // nanoGPT has no mixed precision on a CPU.
            _ if is_cpu && trainer == Trainer::NanoGpt => {}
            "float32" | "32" | "32-true" | "fp32" => draft.set("precision", "fp32", key),
            "bfloat16" | "bf16" | "bf16-mixed" | "bf16-true" => {
                draft.set("precision", "bf16", key);
                if name == "bf16-true" {
                    draft.set("master_weights", false, "precision");
                }
            }
            _ => draft.leave_out(
                show(&key, &value),
                counterpart_of_value("precision", name).unwrap_or("`precision` is fp32, tf32 or bf16"),
            ),
        }
    } else if trainer == Trainer::NanoGpt && !is_cpu {
        draft.set("precision", "bf16", "nanoGPT's default on a GPU");
    }
    for (key, precision) in [("bf16", "bf16"), ("tf32", "tf32")] {
        if let Some((key, value)) = settings.take(&[key])
            && (value == true || value == "auto" || value == "full")
        {
            draft.set("precision", precision, key);
        }
    }
}

/// `eval.loss.rows` counts rows; most trainers count micro-batches.
fn translate_validation_length(settings: &mut Settings, draft: &mut ExperimentDraft) {
    let spellings =
        ["eval_iters", "eval.max_iters", "eval_max_iters", "val_max_steps", "max_eval_batches", "val_steps"];
    let Some((key, batches)) = settings.take_number(&spellings) else { return };
    match draft.number("batch.micro_batch") {
        Some(size) => draft.set("eval.loss.rows", integer(batches * size), format!("{key} · batch.micro_batch")),
        None => draft.set("eval.loss.batches", integer(batches), key),
    }
}

fn translate_nanogpt(settings: &mut Settings, draft: &mut ExperimentDraft) {
    if let Some((key, every)) = settings.take_number(&["eval_interval"]) {
        draft.set("eval.every", integer(every), key.as_str());
        draft.set("checkpoint.every", integer(every), key);
    }
    if let Some((key, value)) = settings.take(&["bias"])
        && value == Value::Bool(false)
    {
        draft.leave_out(show(&key, &value), "GPT-2 has biases here, as OpenAI's model has");
    }
    if let Some((key, value)) = settings.take(&["init_from"])
        && value != "scratch"
    {
        draft.leave_out(
            show(&key, &value),
            "for OpenAI's weights: `model: {init: {from: FOLDER}}`; to go on: `runner resume RUN`",
        );
    }
    if let Some((key, dataset)) = settings.take(&["dataset"]) {
        let name = dataset.as_str().unwrap_or("openwebtext");
        if name.ends_with("_char") {
            draft.set("data.train.text.files", json!([format!("data/{name}/input.txt")]), key);
            draft.set("data.validation.fraction", 0.1, format!("data/{name}/prepare.py"));
            draft.set("data.tokenizer.chars", json!({}), format!("data/{name}/prepare.py"));
        } else {
            draft.set("data.train.tokens.files", json!([format!("data/{name}/train.bin")]), key);
            draft.set("data.validation.tokens.files", json!([format!("data/{name}/val.bin")]), "");
            draft.set("data.tokenizer.hub.name", "gpt2", format!("data/{name}/prepare.py"));
            draft.set("model.pad_vocab_to", 64, "nanoGPT's vocabulary of 50304");
        }
    }
    draft.leave_out(
        "random windows",
        "nanoGPT draws the rows of a batch at random; here every epoch is a permutation of all rows",
    );
}

/// axolotl's list of datasets, and the share that is held out.
fn translate_data(settings: &mut Settings, draft: &mut ExperimentDraft) {
    if let Some((key, share)) = settings.take_number(&["val_set_size", "val_split_fraction"]) {
        if share > 0.0 && share < 1.0 {
            draft.set("data.validation.fraction", share, key);
        } else {
            draft.leave_out(show(&key, &json!(share)), "`data.validation` takes a fraction or a source");
        }
    }
    let Some((key, value)) = settings.take(&["datasets"]) else { return };
    let sources = value.as_array().map_or(&[][..], Vec::as_slice);
    for (index, source) in sources.iter().enumerate() {
        let Some(path) = source["path"].as_str().filter(|_| index == 0) else {
            draft.leave_out(show(&key, source), "one source is trained on");
            continue;
        };
        let ending = path.rsplit('.').next().unwrap_or(path);
        if ["jsonl", "json", "parquet", "txt"].contains(&ending) {
            let kind = if ending == "txt" { "text" } else { ending };
            draft.set(&format!("data.train.{kind}.files"), json!([path]), key.as_str());
        } else {
            draft.set("data.train.hub.dataset", path, key.as_str());
            for (theirs, own) in [("name", "config"), ("split", "split")] {
                if let Some(value) = source[theirs].as_str() {
                    draft.set(&format!("data.train.hub.{own}"), value, "");
                }
            }
        }
        if let Some(kind) = source["type"].as_str().filter(|kind| *kind != "completion" && *kind != "pretrain") {
            draft.leave_out(
                show(&format!("{key}.type"), &json!(kind)),
                "data are plain text; `template` makes it of columns",
            );
        }
    }
}

/// Translates the family, the devices and the recomputation. litgpt names no family, but RMSNorm is Llama's.
fn translate_litgpt_and_axolotl(settings: &mut Settings, draft: &mut ExperimentDraft) {
    if let Some((key, value)) = settings.take(&["norm_class_name"]) {
        draft.set("model.family", if value == "RMSNorm" { "llama" } else { "gpt2" }, key);
    }
    for (name, default) in [("devices", json!("auto")), ("num_nodes", json!(1))] {
        if let Some((key, value)) = settings.take(&[name])
            && value != default
        {
            draft.leave_out(show(&key, &value), "write `parallel: {mode: ddp, replicas: N}`");
        }
    }
    if let Some((key, value)) = settings.take(&["gradient_checkpointing", "activation_checkpointing"]) {
        draft.set("train.recompute", if value == true { "block" } else { "none" }, key);
    }
}

/// A setting that needs no computation: the table of foreign keys names its counterpart, or says why there is none.
fn translate_by_table(key: &str, value: Value, draft: &mut ExperimentDraft) {
    let (parent, last) = key.rsplit_once('.').unwrap_or(("", key));
    if SAME_NAME_SECTIONS.contains(&parent)
        && let Some(own) = SAME_NAMES.split(' ').find(|own| own.rsplit('.').next() == Some(last))
    {
        draft.set(own, value, key);
        return;
    }
    let Some(counterpart) = find_counterpart(parent, last) else {
        return draft.leave_out(show(key, &value), "this program has no such key");
    };
    // Samples need prompts, which no other configuration has.
    let is_usable = |own: &&str| !value.is_array() && !own.starts_with("eval.samples");
    let Some(own) = counterpart.equivalent_key().filter(is_usable) else {
        return draft.leave_out(show(key, &value), counterpart.help(last, counterpart.key.as_deref()));
    };
    // A second choice of how long to train would be a mistake.
    let lengths = ["train.steps", "train.tokens", "train.epochs"];
    if lengths.contains(&own) && lengths.iter().any(|length| draft.has(length)) {
        draft.leave_out(show(key, &value), "another setting says how long to train");
    } else {
        draft.set(own, value, key);
    }
}

/// Fills in what every experiment needs.
fn add_required_keys(trainer: Trainer, draft: &mut ExperimentDraft) {
    if !draft.has("model.layers") && !draft.has("model.init") {
        draft.set("model.preset", "gpt2-124m", "choose a model: its sizes are not in the configuration");
        draft
            .warnings
            .push("the configuration has no sizes of a model: `model.preset` is gpt2-124m, choose it".to_owned());
    }
    if !draft.has("data.train") {
        draft.set("data.train.text.files", json!(["input.txt"]), "your text");
        if trainer == Trainer::HuggingFace {
            draft.set("data.tokenizer.file", "tokenizer.json", "the model's tokenizer");
        }
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
