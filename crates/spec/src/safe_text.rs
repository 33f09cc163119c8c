//! Text that is safe to show. Files, models and servers may send characters that steer a terminal or hide what a text says.

use std::borrow::Cow;
use std::io::{self, Write};

/// True for a character that moves the cursor, changes the terminal, reverses the direction of text, or is invisible. The exceptions are
/// line ends and tabs, and the joiners, fillers and variation selectors that scripts and emoji need.
#[must_use]
pub fn is_unsafe(c: char) -> bool {
    // Soft hyphen; marks of the direction; zero-width space; separators of lines and paragraphs, embeddings and overrides; invisible operators
    // and isolates; byte order mark; annotations; formats of notes; tags.
    matches!(
        c,
        '\u{AD}' | '\u{61C}' | '\u{180E}' | '\u{200E}' | '\u{200F}' | '\u{200B}' | '\u{2028}'..='\u{202E}'
            | '\u{2060}'..='\u{206F}' | '\u{FEFF}' | '\u{FFF9}'..='\u{FFFB}' | '\u{1D173}'..='\u{1D17A}' | '\u{E0000}'..='\u{E007F}'
    ) || c.is_control() && !matches!(c, '\n' | '\t')
}

/// True if `text` is one line without unsafe characters.
#[must_use]
pub fn is_plain_line(text: &str) -> bool {
    !text.contains(|c: char| c.is_control() || is_unsafe(c))
}

/// `text` with `�` in place of every unsafe character.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if is_unsafe(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// `text` as [`printable`] returns it, except for sequences that change the colour or the weight of text, which this program writes itself.
#[must_use]
pub fn terminal_text(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\x1b') {
        out.push_str(&printable(&rest[..at]));
        let style = style_length(&rest[at..]);
        match style {
            Some(length) => out.push_str(&rest[at..at + length]),
            None => out.push(char::REPLACEMENT_CHARACTER),
        }
        rest = &rest[at + style.unwrap_or(1)..];
    }
    out.push_str(&printable(rest));
    Cow::Owned(out)
}

/// The number of bytes of the sequence for colour or weight that `text` begins with, if it does.
fn style_length(text: &str) -> Option<usize> {
    let end = text.find('m')?;
    let numbers = text.get(..end)?.strip_prefix("\x1b[")?;
    let is_style =
        |number: &str| matches!(number, "" | "0" | "1" | "2" | "4" | "22" | "24" | "39") || is_colour(number);
    numbers.split(';').all(is_style).then_some(end + 1)
}

fn is_colour(number: &str) -> bool {
    number.len() == 2 && matches!(number.as_bytes(), [b'3' | b'9', b'0'..=b'7'])
}

/// Passes JSON on, with an escape in place of every unsafe character that JSON allows in texts. The values stay the same.
#[derive(Debug)]
pub struct SafeJson<W>(pub W);

impl<W: Write> Write for SafeJson<W> {
    /// `bytes` must end where a character ends, as the pieces of a JSON writer do.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match str::from_utf8(bytes) {
            Ok(text) => self.0.write_all(safe_json(text).as_bytes())?,
            Err(_) => self.0.write_all(bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The JSON `text` with an escape in place of every unsafe character.
#[must_use]
pub fn safe_json(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unsafe(c) {
            let mut units = [0; 2];
            out.extend(c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_not_steered() {
        assert_eq!(printable("a\x1b[2Jb\r\n\u{9b}c"), "a�[2Jb�\n�c");
        assert_eq!(printable("evil\u{202E}gnp.exe \u{2066}x\u{2069} a\u{200B}b\u{E0041}"), "evil�gnp.exe �x� a�b�");
        let harmless = "é 日本 مرحبا क्\u{200D}ष می\u{200C}خواهم 👩\u{200D}💻\ttab\n";
        assert_eq!(printable(harmless), harmless);
    }

    #[test]
    fn own_colours_stay_and_other_sequences_do_not() {
        for own in
            ["\x1b[31merror:\x1b[0m x", "\x1b[1;34m|\x1b[0m", "\x1b[33m\x1b[1mwarning:\x1b[0m", "\x1b[2mdim\x1b[22m"]
        {
            assert_eq!(terminal_text(own), own);
        }
        for (foreign, shown) in [
            ("\x1b[8mhidden", "�[8mhidden"),
            ("\x1b[2J", "�[2J"),
            ("\x1b]0;title\x07m", "�]0;title�m"),
            ("\x1b[31", "�[31"),
            ("\x1b[38;5;1m", "�[38;5;1m"),
            ("\x1b\x1b[31mx", "�\x1b[31mx"),
            ("a\u{202E}\x1b[31mb\r", "a�\x1b[31mb�"),
            ("\x1b", "�"),
        ] {
            assert_eq!(terminal_text(foreign), shown, "{foreign:?}");
        }
    }

    #[test]
    fn json_keeps_its_values() {
        let value = serde_json::json!({"a\u{202E}": ["\u{9b}2J", "\u{7f}", "\u{E0041}", "\x1b", "é\n"]});
        let mut written = SafeJson(Vec::new());
        serde_json::to_writer_pretty(&mut written, &value).unwrap();
        let text = String::from_utf8(written.0).unwrap();
        assert!(!text.contains(is_unsafe) && text.contains("\\u202e") && text.contains("\\udb40\\udc41"), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
        assert_eq!(safe_json("[\"é\"]"), "[\"é\"]");
    }
}
