//! The tags and literal texts of a template, as minijinja's own tokenizer finds them.

use std::ops::Range;

use minijinja::machinery::{Token, WhitespaceConfig, tokenize};

/// Words that are not the names of variables, separated by blanks.
const KEYWORDS: &str =
    "and or not is in if else true True false False none None as context ignore import missing recursive with without";

/// A `{{ … }}` or a `{% … %}`.
#[derive(Debug, Clone, Default)]
pub(super) struct Tag {
    pub range: Range<usize>,
    /// The name of the statement; empty for `{{ … }}`.
    pub statement: String,
    /// Variables that it may read, each once.
    pub read: Vec<String>,
    /// Names that it gives a value, as in `set x = …`, `import … as x` and `f(x=…)`.
    pub assigned: Vec<String>,
}

/// The parts of one template.
#[derive(Debug, Clone, Default)]
pub(super) struct Tags {
    pub tags: Vec<Tag>,
    /// Text that is printed as it is.
    pub literals: Vec<Range<usize>>,
}

/// A line with nothing but a block leaves nothing behind, and the end of the file stays.
const WHITESPACE: WhitespaceConfig =
    WhitespaceConfig { keep_trailing_newline: true, lstrip_blocks: true, trim_blocks: true };

/// Finds the tags of `text`. After a mistake of syntax there are no more; minijinja reports it when it compiles the text.
pub(super) fn find_tags(text: &str) -> Tags {
    let mut found = Tags::default();
    let mut tag = Tag::default();
    // True for the names of an import, which follow the name of its file.
    let mut is_imported = false;
    let mut previous = [Token::BlockEnd, Token::BlockEnd];
    let mut tokens =
        tokenize(text, false, minijinja::syntax::SyntaxConfig, WHITESPACE).map_while(Result::ok).peekable();
    while let Some((token, span)) = tokens.next() {
        let (start, end) = (span.start_offset as usize, span.end_offset as usize);
        match &token {
            Token::TemplateData(_) => found.literals.push(start..end),
            Token::VariableStart | Token::BlockStart => {
                tag = Tag { range: start..end, ..Tag::default() };
                is_imported = false;
            }
            Token::VariableEnd | Token::BlockEnd => {
                tag.range.end = end;
                found.tags.push(std::mem::take(&mut tag));
            }
            Token::Ident(name) => match (&previous, tokens.peek().map(|(next, _)| next)) {
                ([_, Token::BlockStart], _) => (*name).clone_into(&mut tag.statement),
                // Attributes and filters, and the names of tests.
                (
                    [_, Token::Dot | Token::Pipe | Token::Ident("is")]
                    | [Token::Ident("is"), Token::Ident("not")]
                    | [Token::BlockStart, Token::Ident("filter")],
                    _,
                ) => {}
                (_, Some(Token::Assign)) => tag.assigned.push((*name).to_owned()),
                _ if KEYWORDS.split(' ').any(|keyword| keyword == *name) => {
                    is_imported |= match tag.statement.as_str() {
                        "import" => *name == "as",
                        "from" => *name == "import",
                        _ => false,
                    };
                }
                _ if is_imported => tag.assigned.push((*name).to_owned()),
                // Functions and macros.
                (_, Some(Token::ParenOpen)) => {}
                _ if tag.read.iter().any(|read| read == name) => {}
                _ => tag.read.push((*name).to_owned()),
            },
            _ => {}
        }
        let [_, last] = previous;
        previous = [last, token];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_and_literals_are_found() {
        let text = "a {{ '}}' }} b{%- if x -%}c{# {{ #}{{ {'a': {}} }}{% raw %}{{ }}{%- endraw %}é {{ {1: 2}}";
        let found = find_tags(text);
        let tags: Vec<_> = found.tags.iter().map(|tag| (&text[tag.range.clone()], tag.statement.as_str())).collect();
        assert_eq!(tags, [("{{ '}}' }}", ""), ("{%- if x -%}", "if"), ("{{ {'a': {}} }}", "")]);
        let literals: Vec<_> = found.literals.iter().map(|range| &text[range.clone()]).collect();
        assert_eq!(literals, ["a ", " b", "c", "{{ }}", "é "]);
        for broken in ["{{", "{%", "{#", "{#-", "{% raw %}", "{{ 'a\\", "{{-", "{", "{{ é", "{#}"] {
            assert!(find_tags(broken).tags.is_empty(), "{broken}");
        }
    }

    #[test]
    fn names_are_those_that_may_be_variables() {
        let text = "{{ a.b|c(d, e=f[g]) if not h is defined else 1e5 * 'x' }}";
        let tag = &find_tags(text).tags[0];
        assert_eq!((tag.read.join(" ").as_str(), tag.assigned.join(" ").as_str()), ("a d f g h", "e"));
        let read_and_assigned = |text: &str| {
            let tag = find_tags(text).tags.swap_remove(0);
            format!("{} | {}", tag.read.join(" "), tag.assigned.join(" "))
        };
        assert_eq!(read_and_assigned("{% import a ~ '.j2' as b with context %}"), "a | b");
        assert_eq!(read_and_assigned("{% from a import b as c, d %}"), "a | b c d");
        assert_eq!(read_and_assigned("{% include [a, b] ignore missing %}"), "a b | ");
        assert_eq!(read_and_assigned("{% filter replace(a, 'b') %}"), "a | ");
        assert_eq!(read_and_assigned("{% for i in range (n) %}{% endfor %}"), "i n | ");
    }
}
