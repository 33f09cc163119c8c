//! Token ids as text, for tokens whose tokenizer is unknown.

use runner_spec::error::PlainError;

/// The message about text that a model without a tokenizer should read.
pub(super) const NO_TOKENIZER: &str =
    "there is no tokenizer to turn text into tokens; name the one that made the token shards";

/// The ids in `text`, which blanks or commas separate, as in `464 3290`. A vocabulary has `size` ids.
///
/// # Errors
/// If a part of the text is not an id, or is beyond the vocabulary.
pub(super) fn parse(text: &str, size: usize) -> Result<Vec<u32>, PlainError> {
    let parts = text.split(|c: char| c.is_whitespace() || c == ',').filter(|part| !part.is_empty());
    let id = |part: &str| match part.parse::<u32>() {
        Ok(id) if (id as usize) < size => Ok(id),
        Ok(id) => Err(PlainError::request(format!("the id {id} is beyond the vocabulary of {size}"))),
        Err(_) => {
            let part: String = part.chars().take(20).collect();
            Err(PlainError::request(format!(
                "{part:?} is not an id: there is no tokenizer, so a prompt must be ids, such as `1 2 3`; for text, name the tokenizer that made \
                 the token shards"
            )))
        }
    };
    parts.map(id).collect()
}

/// The text of `ids`: each after a blank, so that a continuation joins its prompt.
pub(super) fn text(ids: &[u32]) -> String {
    let words: Vec<String> = ids.iter().map(|id| format!(" {id}")).collect();
    words.concat()
}

#[cfg(test)]
mod tests {
    use super::super::TextTokenizer;

    #[test]
    fn prompts_and_samples_are_ids() {
        let ids = TextTokenizer::ids(50);
        assert_eq!(ids.encode_prompt(" 1,2  49\n").unwrap(), [1, 2, 49]);
        assert_eq!((ids.encode_prompt("").unwrap(), ids.decode(&[7, 8])), (vec![], " 7 8".to_owned()));
        assert!(
            ids.encode_prompt("1 50").unwrap_err().to_string().contains("the id 50 is beyond the vocabulary of 50")
        );
        let error = ids.encode_prompt("Once 1").unwrap_err().to_string();
        assert!(error.contains("\"Once\" is not an id") && error.contains("name the tokenizer"), "{error}");
        assert!(ids.encode_document("1 2").unwrap_err().to_string().contains("there is no tokenizer"));
        assert_eq!(ids.hash(), TextTokenizer::ids(60).hash());
        assert!(!ids.knows_text() && TextTokenizer::bytes().knows_text());
    }
}
