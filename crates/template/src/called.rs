//! minijinja's functions of the names that fields may have, too: a template either calls such a name or reads the field.

use super::scan::{Kind, Piece};

/// The functions.
pub(super) const FUNCTIONS: [&str; 3] = ["range", "dict", "namespace"];

/// Whether `text`, with these pieces, calls `name`; `None` if it does not say the name as a variable.
///
/// # Errors
/// If it calls it in one place and not in another.
pub(super) fn is_called(text: &str, pieces: &[Piece], name: &str) -> Result<Option<bool>, String> {
    let tags = pieces.iter().filter(|piece| matches!(piece.kind, Kind::Value | Kind::Block));
    let mut calls = tags.flat_map(|piece| uses(&text[piece.inner.clone()], name));
    let Some(first) = calls.next() else { return Ok(None) };
    if calls.all(|call| call == first) {
        return Ok(Some(first));
    }
    Err(format!("`{name}` is called as the function in one place and read as a field in another: one of them only"))
}

/// For each use of the variable `name` within a tag, whether it is called.
fn uses(tag: &str, name: &str) -> Vec<bool> {
    let bytes = tag.as_bytes();
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80;
    let (mut found, mut at, mut before) = (Vec::new(), 0, b' ');
    while let Some(&byte) = bytes.get(at) {
        let start = at;
        at += 1;
        if matches!(byte, b'"' | b'\'') {
            while bytes.get(at).is_some_and(|&b| b != byte) {
                at += if bytes[at] == b'\\' { 2 } else { 1 };
            }
            at += 1;
        } else if is_word(byte) {
            while bytes.get(at).copied().is_some_and(is_word) {
                at += 1;
            }
            let behind = tag.get(at..).unwrap_or_default().trim_start();
            // An attribute or a filter, or the name of an argument or of what is set.
            let other = matches!(before, b'.' | b'|') || (behind.starts_with('=') && !behind.starts_with("=="));
            if tag.get(start..at) == Some(name) && !other {
                found.push(behind.starts_with('('));
            }
        }
        if !byte.is_ascii_whitespace() {
            before = byte;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::scan::scan;
    use super::*;

    #[test]
    fn calls_are_told_from_fields() {
        let range = |text: &str| is_called(text, &scan(text).unwrap(), "range");
        assert_eq!(range("{{ range }} range(3) {# range(3) #}{% raw %}{{ range() }}{% endraw %}"), Ok(Some(false)));
        assert_eq!(
            range("{% for i in range (3) %}{{ x.range }}{{ 'range' }}{{ \"a\\\" range\" }}{% endfor %}"),
            Ok(Some(true))
        );
        assert_eq!(range("{{ f(range=3) }}{{ x | range }}{{ range_ }}{{ arange }}{{ 'é' }}{{ dict(a=1) }}"), Ok(None));
        assert_eq!(range("{{ range == 3 }}{{ [range] }}{{ 1 if range }}"), Ok(Some(false)));
        assert!(range("{{ range(3) }}{{ range }}").unwrap_err().contains("one of them only"));
        for cut in ["{{ 'range", "{{ 'a\\", "{{ range", "{{ range("] {
            let _ = range(cut);
        }
    }
}
