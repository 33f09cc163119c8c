//! Warnings of text that a model reads in part, because it is longer than the context.

use runner_data::Prepared;
use runner_spec::data::CutPart;
use runner_spec::experiment::Experiment;
use runner_spec::format::counted;

use crate::observer::{RunEvent, RunObserver};
use runner_spec::error::Result;

/// Warns of the prompts and the multiple-choice items of `experiment` that its model reads in part.
///
/// # Errors
/// If a prompt cannot be encoded.
pub fn warn_of_cut_text(experiment: &Experiment, prepared: &Prepared, observer: &mut dyn RunObserver) -> Result<()> {
    let context = experiment.model.context_length;
    let mut warn = |text: &str| observer.observe(&RunEvent::Warning(text));
    for prompt in experiment.eval.samples.iter().flat_map(|samples| &samples.prompts) {
        if let Some(warning) = prepared.tokenizer.cut_prompt(prompt, context)? {
            warn(&format!("eval.samples.prompts: {warning}"));
        }
    }
    let items = prepared.choice.as_deref().unwrap_or_default();
    let cut: Vec<CutPart> = items.iter().filter_map(|item| item.cut_part(context)).collect();
    if !cut.is_empty() {
        let endings = cut.iter().filter(|part| **part == CutPart::Ending).count();
        let endings = if endings > 0 { format!("; {endings} of them lose a part of an ending") } else { String::new() };
        warn(&format!(
            "eval.hellaswag: {} of {} are longer than model.context_length, {context}, and lose their beginning{endings}",
            cut.len(),
            counted(items.len() as u64, "item"),
        ));
    }
    Ok(())
}
