//! The result of inspecting files, for people and programs.

use std::path::PathBuf;

use serde::Serialize;

/// The content of files, taken together.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InspectionReport {
    pub files: Vec<InspectedFile>,
    pub bytes: u64,
    pub tokens: u64,
    pub documents: DocumentCounts,
    /// The token between documents.
    pub end_of_text: Option<u32>,
    /// The source of `end_of_text`: `given`, `tokenizer`, `card`, `guessed` from the first or last token.
    pub end_of_text_from: Option<&'static str>,
    pub vocabulary: Vocabulary,
    /// The first documents.
    pub texts: Vec<Sample>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InspectedFile {
    pub path: PathBuf,
    /// `llmc`, `llmc-u32`, `nanogpt`, `npy`; `raw` for tokens of more than 16 bits without a header.
    pub format: &'static str,
    pub bytes: u64,
    /// Bits of a token.
    pub bits: u32,
    pub tokens: u64,
}

/// Counts of documents. Lengths are in tokens.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct DocumentCounts {
    pub count: u64,
    /// Number (from 0) and length.
    pub longest: Option<(u64, u64)>,
    pub shortest: Option<(u64, u64)>,
}

impl DocumentCounts {
    /// Adds a document.
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
    /// The number of distinct ids that occur, and the highest one.
    pub used: u64,
    pub highest: u32,
    /// Tokens with ids that no tokenizer has; they are not counted one by one.
    #[serde(rename = "absurd")]
    pub impossible_ids: u64,
    /// The most frequent ids.
    pub frequent: Vec<TokenFrequency>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenFrequency {
    pub id: u32,
    pub count: u64,
    pub text: Option<String>,
}

/// The start of a document.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sample {
    pub length: u64,
    pub text: Option<String>,
    /// The tokens, if there is no tokenizer to decode them.
    pub ids: Option<Vec<u32>>,
}
