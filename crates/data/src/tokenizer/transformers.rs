//! A tokenizer as the two files that `transformers` loads: `tokenizer.json` and `tokenizer_config.json`.

use serde_json::json;

use super::folder_tokens::FolderTokens;
use super::text_tokenizer::TextTokenizer;
use runner_spec::data::{HfTokenizer, SpecialTokens};
use runner_spec::error::PlainError;
use runner_spec::experiment::Layout;
use runner_spec::format::pretty_json;

impl TextTokenizer {
    /// The special tokens that a model of rows of `layout` has, and their names: those that padded rows are made with; for packed rows
    /// those of the folder that the tokenizer is from, otherwise the token between documents, which both begins and ends a document.
    #[must_use]
    pub fn special_tokens(&self, layout: &Layout) -> (SpecialTokens, [Option<String>; 3]) {
        let end = self.end_of_text().and_then(|id| self.token_name(id));
        let [bos, eos, pad] = match layout {
            Layout::Padded { bos, eos, pad, .. } => [bos, eos, pad].map(|name| Some(name.clone())),
            Layout::Packed { .. } | Layout::Columns { .. } => match self.folder() {
                FolderTokens { bos: None, eos: None, .. } => [end.clone(), end, None],
                FolderTokens { bos, eos, .. } => [bos.clone(), eos.clone().or(end), None],
            },
        };
        let named = |name: Option<String>| name.and_then(|name| Some((self.token_id(&name).ok()?, name)));
        let ((bos, bos_name), (eos, eos_name), (pad, pad_name)) =
            (named(bos).unzip(), named(eos).unzip(), named(pad).unzip());
        (SpecialTokens { bos, eos, pad }, [bos_name, eos_name, pad_name])
    }

    /// The tokenizer for `transformers`, for a model that sees `context` tokens and was trained on rows of `layout`. It puts the token in
    /// front of a text that padded rows begin with, and no other: packed rows have special tokens between documents alone.
    ///
    /// # Errors
    /// If it has no such form; the message says why.
    pub fn to_hf(&self, layout: &Layout, context: usize) -> Result<HfTokenizer, PlainError> {
        let (special, names) = self.special_tokens(layout);
        let first = special.bos.zip(names[0].as_deref()).filter(|_| matches!(layout, Layout::Padded { .. }));
        let tokenizer =
            self.to_tokenizer_json_with(first).map_err(|error| PlainError::request(error.to_string()))? + "\n";
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
        Ok(HfTokenizer { tokenizer, config: pretty_json(&config), special })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::library::LibraryTokenizer;
    use super::*;

    const TEXT: &str = "Héllo,\n\u{0}\u{7f} wörld\t日本 🙂\r\n ";

    #[test]
    fn both_own_kinds_encode_as_they_do_here() {
        let layout = Layout::packed(8);
        for tokenizer in [TextTokenizer::bytes(), TextTokenizer::chars(&TEXT.chars().collect(), "h".into())] {
            let hf = tokenizer.to_hf(&layout, 8).unwrap();
            let library = LibraryTokenizer::from_json(hf.tokenizer.as_bytes(), Path::new("tokenizer.json")).unwrap();
            let mut ids = Vec::new();
            library.encode(TEXT, &mut ids).unwrap();
            assert_eq!(ids, tokenizer.encode_prompt(TEXT).unwrap());
            assert_eq!(library.decode(&ids), TEXT);
            assert_eq!(hf.special.eos, tokenizer.end_of_text());
            assert!(hf.config.contains("\"model_max_length\": 8"));
        }
    }
}
