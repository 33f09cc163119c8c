//! A run's `samples.jsonl`: what it continued prompts with, as it learned.

use std::collections::BTreeSet;
use std::path::Path;

use serde::{Deserialize, Serialize};

use runner_store::StoreError;
use runner_store::lines::for_each_line;

/// Steps of a run that are shown; more are thinned, the first and the last stay.
const STEPS: usize = 40;
/// Characters of one continuation that are shown.
const LONGEST: usize = 4000;

/// One continuation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    pub step: u64,
    pub prompt: String,
    #[serde(default)]
    pub index: usize,
    pub text: String,
}

/// All that are shown of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Samples {
    pub items: Vec<Sample>,
    /// How many steps had samples, if not all are shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinned_from: Option<usize>,
}

/// Reads `path`; lines that are no samples are passed over.
///
/// # Errors
/// If the file cannot be read; one that is not there is empty.
pub fn read(path: &Path) -> Result<Samples, StoreError> {
    // Two passes: the texts of a long run, most of which are not shown, need not be in memory together.
    let mut steps = BTreeSet::new();
    for_each_line(path, &mut |bytes| {
        if let Ok(sample) = serde_json::from_slice::<Sample>(bytes) {
            steps.insert(sample.step);
        }
        Ok(())
    })?;
    let steps: Vec<u64> = steps.into_iter().collect();
    let thinned_from = (steps.len() > STEPS).then_some(steps.len());
    let kept: BTreeSet<u64> = match thinned_from {
        None => steps.into_iter().collect(),
        Some(n) => (0..STEPS).map(|i| steps[i * (n - 1) / (STEPS - 1)]).collect(),
    };
    let mut items: Vec<Sample> = Vec::new();
    for_each_line(path, &mut |bytes| {
        if let Ok(mut sample) = serde_json::from_slice::<Sample>(bytes)
            && kept.contains(&sample.step)
        {
            cut(&mut sample.text);
            cut(&mut sample.prompt);
            items.push(sample);
        }
        Ok(())
    })?;
    Ok(Samples { items, thinned_from })
}

fn cut(text: &mut String) {
    if let Some((at, _)) = text.char_indices().nth(LONGEST) {
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
        let samples = read(&path).unwrap();
        assert_eq!((samples.items.len(), samples.thinned_from), (STEPS, Some(100)));
        assert_eq!((samples.items[0].step, samples.items[STEPS - 1].step), (1, 100));
        assert_eq!(samples.items[0].text.chars().count(), LONGEST + 1);
        assert_eq!(read(&dir.path().join("none")).unwrap(), Samples::default());
    }
}
