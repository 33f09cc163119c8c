//! Inspects files of text: documents and their lengths, columns, and with a tokenizer the tokens.

use std::path::PathBuf;

use rayon::prelude::*;

use super::columns::{json_fields, text_column};
use super::report::{InspectedFile, InspectionReport, Sample, TextFacts};
use super::tally::TokenTally;
use crate::cut_points::CutPoints;
use crate::error::{DataError, Result};
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

/// Reads the text of `source` in `files`. The column or field is guessed unless it `is_chosen`. With a tokenizer, all text is encoded, in the
/// current rayon pool. The result has the first `texts` documents and the `top` most frequent ids. `progress` receives the bytes that were
/// read, and the bytes of all files.
///
/// # Errors
/// If a file does not have the format of `source`, or cannot be encoded.
pub fn inspect_text(
    source: &Source,
    files: &[PathBuf],
    is_chosen: bool,
    tokenizer: Option<&TextTokenizer>,
    texts: usize,
    top: usize,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<InspectionReport> {
    let documents = |name: String| {
        let text = TextSelector::Field(name);
        match source {
            Source::Parquet(_) => DocumentFormat::Parquet(text),
            Source::Jsonl(_) => DocumentFormat::Json(JsonFormat::Lines, text),
            Source::Json(_) => DocumentFormat::Json(JsonFormat::Array, text),
            _ => DocumentFormat::Text,
        }
    };
    let given = match source {
        Source::Parquet(from) => from.column.as_deref(),
        Source::Jsonl(from) | Source::Json(from) => from.field.as_deref(),
        _ => None,
    };
    let given = given.unwrap_or("text");
    let format = documents(given.to_owned());
    let mut columns: Vec<Column> = Vec::new();
    let mut listed = Vec::new();
    for path in files {
        let bytes = std::fs::metadata(path).map_err(DataError::io(path))?.len();
        let (found, rows) = match &format {
            DocumentFormat::Json(format, _) => (json_fields(path, *format)?, None),
            DocumentFormat::Parquet(_) => parquet_columns(path).map(|(columns, rows)| (columns, Some(rows)))?,
            _ => (Vec::new(), None),
        };
        for column in found {
            match columns.iter_mut().find(|known| known.name == column.name && known.kind == column.kind) {
                Some(known) => known.bytes = known.bytes.saturating_add(column.bytes),
                None => columns.push(column),
            }
        }
        listed.push(InspectedFile { path: path.clone(), format: format.name(), bytes, bits: None, tokens: None, rows });
    }
    let name = if is_chosen { given } else { text_column(&columns).unwrap_or(given) }.to_owned();
    let documents = documents(name.clone());
    let column = (documents != DocumentFormat::Text).then_some(name);
    let files = files.iter().map(|path| SourceFile::stat(path)).collect::<Result<Vec<_>, _>>()?;
    let located = LocatedSource { split: SplitName::Train, documents, files, hash: String::new(), hub: None };
    let total = located.bytes();

    let mut reader = TextReader { tokenizer, texts, ..TextReader::default() };
    let cut = tokenizer.map_or(CutPoints::Anywhere, TextTokenizer::cut_points);
    read_in_batches(&located, cut, &mut |batch| {
        reader.take(&batch)?;
        progress(reader.bytes.min(total), total);
        Ok(())
    })?;
    reader.end_document();
    let text = TextFacts { column, columns, text_bytes: reader.bytes, characters: reader.characters };
    Ok(InspectionReport {
        files: listed,
        bytes: total,
        text: Some(text),
        tokens: tokenizer.map(|_| reader.tally.tokens),
        end_of_text: None,
        end_of_text_from: None,
        vocabulary: tokenizer.map(|_| reader.tally.vocabulary(top, tokenizer)),
        texts: reader.samples,
        documents: reader.tally.documents,
    })
}

/// Counts documents, which arrive in pieces.
#[derive(Default)]
struct TextReader<'a> {
    tokenizer: Option<&'a TextTokenizer>,
    tally: TokenTally,
    bytes: u64,
    characters: u64,
    /// The number of samples that are wanted.
    texts: usize,
    samples: Vec<Sample>,
    is_in_document: bool,
}

impl TextReader<'_> {
    fn take(&mut self, batch: &[TextPiece]) -> Result<()> {
        let tokens = self.tokenizer.map(|tokenizer| {
            batch.par_iter().map(|piece| tokenizer.encode_document(&piece.text)).collect::<Result<Vec<_>, _>>()
        });
        let tokens = tokens.transpose()?;
        for (index, piece) in batch.iter().enumerate() {
            if piece.starts_document {
                self.end_document();
                if self.samples.len() < self.texts {
                    let text = piece.text.chars().take(SAMPLE_CHARACTERS).collect();
                    self.samples.push(Sample { length: None, text: Some(text), ids: None });
                }
            }
            self.is_in_document = true;
            self.bytes += piece.text.len() as u64;
            self.characters += piece.text.chars().count() as u64;
            match &tokens {
                Some(tokens) => tokens[index].iter().for_each(|&token| self.tally.add(token, true)),
                None => self.tally.add_bytes(piece.text.len() as u64),
            }
        }
        Ok(())
    }

    /// Ends the current document, if there is one.
    fn end_document(&mut self) {
        if std::mem::take(&mut self.is_in_document) {
            let index = self.tally.documents.count as usize;
            let length = self.tally.end_document();
            if let Some(sample) = self.samples.get_mut(index) {
                sample.length = Some(length);
            }
        }
    }
}
