//! The text of HellaSwag's items as the task `hellaswag` of lm-eval 0.4 prepares it.

use std::sync::LazyLock;

use regex::Regex;

/// Each `[` up to the next `]` of the same line: Python's `\[.*?\]`.
#[expect(clippy::expect_used, reason = "the expression is part of the program, and tests compile it")]
static BRACKETS: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\[[^\]\n]*\]").expect("a regular expression"));

/// The context of an item: its activity, then the sentence that is given whole and the one that is cut off.
pub(super) fn context(activity_label: &str, ctx_a: &str, ctx_b: &str) -> String {
    clean(&format!("{activity_label}: {ctx_a} {}", capitalize(ctx_b)))
}

/// `text` without the marks of WikiHow's articles, such as `[header]` and `[step]`; `[title]` becomes the end of a sentence.
pub(super) fn clean(text: &str) -> String {
    let text = text.trim_matches(is_python_space).replace(" [title]", ". ");
    BRACKETS.replace_all(&text, "").replace("  ", " ")
}

/// Python's `str.capitalize`: the first character is large, all others are small. Only a first letter that is a digraph such as `ǆ`, Georgian,
/// or Greek with an iota below differs from Python's title case.
fn capitalize(text: &str) -> String {
    let Some(first) = text.chars().next() else { return String::new() };
    let mut out = String::with_capacity(text.len());
    let mut upper = first.to_uppercase();
    out.extend(upper.next());
    // The capital of `ß` is `Ss`.
    out.extend(upper.flat_map(char::to_lowercase));
    // The form of a sigma depends on the characters around it, so the whole text is lowered at once.
    out.extend(text.to_lowercase().chars().skip(first.to_lowercase().count()));
    out
}

/// True if Python's `str.isspace` is. Its four separators of ASCII are not white space in Unicode.
pub(crate) fn is_python_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The right sides are those of `preprocess` in lm-eval 0.4.13, lm_eval/tasks/hellaswag/utils.py.
    #[test]
    fn text_is_cleaned_as_by_lm_eval() {
        for (text, cleaned) in [
            ("[header] How to bake [title] Mix. [step] Stir  it.", " How to bake. Mix. Stir it."),
            (" \u{1c}a [title][b]  c\u{a0} ", "a.  c"),
            ("a [b\n] c [d [e] f] g]", "a [b\n] c f] g]"),
            ("a    b []c", "a  b c"),
            ("no [end", "no [end"),
            ("", ""),
        ] {
            assert_eq!(clean(text), cleaned, "{text:?}");
        }
    }

    /// The right sides are those of the same file's `process_docs`.
    #[test]
    fn a_context_starts_with_its_activity() {
        assert_eq!(context("Roof removal", "A man sits on a roof.", "he"), "Roof removal: A man sits on a roof. He");
        assert_eq!(context("Baking", "[header] How to bake [title] Mix.", ""), "Baking: How to bake. Mix.");
        assert_eq!(context("A", "b", "the Man in NY"), "A: b The man in ny");
        assert_eq!(context("A", "b", "ßA ΑΣ ΑΣ."), "A: b Ssa ας ας.");
    }
}
