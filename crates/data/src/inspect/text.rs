//! Inspects files of text: documents and their lengths, columns, and with a tokenizer the tokens.

use std::path::PathBuf;

use rayon::prelude::*;

use super::columns::{json_fields, text_column};
use super::report::{DocumentCounts, Inspected, InspectedFile, Sample, TextFacts};
use super::tally::TokenTally;
use crate::cut_points::CutPoints;
use crate::error::DataError;
use crate::fingerprint::SourceFile;
use crate::source::Column;
use crate::source::{
    DocumentFormat, JsonFormat, LocatedSource, TextPiece, TextSelector, parquet_columns, read_in_batches,
};
use crate::split_name::SplitName;
use crate::tokenizer::TextTokenizer;
use runner_spec::experiment::Source;

/// Characters of a sample, from the start of its document.
const SAMPLE_CHARACTERS: usize = 2000;

/// Reads the text of `source` in `files`. The column or field is guessed unless `chosen`. With a tokenizer, all text is encoded, in the
/// current rayon pool. `texts` documents and the `top` most frequent ids are shown; `progress` receives the bytes read, and of all files.
///
/// # Errors
/// If a file does not have the format of `source`, or cannot be encoded.
pub fn inspect_text(
    source: &Source,
    files: &[PathBuf],
    chosen: bool,
    tokenizer: Option<&TextTokenizer>,
    texts: usize,
    top: usize,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Inspected, DataError> {
    let (json_format, given) = match source {
        Source::Parquet(from) => (None, &from.column),
        Source::Jsonl(from) => (Some(JsonFormat::Lines), &from.field),
        Source::Json(from) => (Some(JsonFormat::Array), &from.field),
        _ => (None, &None),
    };
    let is_parquet = matches!(source, Source::Parquet(_));
    let mut columns: Vec<Column> = Vec::new();
    let mut listed = Vec::new();
    for path in files {
        let bytes = std::fs::metadata(path).map_err(DataError::io(path))?.len();
        let (format, found, rows) = match json_format {
            Some(format) => (format.name(), json_fields(path, format)?, None),
            None if is_parquet => {
                let (columns, rows) = parquet_columns(path)?;
                ("parquet", columns, Some(rows))
            }
            None => ("text", Vec::new(), None),
        };
        for column in found {
            match columns.iter_mut().find(|known| known.name == column.name && known.kind == column.kind) {
                Some(known) => known.bytes = known.bytes.saturating_add(column.bytes),
                None => columns.push(column),
            }
        }
        listed.push(InspectedFile { path: path.clone(), format, bytes, bits: None, tokens: None, rows });
    }
    let given = given.as_deref().unwrap_or("text");
    let name = if chosen { given } else { text_column(&columns).unwrap_or(given) }.to_owned();
    let text = TextSelector::Field(name.clone());
    let documents = match json_format {
        Some(format) => DocumentFormat::Json(format, text),
        None if is_parquet => DocumentFormat::Parquet(text),
        None => DocumentFormat::Text,
    };
    let column = (documents != DocumentFormat::Text).then_some(name);
    let files = files.iter().map(|path| SourceFile::stat(path)).collect::<Result<Vec<_>, _>>()?;
    let located = LocatedSource { split: SplitName::Train, documents, files, hash: String::new() };
    let total = located.bytes();

    let mut reader = TextReader::new(tokenizer, texts);
    let cut = tokenizer.map_or(CutPoints::Anywhere, TextTokenizer::cut_points);
    read_in_batches(&located, cut, &mut |batch| {
        reader.take(batch)?;
        progress(reader.bytes.min(total), total);
        Ok(())
    })?;
    reader.end_document();
    let counted = tokenizer.is_some();
    Ok(Inspected {
        files: listed,
        bytes: total,
        text: Some(TextFacts { column, columns, text_bytes: reader.bytes, characters: reader.characters }),
        tokens: counted.then_some(reader.tally.tokens),
        documents: if counted { reader.tally.documents.clone() } else { reader.documents },
        end_of_text: None,
        end_of_text_from: None,
        vocabulary: counted.then(|| reader.tally.vocabulary(top, tokenizer)),
        texts: reader.samples,
    })
}

/// Counts documents, which arrive in pieces.
struct TextReader<'a> {
    tokenizer: Option<&'a TextTokenizer>,
    tally: TokenTally,
    documents: DocumentCounts,
    bytes: u64,
    characters: u64,
    /// The number of samples that are wanted.
    texts: usize,
    samples: Vec<Sample>,
    /// Bytes of the current document; `None` before the first one.
    length: Option<u64>,
}

impl<'a> TextReader<'a> {
    fn new(tokenizer: Option<&'a TextTokenizer>, texts: usize) -> Self {
        let (tally, documents, samples) = (TokenTally::new(0), DocumentCounts::default(), Vec::new());
        Self { tokenizer, tally, documents, bytes: 0, characters: 0, texts, samples, length: None }
    }

    fn take(&mut self, batch: Vec<TextPiece>) -> Result<(), DataError> {
        let tokenizer = self.tokenizer;
        let encode = |piece: TextPiece| -> Result<(TextPiece, Vec<u32>), DataError> {
            let tokens = tokenizer.map(|tokenizer| tokenizer.encode_text(&piece.text)).transpose()?;
            Ok((piece, tokens.unwrap_or_default()))
        };
        let encoded: Result<Vec<_>, DataError> = batch.into_par_iter().map(encode).collect();
        for (piece, tokens) in encoded? {
            if piece.starts_document {
                self.end_document();
                if self.samples.len() < self.texts {
                    let text = piece.text.chars().take(SAMPLE_CHARACTERS).collect();
                    self.samples.push(Sample { length: None, text: Some(text), ids: None });
                }
            }
            self.length = Some(self.length.unwrap_or(0) + piece.text.len() as u64);
            self.bytes += piece.text.len() as u64;
            self.characters += piece.text.chars().count() as u64;
            for token in tokens {
                self.tally.add(token, true);
            }
        }
        Ok(())
    }

    /// Ends the current document, if there is one.
    fn end_document(&mut self) {
        let Some(length) = self.length.take() else { return };
        let index = self.documents.count as usize;
        self.documents.add(length);
        let length = if self.tokenizer.is_some() { self.tally.end_document() } else { length };
        if let Some(sample) = self.samples.get_mut(index) {
            sample.length = Some(length);
        }
    }
}
