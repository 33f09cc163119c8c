//! The files next to GPT-2's `vocab.json` and `merges.txt`: added tokens, the roles of tokens, and settings. They are read as
//! `AutoTokenizer` of transformers 5 reads them, and refused if a byte-level BPE with GPT-2's words gives other tokens.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tokenizers::AddedToken;

use super::folder_tokens::FolderTokens;
use super::library::END_OF_TEXT;
use crate::error::{DataError, Result};
use runner_files::{is_absent, read_regular, strict_json, without_byte_order_mark};

const CONFIG: &str = "tokenizer_config.json";
const SPECIAL_TOKENS: &str = "special_tokens_map.json";
const ADDED_TOKENS: &str = "added_tokens.json";
const MODEL: &str = "config.json";

/// The keys of tokens with a role, in the order in which they are added.
const ROLES: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// The roles of [`END_OF_TEXT`] unless a file says otherwise.
const DEFAULT_ROLES: [&str; 3] = ["bos_token", "eos_token", "unk_token"];
/// Tokens beside those of the vocabulary, and further special tokens.
const DECODER: &str = "added_tokens_decoder";
const EXTRA: &str = "extra_special_tokens";
const OLD_EXTRA: &str = "additional_special_tokens";

/// Classes of tokenizers that give GPT-2's tokens, and models that use one of them unless a file names another class. For `llama` with
/// these two files, `AutoTokenizer` has no class.
const CLASSES: [&str; 2] = ["GPT2Tokenizer", "CodeGenTokenizer"];
const MODELS: [&str; 8] = ["gpt2", "llama", "codegen", "gpt_neo", "gptj", "opt", "phi", "starcoder2"];

/// The contents of the files next to the vocabulary.
#[derive(Debug)]
pub(super) struct Gpt2Folder {
    /// Added tokens, in the order in which they are added. A token that the vocabulary has keeps its id there.
    pub(super) added: Vec<AddedToken>,
    /// The ids that a file gives to tokens, and the file.
    pub(super) given_ids: Vec<(String, u64)>,
    pub(super) ids_from: PathBuf,
    pub(super) adds_prefix_space: bool,
    /// Whether a text gets the begin and the end of text.
    pub(super) adds: [bool; 2],
    pub(super) tokens: FolderTokens,
}

impl Gpt2Folder {
    /// Reads the files in `folder`; `None` if there are none. `is_token` tells whether the vocabulary has a token.
    ///
    /// # Errors
    /// If a file is broken, or describes another tokenizer.
    pub(super) fn read(folder: &Path, is_token: &dyn Fn(&str) -> bool) -> Result<Option<Self>> {
        let config = JsonFile::read(folder, CONFIG)?;
        let map = JsonFile::read(folder, SPECIAL_TOKENS)?;
        let added_tokens = JsonFile::read(folder, ADDED_TOKENS)?;
        // A file of this name may be of another program.
        let model = JsonFile::read(folder, MODEL).ok().flatten();
        check_class(config.as_ref(), model.as_ref())?;
        if [&config, &map, &added_tokens].into_iter().all(Option::is_none) {
            return Ok(None);
        }
        let mut settings = config.unwrap_or_else(|| JsonFile { path: folder.join(CONFIG), object: Map::new() });
        if settings.flag("split_special_tokens")? {
            return Err(settings.wrong("`split_special_tokens: true` is not supported"));
        }
        let is_empty = |value: &Value| match value {
            Value::Array(items) => items.is_empty(),
            Value::Object(items) => items.is_empty(),
            value => value.is_null(),
        };
        if settings.object.get(EXTRA).is_none_or(is_empty)
            && let Some(old) = settings.object.remove(OLD_EXTRA)
        {
            settings.object.insert(EXTRA.to_owned(), old);
        }
        let (mut given, ids_from) = read_given_ids(&mut settings, map, added_tokens)?;
        given.sort_by_key(|(id, _)| *id);
        let given_ids = given.iter().map(|(id, token)| (token.content.clone(), *id)).collect();
        let mut added: Vec<AddedToken> = given.into_iter().map(|(_, token)| token).collect();
        let mut push = |token: AddedToken| {
            if !added.iter().any(|other| other.content == token.content) {
                added.push(token);
            }
        };
        for role in ROLES {
            settings.role(role)?.into_iter().map(named).for_each(&mut push);
        }
        let own = settings.named_tokens()?;
        if own.iter().filter(|token| !is_token(&token.content)).count() > 1 && !settings.object.contains_key(DECODER) {
            let names: Vec<&str> = own.iter().map(|token| token.content.as_str()).collect();
            return Err(
                settings.wrong(&format!("the ids of {} depend on their order; {SAVE_ADVICE}", names.join(", ")))
            );
        }
        let mut roles: BTreeSet<String> = own.iter().map(|token| token.content.clone()).collect();
        own.into_iter().map(named).for_each(&mut push);
        let extra = if settings.object.contains_key(EXTRA) { EXTRA } else { OLD_EXTRA };
        settings.extra(extra)?.into_iter().for_each(&mut push);
        // A token with a role is special.
        for role in ROLES {
            roles.extend(settings.role(role)?.map(|token| token.content));
        }
        for token in &mut added {
            token.special |= roles.contains(&token.content);
        }
        let [bos, eos] =
            ["bos_token", "eos_token"].map(|role| settings.role(role).map(|token| token.map(|t| t.content)));
        Ok(Some(Self {
            added,
            given_ids,
            ids_from,
            adds_prefix_space: settings.flag("add_prefix_space")?,
            adds: [settings.flag("add_bos_token")?, settings.flag("add_eos_token")?],
            tokens: FolderTokens { bos: bos?, eos: eos?, decides_end: true },
        }))
    }

    /// A text for hashes. Folders that tokenize differently have different ones; `None` if the folder tokenizes as its two files alone do.
    pub(super) fn identity(&self, is_token: impl Fn(&str) -> bool) -> Option<String> {
        let is_plain = |token: &AddedToken| {
            let AddedToken { content, single_word, lstrip, rstrip, special, normalized: _ } = token;
            content == END_OF_TEXT && is_token(content) && *special && !single_word && !lstrip && !rstrip
        };
        let is_default = self.added.iter().all(is_plain) && !self.adds_prefix_space && self.adds == [false; 2];
        (!is_default).then(|| format!("{:?} {:?} {:?}", self.added, self.adds_prefix_space, self.adds))
    }

    /// The error that `transformers` reads `token` as the id `id`, and not as `given`.
    pub(super) fn contradiction(&self, token: &str, given: u64, id: u32) -> DataError {
        let message = format!("the id of {token:?} is {given}, but `AutoTokenizer` reads these files with the id {id}");
        DataError::file(&self.ids_from, format!("{message}; {SAVE_ADVICE}"))
    }
}

/// The added tokens whose ids the files give, and the file that gives them. Roles and extra tokens of `map` become `settings`.
fn read_given_ids(
    settings: &mut JsonFile,
    map: Option<JsonFile>,
    added_tokens: Option<JsonFile>,
) -> Result<(Vec<(u64, AddedToken)>, PathBuf)> {
    let (mut given, mut ids_from) = (Vec::new(), settings.path.clone());
    if let Some(decoder) = settings.object.get(DECODER) {
        let wrong = || settings.wrong(&format!("`{DECODER}` must give each id its token"));
        for (id, token) in decoder.as_object().ok_or_else(wrong)? {
            let token = settings.token(DECODER, token)?;
            given.push((id.parse::<u64>().map_err(|_| wrong())?, token));
        }
    } else {
        if let Some(map) = map {
            for (key, mut value) in map.object {
                if let Value::Object(token) = &mut value {
                    token.insert("special".to_owned(), true.into());
                }
                if let (EXTRA, Value::Array(items)) = (key.as_str(), &mut value)
                    && let Some(Value::Array(before)) = settings.object.get(EXTRA)
                {
                    *items = before.iter().chain(&*items).cloned().collect();
                }
                settings.object.insert(key, value);
            }
        }
        if let Some(file) = added_tokens {
            let mut special: BTreeSet<String> = settings.extra(EXTRA)?.into_iter().map(|token| token.content).collect();
            for role in ROLES {
                special.extend(settings.role(role)?.map(|token| token.content));
            }
            for (content, id) in &file.object {
                let id =
                    id.as_u64().ok_or_else(|| file.wrong(&format!("the id of {content:?} must be a whole number")))?;
                given.push((id, AddedToken::from(content.as_str(), special.contains(content))));
            }
            ids_from = file.path;
        }
    }
    Ok((given, ids_from))
}

/// A token with a role or a name is special.
fn named(token: AddedToken) -> AddedToken {
    AddedToken { special: true, ..token }
}

const SAVE_ADVICE: &str = "save the tokenizer as a tokenizer.json";

/// Checks that `AutoTokenizer` reads the two files as GPT-2's.
fn check_class(config: Option<&JsonFile>, model: Option<&JsonFile>) -> Result<()> {
    for file in config.into_iter().chain(model) {
        let Some(class) = file.object.get("tokenizer_class").and_then(Value::as_str) else { continue };
        if CLASSES.contains(&class.strip_suffix("Fast").unwrap_or(class)) {
            return Ok(());
        }
        let message = format!(
            "`tokenizer_class` is `{}`, which does not read vocab.json and merges.txt as GPT-2's",
            class.escape_debug()
        );
        return Err(file.wrong(&format!("{message}; {SAVE_ADVICE}")));
    }
    let Some(file) = model else { return Ok(()) };
    match file.object.get("model_type").and_then(Value::as_str) {
        Some(kind) if !MODELS.contains(&kind) => {
            let message = format!("the tokenizer of a `{}` may differ from GPT-2's", kind.escape_debug());
            Err(file.wrong(&format!("{message}; {SAVE_ADVICE}, or name its `tokenizer_class` in {CONFIG}")))
        }
        _ => Ok(()),
    }
}

/// A JSON object in a file.
struct JsonFile {
    path: PathBuf,
    object: Map<String, Value>,
}

impl JsonFile {
    /// Reads the file `name` of `folder`; `None` if it is not there.
    fn read(folder: &Path, name: &str) -> Result<Option<Self>> {
        let path = folder.join(name);
        if is_absent(&path) {
            return Ok(None);
        }
        let bytes = read_regular(&path).map_err(DataError::io(&path))?;
        match strict_json::parse(without_byte_order_mark(&bytes)) {
            Ok(Value::Object(object)) => Ok(Some(Self { path, object })),
            Ok(other) => {
                let message = format!("it must be a JSON object, got {}", strict_json::describe_type(&other));
                Err(DataError::file(&path, message))
            }
            Err(error) => Err(DataError::file(&path, format!("invalid JSON: {error}"))),
        }
    }

    fn wrong(&self, message: &str) -> DataError {
        DataError::file(&self.path, message)
    }

    fn mismatch(&self, key: &str, wanted: &str, value: &Value) -> DataError {
        self.wrong(&format!("`{key}` must be {wanted}, got {}", strict_json::describe_type(value)))
    }

    fn flag(&self, key: &str) -> Result<bool> {
        match self.object.get(key) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(self.mismatch(key, "true or false", other)),
        }
    }

    /// The token that `value`, of the key `key`, describes: a text, or an object with its content.
    fn token(&self, key: &str, value: &Value) -> Result<AddedToken> {
        let token = match value {
            Value::String(content) => return Ok(AddedToken::from(content.as_str(), true)),
            Value::Object(token) if strict_json::non_finite(value).is_none() => token,
            other => return Err(self.mismatch(key, "a token", other)),
        };
        let Some(content) = token.get("content").and_then(Value::as_str) else {
            return Err(self.wrong(&format!("a token of `{key}` has no `content`")));
        };
        let flag = |name: &str, default: bool| match token.get(name) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(self.mismatch(&format!("{name}` of a token of `{key}"), "true or false", other)),
        };
        let special = flag("special", false)?;
        Ok(AddedToken {
            content: content.to_owned(),
            single_word: flag("single_word", false)?,
            lstrip: flag("lstrip", false)?,
            rstrip: flag("rstrip", false)?,
            normalized: flag("normalized", !special)?,
            special,
        })
    }

    /// The token of a role.
    fn role(&self, role: &str) -> Result<Option<AddedToken>> {
        match self.object.get(role) {
            None if DEFAULT_ROLES.contains(&role) => Ok(Some(AddedToken::from(END_OF_TEXT, true))),
            None | Some(Value::Null) => Ok(None),
            Some(value) => self.token(role, value).map(Some),
        }
    }

    /// The tokens of keys that a model names: `image_token`, and those of an object of further special tokens.
    fn named_tokens(&self) -> Result<Vec<AddedToken>> {
        let is_token = |value: &Value| value.is_string() || value.get("content").is_some_and(Value::is_string);
        let own = self.object.iter().filter(|(key, _)| key.ends_with("_token") && !ROLES.contains(&key.as_str()));
        let own = own.filter(|(_, value)| is_token(value));
        let more = self.object.get(EXTRA).and_then(Value::as_object).into_iter().flatten();
        own.chain(more).map(|(key, value)| self.token(key, value)).collect()
    }

    /// The further special tokens of a list.
    fn extra(&self, key: &str) -> Result<Vec<AddedToken>> {
        match self.object.get(key) {
            None | Some(Value::Null | Value::Object(_)) => Ok(Vec::new()),
            Some(Value::Array(tokens)) => tokens.iter().map(|token| self.token(key, token)).collect(),
            Some(other) => Err(self.mismatch(key, "a list of tokens", other)),
        }
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
        Refused { refused: String },
        Read { ids: Vec<u32>, prefix: Vec<u32>, bos: String, eos: String, size: usize, special: Vec<(u32, String)> },
    }

    #[test]
    fn folders_are_read_as_auto_tokenizer_reads_them() {
        let fixture = include_str!("../../../../tests/fixtures/tokenizer/gpt2_folders.json");
        let Fixture { text, vocab, merges, folders } = serde_json::from_str(fixture).unwrap();
        assert!(folders.len() > 35);
        let layout = Layout::packed(8);
        let mut hashes: BTreeMap<String, Vec<String>> = BTreeMap::new();
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
                Expected::Refused { refused } => {
                    let error = read.map(drop).unwrap_err().to_string();
                    assert!(error.contains(&refused), "{name}: {error}");
                    continue;
                }
            };
            let read = read.unwrap_or_else(|error| panic!("{name}: {error}"));
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
