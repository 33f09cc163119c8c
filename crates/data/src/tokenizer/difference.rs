//! Whether the ids of one tokenizer stand for the same text in another.

use std::fmt;

use super::text_tokenizer::TextTokenizer;

/// Ids that two tokenizers have in common, and that stand for different text in them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenDifference {
    /// The ids that both tokenizers have.
    pub common: u32,
    /// How many of them stand for different text.
    pub differing: u32,
    /// The first of these, with its text in either tokenizer.
    pub first: (u32, String, String),
}

impl fmt::Display for TokenDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { common, differing, first: (id, a, b) } = self;
        write!(f, "{differing} of {common} ids stand for different text ({id} is {a:?}, not {b:?})")
    }
}

/// Compares the text of each id that both tokenizers have. `None` if no text differs, or a tokenizer knows ids alone.
pub fn token_difference(a: &TextTokenizer, b: &TextTokenizer) -> Option<TokenDifference> {
    if a.hash() == b.hash() || !a.knows_text() || !b.knows_text() {
        return None;
    }
    let common = u32::try_from(a.vocab_size().min(b.vocab_size())).unwrap_or(u32::MAX);
    let text = |id: u32| (id, a.piece(id), b.piece(id));
    let mut differing = (0..common).map(text).filter(|(_, a, b)| a != b);
    let first = differing.next()?;
    let others = differing.fold(0, |count, _| count + 1);
    Some(TokenDifference { common, differing: 1 + others, first })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn chars(text: &str) -> TextTokenizer {
        TextTokenizer::chars(&text.chars().collect::<BTreeSet<_>>(), text.to_owned())
    }

    #[test]
    fn counts_ids_that_stand_for_different_text() {
        let found = token_difference(&chars("abd"), &chars("abcd")).unwrap();
        assert_eq!(found, TokenDifference { common: 3, differing: 1, first: (2, "d".into(), "c".into()) });
        assert_eq!(found.to_string(), r#"1 of 3 ids stand for different text (2 is "d", not "c")"#);
        assert_eq!(token_difference(&chars("ab"), &chars("abcd")), None, "further tokens");
        assert_eq!(token_difference(&chars("ab"), &TextTokenizer::ids(2)), None, "ids alone");
    }
}
