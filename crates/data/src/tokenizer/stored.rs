//! A tokenizer in one small file, as a run keeps it: what it was made from may be gone when the run is looked at.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::english::English;
use super::library::Library;
use super::text_tokenizer::TextTokenizer;
use crate::error::DataError;

const FORMAT: u32 = 1;

#[derive(Serialize, Deserialize)]
struct File {
    format: u32,
    /// The tokenizer's content hash, as plans and manifests have it.
    hash: String,
    /// BLAKE3 over the text of `tokenizer`, without which nobody would notice that it was altered.
    blake3: String,
    kind: Kind,
    tokenizer: String,
}

/// What the text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// Nothing.
    Bytes,
    /// The characters.
    Chars,
    /// A tokenizer.json.
    Library,
    /// A vocabulary of words, as JSON.
    Words,
}

impl TextTokenizer {
    /// The tokenizer as the content of a file that `read` takes.
    ///
    /// # Errors
    /// If the library that it is of cannot write it.
    pub fn to_file(&self) -> Result<String, DataError> {
        let failed = |message: String| DataError::file(Path::new("tokenizer.json"), message);
        let (kind, tokenizer) = self.parts().map_err(failed)?;
        let blake3 = blake3::hash(tokenizer.as_bytes()).to_hex().to_string();
        let file = File { format: FORMAT, hash: self.hash().to_owned(), blake3, kind, tokenizer };
        serde_json::to_string(&file).map(|text| text + "\n").map_err(|error| failed(error.to_string()))
    }

    /// The tokenizer that was written to the file `path`.
    ///
    /// # Errors
    /// If it is missing, altered or of another version.
    pub fn read(path: &Path) -> Result<Self, DataError> {
        let bytes = fs::read(path).map_err(DataError::io(path))?;
        let file: File = serde_json::from_slice(&bytes).map_err(|error| DataError::damaged(path, error.to_string()))?;
        if file.format != FORMAT {
            let message = format!("format {}, this version reads format {FORMAT}", file.format);
            return Err(DataError::damaged(path, message));
        }
        if blake3::hash(file.tokenizer.as_bytes()).to_hex().as_str() != file.blake3 {
            return Err(DataError::damaged(path, "its content does not match its hash"));
        }
        let hash = file.hash.clone();
        let tokenizer = match file.kind {
            Kind::Bytes => Self::bytes(),
            Kind::Chars => Self::chars(&file.tokenizer.chars().collect::<BTreeSet<char>>(), hash),
            Kind::Words => {
                let english = English::from_json(&file.tokenizer);
                Self::english(english.map_err(|message| DataError::damaged(path, message))?)
            }
            Kind::Library => Self::library(Library::from_json(file.tokenizer.as_bytes(), path)?, hash),
        };
        if tokenizer.hash() == file.hash {
            Ok(tokenizer)
        } else {
            Err(DataError::damaged(path, "it is another tokenizer's"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokenizers_come_back_as_they_were() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokenizer.json");
        let json = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,
            "pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":null,
            "model":{"type":"WordLevel","vocab":{"a":0,"b":1,"[UNK]":2},"unk_token":"[UNK]"}}"#;
        let library = Library::from_json(json.as_bytes(), &path).unwrap();
        let words = r#"{"lowercase": true, "special_tokens": ["[EOT]"], "words": ["b", "a"]}"#;
        let all = [
            TextTokenizer::bytes(),
            TextTokenizer::chars(&"a b\"\n日".chars().collect(), "h".into()),
            TextTokenizer::english(English::from_json(words).unwrap()),
            TextTokenizer::library(library, "g".into()),
        ];
        for tokenizer in all {
            fs::write(&path, tokenizer.to_file().unwrap()).unwrap();
            let back = TextTokenizer::read(&path).unwrap();
            assert_eq!((back.hash(), back.vocab_size()), (tokenizer.hash(), tokenizer.vocab_size()));
            assert_eq!(back.encode("a b").unwrap(), tokenizer.encode("a b").unwrap());
        }
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("WordLevel", "wordLevel")).unwrap();
        assert!(TextTokenizer::read(&path).unwrap_err().to_string().contains("does not match its hash"));
        fs::write(&path, text.replace("\"format\":1", "\"format\":2")).unwrap();
        assert!(TextTokenizer::read(&path).unwrap_err().to_string().contains("format 2"));
    }
}
