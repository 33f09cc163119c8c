//! YAML documents as values of types. Texts may come from other people or programs. Parsers of YAML look ahead, and take quadratic time for thousands of nested brackets, so the
//! depth is checked first, by a parser whose work ends at the limit.

use saphyr_parser::{Event, Parser, ScanError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_yaml::value::Serializer;
use serde_yaml::with::singleton_map_recursive;

pub use serde_yaml::{Mapping, Value, to_string};

use super::MAX_DEPTH;

/// Why a YAML text cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    #[error("nested more than {MAX_DEPTH} levels deep at line {line}, column {column}")]
    TooDeep { line: usize, column: usize },
    #[error("{0}")]
    Syntax(#[from] ScanError),
    #[error("{0}")]
    Parse(#[from] serde_yaml::Error),
}

/// Parses the YAML `text`.
///
/// # Errors
/// If it is not YAML, is nested too deep, or has a different form from `T`.
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, DocumentError> {
    check_depth(Parser::new_from_str(text))?;
    Ok(serde_yaml::from_str(text)?)
}

/// `value` as a document, in which a choice is a mapping with one key.
///
/// # Errors
/// If it has no form in YAML.
pub fn to_value(value: &impl Serialize) -> Result<Value, serde_yaml::Error> {
    singleton_map_recursive::serialize(value, Serializer)
}

fn check_depth(parser: Parser<'_, impl saphyr_parser::Input>) -> Result<(), DocumentError> {
    let mut depth = 0;
    for event in parser {
        let (event, span) = event?;
        match event {
            Event::SequenceStart(..) | Event::MappingStart(..) => depth += 1,
            Event::SequenceEnd | Event::MappingEnd => depth -= 1,
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(DocumentError::TooDeep { line: span.start.line(), column: span.start.col() + 1 });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn reads_text_that_is_not_too_deep() {
        let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(
            from_str::<Value>("a: [1, {b: 2e-4}]\nc: \"[[[\"").unwrap(),
            json!({"a": [1, {"b": 2e-4}], "c": "[[["})
        );
        assert!(from_str::<Value>(&nested(MAX_DEPTH)).is_ok());
        let error = from_str::<Value>(&format!("a:\n  {}", nested(MAX_DEPTH))).unwrap_err();
        assert_eq!(error.to_string(), "nested more than 64 levels deep at line 2, column 66");
        assert!(matches!(from_str::<Value>("[1"), Err(DocumentError::Syntax(_))));
        assert!(matches!(from_str::<u64>("[1]"), Err(DocumentError::Parse(_))));
    }

    /// The work ends at the limit, however long the text is.
    #[test]
    fn reads_no_more_of_a_deep_text_than_its_beginning() {
        for (part, most) in [("{a: ", 2000), ("[", 1000), ("- ", 1000), ("? ", 1000), ("a: [", 2000), ("[{a: ", 2000)] {
            let mut read = 0;
            let text = part.repeat(10_000);
            let characters = text.chars().inspect(|_| read += 1);
            assert!(check_depth(Parser::new_from_iter(characters)).is_err(), "{part:?}");
            assert!(read < most, "{part:?}: {read} characters were read");
        }
    }
}
