//! Templates with texts inserted into them: marks in what they print, and variables that minijinja would overlook.

use std::collections::BTreeSet;
use std::ops::Range;

use minijinja::{Environment, Error};

use super::builtins::set_whitespace;
use super::tags::{Tag, Tags};

/// The variables of the template `text` that it does not set itself, functions among them.
///
/// # Errors
/// A mistake of syntax.
pub(super) fn undeclared_variables(name: &str, text: &str, tags: &Tags) -> Result<BTreeSet<String>, Error> {
    let mut env = Environment::empty();
    set_whitespace(&mut env);
    env.template_from_named_str(name, text)?;
    // Printed before the tag, the variables that minijinja overlooks are found like others.
    let printed = |tag: &Tag, name: &str| (tag.range.start, format!("{{{{ {name} }}}}"));
    let overlooked = tags.tags.iter().flat_map(|tag| overlooked_variables(tag).map(move |name| printed(tag, name)));
    let text = insert(text, overlooked.collect());
    Ok(env.template_from_named_str(name, &text)?.undeclared_variables(false).into_iter().collect())
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

/// `text` with marks in what it prints. `mark` gives the character that stands before the given range of `text` when it is printed; `None`
/// if there are no more.
pub(super) fn with_marks(text: &str, tags: &Tags, mut mark: impl FnMut(Range<usize>) -> Option<char>) -> String {
    let mut insertions: Vec<(usize, String)> = Vec::new();
    for tag in tags.tags.iter().filter(|tag| tag.statement.is_empty()) {
        // Whitespace that the value removes is before the mark.
        let sign = if text[tag.range.start..].starts_with("{{-") { "-" } else { "" };
        insertions.extend(mark(tag.range.clone()).map(|c| (tag.range.start, format!("{{{{{sign} \"{c}\" }}}}"))));
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
fn insert(text: &str, mut insertions: Vec<(usize, String)>) -> String {
    insertions.sort_by_key(|&(at, _)| at);
    let (mut out, mut copied) = (String::with_capacity(text.len() * 2), 0);
    for (at, inserted) in &insertions {
        out.push_str(&text[copied..*at]);
        out.push_str(inserted);
        copied = *at;
    }
    out.push_str(&text[copied..]);
    out
}
