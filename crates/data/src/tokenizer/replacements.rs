//! Limits on what a tokenizer.json may ask of memory: how far its replacements lengthen a text, and how deeply its patterns nest. The
//! `tokenizers` crate and Oniguruma check neither, and running out of memory or of stack ends the process.

use std::collections::HashMap;

use serde_json::Value;

use crate::source::{MAX_DOCUMENT_BYTES, describe_document_limit};
use runner_spec::error::PlainError;
use runner_spec::format::{bytes, count};

/// The most characters that a tokenizer may make of one character.
const MAX_GROWTH: f64 = 100.0;
/// Limits of a pattern. GPT-4's, a long one, has 150 bytes and 3 levels.
const MAX_PATTERN_BYTES: usize = 16 << 10;
const MAX_PATTERN_DEPTH: usize = 100;

/// How many characters the normalizers of a tokenizer make of one character at most, 1 or more.
///
/// # Errors
/// If normalizers or decoders can make more than [`MAX_GROWTH`] characters of one, or a pattern is too long or too deeply nested.
pub(super) fn check_replacements(tokenizer: &Value) -> Result<f64, PlainError> {
    for part in ["normalizer", "pre_tokenizer", "decoder"] {
        steps(&tokenizer[part])
            .iter()
            .filter_map(|step| step["pattern"]["Regex"].as_str())
            .try_for_each(check_pattern)?;
    }
    let growth = |part: &str| {
        let growth = growth(&steps(&tokenizer[part]));
        if growth <= MAX_GROWTH {
            return Ok(growth);
        }
        let most = count(growth.min(1e18) as u64);
        Err(PlainError::request(format!(
            "its {part} can turn one character into {most}, and at most {MAX_GROWTH} are allowed; remove `Replace` or `Prepend` steps"
        )))
    };
    growth("decoder")?;
    growth("normalizer")
}

/// # Errors
/// If normalizers that make up to `growth` characters of one could make more of a text of `length` bytes than a document may have.
pub(super) fn check_normalized_length(length: usize, growth: f64) -> Result<(), PlainError> {
    let longest = length as f64 * growth;
    if growth <= 1.0 || longest <= MAX_DOCUMENT_BYTES as f64 {
        return Ok(());
    }
    let (length, longest, limit) = (length as f64 / 1e6, longest / 1e6, describe_document_limit());
    Err(PlainError::request(format!(
        "its normalizers can turn this text of {length:.1} MB into {longest:.1} MB, and a document may have {limit}; split it into shorter ones"
    )))
}

/// The steps of `part`, a normalizer, a pre-tokenizer or a decoder, in order, without the sequences that hold them.
fn steps(part: &Value) -> Vec<&Value> {
    let inner = ["normalizers", "pretokenizers", "decoders"].iter().find_map(|key| part[key].as_array());
    inner.map_or_else(|| vec![part], |parts| parts.iter().flat_map(steps).collect())
}

/// The most characters that `steps`, one after the other, make of one character. Steps of Unicode's normalization, which make at most 18,
/// count as 1: text that grows like that is not natural text.
fn growth(steps: &[&Value]) -> f64 {
    // From the last step to the first: the characters that each character becomes in the end, and those of all that are not listed.
    let (mut listed, mut others) = (HashMap::<char, f64>::new(), 1.0_f64);
    let mut prepended = 1.0_f64;
    for step in steps.iter().rev() {
        let length = |text: &Value| -> f64 {
            let text = text.as_str().unwrap_or_default();
            text.chars().map(|character| listed.get(&character).copied().unwrap_or(others)).sum()
        };
        match step["type"].as_str() {
            Some("Prepend") => prepended = prepended.max(length(&step["prepend"])),
            Some("Replace") => {
                let made = length(&step["content"]);
                if let Some(pattern) = step["pattern"]["String"].as_str().filter(|pattern| !pattern.is_empty()) {
                    // Each character of a match makes its share.
                    let share = made / pattern.chars().count() as f64;
                    for character in pattern.chars() {
                        let length = listed.entry(character).or_insert(others);
                        *length = length.max(share);
                    }
                } else {
                    // Any character may match, and an empty match may stand in front of each character.
                    let regex = step["pattern"]["Regex"].as_str().unwrap_or_default();
                    let before = if can_be_empty(regex) { made } else { 0.0 };
                    for length in listed.values_mut().chain([&mut others]) {
                        *length = length.max(made) + before;
                    }
                }
            }
            _ => {}
        }
    }
    listed.into_values().chain([others, prepended]).fold(1.0, f64::max)
}

/// False if `regex` certainly matches no empty text.
fn can_be_empty(regex: &str) -> bool {
    // What this parser does not read, such as a look-ahead, may match an empty text.
    regex_syntax::parse(regex)
        .ok()
        .and_then(|parsed| parsed.properties().minimum_len())
        .is_none_or(|length| length == 0)
}

/// # Errors
/// If `pattern` is too long or too deeply nested.
fn check_pattern(pattern: &str) -> Result<(), PlainError> {
    let (mut depth, mut deepest) = (0_usize, 0);
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => drop(characters.next()),
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    let start: String = pattern.chars().take(30).collect();
    if pattern.len() > MAX_PATTERN_BYTES {
        let length = bytes(pattern.len() as u64);
        return Err(PlainError::request(format!(
            "its pattern {start:?} … has {length}; at most {} are allowed",
            bytes(MAX_PATTERN_BYTES as u64)
        )));
    }
    if deepest > MAX_PATTERN_DEPTH {
        return Err(PlainError::request(format!(
            "its pattern {start:?} … is nested {deepest} levels deep; at most {MAX_PATTERN_DEPTH} are allowed"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn replace(pattern: &Value, content: &str) -> Value {
        json!({"type": "Replace", "pattern": pattern, "content": content})
    }

    fn growth_of(steps: &[Value]) -> Result<f64, PlainError> {
        check_replacements(&json!({"normalizer": {"type": "Sequence", "normalizers": steps}}))
    }

    #[test]
    fn growth_is_that_of_the_longest_result() {
        let string = |from: &str, to: &str| replace(&json!({"String": from}), to);
        let regex = |from: &str, to: &str| replace(&json!({"Regex": from}), to);
        // Each mark alone becomes three characters: no step replaces blanks that an earlier step added.
        let marks: Vec<Value> = [".", ",", "!", "?"].map(|mark| string(mark, &format!(" {mark} "))).into();
        assert_eq!(growth_of(&marks), Ok(3.0));
        assert_eq!(growth_of(&[string("a", "bb"), string("b", "ccc"), string("c", "dddd")]), Ok(24.0));
        assert_eq!(growth_of(&[string("c", "dddd"), string("b", "ccc"), string("a", "bb")]), Ok(4.0));
        assert_eq!(growth_of(&[string("ab", "xxxx")]), Ok(2.0));
        assert_eq!(growth_of(&[regex(r"\s+", " "), string("''", "\"")]), Ok(1.0));
        assert_eq!(growth_of(&[regex(r" {2,}", "▁▁")]), Ok(2.0));
        assert_eq!(growth_of(&[regex("(?=x)", "--")]), Ok(4.0), "`x` may match, and a match in front of it");
        assert_eq!(growth_of(&[json!({"type": "Prepend", "prepend": "▁"}), string(" ", "▁")]), Ok(1.0));
        assert_eq!(growth_of(&[json!({"type": "Lowercase"})]), Ok(1.0));
        assert_eq!(check_replacements(&Value::Null), Ok(1.0));
    }

    #[test]
    fn text_that_explodes_is_refused() {
        let steps: Vec<Value> = (0..4).map(|_| replace(&json!({"String": "a"}), &"a".repeat(1000))).collect();
        let error = growth_of(&steps).unwrap_err();
        assert!(
            error.text.starts_with("its normalizer can turn one character into 1,000,000,000,000, and at most 100"),
            "{error}"
        );
        let prepended = json!({"type": "Prepend", "prepend": "a".repeat(101)});
        assert!(growth_of(&[prepended]).unwrap_err().text.contains("one character into 101,"));
        let decoder = json!({"decoder": {"type": "Sequence", "decoders": steps}});
        assert!(check_replacements(&decoder).unwrap_err().text.starts_with("its decoder can turn"));
        assert_eq!(check_normalized_length(MAX_DOCUMENT_BYTES, 1.0), Ok(()));
        assert_eq!(check_normalized_length(MAX_DOCUMENT_BYTES / 3, 3.0), Ok(()));
        let error = check_normalized_length(MAX_DOCUMENT_BYTES, 3.0).unwrap_err();
        assert!(error.text.contains("split it into shorter ones"), "{error}");
    }

    #[test]
    fn patterns_have_limits() {
        let split = |pattern: &str| {
            let split =
                json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
            check_replacements(&json!({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split]}}))
        };
        assert!(split(&format!("{}x{}", "(".repeat(100), ")".repeat(100))).is_ok());
        assert!(split(r"\(\(\[".repeat(500).as_str()).is_ok());
        assert!(split(&"(".repeat(101)).unwrap_err().text.contains("is nested 101 levels deep; at most 100"));
        assert!(
            split(&"x".repeat(20_000)).unwrap_err().text.contains("at most 16"),
            "{:?}",
            split(&"x".repeat(20_000))
        );
    }
}
