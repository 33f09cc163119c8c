//! Any tokenizer as a tokenizer.json, which Python's `tokenizers` and `transformers` and this program load.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::gpt2_folder::END_OF_TEXT;
use super::text_tokenizer::{Encoder, TextTokenizer};
use super::token_bytes::byte_characters;
use super::word_vocabulary::{UNKNOWN, WordVocabulary};
use crate::error::{DataError, Result};

impl TextTokenizer {
    /// The content of a tokenizer.json that gives the same ids, except for two kinds of tokenizers. A step that adds special tokens to each
    /// text is left out, because [`encode_document`](Self::encode_document) adds none.
    ///
    /// `chars`: for a character that is not in the vocabulary, this program's error names the character; Python's `tokenizers` fails because
    /// there is no `[UNK]`.
    ///
    /// `words`: Python's `tokenizers` lowers each character on its own; this program lowers the whole text, like Python's `str.lower`. So a
    /// capital sigma at the end of a word is `σ` there and `ς` here. A special token that stands in a document as a word is that token
    /// there, and unknown here.
    ///
    /// # Errors
    /// If the tokenizer knows ids alone, or the `tokenizers` crate cannot write it.
    pub fn to_tokenizer_json(&self) -> Result<String> {
        self.to_tokenizer_json_with(None)
    }

    /// [`to_tokenizer_json`](Self::to_tokenizer_json) with a step that puts the token `first`, an id and a name, in front of each text.
    pub(super) fn to_tokenizer_json_with(&self, first: Option<(u32, &str)>) -> Result<String> {
        let wrong = |error: serde_json::Error| DataError::file(Path::new("tokenizer.json"), error.to_string());
        let mut json = match self.encoder() {
            Encoder::Library(library) => {
                let processor = post_processor(&library.post_processor().map_err(wrong)?, first);
                return library.to_json_with(processor);
            }
            Encoder::Chars { characters, .. } => characters_json(characters),
            Encoder::Bytes => bytes_json(),
            Encoder::Words(words) => words_json(words),
            Encoder::Ids(_) => {
                return Err(DataError::setting(
                    "data.tokenizer.ids",
                    "the model has only token ids, and their text is unknown",
                ));
            }
        };
        json["post_processor"] = post_processor(&Value::Null, first);
        serde_json::to_string(&json).map_err(wrong)
    }
}

/// The post-processor `given` without the steps that add special tokens to each text, and with one that puts the token `first` in front
/// of it.
fn post_processor(given: &Value, first: Option<(u32, &str)>) -> Value {
    let steps = given["processors"].as_array().map_or(std::slice::from_ref(given), Vec::as_slice);
    // This step sets offsets, and adds nothing.
    let mut steps: Vec<Value> = steps.iter().filter(|step| step["type"] == "ByteLevel").cloned().collect();
    steps.extend(first.map(|first| template(Some(first), None)));
    match steps.len() {
        0 | 1 => steps.pop().unwrap_or_default(),
        _ => json!({"type": "Sequence", "processors": steps}),
    }
}

/// The step that puts the token `first` in front of each text, and `last` behind it.
pub(super) fn template(first: Option<(u32, &str)>, last: Option<(u32, &str)>) -> Value {
    let part = |sequence: &str| {
        let special =
            |token: Option<(u32, &str)>| token.map(|(_, name)| json!({"SpecialToken": {"id": name, "type_id": 0}}));
        let text = json!({"Sequence": {"id": sequence, "type_id": 0}});
        special(first).into_iter().chain([text]).chain(special(last)).collect::<Vec<_>>()
    };
    let tokens = first.into_iter().chain(last);
    let tokens: Map<_, _> =
        tokens.map(|(id, name)| (name.to_owned(), json!({"id": name, "ids": [id], "tokens": [name]}))).collect();
    let pair = [part("A"), part("B")].concat();
    json!({"type": "TemplateProcessing", "single": part("A"), "pair": pair, "special_tokens": tokens})
}

/// Every character is a word.
fn characters_json(characters: &[char]) -> Value {
    let vocabulary: Map<_, _> = characters.iter().zip(0..).map(|(c, id)| (c.to_string(), Value::from(id))).collect();
    let split = json!({"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": false});
    // No token is called [UNK], so that the library fails on an unknown character.
    let model = json!({"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"});
    tokenizer_json(&[], &split, &json!({"type": "Fuse"}), &model)
}

/// Words as [`super::word_vocabulary::split`] splits them: a normalizer makes the same replacements.
fn words_json(words: &WordVocabulary) -> Value {
    let vocabulary: Map<_, _> = words.tokens().zip(0..).map(|(word, id)| (word.to_owned(), Value::from(id))).collect();
    let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let mut steps = if words.lowercase { vec![json!({"type": "Lowercase"})] } else { Vec::new() };
    steps.push(replace("\"", ""));
    steps.extend(["'", ".", ",", "(", ")", "!", "?"].map(|mark| replace(mark, &format!(" {mark} "))));
    // The four separators of ASCII are white space to Python's `str.split`, not to `WhitespaceSplit`.
    steps.extend(["<br />", ";", ":", "\u{1c}", "\u{1d}", "\u{1e}", "\u{1f}"].map(|mark| replace(mark, " ")));
    let split = json!({"type": "WhitespaceSplit"});
    let model = json!({"type": "WordLevel", "vocab": vocabulary, "unk_token": UNKNOWN});
    let mut json = tokenizer_json(&[], &split, &Value::Null, &model);
    json["normalizer"] = json!({"type": "Sequence", "normalizers": steps});
    json
}

/// Every byte is a token; there are no merges.
fn bytes_json() -> Value {
    let vocabulary: Map<_, _> =
        byte_characters().into_iter().map(|(byte, c)| (c.to_string(), Value::from(byte))).collect();
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let model = json!({
        "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
        "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocabulary, "merges": [],
    });
    let end = json!({
        "id": 256, "content": END_OF_TEXT, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        "special": true,
    });
    tokenizer_json(&[end], &level, &level, &model)
}

fn tokenizer_json(added: &[Value], pre_tokenizer: &Value, decoder: &Value, model: &Value) -> Value {
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": pre_tokenizer, "post_processor": null, "decoder": decoder, "model": model,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::path::Path;

    use super::super::folder_tokens::FolderTokens;
    use super::super::library::LibraryTokenizer;
    use super::super::word_vocabulary::{WordVocabulary, split};
    use super::*;

    fn library(json: &str) -> TextTokenizer {
        let library = LibraryTokenizer::from_json(json.as_bytes(), Path::new("t")).unwrap();
        TextTokenizer::library(library, FolderTokens::default(), "g".into())
    }

    #[test]
    fn ids_and_text_are_the_same() {
        let text = "a b\n\tz\"é日 🙂\0 ab";
        for tokenizer in [TextTokenizer::bytes(), TextTokenizer::chars(&text.chars().collect(), "h".into())] {
            let json = tokenizer.to_tokenizer_json().unwrap();
            let library = library(&json);
            assert_eq!(
                (library.vocab_size(), library.end_of_text()),
                (tokenizer.vocab_size(), tokenizer.end_of_text())
            );
            let ids = tokenizer.encode_prompt(text).unwrap();
            assert_eq!(library.encode_prompt(text).unwrap(), ids);
            assert_eq!(library.decode(&ids), text);
        }
        let text = "Ab c\u{1c}d\u{1d}e\u{1e}f\u{1f}g a<br />b<BR />c x<b\"r />y <br\" />z <br/>e \"It's\" A.B. 3.14; (U:s)!? \
                    \u{a0}STRASSE\u{2003}\u{130}stanbul \u{1c5} σας e\u{85}f\u{200b}g 日本 語。\n\tend\u{1c}";
        for lowercase in [true, false] {
            let mut counts = HashMap::new();
            split(text, lowercase, |word| *counts.entry(word.to_owned()).or_insert(0) += 1);
            let tokenizer =
                TextTokenizer::words(WordVocabulary::new(counts, lowercase, 1, &["[EOT]".to_owned()]).unwrap());
            let json = tokenizer.to_tokenizer_json().unwrap();
            let library = library(&json);
            assert_eq!(
                (library.vocab_size(), library.end_of_text()),
                (tokenizer.vocab_size(), tokenizer.end_of_text())
            );
            for text in [text, "unseen\u{1c}words a", "\u{1f}", "", "a <unk> b"] {
                let ids = tokenizer.encode_document(text).unwrap();
                assert_eq!(library.encode_document(text).unwrap(), ids, "{text:?}");
                assert_eq!(library.decode(&ids), tokenizer.decode(&ids));
            }
            assert!(!tokenizer.encode_document(text).unwrap().contains(&0), "every word is known");
        }
    }

    /// The differences that the documentation of `to_tokenizer_json` states for words.
    #[test]
    fn ids_of_words_differ_where_reported() {
        let counts = ["ας", "ασ"].map(|word| (word.to_owned(), 1)).into();
        let tokenizer = TextTokenizer::words(WordVocabulary::new(counts, true, 1, &["<eos>".to_owned()]).unwrap());
        let json = tokenizer.to_tokenizer_json().unwrap();
        let library = library(&json);
        let both = |text: &str| {
            (tokenizer.decode(&tokenizer.encode_document(text).unwrap()), {
                library.decode(&library.encode_document(text).unwrap())
            })
        };
        assert_eq!(both("ΑΣ"), ("ας".to_owned(), "ασ".to_owned()));
        assert_eq!(both("<eos>"), ("<unk>".to_owned(), "<eos>".to_owned()));
    }

    #[test]
    fn an_unseen_character_is_an_error_on_both_sides() {
        let tokenizer = TextTokenizer::chars(&"ab".chars().collect(), "h".into());
        let json = tokenizer.to_tokenizer_json().unwrap();
        let library = library(&json);
        assert!(tokenizer.encode_document("ac").is_err());
        assert!(library.encode_document("ac").unwrap_err().to_string().contains("[UNK]"));
    }
}
