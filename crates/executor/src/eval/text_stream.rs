//! Text of tokens that are sampled one by one.

use runner_data::TextTokenizer;

/// Turns tokens into text as they come. A token may end within a character: then its text waits for the token that completes it.
#[derive(Debug, Clone)]
pub(super) struct TextStream<'a> {
    tokenizer: &'a TextTokenizer,
    ids: Vec<u32>,
    /// The text from this token on is decoded again with each new token: the text of a token may depend on the one before it.
    window_start: usize,
    /// The number of tokens up to the last one that ended a character.
    whole: usize,
    /// The bytes of the window's text that were returned.
    returned: usize,
}

impl<'a> TextStream<'a> {
    /// The text after the tokens of `prompt`. It depends on the last of them: many decoders drop the blank in front of the first word.
    pub(super) fn after(tokenizer: &'a TextTokenizer, prompt: &[u32]) -> Self {
        let window_start = prompt.len().saturating_sub(1);
        let returned = tokenizer.decode(&prompt[window_start..]).len();
        Self { tokenizer, ids: prompt.to_vec(), window_start, whole: prompt.len(), returned }
    }

    /// The whole characters that `token` adds.
    pub(super) fn push(&mut self, token: u32) -> String {
        self.ids.push(token);
        let text = self.tokenizer.decode(&self.ids[self.window_start..]);
        // The bytes of a character that is not complete may be several replacement characters.
        let certain = text.trim_end_matches(char::REPLACEMENT_CHARACTER);
        let new = self.after_returned(certain).to_owned();
        self.returned += new.len();
        if certain.len() == text.len() && !new.is_empty() {
            (self.window_start, self.whole) = (self.whole, self.ids.len());
            self.returned = self.tokenizer.decode(&self.ids[self.window_start..]).len();
        }
        new
    }

    /// The text that `tokens` add to what was returned, and the rest.
    pub(super) fn finish_with(mut self, tokens: &[u32]) -> String {
        self.ids.extend(tokens);
        self.finish()
    }

    /// The rest, which no further token completes.
    pub(super) fn finish(&self) -> String {
        self.after_returned(&self.tokenizer.decode(&self.ids[self.window_start..])).to_owned()
    }

    /// The part of the window's `text` that was not returned yet. If a new token changes the text of earlier ones, the returned text stays,
    /// and nothing is added until the text is longer.
    fn after_returned<'t>(&self, text: &'t str) -> &'t str {
        text.get(self.returned..).unwrap_or("")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use runner_spec::experiment::Tokenizer;

    fn streamed(bytes: &[u8]) -> Vec<String> {
        let tokenizer = TextTokenizer::bytes();
        let mut stream = TextStream::after(&tokenizer, &[]);
        let mut parts: Vec<String> = bytes.iter().map(|byte| stream.push(u32::from(*byte))).collect();
        parts.push(stream.finish());
        parts
    }

    #[test]
    fn characters_come_whole() {
        assert_eq!(streamed("aé€b".as_bytes()), ["a", "", "é", "", "", "€", "b", ""]);
    }

    #[test]
    fn the_parts_are_the_text() {
        let broken: [&[u8]; 5] = [
            b"ab",
            b"a\xe2\x82",
            b"\xff\xfe\xfd\xfc\xfb",
            b"a\xe2\x82b\xf0\x9f\x98\x80\xc3",
            b"\xf0\x9f\xe2\x82\xac\x80x",
        ];
        for bytes in broken {
            assert_eq!(streamed(bytes).concat(), String::from_utf8_lossy(bytes), "{bytes:?}");
        }
    }

    /// Against Python's `tokenizers`: see `tests/golden/continuations.py`.
    #[test]
    fn text_follows_a_prompt_as_in_python() {
        let structures = include_str!("../../../../tests/fixtures/tokenizer/structures.json");
        let structures: Value = serde_json::from_str(structures).unwrap();
        let expected: Value =
            serde_json::from_str(include_str!("../../../../tests/golden/continuations.json")).unwrap();
        let ids = |value: &Value| -> Vec<u32> { serde_json::from_value(value.clone()).unwrap() };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        let mut compared = 0;
        for structure in structures["structures"].as_array().unwrap() {
            let name = structure["name"].as_str().unwrap();
            let Some(continuations) = expected[name].as_array() else { continue };
            std::fs::write(&path, structure["tokenizer"].to_string()).unwrap();
            let tokenizer = runner_data::load_tokenizer(&Tokenizer::File(path.clone())).unwrap();
            for continuation in continuations {
                let prompt = ids(&structure["prompts"][continuation["prompt"].as_u64().unwrap() as usize]);
                let (tokens, text) = (ids(&continuation["tokens"]), continuation["text"].as_str().unwrap());
                let what = format!("{name}, {continuation}");
                let mut stream = TextStream::after(&tokenizer, &prompt);
                assert_eq!(stream.clone().finish_with(&tokens), text, "{what}");
                let streamed: String = tokens.iter().map(|&token| stream.push(token)).collect();
                assert_eq!(streamed + &stream.finish(), text, "streamed: {what}");
                compared += 1;
            }
        }
        assert_eq!(compared, 194);
    }
}
