//! Files of text: documents and their lengths, columns, and with a tokenizer its tokens.

use std::path::PathBuf;

use rayon::prelude::*;

use super::columns::{json, jsonl, parquet, text_column};
use super::report::{Column, Documents, Inspected, InspectedFile, Sample, TextFacts};
use super::tally::Tally;
use crate::error::DataError;
use crate::fingerprint::SourceFile;
use crate::source::{Documents as Lie, Located, Origin, Piece, TextOf, read};
use crate::tokenizer::{Cut, TextTokenizer};
use runner_spec::experiment::Source;

/// Text that is encoded at a time, in bytes.
const BATCH: usize = 8 << 20;
/// Characters of a document's beginning.
const SAMPLE: usize = 2000;

/// Reads the text of `source`, whose `files` are paths. `chosen`: its column or field was named by the caller and is not guessed.
/// With a tokenizer all of it is encoded, in the current rayon pool.
///
/// # Errors
/// If a file is not what it should be, or cannot be encoded.
pub fn inspect_text(
    source: &Source,
    files: &[PathBuf],
    chosen: bool,
    tokenizer: Option<&TextTokenizer>,
    texts: usize,
    top: usize,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Inspected, DataError> {
    let mut columns: Vec<Column> = Vec::new();
    let mut listed = Vec::new();
    for path in files {
        let bytes = std::fs::metadata(path).map_err(DataError::io(path))?.len();
        let (format, found, rows) = match source {
            Source::Parquet(_) => {
                let (columns, rows) = parquet(path)?;
                ("parquet", columns, Some(rows))
            }
            Source::Jsonl(_) => ("jsonl", jsonl(path)?, None),
            Source::Json(_) => ("json", json(path)?, None),
            _ => ("text", Vec::new(), None),
        };
        for column in found {
            match columns.iter_mut().find(|known| known.name == column.name && known.kind == column.kind) {
                Some(known) => known.bytes = known.bytes.saturating_add(column.bytes),
                None => columns.push(column),
            }
        }
        listed.push(InspectedFile { path: path.clone(), format, bytes, bits: None, tokens: None, rows });
    }
    let guess = |given: &Option<String>| {
        let given = given.as_deref().unwrap_or("text");
        let name = if chosen { given } else { text_column(&columns).unwrap_or(given) };
        (TextOf::Field(name.to_owned()), Some(name.to_owned()))
    };
    let (documents, column) = match source {
        Source::Parquet(from) => {
            let (text, name) = guess(&from.column);
            (Lie::Parquet { text }, name)
        }
        Source::Jsonl(from) => {
            let (text, name) = guess(&from.field);
            (Lie::Jsonl { text }, name)
        }
        Source::Json(from) => {
            let (text, name) = guess(&from.field);
            (Lie::Json { text }, name)
        }
        _ => (Lie::Text, None),
    };
    let stats = files.iter().map(|path| SourceFile::stat(path)).collect::<Result<Vec<_>, _>>()?;
    let located = Located { origin: Origin::Train, documents, files: stats, hash: String::new() };
    let total = located.bytes();

    let mut reader = Reader { tokenizer, texts, ..Reader::new(texts) };
    let (mut batch, mut size): (Vec<Piece>, usize) = (Vec::new(), 0);
    let cut = tokenizer.map_or(Cut::Anywhere, TextTokenizer::cut);
    read(&located, cut, &mut |piece| {
        size += piece.text.len();
        batch.push(piece);
        if size < BATCH {
            return Ok(());
        }
        size = 0;
        reader.take(std::mem::take(&mut batch))?;
        progress(reader.bytes.min(total), total);
        Ok(())
    })?;
    reader.take(batch)?;
    reader.end();
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

/// Counts documents as they come in pieces.
struct Reader<'a> {
    tokenizer: Option<&'a TextTokenizer>,
    tally: Tally,
    documents: Documents,
    bytes: u64,
    characters: u64,
    texts: usize,
    samples: Vec<Sample>,
    /// Bytes of the document that is being read; `None` before the first.
    length: Option<u64>,
}

impl Reader<'_> {
    fn new(texts: usize) -> Self {
        let (documents, samples) = (Documents::default(), Vec::new());
        Self { tokenizer: None, tally: Tally::new(0), documents, bytes: 0, characters: 0, texts, samples, length: None }
    }

    fn take(&mut self, batch: Vec<Piece>) -> Result<(), DataError> {
        let tokenizer = self.tokenizer;
        let encode = |piece: Piece| -> Result<(Piece, Vec<u32>), DataError> {
            let mut tokens = Vec::new();
            if let Some(tokenizer) = tokenizer {
                tokenizer.encode_ordinary(&piece.text, &mut tokens)?;
            }
            Ok((piece, tokens))
        };
        let encoded: Result<Vec<_>, DataError> = batch.into_par_iter().map(encode).collect();
        for (piece, tokens) in encoded? {
            if piece.first {
                self.end();
                if self.samples.len() < self.texts {
                    let text = piece.text.chars().take(SAMPLE).collect();
                    self.samples.push(Sample { length: None, text: Some(text), ids: None });
                }
            }
            self.length = Some(self.length.unwrap_or(0) + piece.text.len() as u64);
            self.bytes += piece.text.len() as u64;
            self.characters += piece.text.chars().count() as u64;
            for token in tokens {
                self.tally.token(token, true);
            }
        }
        Ok(())
    }

    /// The document that was read, if there is one, ends.
    fn end(&mut self) {
        let Some(length) = self.length.take() else { return };
        let index = self.documents.count as usize;
        self.documents.add(length);
        let length = if self.tokenizer.is_some() { self.tally.end() } else { length };
        if let Some(sample) = self.samples.get_mut(index) {
            sample.length = Some(length);
        }
    }
}
