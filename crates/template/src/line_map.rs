//! Maps the lines of a rendered text to the lines of its templates.
//!
//! The template is rendered a second time with marks: characters for private use, one before each printed value and each line of
//! literal text. Their places in the second text are the places of values and lines in the first.

use super::loader::FileRange;
use runner_spec::diagnostic::TemplatePlace;
use runner_yaml::source::{TemplateLines, lines};

const FIRST: u32 = 0x000F_0000;
/// Two planes, without the last two code points of each, which are not characters.
const PLANE: u32 = 0xFFFE;

/// The character of mark `i`, if there are so many.
pub(super) fn mark_character(i: usize) -> Option<char> {
    let i = u32::try_from(i).ok().filter(|i| *i < 2 * PLANE)?;
    char::from_u32(if i < PLANE { FIRST + i } else { FIRST + 0x10000 + i - PLANE })
}

fn mark_index(c: char) -> Option<usize> {
    let c = (c as u32).checked_sub(FIRST)?;
    let (plane, i) = (c / 0x10000, c % 0x10000);
    (i < PLANE).then_some((plane * PLANE + i) as usize)
}

/// Finds the places of templates that a rendered text comes from.
#[derive(Debug)]
pub struct LineMap {
    text: String,
    /// The byte at which each line begins.
    starts: Vec<usize>,
    /// The ranges of templates that marks stand for, by the marks' places in the text.
    marks: Vec<(usize, FileRange)>,
}

impl LineMap {
    /// `None` if `marked` without its marks is not `text`: then the marks have changed the rendered text.
    pub(super) fn new(text: &str, marked: &str, table: &[FileRange]) -> Option<Self> {
        let mut marks = Vec::new();
        let mut plain = String::with_capacity(text.len());
        for c in marked.chars() {
            match mark_index(c) {
                Some(i) => marks.push((plain.len(), table.get(i)?.clone())),
                None => plain.push(c),
            }
        }
        let starts = lines(text).map(|line| line.as_ptr() as usize - text.as_ptr() as usize).collect();
        (plain == text).then_some(Self { text: plain, starts, marks })
    }
}

impl TemplateLines for LineMap {
    fn locate(&self, line: usize, column: usize, length: usize) -> Option<TemplatePlace> {
        let start = *self.starts.get(line.checked_sub(1)?)?;
        let rest = self.text.get(start..)?;
        let at = start + rest.char_indices().nth(column.saturating_sub(1)).map_or(rest.len(), |(i, _)| i);
        let behind = self.marks.partition_point(|(place, _)| *place <= at);
        let (place, mark) = self.marks.get(behind.saturating_sub(1))?;
        let (from, mut found) = (*place, mark.clone());
        // Literal text is found to the character.
        let is_literal = self.text.get(from..).is_some_and(|printed| printed.starts_with(mark.code()));
        if is_literal && at < from + mark.range.len() && at >= from {
            let start = mark.range.start + (at - from);
            let left = &mark.file.text[start..mark.range.end];
            let end = left.char_indices().nth(length).map_or(mark.range.end, |(i, _)| start + i);
            found.range = start..end;
        }
        Some(found.template_place())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mark_is_a_different_character() {
        for i in [0, 1, 65533, 65534, 131_067] {
            assert_eq!(mark_index(mark_character(i).unwrap()), Some(i), "{i}");
        }
        assert_eq!(mark_character(131_068), None);
        assert_eq!(mark_index('a'), None);
        assert_eq!(mark_index('\u{10FFFF}'), None);
    }
}
