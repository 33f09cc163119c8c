//! The text that minijinja gets: the template with guards before its tags, and, if asked for, marks in what it prints.
//!
//! Guards do not change the result, and marks are removed from it: a guard stands directly before a tag and has its whitespace control, a
//! mark stands directly before text that is not blank.

use std::collections::BTreeSet;
use std::ops::Range;

use minijinja::{Environment, Error};

use super::builtins::set_whitespace;
use super::tags::{GUARD, ONE, Tag, Tags};

/// The changed text, and the way back from it.
#[derive(Debug)]
pub(super) struct Rewritten {
    pub text: String,
    /// Places in the original, in their order, and the bytes that stand before each in the changed text.
    insertions: Vec<(usize, usize)>,
}

impl Rewritten {
    /// A place in the changed text, in the original.
    fn original(&self, place: usize) -> usize {
        let mut inserted = 0;
        for &(at, bytes) in &self.insertions {
            if place < at + inserted {
                break;
            }
            if place < at + inserted + bytes {
                return at;
            }
            inserted += bytes;
        }
        place - inserted
    }

    pub(super) fn original_range(&self, range: &Range<usize>) -> Range<usize> {
        // The character behind the last one may be inserted.
        let start = self.original(range.start);
        let end = if range.end > range.start { self.original(range.end - 1) + 1 } else { start };
        start..end.max(start)
    }
}

/// The variables of the template `text` that it does not set itself, functions among them.
///
/// # Errors
/// A mistake of syntax in the changed text.
pub(super) fn undeclared_variables(
    name: &str,
    text: &str,
    tags: &Tags,
) -> Result<BTreeSet<String>, (Error, Rewritten)> {
    // Printed before the tag, the variables that minijinja overlooks are found like others.
    let printed = |tag: &Tag, name: &str| (tag.range.start, format!("{{{{ {name} }}}}"));
    let overlooked = tags.tags.iter().flat_map(|tag| overlooked_variables(tag).map(move |name| printed(tag, name)));
    let rewritten = insert(text, overlooked.chain(tags.tags.iter().flat_map(factors)).collect());
    let mut env = Environment::empty();
    set_whitespace(&mut env);
    match env.template_from_named_str(name, &rewritten.text) {
        Ok(template) => Ok(template.undeclared_variables(false).into_iter().filter(|name| name != ONE).collect()),
        Err(error) => Err((error, rewritten)),
    }
}

/// The insertions that give products of a tag with quoted texts the factor [`ONE`]: minijinja would compute constants before a guard runs.
fn factors(tag: &Tag) -> impl Iterator<Item = (usize, String)> {
    tag.stars.iter().filter(|_| tag.has_quoted_text).map(|&star| (star, format!(" {ONE} *")))
}

/// The variables of `tag` that minijinja does not list: those in the names of files and in a filter of a block, and `x` in
/// `set x = x | default(1)`.
fn overlooked_variables(tag: &Tag) -> impl Iterator<Item = &str> {
    let overlooks = |name: &&String| match tag.statement.as_str() {
        "include" | "import" | "from" | "extends" | "filter" => true,
        "set" => tag.assigned.contains(name),
        "with" => tag.assigned == [(*name).clone()],
        _ => false,
    };
    tag.read.iter().filter(overlooks).map(String::as_str)
}

/// Rewrites `text`. A call of [`GUARD`] with the tag's number stands before each tag, and products have their [`factors`]. `mark` gives the
/// character that stands before the given range of `text` when it is printed; `None` if there are no more.
pub(super) fn rewrite(text: &str, tags: &Tags, mut mark: impl FnMut(Range<usize>) -> Option<char>) -> Rewritten {
    let mut insertions: Vec<(usize, String)> = Vec::new();
    for (number, tag) in tags.tags.iter().enumerate() {
        let is_end = tag.range.is_empty();
        let is_value = tag.statement.is_empty() && !is_end;
        let sign = match text.as_bytes().get(tag.range.start + 2) {
            Some(b'-') => "-",
            Some(b'+') => "+",
            // Blanks before a value and at the end stay, those before a block at the start of a line go.
            _ if is_value || is_end => "+",
            _ => "",
        };
        insertions.push((tag.range.start, format!("{{%{sign} do {GUARD}({number}) %}}")));
        if let Some(c) = is_value.then(|| mark(tag.range.clone())).flatten() {
            insertions.push((tag.range.start, format!("{{{{ \"{c}\" }}}}")));
        }
        insertions.extend(factors(tag));
    }
    for literal in &tags.literals {
        let mut start = literal.start;
        for line in text[literal.clone()].split_inclusive(['\n', '\r']) {
            let content = line.trim();
            let at = start + line.len() - line.trim_start().len();
            if let Some(c) = (!content.is_empty()).then(|| mark(at..at + content.len())).flatten() {
                insertions.push((at, c.to_string()));
            }
            start += line.len();
        }
    }
    insert(text, insertions)
}

/// `text` with each of `insertions` before the byte that it names.
fn insert(text: &str, mut insertions: Vec<(usize, String)>) -> Rewritten {
    insertions.sort_by_key(|&(at, _)| at);
    let (mut out, mut copied) = (String::with_capacity(text.len() * 2), 0);
    for (at, inserted) in &insertions {
        out.push_str(&text[copied..*at]);
        out.push_str(inserted);
        copied = *at;
    }
    out.push_str(&text[copied..]);
    let insertions = insertions.into_iter().map(|(at, inserted)| (at, inserted.len())).collect();
    Rewritten { text: out, insertions }
}

#[cfg(test)]
mod tests {
    use super::super::tags::find_tags;
    use super::*;

    #[test]
    fn places_are_found_back() {
        let text = "a: {{ b }}\n  c{% if d %}e{% endif %}";
        let mut marks = 0xF0000_u32..;
        let out = rewrite(text, &find_tags(text).unwrap(), |_| marks.next().and_then(char::from_u32));
        assert_eq!(out.text.matches(GUARD).count(), 4, "before three tags and at the end: {}", out.text);
        for word in ["a:", "b }}", "c{", "d %}", "e{%", "endif %}"] {
            let (from, to) = (text.find(word).unwrap(), out.text.find(word).unwrap());
            assert_eq!(out.original_range(&(to..to + 1)), from..from + 1, "{word}");
        }
    }
}
