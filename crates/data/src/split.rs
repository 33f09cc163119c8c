//! The rows of tokens that a layout cuts from a split.

use std::ops::Range;
use std::sync::Arc;

use super::error::{DataError, Result};
use super::token_store::TokenStore;
use super::token_stream::TokenStream;
use runner_spec::data::{Clipped, IGNORED_TARGET, Rows};

/// The training split and, where there are some, the splits for validation and test.
#[derive(Debug, Clone)]
pub struct Dataset {
    pub train: Split,
    pub validation: Option<Split>,
    /// Evaluated once, after the last step.
    pub test: Option<Split>,
}

/// Rows by index. Cheap to clone, and to read from several threads: the tokens are memory-mapped.
#[derive(Debug, Clone)]
pub struct Split {
    rows: u64,
    length: usize,
    layout: RowLayout,
    /// The bytes of text that each id stands for; `None` if ids do not show them.
    token_bytes: Option<Arc<[u32]>>,
}

#[derive(Debug, Clone)]
enum RowLayout {
    /// The tokens from `start` on, cut into `columns` columns of `height` tokens each. A row is a window in one column.
    Packed { tokens: TokenStream, start: u64, height: u64, columns: u64 },
    /// Documents from `first` on.
    Padded { store: TokenStore, first: u64, padding: PaddingTokens },
}

/// The tokens that are added to the documents of padded rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PaddingTokens {
    pub(super) bos: u32,
    pub(super) eos: u32,
    pub(super) pad: u32,
}

impl Split {
    /// Cuts `range` of `tokens` into columns of the same height, and each column into rows of `length` tokens. Tokens left at the end of a
    /// column, or of `range`, are not used.
    pub(super) fn packed(tokens: TokenStream, range: &Range<u64>, length: usize, columns: u64) -> Self {
        let height = (range.end - range.start) / columns;
        let rows = height.saturating_sub(1) / length as u64 * columns;
        let layout = RowLayout::Packed { tokens, start: range.start, height, columns };
        Self { rows, length, layout, token_bytes: None }
    }

    /// The documents `range` of `store`, one in each row.
    pub(super) fn padded(store: TokenStore, range: &Range<u64>, length: usize, padding: PaddingTokens) -> Self {
        let layout = RowLayout::Padded { store, first: range.start, padding };
        Self { rows: range.end - range.start, length, layout, token_bytes: None }
    }

    pub(super) fn with_token_bytes(self, token_bytes: Option<Arc<[u32]>>) -> Self {
        Self { token_bytes, ..self }
    }

    /// True if the bytes of text that its tokens stand for are known.
    pub fn knows_text_bytes(&self) -> bool {
        self.token_bytes.is_some()
    }

    /// The bytes of text that the targets of `rows` stand for; `None` if ids do not show them.
    pub fn text_bytes(&self, rows: &Rows) -> Option<u64> {
        let bytes = self.token_bytes.as_deref()?;
        // An ignored target is beyond every vocabulary.
        Some(rows.targets.iter().filter_map(|&id| bytes.get(id as usize)).map(|&bytes| u64::from(bytes)).sum())
    }

    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Inputs per row.
    pub fn length(&self) -> usize {
        self.length
    }

    /// True if a row is a document, padded to the length.
    pub fn is_padded(&self) -> bool {
        matches!(self.layout, RowLayout::Padded { .. })
    }

    /// What padded rows leave out. Windows clip no document.
    ///
    /// # Errors
    /// If the documents in the cache are damaged.
    pub(super) fn clipped(&self) -> Result<Clipped> {
        let mut clipped = Clipped::default();
        if let RowLayout::Padded { store, first, .. } = &self.layout {
            let mut start = store.document_start(*first)?;
            for document in *first..first + self.rows {
                let end = store.document_start(document + 1)?;
                let rest = end.saturating_sub(start).saturating_sub(self.length as u64);
                clipped.documents += u64::from(rest > 0);
                clipped.tokens += rest;
                start = end;
            }
        }
        Ok(clipped)
    }

    /// Replaces the content of `out` by the rows `indices`, in that order: inputs and targets of shape `[indices, length]`.
    ///
    /// # Errors
    /// If there is no such row, or the tokens in the cache are damaged.
    pub fn fill(&self, indices: impl IntoIterator<Item = u64>, out: &mut Rows) -> Result<()> {
        out.length = self.length;
        out.inputs.clear();
        out.targets.clear();
        out.filled.clear();
        let length = self.length;
        let mut row = Vec::with_capacity(length + 1);
        for index in indices {
            if index >= self.rows {
                return Err(DataError::NoSuchRow { row: index, rows: self.rows });
            }
            row.clear();
            let mut pad = IGNORED_TARGET;
            match &self.layout {
                RowLayout::Packed { tokens, start, height, columns } => {
                    let (window, column) = (index / columns, index % columns);
                    let first = start + column * height + window * length as u64;
                    tokens.read(first, length as u64 + 1, |token| row.push(token))?;
                }
                RowLayout::Padded { store, first, padding } => {
                    let start = store.document_start(first + index)?;
                    let end = store.document_start(first + index + 1)?;
                    let count = end.saturating_sub(start).min(length as u64);
                    row.push(padding.bos);
                    store.tokens.read(start, count, |token| row.push(token))?;
                    if row.len() <= length {
                        row.push(padding.eos);
                    }
                    pad = padding.pad;
                    out.filled.push(row.len().min(length));
                }
            }
            let filled = row.len();
            row.resize(length + 1, pad);
            out.inputs.extend_from_slice(&row[..length]);
            out.targets.extend_from_slice(&row[1..filled]);
            out.targets.resize(out.inputs.len(), IGNORED_TARGET);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token_store::TokenStoreWriter;
    use runner_spec::experiment::TokenType;

    fn store(documents: &[&[u32]]) -> (tempfile::TempDir, TokenStore) {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = TokenStoreWriter::create(dir.path(), TokenType::Uint16, None).unwrap();
        for document in documents {
            writer.append(true, document).unwrap();
        }
        writer.finish().unwrap();
        let store = TokenStore::open(dir.path()).unwrap();
        (dir, store)
    }

    #[test]
    fn windows_predict_every_token_but_the_first_once() {
        let tokens: Vec<u32> = (100..123).collect();
        let (_dir, store) = store(&[&tokens]);
        let split = Split::packed(store.tokens, &(2..23), 5, 1);
        // 21 tokens: four windows need 21.
        assert_eq!(split.rows(), 4);
        let mut rows = Rows::default();
        split.fill([0, 1, 2, 3], &mut rows).unwrap();
        assert_eq!(rows.inputs, (102..122).collect::<Vec<_>>());
        assert_eq!(rows.targets, (103..123).collect::<Vec<_>>());
        split.fill([2], &mut rows).unwrap();
        assert_eq!((rows.inputs[0], rows.count()), (112, 1));
        assert!(rows.filled.is_empty(), "windows are full");
        assert!(matches!(split.fill([4], &mut rows), Err(DataError::NoSuchRow { row: 4, rows: 4 })));
    }

    #[test]
    fn too_few_tokens_make_no_row() {
        let (_dir, store) = store(&[&[1, 2, 3]]);
        assert_eq!(Split::packed(store.tokens.clone(), &(0..3), 3, 1).rows(), 0);
        assert_eq!(Split::packed(store.tokens.clone(), &(3..3), 3, 1).rows(), 0);
        assert_eq!(Split::packed(store.tokens, &(0..3), 2, 1).rows(), 1);
    }

    /// PyTorch's tutorial: `data.view(columns, -1)`, then `length` tokens of each column at a time.
    #[test]
    fn a_batch_is_the_next_piece_of_every_column() {
        let tokens: Vec<u32> = (0..29).collect();
        let (_dir, store) = store(&[&tokens]);
        let split = Split::packed(store.tokens.clone(), &(1..29), 4, 3);
        // 28 tokens: three columns of 9, and one token is left; two pieces need 9 tokens each.
        assert_eq!(split.rows(), 6);
        let mut rows = Rows::default();
        split.fill(0..6, &mut rows).unwrap();
        let starts: Vec<u32> = rows.inputs.chunks(4).map(|row| row[0]).collect();
        assert_eq!(starts, [1, 10, 19, 5, 14, 23]);
        assert_eq!((&rows.inputs[20..], &rows.targets[20..]), (&[23, 24, 25, 26][..], &[24, 25, 26, 27][..]));
        assert_eq!(Split::packed(store.tokens, &(0..29), 4, 9).rows(), 0);
    }

    #[test]
    fn documents_are_clipped_and_padded() {
        let (_dir, store) = store(&[&[5], &[5, 6, 7], &[5, 6, 7, 8], &[5, 6, 7, 8, 9]]);
        let split = Split::padded(store, &(0..4), 4, PaddingTokens { bos: 1, eos: 2, pad: 0 });
        assert_eq!(split.clipped().unwrap(), Clipped { documents: 1, tokens: 1 });
        let mut rows = Rows::default();
        split.fill([0, 1, 2, 3], &mut rows).unwrap();
        let x = IGNORED_TARGET;
        assert_eq!(rows.inputs, [1, 5, 2, 0, 1, 5, 6, 7, 1, 5, 6, 7, 1, 5, 6, 7]);
        assert_eq!(rows.targets, [5, 2, x, x, 5, 6, 7, 2, 5, 6, 7, 8, 5, 6, 7, 8]);
        assert_eq!(rows.valid(), 14);
        assert_eq!(rows.filled, [3, 4, 4, 4]);
    }
}
