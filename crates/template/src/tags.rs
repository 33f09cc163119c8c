//! The tags and literal texts of a template, as minijinja's own tokenizer finds them.
//!
//! Limits that keep parsing shallow are checked here.

use std::ops::Range;

use minijinja::machinery::{Token, WhitespaceConfig, tokenize};

/// Tags of one file.
const MAX_TAGS: usize = 10_000;
/// Operators, dots, brackets and pipes of one tag: an expression tree may be as deep as it has them.
const MAX_OPERATORS: usize = 1000;

/// Words between operands. They nest expressions, so they count as operators.
const OPERATORS: [&str; 7] = ["and", "or", "not", "is", "in", "if", "else"];
/// Other words that are not the names of variables, separated by blanks.
const KEYWORDS: &str = "true True false False none None as context ignore import missing recursive with without";

/// The function that [`rewrite`](super::rewrite) calls before each tag. A template may not use the name.
pub(super) const GUARD: &str = "_runner_guard_";
/// A variable whose value is 1, which minijinja cannot compute with before a guard runs. A template may not use the name.
pub(super) const ONE: &str = "_runner_one_";

/// A `{{ … }}` or a `{% … %}`.
#[derive(Debug, Clone, Default)]
pub(super) struct Tag {
    pub range: Range<usize>,
    /// The name of the statement; empty for `{{ … }}`.
    pub statement: String,
    /// Bytes of literal text between the tag before this one and this one.
    pub literal_bytes: usize,
    /// Variables that it may read, each once.
    pub read: Vec<String>,
    /// Names that it gives a value, as in `set x = …`, `import … as x` and `f(x=…)`.
    pub assigned: Vec<String>,
    /// Functions and macros that it calls, as in `range(3)`, each once.
    pub called: Vec<String>,
    /// Ends of the operators `*`, which may repeat texts.
    pub stars: Vec<usize>,
    pub has_quoted_text: bool,
}

/// The parts of one template.
#[derive(Debug, Clone, Default)]
pub(super) struct Tags {
    /// The tags in their order, and behind them an empty one at the end of the text.
    pub tags: Vec<Tag>,
    /// Text that is printed as it is.
    pub literals: Vec<Range<usize>>,
}

/// A limit that a template exceeds, and where.
#[derive(Debug)]
pub(super) struct LimitExceeded {
    pub range: Range<usize>,
    pub message: String,
    pub help: &'static str,
}

/// A line with nothing but a block leaves nothing behind, and the end of the file stays.
const WHITESPACE: WhitespaceConfig =
    WhitespaceConfig { keep_trailing_newline: true, lstrip_blocks: true, trim_blocks: true };

/// Finds the tags of `text`. After a mistake of syntax there are no more; minijinja reports it when it compiles the text.
pub(super) fn find_tags(text: &str) -> Result<Tags, LimitExceeded> {
    let mut found = Tags::default();
    let (mut tag, mut operators, mut literal_bytes) = (Tag::default(), 0, 0);
    // True for the names of an import, which follow the name of its file.
    let mut is_imported = false;
    let mut previous = [Token::BlockEnd, Token::BlockEnd];
    let mut tokens =
        tokenize(text, false, minijinja::syntax::SyntaxConfig, WHITESPACE).map_while(Result::ok).peekable();
    while let Some((token, span)) = tokens.next() {
        let (start, end) = (span.start_offset as usize, span.end_offset as usize);
        operators += usize::from(is_operator(&token));
        if operators > MAX_OPERATORS {
            let message = format!("more than {MAX_OPERATORS} operators in one tag");
            return Err(LimitExceeded { range: tag.range.start..end, message, help: "split it with `{% set … %}`" });
        }
        match &token {
            Token::TemplateData(_) => {
                literal_bytes += end - start;
                found.literals.push(start..end);
            }
            Token::VariableStart | Token::BlockStart => {
                tag = Tag { range: start..end, literal_bytes, ..Tag::default() };
                (operators, literal_bytes, is_imported) = (0, 0, false);
            }
            Token::VariableEnd | Token::BlockEnd => {
                tag.range.end = end;
                found.tags.push(std::mem::take(&mut tag));
                if found.tags.len() > MAX_TAGS {
                    let message = format!("more than {MAX_TAGS} tags in one template");
                    return Err(LimitExceeded { range: start..end, message, help: "an experiment needs a few dozen" });
                }
            }
            Token::Ident(GUARD | ONE) => {
                let message = format!("the name `{}` is reserved", &text[start..end]);
                return Err(LimitExceeded { range: start..end, message, help: "use a different name" });
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
                _ if OPERATORS.contains(name) || KEYWORDS.split(' ').any(|keyword| keyword == *name) => {
                    is_imported |= match tag.statement.as_str() {
                        "import" => *name == "as",
                        "from" => *name == "import",
                        _ => false,
                    };
                }
                _ if is_imported => tag.assigned.push((*name).to_owned()),
                (_, next) => {
                    let names = if matches!(next, Some(Token::ParenOpen)) { &mut tag.called } else { &mut tag.read };
                    if !names.iter().any(|n| n == name) {
                        names.push((*name).to_owned());
                    }
                }
            },
            Token::Mul if !matches!(previous[1], Token::ParenOpen | Token::Comma) => tag.stars.push(end),
            Token::Str(_) | Token::String(_) => tag.has_quoted_text = true,
            _ => {}
        }
        let [_, last] = previous;
        previous = [last, token];
    }
    found.tags.push(Tag { range: text.len()..text.len(), literal_bytes, ..Tag::default() });
    Ok(found)
}

fn is_operator(token: &Token<'_>) -> bool {
    match token {
        Token::Ident(name) => OPERATORS.contains(name),
        Token::TemplateData(_)
        | Token::VariableStart
        | Token::VariableEnd
        | Token::BlockStart
        | Token::BlockEnd
        | Token::Str(_)
        | Token::String(_)
        | Token::Int(_)
        | Token::Int128(_)
        | Token::Float(_)
        | Token::Comma
        | Token::BracketClose
        | Token::ParenClose
        | Token::BraceClose => false,
        _ => true,
    }
}

/// The names in `{# env: A, B #}` comments at the top of the file: before all else but blank lines and YAML comments.
pub(super) fn listed_env(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut rest = text.trim_start();
    loop {
        if let Some((comment, behind)) = rest.strip_prefix("{#").and_then(|rest| rest.split_once("#}")) {
            if let Some(list) = comment.trim_matches(['-', '+']).trim().strip_prefix("env:") {
                let is_separator = |c: char| c == ',' || c.is_whitespace();
                names.extend(list.split(is_separator).filter(|name| !name.is_empty()).map(str::to_owned));
            }
            rest = behind.trim_start();
        } else if rest.starts_with('#') {
            rest = rest.split_once('\n').map_or("", |(_, behind)| behind).trim_start();
        } else {
            return names;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_and_literals_are_found() {
        let text = "a {{ '}}' }} b{%- if x -%}c{# {{ #}{{ {'a': {}} }}{% raw %}{{ }}{%- endraw %}é {{ {1: 2}}";
        let found = find_tags(text).unwrap();
        let tags: Vec<_> = found.tags.iter().map(|tag| (&text[tag.range.clone()], tag.statement.as_str())).collect();
        assert_eq!(tags, [("{{ '}}' }}", ""), ("{%- if x -%}", "if"), ("{{ {'a': {}} }}", ""), ("", "")]);
        let literals: Vec<_> = found.literals.iter().map(|range| &text[range.clone()]).collect();
        assert_eq!(literals, ["a ", " b", "c", "{{ }}", "é "]);
        assert_eq!(found.tags.iter().map(|tag| tag.literal_bytes).collect::<Vec<_>>(), [2, 2, 1, 0]);
        for broken in ["{{", "{%", "{#", "{#-", "{% raw %}", "{{ 'a\\", "{{-", "{", "{{ é", "{#}"] {
            assert_eq!(find_tags(broken).unwrap().tags.len(), 1, "{broken}");
        }
    }

    #[test]
    fn names_are_those_that_may_be_variables() {
        let text = "{{ a.b|c(d, e=f[g]) if not h is defined else 1e5 * 'x' }}";
        let tag = &find_tags(text).unwrap().tags[0];
        assert_eq!(
            (tag.read.as_slice(), tag.called.len()),
            (["a", "d", "f", "g", "h"].map(str::to_owned).as_slice(), 0)
        );
        assert_eq!(tag.assigned, ["e"]);
        assert_eq!((tag.stars.len(), tag.has_quoted_text), (1, true));
        let read_and_assigned = |text: &str| {
            let tag = find_tags(text).unwrap().tags.swap_remove(0);
            format!("{} | {}", tag.read.join(" "), tag.assigned.join(" "))
        };
        assert_eq!(read_and_assigned("{% import a ~ '.j2' as b with context %}"), "a | b");
        assert_eq!(read_and_assigned("{% from a import b as c, d %}"), "a | b c d");
        assert_eq!(read_and_assigned("{% include [a, b] ignore missing %}"), "a b | ");
        assert_eq!(read_and_assigned("{% filter replace(a, 'b') %}"), "a | ");
    }

    #[test]
    fn distinguishes_calls_from_variables() {
        let called =
            |text: &str| find_tags(text).unwrap().tags.into_iter().flat_map(|tag| tag.called).collect::<Vec<_>>();
        assert!(called("{{ range }} range(3) {# range(3) #}{% raw %}{{ range() }}{% endraw %}").is_empty());
        assert_eq!(called("{% for i in range (3) %}{{ x.range(1) | range(2) }}{{ 'range()' }}{% endfor %}"), ["range"]);
        assert_eq!(called("{{ f(range=3) }}{{ x | range }}{{ range_ }}{{ arange }}{{ dict(a=1) }}"), ["f", "dict"]);
        assert!(called("{{ range == 3 }}{{ [range] }}{{ 1 if range }}").is_empty());
    }

    #[test]
    fn refuses_text_that_would_be_parsed_too_deeply() {
        assert!(find_tags(&format!("{{{{ x{} }}}}", "|f".repeat(1001))).unwrap_err().message.contains("operators"));
        assert!(find_tags(&"{{ x }}".repeat(10_001)).unwrap_err().message.contains("tags"));
        assert!(find_tags("{% set _runner_guard_ = 1 %}").is_err());
    }

    #[test]
    fn env_is_listed_at_the_top() {
        let text = "# schema\n{# what it is #}\n{#- env: A, B_2\n C -#}\nx: 1\n{# env: D #}";
        assert_eq!(listed_env(text), ["A", "B_2", "C"]);
        assert!(listed_env("{% set x = 1 %}{# env: A #}").is_empty());
    }
}
