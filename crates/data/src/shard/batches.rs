//! Reads a source as batches of text that are encoded in parallel. Each part has its position, so that work can continue in the middle.

use serde::{Deserialize, Serialize};

use crate::cut_points::CutPoints;
use crate::error::Result;
use crate::source::{BatchCollector, LocatedSource, TextPiece, read, read_file};
use crate::split_name::SplitName;

/// Longer parts are cut, if the tokenizer allows it, so that threads share the work.
const MAX_PART_BYTES: usize = 1 << 20;

/// A document, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TextPart {
    pub(super) split: SplitName,
    /// The index of its file in the source, and the number of the first document of that file.
    pub(super) file: usize,
    pub(super) first_document: u64,
    /// The number of the document in the source, from 0.
    pub(super) document: u64,
    /// The position of the part in the document, in bytes.
    pub(super) offset: u64,
    pub(super) text: String,
    pub(super) starts_document: bool,
    pub(super) ends_document: bool,
    /// True if nothing follows in the file.
    pub(super) ends_file: bool,
}

/// A position in a source: of the part at `document`, `offset`, this many tokens are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct TextPosition {
    /// The index of the file in the source, and the number of the first document of that file: earlier files need not be read.
    #[serde(default)]
    pub(super) file: usize,
    #[serde(default)]
    pub(super) first_document: u64,
    pub(super) document: u64,
    pub(super) offset: u64,
    pub(super) tokens: u64,
}

/// The assignment of a source's documents to splits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum SplitAssignment {
    All(SplitName),
    /// This fraction of the documents, drawn at random, is validation.
    Drawn(f64),
    /// The characters of the only document from this one on are validation.
    CharactersFrom(u64),
}

/// A source, and the splits that its text goes to.
pub(super) struct Pass<'a> {
    pub(super) source: &'a LocatedSource,
    pub(super) assignment: SplitAssignment,
}

impl TextPart {
    /// The position of the start of the part.
    pub(super) fn start(&self) -> TextPosition {
        let Self { file, first_document, document, offset, .. } = *self;
        TextPosition { file, first_document, document, offset, tokens: 0 }
    }

    /// The position after the part.
    pub(super) fn end(&self) -> TextPosition {
        let next = self.document + 1;
        match (self.ends_document, self.ends_file) {
            (true, true) => {
                TextPosition { file: self.file + 1, first_document: next, document: next, offset: 0, tokens: 0 }
            }
            (true, false) => TextPosition { document: next, offset: 0, ..self.start() },
            (false, _) => TextPosition { offset: self.offset + self.text.len() as u64, ..self.start() },
        }
    }
}

/// Reads `source` from `from` on. Hands over batches of at least `size` bytes of text, except for the last one.
pub(super) fn read_batches(
    source: &LocatedSource,
    cut: CutPoints,
    assignment: SplitAssignment,
    from: TextPosition,
    size: usize,
    take: &mut dyn FnMut(Vec<TextPart>) -> Result<()>,
) -> Result<()> {
    let mut batch = BatchCollector::new(size, take);
    let (mut documents, mut offset, mut characters) = (from.first_document, 0_u64, 0_u64);
    for file in from.file..source.files.len() {
        let first_document = documents;
        // The last part of the text so far; the next piece shows whether the document ends with it.
        let mut last: Option<TextPart> = None;
        read_file(source, file, cut, &mut |TextPiece { text, starts_document }: TextPiece| {
            if starts_document {
                (documents, offset) = (documents + 1, 0);
            }
            let document = documents.saturating_sub(1);
            let start = offset;
            offset += text.len() as u64;
            // The byte at which validation starts within the piece.
            let mut border = None;
            let split = match assignment {
                SplitAssignment::All(split) => split,
                SplitAssignment::Drawn(fraction) if is_drawn(document, fraction) => SplitName::Validation,
                SplitAssignment::Drawn(_) => SplitName::Train,
                SplitAssignment::CharactersFrom(first) => {
                    let before = characters;
                    characters += text.chars().count() as u64;
                    if before < first && characters > first {
                        border = text.char_indices().nth((first - before) as usize).map(|(at, _)| at);
                    }
                    if before >= first { SplitName::Validation } else { SplitName::Train }
                }
            };
            if let Some(part) = last.take() {
                TextPart { ends_document: starts_document, ..part }.add_to(&mut batch)?;
            }
            let was_written = (document, offset) <= (from.document, from.offset);
            if was_written {
                return Ok(());
            }
            let mut part = TextPart {
                split,
                file,
                first_document,
                document,
                offset: start,
                text,
                starts_document,
                ends_document: false,
                ends_file: false,
            };
            if let Some(at) = border {
                let rest = TextPart { split: SplitName::Validation, ..part.split_off(at) };
                add_all_but_last(&mut batch, std::mem::replace(&mut part, rest), cut, from)?.add_to(&mut batch)?;
            }
            last = Some(add_all_but_last(&mut batch, part, cut, from)?);
            Ok(())
        })?;
        if let Some(part) = last {
            TextPart { ends_document: true, ends_file: true, ..part }.add_to(&mut batch)?;
        }
        // The next file may have to be downloaded first.
        if source.hub.is_some() {
            batch.flush()?;
        }
    }
    batch.flush()
}

/// Cuts `part` into parts of limited length, and adds all but the last one to `batch`. Returns the last one.
fn add_all_but_last(
    batch: &mut BatchCollector<'_, TextPart>,
    mut part: TextPart,
    cut: CutPoints,
    from: TextPosition,
) -> Result<TextPart> {
    // An earlier process may have cut elsewhere, and have written a part of this one.
    if part.document == from.document && part.offset < from.offset {
        let written = part.text.floor_char_boundary((from.offset - part.offset) as usize);
        part = part.split_off(written);
    }
    while part.text.len() > MAX_PART_BYTES {
        let limit = part.text.floor_char_boundary(MAX_PART_BYTES);
        let Some(at) = cut.last_in(&part.text[..limit], 0) else { break };
        let rest = part.split_off(at);
        std::mem::replace(&mut part, rest).add_to(batch)?;
    }
    Ok(part)
}

impl TextPart {
    fn add_to(self, batch: &mut BatchCollector<'_, Self>) -> Result<()> {
        let bytes = self.text.len();
        batch.push(self, bytes)
    }

    /// Cuts the text at byte `at`, and returns the part after it.
    fn split_off(&mut self, at: usize) -> Self {
        let (text, offset) = (self.text.split_off(at), self.offset + at as u64);
        Self { text, offset, starts_document: false, ..*self }
    }
}

/// The number of characters of `source`, a single text.
pub(super) fn count_characters(source: &LocatedSource) -> Result<u64> {
    let mut count = 0;
    read(source, CutPoints::Anywhere, &mut |piece| {
        count += piece.text.chars().count() as u64;
        Ok(())
    })?;
    Ok(count)
}

/// True if document `index` is in the `fraction` that is held out. Each document has its own draw, which does not depend on the number of
/// documents.
fn is_drawn(index: u64, fraction: f64) -> bool {
    // The finalizer of MurmurHash3's 64-bit variant, which mixes all bits.
    let mut x = index.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ x >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^= x >> 33;
    // 53 bits: what f64 holds exactly.
    ((x >> 11) as f64) < fraction * (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::SourceFile;
    use crate::source::{DocumentFormat, TextSelector};
    use runner_spec::experiment::RecordFormat;

    fn located(path: &std::path::Path, documents: DocumentFormat) -> LocatedSource {
        LocatedSource {
            split: SplitName::Train,
            documents,
            files: vec![SourceFile::stat(path).unwrap()],
            hash: String::new(),
            hub: None,
        }
    }

    fn all(source: &LocatedSource, cut: CutPoints, division: SplitAssignment, from: TextPosition) -> Vec<TextPart> {
        let mut parts = Vec::new();
        let mut take = |batch: Vec<TextPart>| {
            parts.extend(batch);
            Ok(())
        };
        read_batches(source, cut, division, from, 1, &mut take).unwrap();
        parts
    }

    /// Reading from the start of any part gives the text that followed it.
    #[test]
    fn reading_resumes_at_any_unit() {
        let dir = tempfile::tempdir().unwrap();
        let (jsonl, text) = (dir.path().join("a.jsonl"), dir.path().join("a.txt"));
        let long = "some words ".repeat(MAX_PART_BYTES / 4);
        let lines: Vec<_> = ["a", &long, "b c", "d"].iter().map(|text| format!("{{\"text\": \"{text}\"}}")).collect();
        std::fs::write(&jsonl, lines.join("\n")).unwrap();
        std::fs::write(&text, long.replace("words", "wörds")).unwrap();
        let other = dir.path().join("b.jsonl");
        std::fs::write(&other, "{\"text\": \"in between\"}\n{\"text\": \"\"}\n").unwrap();
        let sources = [
            located(&jsonl, DocumentFormat::Records(RecordFormat::Jsonl, TextSelector::Field("text".into()))),
            located(&text, DocumentFormat::Text),
            LocatedSource {
                files: [&jsonl, &other, &jsonl].map(|path| SourceFile::stat(path).unwrap()).to_vec(),
                ..located(&jsonl, DocumentFormat::Records(RecordFormat::Jsonl, TextSelector::Field("text".into())))
            },
        ];
        for source in &sources {
            let border = MAX_PART_BYTES as u64 / 3;
            let divisions = [
                SplitAssignment::All(SplitName::Train),
                SplitAssignment::Drawn(0.5),
                SplitAssignment::CharactersFrom(border),
            ];
            for division in divisions.into_iter().take(if source.is_single_text() { 3 } else { 2 }) {
                let whole = all(source, CutPoints::Words, division, TextPosition::default());
                assert!(whole.len() > 4, "{}", whole.len());
                assert!(whole.iter().all(|part| part.text.len() <= MAX_PART_BYTES));
                for (i, part) in whole.iter().enumerate() {
                    let from = TextPosition { tokens: 3, ..part.start() };
                    let rest = all(source, CutPoints::Words, division, from);
                    let joined = |parts: &[TextPart], split| {
                        parts
                            .iter()
                            .filter(|part| part.split == split)
                            .map(|part| part.text.as_str())
                            .collect::<String>()
                    };
                    for split in [SplitName::Train, SplitName::Validation] {
                        assert!(joined(&rest, split) == joined(&whole[i..], split), "{division:?} {i}");
                    }
                    let ends = |parts: &[TextPart]| parts.iter().filter(|part| part.ends_document).count();
                    assert_eq!(ends(&rest), ends(&whole[i..]));
                    assert_eq!(
                        rest.iter().find(|part| !part.text.is_empty()).map(|part| part.starts_document),
                        Some(part.starts_document)
                    );
                }
                if let SplitAssignment::CharactersFrom(border) = division {
                    let train: String =
                        whole.iter().filter(|u| u.split == SplitName::Train).map(|u| &*u.text).collect();
                    assert_eq!(train.chars().count() as u64, border);
                }
            }
        }
    }

    #[test]
    fn about_the_fraction_is_drawn() {
        for fraction in [0.0, 0.0005, 0.1, 0.5, 1.0] {
            let n = 200_000;
            let drawn = (0..n).filter(|&i| is_drawn(i, fraction)).count() as f64;
            // Five standard deviations of a binomial.
            let (mean, deviation) = (n as f64 * fraction, (n as f64 * fraction * (1.0 - fraction)).sqrt());
            assert!((drawn - mean).abs() <= 5.0 * deviation, "{fraction}: {drawn}");
        }
        let first: Vec<u64> = (0..60).filter(|&i| is_drawn(i, 0.1)).collect();
        assert_eq!(first, (0..60).filter(|&i| is_drawn(i, 0.1)).collect::<Vec<_>>());
    }
}
