//! The files next to GPT-2's `vocab.json` and `merges.txt`, by which `transformers` may read another tokenizer: added tokens, other special
//! tokens, and settings. A folder with such files is refused.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{DataError, Result};
use runner_files::{is_absent, read_regular, strict_json, without_byte_order_mark};

/// GPT-2's end of text.
pub(super) const END_OF_TEXT: &str = "<|endoftext|>";

const CONFIG: &str = "tokenizer_config.json";
const MODEL: &str = "config.json";
const TOKEN_FILES: [&str; 3] = [CONFIG, "special_tokens_map.json", "added_tokens.json"];

/// Classes of tokenizers that give GPT-2's tokens, and models that use one of them unless a file names another class.
const CLASSES: [&str; 2] = ["GPT2Tokenizer", "CodeGenTokenizer"];
const MODELS: [&str; 8] = ["gpt2", "llama", "codegen", "gpt_neo", "gptj", "opt", "phi", "starcoder2"];

/// Settings that change the tokens of a text.
const SETTINGS: [&str; 4] = ["add_prefix_space", "add_bos_token", "add_eos_token", "split_special_tokens"];

const ADVICE: &str = "save the tokenizer as a tokenizer.json: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)";

/// Checks that the files in `folder` describe the tokenizer of its two files, whose end of text has the id `end`.
///
/// # Errors
/// If one is broken, or describes another tokenizer.
pub(super) fn check_folder(folder: &Path, end: Option<u32>) -> Result<()> {
    let refuse = |name: &str, what: &str| Err(DataError::file(&folder.join(name), format!("{what}; {ADVICE}")));
    // A file of this name may be of another program.
    let model = read_object(&folder.join(MODEL)).unwrap_or_default();
    let config = read_object(&folder.join(CONFIG))?;
    match [(CONFIG, &config), (MODEL, &model)].into_iter().find_map(|(name, map)| Some((name, class(map)?))) {
        Some((name, class)) if !CLASSES.contains(&class) => {
            let what = "does not read vocab.json and merges.txt as GPT-2's";
            return refuse(name, &format!("`tokenizer_class` is `{}`, which {what}", class.escape_debug()));
        }
        Some(_) => {}
        None => match model.get("model_type").and_then(Value::as_str) {
            Some(kind) if !MODELS.contains(&kind) => {
                return refuse(MODEL, &format!("the tokenizer of a `{}` may differ from GPT-2's", kind.escape_debug()));
            }
            _ => {}
        },
    }
    for name in TOKEN_FILES {
        let map = read_object(&folder.join(name))?;
        if let Some(setting) = SETTINGS.into_iter().find(|setting| map.get(*setting) == Some(&Value::Bool(true))) {
            return refuse(name, &format!("`{setting}: true` is not supported with vocab.json and merges.txt"));
        }
        let is_known = |token: &Value| end.is_some() && is_end_of_text(token);
        let other = if name == "added_tokens.json" {
            map.iter()
                .find(|(token, id)| !(is_known(&Value::from(token.as_str())) && id.as_u64() == end.map(u64::from)))
        } else {
            map.iter().find(|(key, value)| names_tokens(key) && !tokens(value).into_iter().all(is_known))
        };
        if let Some((key, _)) = other {
            let what = format!("`{}` adds to the tokens of vocab.json", key.escape_debug());
            return refuse(name, &what);
        }
    }
    Ok(())
}

fn class(map: &Map<String, Value>) -> Option<&str> {
    let class = map.get("tokenizer_class")?.as_str()?;
    Some(class.strip_suffix("Fast").unwrap_or(class))
}

/// True if the key of a tokenizer's settings names tokens, such as `bos_token`, `added_tokens_decoder` or `extra_special_tokens`.
fn names_tokens(key: &str) -> bool {
    (key.ends_with("_token") && !SETTINGS.contains(&key))
        || key == "added_tokens_decoder"
        || key.ends_with("_special_tokens")
}

/// The tokens in the value of a key that names tokens.
fn tokens(value: &Value) -> Vec<&Value> {
    match value {
        Value::Null => Vec::new(),
        Value::Array(tokens) => tokens.iter().collect(),
        Value::Object(map) if map.contains_key("content") => vec![value],
        Value::Object(map) => map.values().collect(),
        token => vec![token],
    }
}

/// True if `token` is the end of text, without blanks that it swallows.
fn is_end_of_text(token: &Value) -> bool {
    let is_set = |flag: &str| token[flag] == Value::Bool(true);
    let content = if token.is_object() { &token["content"] } else { token };
    content == END_OF_TEXT && !["lstrip", "rstrip", "single_word"].into_iter().any(is_set)
}

/// Reads the JSON object in the file `path`, which is empty if there is no file.
fn read_object(path: &Path) -> Result<Map<String, Value>> {
    if is_absent(path) {
        return Ok(Map::new());
    }
    let bytes = read_regular(path).map_err(DataError::io(path))?;
    match strict_json::parse(without_byte_order_mark(&bytes)) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(other) => {
            let message = format!("it must be a JSON object, got {}", strict_json::describe_type(&other));
            Err(DataError::file(path, message))
        }
        Err(error) => Err(DataError::file(path, format!("invalid JSON: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use serde::Deserialize;

    use crate::model_tokenizer::ModelTokenizer;
    use crate::tokenizer::{TextTokenizer, load_tokenizer};
    use runner_spec::experiment::{Layout, Tokenizer};

    /// Written by `tests/golden/gpt2_folders.py`.
    #[derive(Deserialize)]
    struct Fixture {
        text: String,
        vocab: String,
        merges: String,
        folders: Vec<Folder>,
    }

    #[derive(Deserialize)]
    struct Folder {
        name: String,
        files: BTreeMap<String, String>,
        #[serde(flatten)]
        expected: Expected,
    }

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Expected {
        Read { ids: Vec<u32>, prefix: Vec<u32>, bos: String, eos: String, size: usize, special: Vec<(u32, String)> },
        Refused {},
    }

    #[test]
    fn folders_are_read_as_auto_tokenizer_reads_them() {
        let fixture = include_str!("../../../../tests/fixtures/tokenizer/gpt2_folders.json");
        let Fixture { text, vocab, merges, folders } = serde_json::from_str(fixture).unwrap();
        assert!(folders.len() > 35);
        let layout = Layout::packed(8);
        let (mut hashes, mut refused) = (BTreeMap::<String, Vec<String>>::new(), Vec::new());
        for Folder { name, files, expected } in folders {
            let dir = tempfile::tempdir().unwrap();
            let [vocab_path, merges_path] = ["vocab.json", "merges.txt"].map(|name| dir.path().join(name));
            fs::write(&vocab_path, &vocab).unwrap();
            fs::write(&merges_path, &merges).unwrap();
            for (file, content) in &files {
                fs::write(dir.path().join(file), content).unwrap();
            }
            let read = load_tokenizer(&Tokenizer::Gpt2 { vocab: vocab_path, merges: merges_path });
            let (ids, prefix, bos, eos, size, special) = match expected {
                Expected::Read { ids, prefix, bos, eos, size, special } => (ids, prefix, bos, eos, size, special),
                Expected::Refused {} => {
                    assert!(read.is_err(), "{name}");
                    continue;
                }
            };
            // A folder that changes tokens is refused.
            let Ok(read) = read else {
                refused.push(name);
                continue;
            };
            // A run keeps the tokenizer with what the folder said.
            let kept = dir.path().join("kept.json");
            fs::write(&kept, read.to_file().unwrap()).unwrap();
            for tokenizer in [&read, &TextTokenizer::read(&kept).unwrap()] {
                assert_eq!(tokenizer.encode_prompt(&text).unwrap(), ids, "{name}");
                assert_eq!(tokenizer.vocab_size(), size, "{name}");
                assert_eq!(tokenizer.end_of_text(), tokenizer.token_id(&eos).ok(), "{name}");
                assert_eq!(ModelTokenizer::of_weights(tokenizer.clone()).prefix(), prefix, "{name}");
                let (_, names) = tokenizer.special_tokens(&layout);
                assert_eq!(names, [Some(bos.clone()), Some(eos.clone()), None], "{name}");
                for (id, content) in &special {
                    assert_eq!(tokenizer.token_id(content).unwrap(), *id, "{name}");
                    // In a document the name of a special token is text.
                    assert!(!tokenizer.encode_document(content).unwrap().contains(id), "{name}: {content}");
                }
            }
            // An export has the same tokens.
            let exported: tokenizers::Tokenizer = read.to_hf(&layout, 8).unwrap().tokenizer.parse().unwrap();
            assert_eq!(exported.encode(text.as_str(), true).unwrap().get_ids(), ids, "{name}");
            hashes.entry(read.hash().to_owned()).or_default().push(name);
        }
        // Files that change no token change no hash.
        let plain = hashes.values().find(|names| names[0] == "nothing").unwrap();
        let same = ["a length alone", "numbers that are not finite", "default tokens as objects"];
        assert_eq!(plain[1..], same);
    }
}
