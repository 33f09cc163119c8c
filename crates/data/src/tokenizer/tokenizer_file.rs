//! A tokenizer in one small file, which a run keeps: the files that the tokenizer was made from may be deleted.

use std::collections::BTreeSet;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::folder_tokens::FolderTokens;
use super::library::LibraryTokenizer;
use super::text_tokenizer::{Encoder, TextTokenizer};
use super::word_vocabulary::WordVocabulary;
use crate::error::{DataError, Result};
use crate::hashing::hash_parts;
use runner_files::read_regular;

const FORMAT: u32 = 1;

#[derive(Serialize, Deserialize)]
struct TokenizerFile {
    format: u32,
    /// The tokenizer's content hash, as plans and manifests have it.
    hash: String,
    /// BLAKE3 over `tokenizer`, and over `folder` if it is there, so that a change is noticed.
    blake3: String,
    kind: TokenizerKind,
    /// The tokens that the tokenizer's folder named.
    #[serde(default, skip_serializing_if = "FolderTokens::is_empty")]
    folder: FolderTokens,
    tokenizer: String,
}

/// The kind of a tokenizer, and with it the content of `TokenizerFile::tokenizer`.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum TokenizerKind {
    /// No content.
    Bytes,
    /// The characters.
    Chars,
    /// The number of ids.
    Ids,
    /// A tokenizer.json.
    Library,
    /// A vocabulary of words in JSON.
    Words,
}

impl TextTokenizer {
    /// The content of a file that [`TextTokenizer::read`] reads.
    ///
    /// # Errors
    /// If the `tokenizers` crate cannot write the tokenizer.
    pub fn to_file(&self) -> Result<String> {
        let (kind, tokenizer) = match self.encoder() {
            Encoder::Library(library) => (TokenizerKind::Library, library.to_json()?),
            Encoder::Chars { characters, .. } => (TokenizerKind::Chars, characters.iter().collect()),
            Encoder::Bytes => (TokenizerKind::Bytes, String::new()),
            Encoder::Words(words) => (TokenizerKind::Words, words.to_json()),
            Encoder::Ids(size) => (TokenizerKind::Ids, size.to_string()),
        };
        let folder = self.folder().clone();
        let blake3 = content_hash(&tokenizer, &folder);
        let file = TokenizerFile { format: FORMAT, hash: self.hash().to_owned(), blake3, kind, folder, tokenizer };
        let written = serde_json::to_string(&file).map(|text| text + "\n");
        written.map_err(|error| DataError::file(Path::new("tokenizer.json"), error.to_string()))
    }

    /// Reads the tokenizer in the file `path`.
    ///
    /// # Errors
    /// If the file is missing, changed or of a different version.
    pub fn read(path: &Path) -> Result<Self> {
        let damaged = |message: String| DataError::file(path, format!("this tokenizer of a run is damaged: {message}"));
        let bytes = read_regular(path).map_err(DataError::io(path))?;
        let file: TokenizerFile = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        if file.format != FORMAT {
            let message = format!("it has format {}, but this version of runner reads format {FORMAT}", file.format);
            return Err(damaged(message));
        }
        if content_hash(&file.tokenizer, &file.folder) != file.blake3 {
            return Err(damaged("its content does not match its hash".to_owned()));
        }
        let hash = file.hash.clone();
        let tokenizer = match file.kind {
            TokenizerKind::Bytes => Self::bytes(),
            TokenizerKind::Chars => Self::chars(&file.tokenizer.chars().collect::<BTreeSet<char>>(), hash),
            TokenizerKind::Ids => {
                Self::ids(file.tokenizer.parse().map_err(|_| damaged("its content is not a number".to_owned()))?)
            }
            TokenizerKind::Words => {
                let words = WordVocabulary::from_json(&file.tokenizer);
                Self::words(words.map_err(|error| damaged(error.text))?)
            }
            TokenizerKind::Library => {
                Self::library(LibraryTokenizer::from_json(file.tokenizer.as_bytes(), path)?, file.folder, hash)
            }
        };
        if tokenizer.hash() == file.hash {
            Ok(tokenizer)
        } else {
            Err(damaged("it belongs to a different tokenizer".to_owned()))
        }
    }
}

/// The value of `TokenizerFile::blake3`.
fn content_hash(tokenizer: &str, folder: &FolderTokens) -> String {
    if folder.is_empty() {
        return blake3::hash(tokenizer.as_bytes()).to_hex().to_string();
    }
    let name = |name: &Option<String>| name.clone().unwrap_or_default();
    hash_parts([tokenizer, &name(&folder.bos), &name(&folder.eos)])
}

/// True if `content` is that of a run's tokenizer file, damaged or not.
pub(super) fn is_tokenizer_file(content: &[u8]) -> bool {
    serde_json::from_slice::<TokenizerFile>(content).is_ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use runner_spec::experiment::{HubModel, Tokenizer};

    #[test]
    fn tokenizers_come_back_as_they_were() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokenizer.json");
        let json = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,
            "pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":null,
            "model":{"type":"WordLevel","vocab":{"a":0,"b":1,"[UNK]":2},"unk_token":"[UNK]"}}"#;
        let library = LibraryTokenizer::from_json(json.as_bytes(), &path).unwrap();
        let words = r#"{"lowercase": true, "special_tokens": ["[EOT]"], "words": ["b", "a"]}"#;
        let all = [
            TextTokenizer::bytes(),
            TextTokenizer::chars(&"a b\"\n日".chars().collect(), "h".into()),
            TextTokenizer::words(WordVocabulary::from_json(words).unwrap()),
            TextTokenizer::library(library, FolderTokens::default(), "g".into()),
        ];
        for tokenizer in all {
            fs::write(&path, tokenizer.to_file().unwrap()).unwrap();
            let back = TextTokenizer::read(&path).unwrap();
            assert_eq!((back.hash(), back.vocab_size()), (tokenizer.hash(), tokenizer.vocab_size()));
            assert_eq!(back.encode_prompt("a b").unwrap(), tokenizer.encode_prompt("a b").unwrap());
        }
        let recorded = TextTokenizer::read_recorded;
        assert!(recorded(&path, "g").unwrap().is_some() && recorded(&path, "h").unwrap().is_none());
        let absent = dir.path().join("absent.json");
        assert!(recorded(&absent, "g").unwrap().is_none());
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("WordLevel", "wordLevel")).unwrap();
        assert!(TextTokenizer::read(&path).unwrap_err().to_string().contains("does not match its hash"));
        fs::write(&path, text.replace("\"format\":1", "\"format\":2")).unwrap();
        assert!(TextTokenizer::read(&path).unwrap_err().to_string().contains("format 2"));
        let damaged = format!("{}: this tokenizer of a run is damaged", path.display());
        let error = recorded(&path, "g").err().unwrap().to_string();
        assert!(error.starts_with(&damaged), "{error}");
        // Only the needed part is read.
        let hub = Tokenizer::Hub(HubModel { name: "gpt2".to_owned(), revision: "main".to_owned() });
        for (named, words) in
            [(Tokenizer::File(absent), "the tokenizer's files are gone"), (hub, "to read the tokenizer from the hub")]
        {
            let error = TextTokenizer::read_recorded_for(&named, &path, "g").err().unwrap().to_string();
            assert!(error.contains(&damaged) && error.contains(words), "{error}");
        }
        for named in [Tokenizer::File(path.clone()), Tokenizer::Chars {}] {
            assert!(TextTokenizer::read_recorded_for(&named, &path, "g").unwrap().is_none());
        }
    }
}
