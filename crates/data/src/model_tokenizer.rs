//! A model's tokenizer: text as the tokens that the model was trained to read.

use super::error::Result;
use super::tokenizer::TextTokenizer;
use runner_spec::experiment::Layout;

/// A tokenizer of text, and the special tokens that a model expects around a text.
///
/// - A run with padded rows was trained on rows of `bos`, a document and `eos`. So a prompt or a context begins with `bos`, and `eos` ends a
///   continuation.
/// - Packed rows and columns begin anywhere in the text. Nothing is put in front of a text, and the token between documents ends a
///   continuation.
/// - Of weights without a run, the tokenizer and its folder are the only evidence. What its post-processor puts in front of a text is put
///   there, as in `transformers` and lm-eval. The token between documents and the folder's end of text both end a continuation.
#[derive(Debug, Clone)]
pub struct ModelTokenizer {
    pub text: TextTokenizer,
    prefix: Vec<u32>,
    ends: Vec<u32>,
}

impl ModelTokenizer {
    /// The tokenizer of a model that was trained on rows of `layout`.
    pub fn of_rows(text: TextTokenizer, layout: &Layout) -> Self {
        let (prefix, end): (Vec<u32>, _) = match layout {
            Layout::Padded { .. } => {
                let (special, _) = text.special_tokens(layout);
                (special.bos.into_iter().collect(), special.eos)
            }
            Layout::Packed { .. } | Layout::Columns { .. } => (Vec::new(), text.end_of_text()),
        };
        Self { text, prefix, ends: end.into_iter().collect() }
    }

    /// The tokenizer of weights whose training is unknown.
    pub fn of_weights(text: TextTokenizer) -> Self {
        let (prefix, end) = (text.leading_special_tokens(), text.end_of_text());
        let folder_end = text.special_tokens(&Layout::packed(1)).0.eos;
        Self { text, prefix, ends: end.into_iter().chain(folder_end.filter(|_| folder_end != end)).collect() }
    }

    /// The same tokenizer, which puts nothing in front of a text.
    #[must_use]
    pub fn without_prefix(self) -> Self {
        Self { prefix: Vec::new(), ..self }
    }

    /// The tokens in front of a text.
    pub fn prefix(&self) -> &[u32] {
        &self.prefix
    }

    /// The text of the prefix.
    pub fn prefix_text(&self) -> String {
        self.text.decode(&self.prefix)
    }

    /// The token between documents, if there is one.
    pub fn end_token(&self) -> Option<u32> {
        self.ends.first().copied()
    }

    /// True if `token` ends a continuation.
    pub fn is_end(&self, token: u32) -> bool {
        self.ends.contains(&token)
    }

    /// The tokens of a prompt, after the prefix. A prompt that spells the prefix out does not get a second one.
    ///
    /// # Errors
    /// Those of [`TextTokenizer::encode_prompt`].
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>> {
        let tokens = self.text.encode_prompt(text)?;
        if tokens.starts_with(&self.prefix) {
            return Ok(tokens);
        }
        Ok([&self.prefix[..], &tokens].concat())
    }

    /// The warning about a `prompt` that is longer than a context of `context` tokens, if it is.
    ///
    /// # Errors
    /// If it cannot be encoded.
    pub fn cut_prompt(&self, prompt: &str, context: usize) -> Result<Option<String>> {
        let tokens = self.encode_prompt(prompt)?.len();
        Ok((tokens > context).then(|| {
            let start: String = prompt.chars().take(20).collect();
            let kept = tokens_kept(context);
            format!(
                "the prompt {start:?}… has {tokens} tokens and the context {context}, so the model reads only the last {kept}"
            )
        }))
    }
}

/// The tokens that a model still reads when a context of `capacity` tokens is full.
pub fn tokens_kept(capacity: usize) -> usize {
    (capacity / 2).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::load_tokenizer;
    use runner_spec::experiment::{PaddingMask, Tokenizer};

    #[test]
    fn prompts_start_like_the_rows_of_training() {
        let names = ["[BOT]", "[EOT]", "[PAD]"].map(str::to_owned);
        let added = names.iter().zip(1..).map(|(name, id)| {
            serde_json::json!({"id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        });
        let json = serde_json::json!({
            "version": "1.0", "added_tokens": added.collect::<Vec<_>>(), "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": {"type": "BertProcessing", "sep": ["[EOT]", 2], "cls": ["[PAD]", 3]},
            "model": {"type": "WordLevel", "vocab": {"<unk>": 0, "[BOT]": 1, "[EOT]": 2, "[PAD]": 3, "a": 4, "b": 5},
                "unk_token": "<unk>"}});
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokenizer.json");
        std::fs::write(&file, json.to_string()).unwrap();
        let file = Tokenizer::File(file);
        let text = load_tokenizer(&file).unwrap();
        let [bos, eos, pad] = names;
        let padded = Layout::Padded { length: 8, bos, eos, pad, mask: PaddingMask::Causal };
        let encode = |tokenizer: &ModelTokenizer, prompt: &str| tokenizer.encode_prompt(prompt).unwrap();

        let tokenizer = ModelTokenizer::of_rows(text.clone(), &padded);
        assert_eq!(encode(&tokenizer, "a b"), [1, 4, 5]);
        assert_eq!(encode(&tokenizer, "[BOT]a b"), [1, 4, 5], "one is enough");
        assert_eq!(encode(&tokenizer, ""), [1]);
        assert_eq!((tokenizer.end_token(), tokenizer.prefix_text()), (Some(2), "[BOT]".to_owned()));

        let tokenizer = tokenizer.without_prefix();
        assert_eq!((encode(&tokenizer, "a b"), tokenizer.end_token()), (vec![4, 5], Some(2)));
        let packed = ModelTokenizer::of_rows(text.clone(), &Layout::packed(8));
        assert_eq!(encode(&packed, "a b"), [4, 5]);
        let weights = ModelTokenizer::of_weights(text);
        assert_eq!(encode(&weights, "a b"), [3, 4, 5], "the post-processor's token, and nothing behind the prompt");
        assert!(weights.is_end(2) && !weights.is_end(1));
        // The folder names an end of text besides the one that separates documents.
        std::fs::write(folder.path().join("tokenizer_config.json"), r#"{"eos_token": "[PAD]"}"#).unwrap();
        let weights = ModelTokenizer::of_weights(load_tokenizer(&file).unwrap());
        assert!(weights.is_end(2) && weights.is_end(3) && !weights.is_end(1));
        assert_eq!(weights.end_token(), Some(2));
    }

    #[test]
    fn a_prompt_beyond_the_context_is_reported() {
        let tokenizer = ModelTokenizer::of_weights(TextTokenizer::bytes());
        assert_eq!(tokenizer.cut_prompt("once", 4).unwrap(), None);
        let warning = tokenizer.cut_prompt("once upon", 4).unwrap().unwrap();
        let expected = "the prompt \"once upon\"… has 9 tokens and the context 4, so the model reads only the last 2";
        assert_eq!(warning, expected);
    }
}
