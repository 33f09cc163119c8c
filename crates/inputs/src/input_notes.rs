//! Notes about inputs for a person: details of their preparation, and warnings of text that a model reads in part and of tokenizers that differ
//! from that of the weights.

use std::path::PathBuf;
use std::time::Duration;

use runner_data::{Prepared, TextTokenizer, TokensOrigin, load_tokenizer, token_difference};
use runner_spec::data::CutPart;
use runner_spec::error::Result;
use runner_spec::experiment::{Experiment, task_key};
use runner_spec::format::{bytes, counted, duration};
use runner_weights::OpenedWeights;

use crate::observer::{RunEvent, RunObserver};

/// The number of files that a line names.
const MAX_NAMED_FILES: usize = 3;

/// The lines about the tokens of all sources, and about the time that they took.
pub(crate) fn describe_data(origins: &[TokensOrigin], time: Duration) -> Vec<String> {
    let mut lines = Vec::new();
    for TokensOrigin { split, files, bytes: size, cache_entry, was_cached } in origins {
        let split = split.adjective();
        lines.push(format!("read   {split}: {}, {}", describe_files(files), bytes(*size)));
        lines.push(match cache_entry {
            Some(entry) if *was_cached => format!("cache  {split}: found {}", entry.display()),
            Some(entry) => format!("cache  {split}: wrote {}", entry.display()),
            None => format!("cache  {split}: not needed, the shards are read in place"),
        });
    }
    lines.push(format!("time   data {}", precise_duration(time)));
    lines
}

/// The names of the first of `files`, and the number of the others.
fn describe_files(files: &[PathBuf]) -> String {
    let named: Vec<String> = files.iter().take(MAX_NAMED_FILES).map(|file| file.display().to_string()).collect();
    match files.len().saturating_sub(MAX_NAMED_FILES) {
        0 => named.join(", "),
        more => format!("{} and {}", named.join(", "), counted(more as u64, "more file")),
    }
}

/// `time` in milliseconds below one second.
pub(crate) fn precise_duration(time: Duration) -> String {
    if time < Duration::from_secs(1) { format!("{:.1} ms", time.as_secs_f64() * 1e3) } else { duration(time) }
}

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

#[cfg(test)]
mod tests {
    use runner_data::SplitName;

    use super::*;

    #[test]
    fn each_source_has_its_files_and_its_place_in_the_cache() {
        let origin = |count: usize, was_cached, entry: Option<&str>| TokensOrigin {
            split: SplitName::Train,
            files: (0..count).map(|i| PathBuf::from(format!("/{i}.txt"))).collect(),
            bytes: 2048,
            cache_entry: entry.map(PathBuf::from),
            was_cached,
        };
        let origins = [origin(1, true, Some("/c/a")), origin(4, false, Some("/c/b")), origin(5, true, None)];
        let lines = describe_data(&origins, Duration::from_millis(12));
        assert_eq!(
            lines,
            [
                "read   training: /0.txt, 2.00 KiB",
                "cache  training: found /c/a",
                "read   training: /0.txt, /1.txt, /2.txt and 1 more file, 2.00 KiB",
                "cache  training: wrote /c/b",
                "read   training: /0.txt, /1.txt, /2.txt and 2 more files, 2.00 KiB",
                "cache  training: not needed, the shards are read in place",
                "time   data 12.0 ms",
            ]
        );
    }
}
