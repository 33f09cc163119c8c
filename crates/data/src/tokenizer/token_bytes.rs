//! The text that each token stands for.

use std::collections::HashMap;

use serde_json::Value;
use tokenizers::Tokenizer;
use tokenizers::models::ModelWrapper;

/// The texts of the tokens of byte-level BPE, whose names have a character for each byte. `None` for any other tokenizer.
pub(super) fn library_token_texts(tokenizer: &Tokenizer, vocab_size: usize) -> Option<Vec<Vec<u8>>> {
    let ModelWrapper::BPE(model) = tokenizer.get_model() else { return None };
    let is_off = |text: &Option<String>| text.as_ref().is_none_or(String::is_empty);
    let is_plain = tokenizer.get_normalizer().is_none()
        && is_off(&model.continuing_subword_prefix)
        && is_off(&model.end_of_word_suffix);
    if !is_plain || !splits_into_bytes(&serde_json::to_value(tokenizer.get_pre_tokenizer()).ok()?) {
        return None;
    }
    let names: HashMap<String, u32> = tokenizer.get_vocab(true);
    let byte_of: HashMap<char, u8> = byte_characters().into_iter().map(|(byte, character)| (character, byte)).collect();
    if byte_of.keys().any(|character| !names.contains_key(&character.to_string())) {
        return None;
    }
    let added = tokenizer.get_added_tokens_decoder();
    let mut texts = vec![Vec::new(); vocab_size];
    for (name, id) in names {
        *texts.get_mut(id as usize)? = match added.get(&id) {
            Some(token) if token.special => Vec::new(),
            // Such a token swallows the blanks beside it.
            Some(token) if token.lstrip || token.rstrip => return None,
            Some(token) => token.content.clone().into_bytes(),
            // The decoder keeps a name that is not made of these characters.
            None => name.chars().map(|c| byte_of.get(&c).copied()).collect::<Option<_>>().unwrap_or(name.into_bytes()),
        };
    }
    Some(texts)
}

/// True if the pre-tokenizer makes the byte level, and neither adds nor removes text.
fn splits_into_bytes(pre_tokenizer: &Value) -> bool {
    let parts = match pre_tokenizer["pretokenizers"].as_array() {
        Some(parts) => parts.as_slice(),
        None => std::slice::from_ref(pre_tokenizer),
    };
    let is_byte_level = |part: &Value| part["type"] == "ByteLevel";
    let keeps_text = |part: &Value| match part["type"].as_str() {
        Some("ByteLevel") => part["add_prefix_space"] == false,
        Some("Split" | "Punctuation") => part["behavior"] != "Removed",
        Some("Digits") => true,
        _ => false,
    };
    parts.iter().any(is_byte_level) && parts.iter().all(keeps_text)
}

/// Each byte with the character that stands for it in vocabularies.
pub(super) fn byte_characters() -> Vec<(u8, char)> {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut next = (256..).filter_map(char::from_u32);
    let mut characters: Vec<_> = (0..=255).filter(|&b| is_printable(b)).map(|b| (b, char::from(b))).collect();
    characters.extend((0..=255).filter(|&b| !is_printable(b)).filter_map(|b| Some((b, next.next()?))));
    characters.sort_unstable();
    characters
}
