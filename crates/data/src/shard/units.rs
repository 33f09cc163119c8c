//! From a source to batches of text that are encoded side by side, each piece with its place, so that work can go on in the middle.

use serde::{Deserialize, Serialize};

use super::split::is_drawn;
use crate::error::DataError;
use crate::progress::SplitName;
use crate::source::{Documents, Located, Piece, read};
use crate::tokenizer::Cut;

/// Longer pieces are cut, where the tokenizer lets them be, so that threads share the work.
const LONGEST: usize = 1 << 20;

/// A document, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unit {
    pub(super) split: SplitName,
    /// Which document of the source, from 0.
    pub(super) document: u64,
    /// Where it starts in the document, in bytes.
    pub(super) offset: u64,
    pub(super) text: String,
    /// Of the text, in bytes.
    pub(super) length: u64,
    /// Whether the document starts, and whether it ends, with it.
    pub(super) first: bool,
    pub(super) last: bool,
}

/// Where work stands: this much of the unit at `document`, `offset` is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) document: u64,
    pub(super) offset: u64,
    pub(super) tokens: u64,
}

/// To which split the documents of a source go.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Division {
    All(SplitName),
    /// Of documents drawn at random.
    Drawn(f64),
    /// Of the one document, the characters from this one on are validation.
    From(u64),
}

/// Reads `source` from `from` on and hands over batches of at least `size` bytes of text (the last one less).
pub(super) fn batches(
    source: &Located,
    cut: Cut,
    division: Division,
    from: Place,
    size: usize,
    take: &mut dyn FnMut(Vec<Unit>) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let mut batch: Batch<'_> = Batch { units: Vec::new(), bytes: 0, size, take };
    // Held back until it is known whether its document goes on.
    let mut held: Option<Unit> = None;
    let (mut next, mut offset, mut characters) = (0_u64, 0_u64, 0_u64);
    let result = read(source, cut, &mut |piece: Piece| {
        if piece.first {
            (next, offset) = (next + 1, 0);
        }
        let document = next.saturating_sub(1);
        let mut text = piece.text;
        let (start, length) = (offset, text.len() as u64);
        offset += length;
        let ends_in_drawn = |split| (split, None);
        let (split, border) = match division {
            Division::All(split) => ends_in_drawn(split),
            Division::Drawn(fraction) if is_drawn(document, fraction) => ends_in_drawn(SplitName::Validation),
            Division::Drawn(_) => ends_in_drawn(SplitName::Train),
            Division::From(border) => {
                let before = characters;
                characters += text.chars().count() as u64;
                if before >= border {
                    (SplitName::Validation, None)
                } else if characters > border {
                    let at = text.char_indices().nth((border - before) as usize).map(|(at, _)| at);
                    (SplitName::Train, at)
                } else {
                    (SplitName::Train, None)
                }
            }
        };
        if let Some(unit) = held.take() {
            batch.push(Unit { last: piece.first, ..unit })?;
        }
        // What an earlier process wrote.
        if (document, offset) <= (from.document, from.offset) {
            return Ok(());
        }
        let mut unit =
            Unit { split, document, offset: start, text: String::new(), length: 0, first: piece.first, last: false };
        if let Some(at) = border {
            let rest = text.split_off(at);
            if !text.is_empty() {
                let before = hand_on(&mut batch, unit.clone(), text, cut, from)?;
                batch.push(before)?;
                unit.offset = start + at as u64;
            }
            (unit.split, unit.first, text) = (SplitName::Validation, false, rest);
        }
        held = Some(hand_on(&mut batch, unit, text, cut, from)?);
        Ok(())
    });
    result?;
    if let Some(unit) = held {
        batch.push(Unit { last: true, ..unit })?;
    }
    batch.flush()
}

/// Hands on all of `text` but its last part, which comes back as a unit. `like` says where it starts.
fn hand_on(batch: &mut Batch<'_>, like: Unit, mut text: String, cut: Cut, from: Place) -> Result<Unit, DataError> {
    let mut unit = like;
    // The unit that is partly written may have been cut elsewhere: its start is a place to cut.
    if unit.document == from.document && unit.offset < from.offset {
        let done = text.floor_char_boundary((from.offset - unit.offset) as usize);
        text = text.split_off(done);
        (unit.offset, unit.first) = (unit.offset + done as u64, false);
    }
    while text.len() > LONGEST {
        let within = text.floor_char_boundary(LONGEST);
        let Some(at) = cut.last(&text[..within], 0) else { break };
        let rest = text.split_off(at);
        let part = Unit { text: std::mem::replace(&mut text, rest), ..unit.clone() };
        (unit.offset, unit.first) = (unit.offset + at as u64, false);
        batch.push(part)?;
    }
    Ok(Unit { text, ..unit })
}

struct Batch<'a> {
    units: Vec<Unit>,
    bytes: usize,
    size: usize,
    take: &'a mut dyn FnMut(Vec<Unit>) -> Result<(), DataError>,
}

impl Batch<'_> {
    fn push(&mut self, mut unit: Unit) -> Result<(), DataError> {
        unit.length = unit.text.len() as u64;
        self.bytes += unit.text.len();
        self.units.push(unit);
        if self.bytes >= self.size { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), DataError> {
        self.bytes = 0;
        if self.units.is_empty() { Ok(()) } else { (self.take)(std::mem::take(&mut self.units)) }
    }
}

/// Characters of a source that is one text.
pub(super) fn characters(source: &Located) -> Result<u64, DataError> {
    let mut count = 0;
    read(source, Cut::Anywhere, &mut |piece| {
        count += piece.text.chars().count() as u64;
        Ok(())
    })?;
    Ok(count)
}

/// Whether a source is one text.
pub(super) fn is_single(source: &Located) -> bool {
    source.documents == Documents::Text && source.files.len() == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::SourceFile;
    use crate::source::{Origin, TextOf};

    fn located(path: &std::path::Path, documents: Documents) -> Located {
        Located { origin: Origin::Train, documents, files: vec![SourceFile::stat(path).unwrap()], hash: String::new() }
    }

    fn all(source: &Located, cut: Cut, division: Division, from: Place) -> Vec<Unit> {
        let mut units = Vec::new();
        let mut take = |batch: Vec<Unit>| {
            units.extend(batch);
            Ok(())
        };
        batches(source, cut, division, from, 1, &mut take).unwrap();
        units
    }

    /// From the start of whichever unit, what follows is what followed.
    #[test]
    fn reading_goes_on_at_any_unit() {
        let dir = tempfile::tempdir().unwrap();
        let (jsonl, text) = (dir.path().join("a.jsonl"), dir.path().join("a.txt"));
        let long = "some words ".repeat(LONGEST / 4);
        let lines: Vec<_> = ["a", &long, "b c", "d"].iter().map(|text| format!("{{\"text\": \"{text}\"}}")).collect();
        std::fs::write(&jsonl, lines.join("\n")).unwrap();
        std::fs::write(&text, long.replace("words", "wörds")).unwrap();
        let sources =
            [located(&jsonl, Documents::Jsonl { text: TextOf::Field("text".into()) }), located(&text, Documents::Text)];
        for source in &sources {
            let border = LONGEST as u64 / 3;
            let divisions = [Division::All(SplitName::Train), Division::Drawn(0.5), Division::From(border)];
            for division in divisions.into_iter().take(if is_single(source) { 3 } else { 2 }) {
                let whole = all(source, Cut::Words, division, Place::default());
                assert!(whole.len() > 4, "{}", whole.len());
                assert!(whole.iter().all(|unit| unit.length <= LONGEST as u64));
                for (i, unit) in whole.iter().enumerate() {
                    let from = Place { document: unit.document, offset: unit.offset, tokens: 3 };
                    let rest = all(source, Cut::Words, division, from);
                    let joined = |units: &[Unit], split| {
                        units
                            .iter()
                            .filter(|unit| unit.split == split)
                            .map(|unit| unit.text.as_str())
                            .collect::<String>()
                    };
                    for split in [SplitName::Train, SplitName::Validation] {
                        assert!(joined(&rest, split) == joined(&whole[i..], split), "{division:?} {i}");
                    }
                    let ends = |units: &[Unit]| units.iter().filter(|unit| unit.last).count();
                    assert_eq!(ends(&rest), ends(&whole[i..]));
                    assert_eq!(rest.iter().find(|unit| unit.length > 0).map(|unit| unit.first), Some(unit.first));
                }
                if let Division::From(border) = division {
                    let train: String =
                        whole.iter().filter(|u| u.split == SplitName::Train).map(|u| &*u.text).collect();
                    assert_eq!(train.chars().count() as u64, border);
                }
            }
        }
    }
}
