//! How many settings have been compared on a validation set: the more there are, the more the best result on it is chosen luck.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::progress::SweepProgress;
use crate::record::SweepRecord;
use runner_record::catalog::run_folders;
use runner_record::run_dir::{read_manifest, resolved_file};
use runner_spec::measure::Quantity;

/// The top-level keys of an experiment that do not distinguish settings: what is recorded, the seed, and what changes only rounding.
const IGNORED_KEYS: [&str; 6] = ["name", "seed", "log", "checkpoint", "parallel", "device"];
/// The keys of sections that change only rounding.
const ROUNDING_KEYS: [&str; 2] = ["  micro_batch:", "  recompute:"];

/// The runs in a folder that were evaluated on one validation set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ValidationUse {
    /// The experiments that differ in more than their seed, name, log and checkpoints.
    pub settings: usize,
    pub runs: usize,
    /// The sweeps that the runs belong to.
    pub sweeps: usize,
}

impl ValidationUse {
    /// Counts the runs in the folder `root` whose validation data has one of these content hashes; `None` if there is none, or the folder
    /// cannot be read.
    #[must_use]
    pub fn count(root: &Path, hashes: &BTreeSet<String>) -> Option<Self> {
        let (mut runs, mut settings, mut sweeps) = (0, BTreeSet::new(), BTreeSet::new());
        for path in run_folders(root).ok()? {
            // Damaged runs are reported elsewhere.
            let Ok(manifest) = read_manifest(&path) else { continue };
            if !manifest.data.validation.as_ref().is_some_and(|hash| hashes.contains(hash)) {
                continue;
            }
            runs += 1;
            let text = resolved_file(&path).ok().and_then(|file| fs::read_to_string(file).ok());
            settings.insert(text.map_or(manifest.plan_hash, |text| setting_hash(&text)));
            sweeps.extend(manifest.sweep.map(|sweep| sweep.id));
        }
        (runs > 0).then_some(Self { settings: settings.len(), runs, sweeps: sweeps.len() })
    }
}

/// The content hashes of the validation data by which the sweep `record` compares its points: of the tokens, so one for each tokenizer.
/// Empty if it compares them by something else.
pub(crate) fn validation_hashes(record: &SweepRecord, progress: &SweepProgress) -> BTreeSet<String> {
    if !matches!(record.objective.metric.quantity(), Quantity::ValidationLoss | Quantity::BitsPerByte) {
        return BTreeSet::new();
    }
    let hashes = progress.points.iter().flatten().filter_map(|run| run.basis.as_ref()?.validation_hash());
    hashes.map(str::to_owned).collect()
}

/// The hash of a resolved experiment without the keys that do not distinguish settings.
fn setting_hash(text: &str) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut is_ignored = false;
    for line in text.lines() {
        if !line.starts_with([' ', '-', '#']) {
            is_ignored = line.split_once(':').is_some_and(|(key, _)| IGNORED_KEYS.contains(&key));
        }
        if !is_ignored && !ROUNDING_KEYS.iter().any(|key| line.starts_with(key)) {
            hasher.update(line.as_bytes());
            hasher.update(b"\n");
        }
    }
    hasher.finalize().to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_cannot_be_read_has_no_count() {
        assert_eq!(ValidationUse::count(Path::new("/dev/null"), &BTreeSet::new()), None);
    }

    #[test]
    fn a_setting_is_the_same_under_another_name_and_seed() {
        let text = |name: &str, seed: &str, lr: &str| {
            format!(
                "version: 1\nname: {name}\nbatch:\n  sequences: 8\n  micro_batch: {seed}\noptimizer:\n  adamw:\n    lr: {lr}\nparallel:\n  \
                 mode: {name}\nseed:\n  data: {seed}\nlog:\n  every: 5\n"
            )
        };
        assert_eq!(setting_hash(&text("a", "1", "0.1")), setting_hash(&text("b", "2", "0.1")));
        assert_ne!(setting_hash(&text("a", "1", "0.1")), setting_hash(&text("a", "1", "0.2")));
    }
}
