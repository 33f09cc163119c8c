//! What was found in files, for people and programs.

use std::path::PathBuf;

use serde::Serialize;

/// What files hold, taken together.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Inspected {
    pub files: Vec<InspectedFile>,
    pub bytes: u64,
    /// Of files of text.
    pub text: Option<TextFacts>,
    /// `None` for text without a tokenizer.
    pub tokens: Option<u64>,
    pub documents: Documents,
    /// The token between documents.
    pub end_of_text: Option<u32>,
    /// How that is known: `given`, `tokenizer`, `card`, `guessed` from the first or last token.
    pub end_of_text_from: Option<&'static str>,
    pub vocabulary: Option<Vocabulary>,
    /// The first documents.
    pub texts: Vec<Sample>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InspectedFile {
    pub path: PathBuf,
    /// `llmc`, `llmc-u32`, `nanogpt`, `npy`, `cache`, `text`, `jsonl`, `json`, `parquet`.
    pub format: &'static str,
    pub bytes: u64,
    /// Bits of a token.
    pub bits: Option<u32>,
    pub tokens: Option<u64>,
    pub rows: Option<u64>,
}

/// Of text.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TextFacts {
    /// The column or field that was read.
    pub column: Option<String>,
    pub columns: Vec<Column>,
    pub text_bytes: u64,
    pub characters: u64,
}

/// A column of a parquet file, or a field of JSON objects.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Column {
    pub name: String,
    /// The types it has, `string` among them if it may hold text.
    pub kind: String,
    /// Bytes, uncompressed: of a field, those of strings in the first objects.
    pub bytes: u64,
}

/// Lengths are in tokens, of text without a tokenizer in bytes.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Documents {
    pub count: u64,
    /// Number (from 0) and length.
    pub longest: Option<(u64, u64)>,
    pub shortest: Option<(u64, u64)>,
}

impl Documents {
    /// Takes the next document.
    pub(super) fn add(&mut self, length: u64) {
        if self.longest.is_none_or(|(_, longest)| length > longest) {
            self.longest = Some((self.count, length));
        }
        if self.shortest.is_none_or(|(_, shortest)| length < shortest) {
            self.shortest = Some((self.count, length));
        }
        self.count += 1;
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Vocabulary {
    /// The tokenizer's highest id plus one.
    pub size: Option<u64>,
    /// How many ids come up, and the highest of them.
    pub used: u64,
    pub highest: u32,
    /// Tokens with ids that no tokenizer has; they are not counted one by one.
    pub absurd: u64,
    /// The most frequent ids.
    pub frequent: Vec<Frequent>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Frequent {
    pub id: u32,
    pub count: u64,
    pub text: Option<String>,
}

/// The beginning of a document.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sample {
    /// Its length, as under `documents`; `null` where it goes on behind what was read.
    pub length: Option<u64>,
    pub text: Option<String>,
    /// Where there is no tokenizer to decode them.
    pub ids: Option<Vec<u32>>,
}
