//! Text of tokens that are sampled one by one.

use runner_data::TextTokenizer;

/// Turns tokens into text as they come. A token may end within a character: then its text waits for the token that completes it.
#[derive(Debug)]
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
    pub(super) fn new(tokenizer: &'a TextTokenizer) -> Self {
        Self { tokenizer, ids: Vec::new(), window_start: 0, whole: 0, returned: 0 }
    }

    /// The whole characters that `token` adds.
    pub(super) fn push(&mut self, token: u32) -> String {
        self.ids.push(token);
        let text = self.tokenizer.decode(&self.ids[self.window_start..]);
        // The last character may become another one with the next token.
        let certain = text.strip_suffix(char::REPLACEMENT_CHARACTER).unwrap_or(&text);
        let new = self.after_returned(certain).to_owned();
        self.returned += new.len();
        if certain.len() == text.len() && !new.is_empty() {
            (self.window_start, self.whole) = (self.whole, self.ids.len());
            self.returned = self.tokenizer.decode(&self.ids[self.window_start..]).len();
        }
        new
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
    use super::*;

    fn streamed(bytes: &[u8]) -> Vec<String> {
        let tokenizer = TextTokenizer::bytes();
        let mut stream = TextStream::new(&tokenizer);
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
}
