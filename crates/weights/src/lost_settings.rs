//! What a folder says of its model that an export does not: a chat template, and settings of the tokenizer and of generation.

use std::path::Path;

use serde_json::{Map, Value};

use super::folder::{CONFIG, read_object};
use runner_files::{is_absent, strict_json};

/// A larger file is not compared.
const MAX_BYTES: u64 = 16 << 20;
const CHAT_TEMPLATES: [&str; 3] = ["chat_template.jinja", "additional_chat_templates", "chat_template.json"];
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const SPECIAL_TOKENS: &str = "special_tokens_map.json";
const GENERATION: &str = "generation_config.json";
/// Keys of these files that change neither what a tokenizer gives nor what a model generates, and tokens that `tokenizer.json` has.
const UNIMPORTANT: [&str; 15] = [
    "_from_model_config",
    "added_tokens_decoder",
    "backend",
    "clean_up_tokenization_spaces",
    "errors",
    "is_local",
    "local_files_only",
    "model_max_length",
    "name_or_path",
    "processor_class",
    "special_tokens_map_file",
    "tokenizer_class",
    "transformers_version",
    "unk_token",
    "use_cache",
];
/// The keys of `config.json` that name tokens; a run records the others.
const TOKEN_IDS: [&str; 3] = ["bos_token_id", "eos_token_id", "pad_token_id"];
/// The characters of a value that are shown.
const SHOWN: usize = 60;

/// Notes about what the folder `source`, from which a run started, has and its export in the folder `exported` lacks.
pub fn describe_lost_settings(source: &Path, exported: &Path) -> Vec<String> {
    let name = source.display();
    let mut notes = Vec::new();
    let is_lost = |file: &&str| !is_absent(&source.join(file)) && is_absent(&exported.join(file));
    let templates = CHAT_TEMPLATES.into_iter().filter(is_lost);
    let templates: Vec<&str> = templates.collect();
    if !templates.is_empty() {
        notes.push(format!("the export lacks {}, which {name} has", templates.join(" and ")));
    }
    let written = Settings::read(exported, &mut notes);
    let original = Settings::read(source, &mut notes);
    // `transformers` reads special tokens from either file.
    let is_second = |key: &str| !original.tokenizer.contains_key(key);
    let config = &original.tokenizer;
    notes.extend(describe_lost(TOKENIZER_CONFIG, source, config, &written.tokenizer, TOKENIZER_CONFIG, |_| true));
    notes.extend(describe_lost(
        SPECIAL_TOKENS,
        source,
        &original.special,
        &written.tokenizer,
        TOKENIZER_CONFIG,
        is_second,
    ));
    notes.extend(describe_lost(GENERATION, source, &original.generation, &written.generation, GENERATION, |_| true));
    if original.generation.is_empty() {
        let is_token = |key: &str| TOKEN_IDS.contains(&key);
        notes.extend(describe_lost(CONFIG, source, &original.model, &written.model, CONFIG, is_token));
    }
    notes
}

/// The contents of a folder's files; a file that is missing has none.
struct Settings {
    tokenizer: Map<String, Value>,
    special: Map<String, Value>,
    generation: Map<String, Value>,
    model: Map<String, Value>,
}

impl Settings {
    /// Reads the files. A file that cannot be read is noted.
    fn read(folder: &Path, notes: &mut Vec<String>) -> Self {
        let mut file = |name: &str| {
            let path = folder.join(name);
            if is_absent(&path) {
                return Map::new();
            }
            read_object(&path, MAX_BYTES).unwrap_or_else(|error| {
                notes.push(format!("settings were not compared: {error}"));
                Map::new()
            })
        };
        Self {
            tokenizer: file(TOKENIZER_CONFIG),
            special: file(SPECIAL_TOKENS),
            generation: file(GENERATION),
            model: file(CONFIG),
        }
    }
}

/// The note about settings in the file `name` of `source` that differ from those `written` to the file `target`.
fn describe_lost(
    name: &str,
    source: &Path,
    settings: &Map<String, Value>,
    written: &Map<String, Value>,
    target: &str,
    counts: impl Fn(&str) -> bool,
) -> Option<String> {
    // A token is a text, or an object with its text.
    let plain = |value: &Value| value.get("content").cloned().unwrap_or_else(|| value.clone());
    let is_empty = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(items) => items.is_empty(),
        _ => false,
    };
    let lost = settings.iter().filter(|(key, value)| {
        let same = written.get(*key).is_some_and(|written| plain(written) == plain(value));
        counts(key) && !UNIMPORTANT.contains(&key.as_str()) && !is_empty(value) && !same
    });
    let lost: Vec<String> = lost
        .map(|(key, value)| {
            let text = match strict_json::non_finite(value) {
                Some(number) => number.to_owned(),
                None => plain(value).to_string(),
            };
            let end = if text.chars().count() > SHOWN { "…" } else { "" };
            let has = written.get(key).map_or_else(String::new, |written| format!(" (here {})", plain(written)));
            format!("`{key}: {}{end}`{has}", text.chars().take(SHOWN).collect::<String>())
        })
        .collect();
    let source = source.join(name);
    (!lost.is_empty()).then(|| format!("{target} lacks settings of {}: {}", source.display(), lost.join(", ")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn folder(files: &[(&str, Value)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            std::fs::write(dir.path().join(name), content.to_string()).unwrap();
        }
        dir
    }

    #[test]
    fn an_export_says_what_it_lacks() {
        let exported = folder(&[
            (
                "tokenizer_config.json",
                json!({"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}),
            ),
            ("generation_config.json", json!({"eos_token_id": 1, "bos_token_id": 0})),
            ("config.json", json!({"eos_token_id": 1})),
        ]);
        let lost = |files: &[(&str, Value)]| {
            let source = folder(files);
            let notes = describe_lost_settings(source.path(), exported.path());
            notes.join("\n").replace(&source.path().display().to_string(), "SRC")
        };
        let names = json!({"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>", "tokenizer_class": "X", "backend": "y"});
        assert_eq!(
            lost(&[("tokenizer_config.json", names), ("generation_config.json", json!({"eos_token_id": 1}))]),
            ""
        );
        let chat = [
            ("chat_template.jinja", json!("")),
            (
                "tokenizer_config.json",
                json!({"eos_token": "</s>", "pad_token": "<pad>", "padding_side": "left", "legacy": false}),
            ),
            ("special_tokens_map.json", json!({"additional_special_tokens": ["<|im_end|>"]})),
            ("generation_config.json", json!({"eos_token_id": [1, 7], "temperature": 0.6, "do_sample": true})),
        ];
        assert_eq!(
            lost(&chat),
            "the export lacks chat_template.jinja, which SRC has\n\
             tokenizer_config.json lacks settings of SRC/tokenizer_config.json: `pad_token: \"<pad>\"`, `padding_side: \"left\"`\n\
             tokenizer_config.json lacks settings of SRC/special_tokens_map.json: `additional_special_tokens: [\"<|im_end|>\"]`\n\
             generation_config.json lacks settings of SRC/generation_config.json: `do_sample: true`, `eos_token_id: [1,7]` (here 1), \
             `temperature: 0.6`"
        );
        let template = json!({"chat_template": "x".repeat(99)});
        assert!(lost(&[("tokenizer_config.json", template)]).ends_with("x…`"));
        let ends = lost(&[("config.json", json!({"eos_token_id": [1, 7], "n_layer": 2}))]);
        assert_eq!(ends, "config.json lacks settings of SRC/config.json: `eos_token_id: [1,7]` (here 1)");
    }
}
