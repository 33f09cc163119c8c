//! A tokenizer as the two files from which `transformers` makes it: `tokenizer.json` and `tokenizer_config.json`.

use serde_json::{Map, Value, json};

use super::library::END_OF_TEXT;
use super::stored::Kind;
use super::text_tokenizer::TextTokenizer;
use crate::config::experiment::Layout;

/// What `transformers` reads of a tokenizer, and the special tokens of its model.
#[derive(Debug, Clone, PartialEq)]
pub struct HfTokenizer {
    /// The content of the files.
    pub tokenizer: String,
    pub config: String,
    pub special: SpecialTokens,
}

/// Ids of special tokens, where there are such.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub pad: Option<u32>,
}

impl TextTokenizer {
    /// The special tokens that rows of `layout` are made with: with their names those of padded rows; else the token between
    /// documents, which begins one as well as ending one.
    #[must_use]
    pub fn special_tokens(&self, layout: &Layout) -> (SpecialTokens, [Option<String>; 3]) {
        match layout {
            Layout::Padded { bos, eos, pad, .. } => {
                let [b, e, p] = [bos, eos, pad].map(|name| self.named(name).ok());
                let name = |id: Option<u32>, name: &String| id.map(|_| name.clone());
                (SpecialTokens { bos: b, eos: e, pad: p }, [name(b, bos), name(e, eos), name(p, pad)])
            }
            Layout::Packed { .. } => {
                let end = self.eot();
                let name = end.and_then(|id| self.name_of(id));
                let end = end.filter(|_| name.is_some());
                (SpecialTokens { bos: end, eos: end, pad: None }, [name.clone(), name, None])
            }
        }
    }

    /// The tokenizer for `transformers`, of a model that sees `context` tokens and was trained on rows of `layout`.
    ///
    /// # Errors
    /// Why it has no such form.
    pub fn to_hf(&self, layout: &Layout, context: usize) -> Result<HfTokenizer, String> {
        let (kind, text) = self.parts()?;
        let tokenizer = match kind {
            Kind::Library => text + "\n",
            Kind::Bytes => pretty(&bytes()),
            Kind::Chars => pretty(&characters(&text)),
        };
        let (special, names) = self.special_tokens(layout);
        let mut config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": context,
            "clean_up_tokenization_spaces": false,
        });
        for (key, name) in ["bos_token", "eos_token", "pad_token"].into_iter().zip(names) {
            if let Some(name) = name {
                config[key] = name.into();
            }
        }
        Ok(HfTokenizer { tokenizer, config: pretty(&config), special })
    }
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

fn file(added: &Value, pre_tokenizer: &Value, decoder: &Value, model: &Value) -> Value {
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": pre_tokenizer, "post_processor": null, "decoder": decoder, "model": model,
    })
}

/// The 256 bytes and the end of text: byte-level BPE without merges, whose alphabet writes bytes as characters.
fn bytes() -> Value {
    let vocab: Map<String, Value> = (0..=255_u8).map(|b| (written(b).to_string(), b.into())).collect();
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let end = json!([{
        "id": 256, "content": END_OF_TEXT, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        "special": true,
    }]);
    let model = json!({
        "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
        "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": [],
    });
    file(&end, &level, &level, &model)
}

/// The character that byte-level tokenizers write for `byte`: itself where it is printable, else one from U+0100 on.
fn written(byte: u8) -> char {
    let printable = |b: &u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(&byte) {
        return char::from(byte);
    }
    let others = (0..byte).filter(|b| !printable(b)).count() as u32;
    char::from_u32(256 + others).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// One word for each character; others are an error there as here.
fn characters(all: &str) -> Value {
    let vocab: Map<String, Value> = (0u32..).zip(all.chars()).map(|(id, c)| (c.to_string(), id.into())).collect();
    let split = json!({"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": false});
    let model = json!({"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"});
    file(&json!([]), &split, &json!({"type": "Fuse"}), &model)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::library::Library;
    use super::*;

    const TEXT: &str = "Héllo,\n\u{0}\u{7f} wörld\t日本 🙂\r\n ";

    /// As the library that `transformers` uses reads them.
    #[test]
    fn both_own_kinds_encode_as_they_do_here() {
        let layout = Layout::Packed { length: 8 };
        for tokenizer in [TextTokenizer::bytes(), TextTokenizer::chars(&TEXT.chars().collect(), "h".into())] {
            let hf = tokenizer.to_hf(&layout, 8).unwrap();
            let library = Library::from_json(hf.tokenizer.as_bytes(), Path::new("tokenizer.json")).unwrap();
            let mut ids = Vec::new();
            library.encode(TEXT, &mut ids).unwrap();
            assert_eq!(ids, tokenizer.encode(TEXT).unwrap());
            assert_eq!(library.decode(&ids), TEXT);
            assert_eq!(hf.special.eos, tokenizer.eot());
            assert!(hf.config.contains("\"model_max_length\": 8"));
        }
    }

    #[test]
    fn every_byte_is_written_as_a_character_of_its_own() {
        let all: std::collections::BTreeSet<char> = (0..=255).map(written).collect();
        let alphabet: std::collections::BTreeSet<char> =
            tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet().into_iter().collect();
        assert_eq!(all, alphabet);
        assert_eq!([written(b' '), written(b'\n'), written(b'a')], ['Ġ', 'Ċ', 'a']);
    }
}
