//! The tokens that begin and end a text, as the files beside a tokenizer name them.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::library::LibraryTokenizer;
use runner_files::{read_regular, strict_json, without_byte_order_mark};

/// The names of the tokens that begin and end a text in a model's folder. All are tokens of the tokenizer in this folder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FolderTokens {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) bos: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) eos: Option<String>,
}

impl FolderTokens {
    /// Reads the tokens that the files in `folder` give the tokenizer `library`: the names in `tokenizer_config.json`, otherwise the ids in
    /// `generation_config.json` or `config.json`. The end of text may also be that of `dataset.json`, which the program writes beside shards.
    /// Files that cannot be read, and may be of other programs, name nothing.
    pub(super) fn read(folder: &Path, library: &LibraryTokenizer) -> Self {
        let file = |name: &str| {
            let bytes = read_regular(&folder.join(name)).ok();
            bytes.and_then(|bytes| strict_json::parse(without_byte_order_mark(&bytes)).ok()).unwrap_or(Value::Null)
        };
        let (names, card) = (file("tokenizer_config.json"), file("dataset.json"));
        let ids = ["generation_config.json", "config.json"].map(file);
        let special = library.special_tokens();
        // Ids are often defaults that belong to another tokenizer: an ordinary token is not meant.
        let special_name =
            |id: u64| special.iter().find(|(_, other)| u64::from(*other) == id).map(|(name, _)| name.clone());
        let token = |role: &str| {
            let named = &names[format!("{role}_token")];
            let named = named.as_str().or_else(|| named["content"].as_str());
            if let Some(name) = named.filter(|name| library.token_id(name).is_some()) {
                return Some(name.to_owned());
            }
            let ids = ids.iter().map(|file| &file[format!("{role}_token_id")]);
            // Of several ends the first is that of a text, the others are those of a chat's turns.
            let mut ids = ids.flat_map(|ids| ids.as_array().map_or(std::slice::from_ref(ids), Vec::as_slice));
            let found = ids.find_map(|id| special_name(id.as_u64()?));
            let of_card = || card["tokenizer"]["end_of_text"].as_u64().filter(|_| role == "eos");
            found.or_else(|| library.token_name(u32::try_from(of_card()?).ok()?))
        };
        Self { bos: token("bos"), eos: token("eos") }
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
