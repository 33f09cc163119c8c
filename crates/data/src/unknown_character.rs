//! Finds the place of a character that a tokenizer of characters does not know, for a message. It reads the source again.

use std::collections::HashSet;

use super::error::{DataError, Result};
use super::source::{DocumentFormat, LocatedSource, read};
use super::tokenizer::{TextTokenizer, unknown_character};

/// Adds to `error`, of encoding `source` with `tokenizer`, the key of the source and the place of the first unknown character.
pub(super) fn explain_unknown_character(
    error: DataError,
    source: &LocatedSource,
    tokenizer: &TextTokenizer,
) -> DataError {
    let error = error.within(source.split.key());
    match (error, tokenizer.characters()) {
        (DataError::Encode { context, message }, Some(known)) => {
            let message = describe_first(source, tokenizer, known).unwrap_or(message);
            DataError::Encode { context, message }
        }
        (other, _) => other,
    }
}

/// The message about the first character of `source` that is not among `known`; `None` if the source cannot be read again.
fn describe_first(source: &LocatedSource, tokenizer: &TextTokenizer, known: &[char]) -> Option<String> {
    let is_known: HashSet<char> = known.iter().copied().collect();
    let (mut document, mut line, mut column) = (0, 1, 0);
    let mut found = None;
    let reading: Result<()> = read(source, tokenizer.cut_points(), &mut |piece| {
        if piece.starts_document {
            (document, line, column) = (document + 1, 1, 0);
        }
        for character in piece.text.chars() {
            column += 1;
            if !is_known.contains(&character) {
                found = Some(character);
                // Any error ends the reading.
                return Err(DataError::setting(source.split.key(), "found"));
            }
            if character == '\n' {
                (line, column) = (line + 1, 0);
            }
        }
        Ok(())
    });
    let character = found.filter(|_| reading.is_err())?;
    let file = source.files.get(document - 1).filter(|_| source.documents == DocumentFormat::Text);
    let text = file.map_or_else(|| format!("document {document}"), |file| file.path.display().to_string());
    Some(unknown_character(character, &format!("line {line}, column {column} of {text}"), known.len()))
}
