//! A warning if a model's weights are read with a tokenizer other than the one beside them.

use runner_data::{TextTokenizer, load_tokenizer, token_difference};
use runner_weights::{OpenedWeights, tokenizer_in};

/// The warning if an id stands for different text in `tokenizer`, which `key` names, and in the tokenizer in the folder of `weights`. `None` if
/// the folder has no tokenizer that can be read.
pub fn foreign_tokenizer(weights: &OpenedWeights, tokenizer: &TextTokenizer, key: &str) -> Option<String> {
    // A model file of llm.c describes itself, and the files beside it may belong to other models.
    let description = Some(&weights.described.file).filter(|file| !weights.files.contains(file))?;
    let beside = load_tokenizer(&tokenizer_in(description.parent()?)?).ok()?;
    let difference = token_difference(tokenizer, &beside)?;
    Some(format!(
        "`{key}` differs from the tokenizer beside the weights: {difference}, so the model reads other tokens than it was trained on; leave \
         `{key}` out to use the tokenizer beside the weights"
    ))
}
