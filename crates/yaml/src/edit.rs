//! Sets single values in the text of a YAML file. The rest of the text stays as it is, with its comments.

use std::path::Path;

use super::source::{Place, Source};
use super::tree::{self, Entry, Node, Yaml};

/// `text` with `value`, which is YAML on one line, at the path `key` of one or two keys, such as `batch.micro_batch`. A section that is
/// replaced loses its comments. `None` if the text is written in a form that is not edited; the caller checks that what it gets reads as
/// it should.
#[must_use]
pub fn set_value(text: &str, key: &str, value: &str) -> Option<String> {
    let parsed = tree::parse(Source::file(Path::new(""), text.to_owned()));
    let root = parsed.root.filter(|_| parsed.mistakes.is_empty())?;
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let Yaml::Map(entries) = &root.value else { return None };
    if starts_flow(&lines, root.place) {
        return None;
    }
    let Some((section, key)) = key.split_once('.') else { return Some(set_entry(&lines, entries, key, value)) };
    let inside = entries.iter().find(|entry| entry.key == section).map(|entry| &entry.value);
    match inside.map(|node| (node, &node.value)) {
        Some((node, Yaml::Map(inner))) if starts_flow(&lines, node.place) => {
            set_in_flow(&lines, node.place, inner, key, value)
        }
        Some((_, Yaml::Map(inner))) if !inner.is_empty() => Some(set_entry(&lines, inner, key, value)),
        Some((node, _)) if !node.is_null() => None,
        _ => Some(set_entry(&lines, entries, section, &format!("{{{key}: {value}}}"))),
    }
}

/// Sets `key` among `entries` of a block mapping, which has at least one unless it is the whole file.
fn set_entry(lines: &[&str], entries: &[Entry], key: &str, value: &str) -> String {
    let column = entries.first().map_or(1, |entry| entry.place.column);
    let line = format!("{}{key}: {value}\n", " ".repeat(column - 1));
    let (start, end) = match entries.iter().find(|entry| entry.key == key) {
        Some(entry) => (entry.place.line - 1, end_of_entry(lines, entry.place)),
        // A new key of the file comes last, one of a section first.
        None if column == 1 => (lines.len(), lines.len()),
        None => {
            entries.first().map_or((lines.len(), lines.len()), |first| (first.place.line - 1, first.place.line - 1))
        }
    };
    let mut before = lines[..start].concat();
    if !before.is_empty() && !before.ends_with('\n') {
        before.push('\n');
    }
    format!("{before}{line}{}", lines[end..].concat())
}

/// The line after the entry whose key is at `place`: comments and blank lines before the next entry belong to that.
fn end_of_entry(lines: &[&str], place: Place) -> usize {
    let is_content = |line: &str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    let belongs = |line: &str| line.len() - line.trim_start().len() >= place.column;
    let after = &lines[place.line..];
    let next = after.iter().take_while(|line| !is_content(line) || belongs(line)).count();
    let last = after[..next].iter().rposition(|line| is_content(line)).map_or(0, |last| last + 1);
    place.line + last
}

/// Sets `key` among `entries` of the flow mapping at `place`; `None` if its value is a mapping or a list on several lines.
fn set_in_flow(lines: &[&str], place: Place, entries: &[Entry], key: &str, value: &str) -> Option<String> {
    let line_at = |place: Place| lines.get(place.line - 1).copied();
    let (at, length, new) = match entries.iter().find(|entry| entry.key == key) {
        Some(Entry { value: Node { place, value: Yaml::Scalar { .. }, .. }, .. }) => {
            (*place, place.length, value.to_owned())
        }
        Some(entry) => {
            (entry.value.place, length_in_brackets(line_at(entry.value.place)?, entry.value.place)?, value.to_owned())
        }
        None => {
            let more = if entries.is_empty() { "" } else { ", " };
            (Place { column: place.column + 1, ..place }, 0, format!("{key}: {value}{more}"))
        }
    };
    let line = line_at(at)?;
    let byte = |column: usize| line.char_indices().map(|(i, _)| i).chain([line.len()]).nth(column - 1);
    let (start, end) = (byte(at.column)?, byte(at.column + length)?);
    let edited = format!("{}{new}{}", &line[..start], &line[end..]);
    Some(format!("{}{edited}{}", lines[..at.line - 1].concat(), lines[at.line..].concat()))
}

/// The characters of `line` from the bracket at `place` to the one that closes it.
fn length_in_brackets(line: &str, place: Place) -> Option<usize> {
    let mut depth = 0;
    let closes = |c: char| {
        depth += i32::from(matches!(c, '{' | '[')) - i32::from(matches!(c, '}' | ']'));
        depth == 0
    };
    line.chars().skip(place.column - 1).position(closes).map(|last| last + 1)
}

fn starts_flow(lines: &[&str], place: Place) -> bool {
    lines.get(place.line - 1).and_then(|line| line.chars().nth(place.column - 1)) == Some('{')
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# About the run.
name: a    # short
parallel:
  # Two of them.
  mode: ddp
  replicas: 2

# The batch.
batch: {sequences: 8, micro_batch: 2}   # rows
train:
  # Few.
  steps: 5
  clip_norm: 1
eval: {}
";

    fn lines_changed(key: &str, value: &str) -> Vec<String> {
        let edited = set_value(TEXT, key, value).expect("an edited text");
        let lost =
            TEXT.lines().filter(|line| !edited.lines().any(|other| other == *line)).map(|line| format!("-{line}"));
        let new =
            edited.lines().filter(|line| !TEXT.lines().any(|other| other == *line)).map(|line| format!("+{line}"));
        lost.chain(new).collect()
    }

    #[test]
    fn values_change_where_they_are() {
        assert_eq!(lines_changed("name", "b"), ["-name: a    # short", "+name: b"]);
        let section =
            ["-parallel:", "-  # Two of them.", "-  mode: ddp", "-  replicas: 2", "+parallel: {mode: single}"];
        assert_eq!(lines_changed("parallel", "{mode: single}"), section);
        let batch = "-batch: {sequences: 8, micro_batch: 2}   # rows";
        assert_eq!(
            lines_changed("batch.micro_batch", "16"),
            [batch, "+batch: {sequences: 8, micro_batch: 16}   # rows"]
        );
        let inserted = "+batch: {tokens: 4, sequences: 8, micro_batch: 2}   # rows";
        assert_eq!(lines_changed("batch.tokens", "4"), [batch, inserted]);
        assert_eq!(lines_changed("train.steps", "6"), ["-  steps: 5", "+  steps: 6"]);
        assert_eq!(lines_changed("train.recompute", "block"), ["+  recompute: block"]);
        assert_eq!(lines_changed("eval.loss", "null"), ["-eval: {}", "+eval: {loss: null}"]);
        assert_eq!(lines_changed("log.every", "1"), ["+log: {every: 1}"]);
    }

    #[test]
    fn edited_texts_read_as_they_should() {
        for (text, key, want) in [
            ("a: 1", "b", "a: 1\nb: 2\n"),
            ("a:\n- 1\n- 2\nb: 1\n", "b", "a:\n- 1\n- 2\nb: 2\n"),
            ("a:\n  b: 1\n  c:\n    d: 3\n# end\n", "a.c", "a:\n  b: 1\n  c: 2\n# end\n"),
            ("a: {é: 1, b: 'x'}\n", "a.b", "a: {é: 1, b: 2}\n"),
            ("a:\nb: 1\n", "a.c", "a: {c: 2}\nb: 1\n"),
            ("a: {b: {c: [1]}, d: 1}  # x\n", "a.b", "a: {b: 2, d: 1}  # x\n"),
        ] {
            assert_eq!(set_value(text, key, "2").as_deref(), Some(want), "{text}");
        }
        for (text, key) in
            [("{a: 1}", "a"), ("- 1", "a"), ("a: [1", "a"), ("a: {b: {c: 1,\n d: 2}}", "a.b"), ("a: 1", "a.b")]
        {
            assert_eq!(set_value(text, key, "2"), None, "{text}");
        }
    }
}
