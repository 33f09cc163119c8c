//! Whether the ids of one tokenizer stand for the same text in another.

use super::text_tokenizer::TextTokenizer;

/// Says how many ids of two tokenizers stand for different text, and the first of them. `None` if no text differs, or a tokenizer knows ids
/// alone. Ids that only one tokenizer has are not compared.
pub fn token_difference(a: &TextTokenizer, b: &TextTokenizer) -> Option<String> {
    if a.hash() == b.hash() || !a.knows_text() || !b.knows_text() {
        return None;
    }
    let common = u32::try_from(a.vocab_size().min(b.vocab_size())).unwrap_or(u32::MAX);
    let mut differing = (0..common).map(|id| (id, a.piece(id), b.piece(id))).filter(|(_, a, b)| a != b);
    let (id, a, b) = differing.next()?;
    let count = 1 + differing.count();
    Some(format!("{count} of {common} ids stand for different text ({id} is {a:?}, not {b:?})"))
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
        assert_eq!(found, r#"1 of 3 ids stand for different text (2 is "d", not "c")"#);
        assert_eq!(token_difference(&chars("ab"), &chars("abcd")), None, "further tokens");
        assert_eq!(token_difference(&chars("ab"), &TextTokenizer::ids(2)), None, "ids alone");
    }
}
