//! Translates the sources of data, the tokenizer and the validation data of other trainers.

use serde_json::{Map, Value, json};

use super::Trainer;
use super::draft::ExperimentDraft;
use super::settings::{Settings, show};

/// litgpt's data modules that read what its own scripts have written with litdata.
const LITDATA_MODULES: [&str; 4] = ["LitData", "TinyLlama", "MicroLlama", "SlimPajama"];

/// The data of a config.py: a folder of nanoGPT's `data/`.
pub(super) fn translate_nanogpt_data(settings: &mut Settings, draft: &mut ExperimentDraft) {
    let Some((key, dataset)) = settings.take(&["dataset"]) else { return };
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

/// The data module of litgpt, and the folder of its tokenizer.
pub(super) fn translate_litgpt_data(settings: &mut Settings, draft: &mut ExperimentDraft) {
    if let Some((key, folder)) = settings.take(&["tokenizer_dir"]) {
        match folder.as_str() {
            Some(folder) => {
                draft.set_file("data.tokenizer.file", &format!("{}/tokenizer.json", folder.trim_end_matches('/')), key);
            }
            None => draft.leave_out(show(&key, &folder), "`data.tokenizer.file` must be the path of a tokenizer.json"),
        }
    }
    let Some((key, class)) = settings.take(&["data", "data.class_path"]) else { return };
    let mut arguments: Map<String, Value> = settings.take_section("data.init_args").into_iter().collect();
    let mut take = |name: &str| arguments.remove(&format!("data.init_args.{name}"));
    let module = class.as_str().and_then(|path| path.rsplit('.').next()).unwrap_or_default();
    let setting = show(&key, &class);
    match module {
        "TinyStories" => {
            take("path");
            draft.set("data.train.hub.dataset", "roneneldan/TinyStories", key.as_str());
            draft.set("data.validation.hub.dataset", "roneneldan/TinyStories", key);
            draft.set("data.validation.hub.split", "validation", "");
            draft.leave_out(
                setting,
                "litgpt reads TinyStories_all_data.tar.gz of this dataset; this experiment reads its splits `train` and `validation`",
            );
        }
        "OpenWebText" => {
            take("data_path");
            let share = take("val_split_fraction").filter(Value::is_number).unwrap_or(json!(0.0005));
            draft.set("data.train.hub.dataset", "Skylion007/openwebtext", key);
            draft.set("data.validation.fraction", share, "val_split_fraction");
        }
        "TextFiles" => {
            let mut set = |name: &str, path: &str| {
                let folder = take(name)?.as_str()?.trim_end_matches('/').to_owned();
                draft.set_files(path, &[&format!("{folder}/*.txt")], name);
                Some(())
            };
            let train = set("train_data_path", "data.train.text.files");
            if train.is_some() && set("val_data_path", "data.validation.text.files").is_none() {
                draft.leave_out(setting, "litgpt validates on the first file of the folder; this experiment validates on the last tenth of the text");
            }
        }
        name if LITDATA_MODULES.contains(&name) => draft.leave_out(
            setting,
            "it reads tokens in litdata's format, which is not supported: give `data.train` the texts that they were made from, \
             as `text`, `jsonl`, `json`, `parquet` or `hub`",
        ),
        _ => draft.leave_out(
            setting,
            "it turns instructions into prompts: `data.train.json`, `jsonl`, `parquet` or `hub` with a `template` turns such records into \
             texts, and the loss counts all of their tokens",
        ),
    }
    for (key, value) in arguments {
        let reason = match key.rsplit('.').next() {
            Some("seed") => "`seed` determines the order of rows",
            Some("num_workers") => "data is tokenized once and mapped into memory; no workers are needed",
            _ => "it is an option of litgpt's data module",
        };
        draft.leave_out(show(&key, &value), reason);
    }
}

/// axolotl's list of datasets, and the share that is held out.
pub(super) fn translate_datasets(trainer: Trainer, settings: &mut Settings, draft: &mut ExperimentDraft) {
    let share = settings.take_number(&["val_set_size", "val_split_fraction"]);
    if share.is_none() && trainer == Trainer::Axolotl {
        draft.set("data.validation", Value::Null, "axolotl's default: val_set_size is 0");
    }
    if let Some((key, share)) = share {
        if share > 0.0 && share < 1.0 {
            draft.set("data.validation.fraction", share, key);
        } else if share == 0.0 {
            draft.set("data.validation", Value::Null, key);
        } else {
            draft.leave_out(
                show(&key, &json!(share)),
                "`data.validation` must be a fraction between 0 and 1, or a source",
            );
        }
    }
    let Some((key, value)) = settings.take(&["datasets"]) else { return };
    let Some(sources) = value.as_array() else {
        return draft.leave_out(show(&key, &value), "it must be a list of sources, such as `[{path: texts.jsonl}]`");
    };
    for (index, source) in sources.iter().enumerate() {
        let Some(path) = source["path"].as_str().filter(|_| index == 0) else {
            draft.leave_out(show(&key, source), "only the first source is used");
            continue;
        };
        // `path: json` names the format of `data_files`.
        let files: Vec<&str> = match &source["data_files"] {
            Value::String(file) => vec![file],
            Value::Array(files) => files.iter().filter_map(Value::as_str).collect(),
            _ => vec![path],
        };
        let ending = files.first().and_then(|file| file.rsplit_once('.')).map(|(_, ending)| ending);
        if let Some(ending) = ending.filter(|ending| ["jsonl", "json", "parquet", "txt"].contains(ending)) {
            let kind = if ending == "txt" { "text" } else { ending };
            draft.set_files(&format!("data.train.{kind}.files"), &files, key.as_str());
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
                "training data is plain text; `template` composes it from columns",
            );
        }
    }
}
