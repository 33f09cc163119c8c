//! Translates the settings of another trainer. Keys that mean the same are found in the table of foreign keys; the functions here
//! compute what other trainers say in a different form: shares and absolute learning rates, micro-batches and accumulation, sources of data.

use std::path::Path;

use serde_json::{Value, json};

use super::Trainer;
use super::data::{translate_datasets, translate_litgpt_data, translate_nanogpt_data};
use super::draft::ExperimentDraft;
use super::pretrained::{translate_base_model, translate_init_from};
use super::schedule::translate_schedule;
use super::settings::{Settings, UnreadStatement, changes_training, integer, is_setting, show};
use crate::foreign_keys::{counterpart_of_value, find_counterpart};
use runner_spec::diagnostic::{list, short};
use runner_spec::experiment::Train;

/// Keys of an experiment file that other trainers spell in the same way, in another section or in none.
const SAME_NAMES: &str = "seed train.epochs model.dropout model.vocab_size model.pad_vocab_to model.rope_theta model.norm_eps \
                          model.tie_embeddings optimizer.adamw.weight_decay optimizer.adamw.eps optimizer.adamw.betas";

/// The sections of nested configurations in which these names mean the same.
const SAME_NAME_SECTIONS: [&str; 6] = ["", "model", "model_config", "train", "optimizer", "optimizer.init_args"];

/// Translates the settings of `config`, a file of `trainer`.
pub(super) fn translate(trainer: Trainer, config: &Path, mut settings: Settings, draft: &mut ExperimentDraft) {
    draft.set("version", 1, "");
    if trainer == Trainer::NanoGpt {
        translate_init_from(&mut settings, draft);
        draft.set("model.family", "gpt2", "");
    }
    translate_batch(trainer, &mut settings, draft);
    translate_validation_length(&mut settings, draft);
    let is_adamw = translate_optimizer(trainer, &mut settings, draft);
    translate_schedule(trainer, &mut settings, draft);
    translate_arithmetic(trainer, &mut settings, draft);
    match trainer {
        Trainer::NanoGpt => translate_nanogpt(&mut settings, draft),
        Trainer::Litgpt | Trainer::Axolotl => translate_litgpt_and_axolotl(&mut settings, draft),
        Trainer::HuggingFace => {}
    }
    match trainer {
        Trainer::Litgpt => translate_litgpt_data(&mut settings, draft),
        Trainer::Axolotl => translate_base_model(&mut settings, draft),
        Trainer::NanoGpt | Trainer::HuggingFace => {}
    }
    translate_datasets(trainer, &mut settings, draft);
    let (rest, unread) = settings.into_rest();
    for (key, label, value) in rest {
        translate_by_table(&key, &label, value, draft);
    }
    if is_adamw {
        add_adamw_defaults(trainer, draft);
    }
    report_unread(&unread, draft);
    if trainer == Trainer::HuggingFace {
        let file = config.with_file_name("tokenizer.json");
        draft.set_file("data.tokenizer.file", &file.to_string_lossy(), "the model's tokenizer");
    }
    add_required_keys(draft);
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

/// Returns true if the optimizer is AdamW.
fn translate_optimizer(trainer: Trainer, settings: &mut Settings, draft: &mut ExperimentDraft) -> bool {
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
        let [(key1, beta1), (key2, beta2)] =
            [(beta1, 0.9), (beta2, 0.999)].map(|(beta, default)| beta.unwrap_or(("default".to_owned(), default)));
        draft.set("optimizer.adamw.betas", json!([beta1, beta2]), format!("{key1}, {key2}"));
    }
    // 0 turns clipping off in other trainers.
    if let Some(key) = settings.take_null("max_norm") {
        draft.set("train.clip_norm", Value::Null, key);
    }
    if let Some((key, norm)) = settings.take_number(&["grad_clip", "max_norm", "max_grad_norm", "gradient_clip_val"]) {
        draft.set("train.clip_norm", if norm > 0.0 { json!(norm) } else { Value::Null }, key);
    }
    // litgpt gives the optimizer's arguments to torch, whose AdamW and SGD have this learning rate.
    let is_adamw = !is_sgd && name.contains("adamw");
    if trainer == Trainer::Litgpt && (is_sgd || is_adamw) {
        draft.set_default(&format!("{own}.lr"), 1e-3, "torch's default");
    }
    if let Some((key, value)) = kind
        && !is_sgd
        && !is_adamw
    {
        draft.leave_out(show(&key, &value), "`optimizer` must be `adamw` or `sgd`");
    }
    is_adamw
}

/// Sets what the configuration leaves out of AdamW to the defaults of its trainer.
fn add_adamw_defaults(trainer: Trainer, draft: &mut ExperimentDraft) {
    let (decay, origin) = match trainer {
        Trainer::Litgpt => (0.01, "torch's default"),
        Trainer::Axolotl => (0.0, "axolotl's default"),
        // The defaults of nanoGPT are among its settings, and a model has no optimizer.
        Trainer::NanoGpt | Trainer::HuggingFace => return,
    };
    draft.set_default("optimizer.adamw.betas", json!([0.9, 0.999]), origin);
    draft.set_default("optimizer.adamw.weight_decay", decay, origin);
    if trainer == Trainer::Litgpt {
        draft.set("optimizer.adamw.decays", "all", "litgpt gives torch all parameters in one group");
    }
}

fn translate_arithmetic(trainer: Trainer, settings: &mut Settings, draft: &mut ExperimentDraft) {
    let device = settings.take(&["device"]);
    let is_cpu = device.as_ref().is_some_and(|(_, value)| value == "cpu");
    if let Some((key, value)) = device {
        match value.as_str() {
            Some("cpu") => draft.set("device", "cpu", key),
            Some(name) if name.starts_with("cuda") => draft.set("device", "cuda", key),
            _ => draft.leave_out(show(&key, &value), "`device` must be `cpu` or `cuda`"),
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
                counterpart_of_value("precision", name).unwrap_or("`precision` must be `fp32`, `tf32` or `bf16`"),
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
        draft.leave_out(show(&key, &value), "GPT-2 always has biases here, like OpenAI's model");
    }
    translate_nanogpt_data(settings, draft);
    draft.leave_out(
        "random windows",
        "nanoGPT draws the rows of a batch at random; here every epoch is a permutation of all rows",
    );
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
fn translate_by_table(key: &str, label: &str, value: Value, draft: &mut ExperimentDraft) {
    let (parent, last) = key.rsplit_once('.').unwrap_or(("", key));
    if SAME_NAME_SECTIONS.contains(&parent)
        && let Some(own) = SAME_NAMES.split(' ').find(|own| own.rsplit('.').next() == Some(last))
    {
        draft.set(own, value, label);
        return;
    }
    let Some(counterpart) = find_counterpart(parent, last) else {
        return draft.leave_out(show(label, &value), "runner has no such setting");
    };
    // Samples need prompts, which no other configuration has.
    let is_usable = |own: &&str| !value.is_array() && !own.starts_with("eval.samples");
    let Some(own) = counterpart.equivalent_key().filter(is_usable) else {
        return draft.leave_out(show(label, &value), counterpart.help(last, counterpart.key.as_deref()));
    };
    // A second choice of how long to train would be a mistake.
    let lengths = Train::LENGTH_KEYS;
    if lengths.contains(&own) && lengths.iter().any(|length| draft.has(length)) {
        draft.leave_out(show(label, &value), "a different setting already gives the length of the training");
    } else {
        draft.set(own, value, label);
    }
}

/// Fills in what every experiment needs.
fn add_required_keys(draft: &mut ExperimentDraft) {
    if !["layers", "init", "preset"].into_iter().any(|key| draft.has(&format!("model.{key}"))) {
        draft.set("model.preset", "gpt2-124m", "choose a model: its sizes are not in the configuration");
        draft
            .warnings
            .push("the configuration gives no model sizes, so `model.preset` is gpt2-124m; check it".to_owned());
    }
    if !draft.has("data.train") {
        draft.set("data.train.text.files", json!(["input.txt"]), "your text");
        draft.warnings.push(
            "the configuration names no data that runner can read, so `data.train` is input.txt; name your text"
                .to_owned(),
        );
    }
    if !draft.has("data.tokenizer") {
        let vocabulary = draft.number("model.vocab_size");
        let vocabulary = vocabulary.map(|size| format!(", and the model has a vocabulary of {size} tokens"));
        draft.warnings.push(format!(
            "the configuration names no tokenizer, so this experiment uses a byte tokenizer with 257 tokens{}; set `data.tokenizer`",
            vocabulary.as_deref().unwrap_or_default()
        ));
    }
}
