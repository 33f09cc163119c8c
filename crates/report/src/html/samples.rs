//! A run's `samples.jsonl`: continuations of prompts as the model learned.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Serialize;

use crate::thin::spread;
use runner_record::RecordError;
use runner_record::lines::{describe_damaged_lines, for_each_record};
use runner_spec::event::SampleText;

/// Steps that are shown at most; of more, some are left out, but not the first and the last.
const MAX_STEPS: usize = 40;
/// Characters of a prompt or a continuation that are shown at most.
const MAX_CHARACTERS: usize = 4000;

/// The samples of a run that are shown.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Samples {
    pub(super) items: Vec<SampleText>,
    /// The number of steps with samples, if not all are shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) thinned_from: Option<usize>,
}

/// Reads the samples in `path`. Damaged lines are reported in `problems`.
///
/// # Errors
/// If the file cannot be read.
pub(super) fn read_samples(path: &Path, problems: &mut Vec<String>) -> Result<Samples, RecordError> {
    // Two passes: most texts of a long run are not shown, and all of them need not fit in memory together.
    let mut steps = BTreeSet::new();
    let read = for_each_record(path, &mut |sample: SampleText| {
        steps.insert(sample.step);
    })?;
    problems.extend(describe_damaged_lines(path, read.damaged));
    let steps: Vec<u64> = steps.into_iter().collect();
    let thinned_from = (steps.len() > MAX_STEPS).then_some(steps.len());
    let shown: BTreeSet<u64> = match thinned_from {
        None => steps.into_iter().collect(),
        Some(n) => spread(n, MAX_STEPS).map(|i| steps[i]).collect(),
    };
    let mut items: Vec<SampleText> = Vec::new();
    for_each_record(path, &mut |mut sample: SampleText| {
        if shown.contains(&sample.step) {
            cut(&mut sample.text);
            cut(&mut sample.prompt);
            items.push(sample);
        }
    })?;
    Ok(Samples { items, thinned_from })
}

/// Cuts off the end of a long text.
fn cut(text: &mut String) {
    if let Some((at, _)) = text.char_indices().nth(MAX_CHARACTERS) {
        text.truncate(at);
        text.push('…');
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    #[test]
    fn first_and_last_stay_and_texts_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("samples.jsonl");
        let mut text = "rubbish\n".to_owned();
        for step in 1..=100 {
            writeln!(text, "{{\"step\":{step},\"prompt\":\"p\",\"index\":0,\"text\":\"{}\"}}", "é".repeat(5000))
                .unwrap();
        }
        std::fs::write(&path, text).unwrap();
        let mut problems = Vec::new();
        let samples = read_samples(&path, &mut problems).unwrap();
        assert_eq!(problems, [format!("{}: 1 torn or damaged line left out", path.display())]);
        assert_eq!((samples.items.len(), samples.thinned_from), (MAX_STEPS, Some(100)));
        assert_eq!((samples.items[0].step, samples.items[MAX_STEPS - 1].step), (1, 100));
        assert_eq!(samples.items[0].text.chars().count(), MAX_CHARACTERS + 1);
        assert_eq!(read_samples(&dir.path().join("none"), &mut problems).unwrap(), Samples::default());
    }
}
