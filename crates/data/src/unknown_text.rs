//! Warns of text that its tokenizer was not made for. A loss over tokens that all stand for unknown text is low, and says nothing.

use super::error::Result;
use super::tokenizer::TextTokenizer;
use runner_spec::format::{counted, percent};

/// Reading this many tokens takes a few milliseconds.
pub(super) const TOKENS_READ: u64 = 1 << 20;

/// A larger share of unknown tokens gets a warning. Vocabularies of words lack a few percent of the words in new text.
const TOLERATED: f64 = 0.1;

/// The warning about the tokens of `what`, which `read` hands to its argument, if too many of them stand for text that `tokenizer` does not know.
///
/// # Errors
/// If `read` fails.
pub(super) fn warn_of_unknown_text(
    tokenizer: &TextTokenizer,
    what: &str,
    read: impl FnOnce(&mut dyn FnMut(u32)) -> Result<()>,
) -> Result<Option<String>> {
    let Some((unknown, name)) = tokenizer.unknown() else { return Ok(None) };
    let (mut count, mut total) = (0_u64, 0_u64);
    read(&mut |token| {
        count += u64::from(token == unknown);
        total += 1;
    })?;
    let share = count as f64 / total.max(1) as f64;
    Ok((share > TOLERATED).then(|| {
        format!(
            "{what}: {} of {} are `{name}`, which stands for text that the tokenizer does not know; use a tokenizer that was made for such text",
            percent(share),
            counted(total, "token"),
        )
    }))
}
