//! Warnings about inputs: text that a model reads in part, and tokenizers that differ from that of the weights.

use runner_data::{Prepared, TextTokenizer, load_tokenizer, token_difference};
use runner_spec::data::CutPart;
use runner_spec::error::Result;
use runner_spec::experiment::{Experiment, task_key};
use runner_spec::format::counted;
use runner_weights::OpenedWeights;

use crate::observer::{RunEvent, RunObserver};

/// Warns of the prompts and the multiple-choice items of `experiment` that its model reads in part.
///
/// # Errors
/// If a prompt cannot be encoded.
pub(crate) fn warn_of_cut_text(
    experiment: &Experiment,
    prepared: &Prepared,
    observer: &mut dyn RunObserver,
) -> Result<()> {
    let context = experiment.model.context_length;
    let mut warn = |text: &str| observer.observe(&RunEvent::Warning(text));
    for prompt in experiment.eval.samples.iter().flat_map(|samples| &samples.prompts) {
        if let Some(warning) = prepared.tokenizer.cut_prompt(prompt, context)? {
            warn(&format!("eval.samples.prompts: {warning}"));
        }
    }
    for (name, items) in &prepared.tasks {
        let cut: Vec<CutPart> = items.iter().filter_map(|item| item.cut_part(context)).collect();
        if cut.is_empty() {
            continue;
        }
        let endings = cut.iter().filter(|part| **part == CutPart::Ending).count();
        let endings = if endings > 0 { format!("; {endings} of them lose a part of an ending") } else { String::new() };
        warn(&format!(
            "{}: {} of {} are longer than model.context_length, {context}, and lose their beginning{endings}",
            task_key(name),
            cut.len(),
            counted(items.len() as u64, "item"),
        ));
    }
    Ok(())
}

/// The warning if an id stands for different text in `tokenizer`, which `key` names, and in the tokenizer in the folder of `weights`. `None` if
/// the folder has no tokenizer that can be read.
pub fn foreign_tokenizer(weights: &OpenedWeights, tokenizer: &TextTokenizer, key: &str) -> Option<String> {
    let beside = load_tokenizer(&weights.described.tokenizer()?).ok()?;
    let difference = token_difference(tokenizer, &beside)?;
    Some(format!(
        "`{key}` differs from the tokenizer beside the weights: {difference}, so the model reads different tokens from those it was trained on; delete \
         `{key}` to use the tokenizer beside the weights"
    ))
}
