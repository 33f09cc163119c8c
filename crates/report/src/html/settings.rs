//! The settings in which runs differ, from their resolved files.

use serde::Serialize;

use runner_compare::run_names::RunSettings;
use runner_compare::settings::{differing_keys, flatten};
use runner_spec::format::setting_text;
use runner_yaml::document;

/// Differences that are listed at most. Runs with more are different experiments.
const MAX_DIFFERENCES: usize = 200;

/// One key in which runs differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct DifferingSetting {
    /// For example `optimizer.adamw.lr`.
    pub(super) key: String,
    /// The value of each run; `None` if the run has no such key, or its file cannot be read.
    pub(super) values: Vec<Option<String>>,
}

/// The settings in a resolved file; `None` if it cannot be read.
pub(super) fn settings_of(file: Option<&str>) -> Option<RunSettings> {
    Some(flatten(&document::from_str(file?).ok()?))
}

/// The keys in which runs with these settings differ, sorted by group and name. Runs without readable settings are not compared.
pub(super) fn setting_differences(settings: &[Option<RunSettings>]) -> Vec<DifferingSetting> {
    let row = |key: String| DifferingSetting {
        values: settings.iter().map(|settings| settings.as_ref()?.get(&key).map(setting_text)).collect(),
        key,
    };
    let keys = differing_keys(&settings.iter().flatten().collect::<Vec<_>>());
    keys.into_iter().take(MAX_DIFFERENCES).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_differ_are_sorted_by_group() {
        let a = "seed: 1\nmodel: {layers: 2, heads: 2}\noptimizer: {adamw: {lr: 0.001, betas: [0.9, 0.95]}}\n";
        let b = "seed: 1\nmodel: {layers: 4, heads: 2}\noptimizer: {sgd: {lr: 0.1}}\n";
        let found = setting_differences(&[Some(a), None, Some(b)].map(settings_of));
        let keys: Vec<&str> = found.iter().map(|d| d.key.as_str()).collect();
        assert_eq!(
            keys,
            ["model.layers", "optimizer", "optimizer.adamw.betas", "optimizer.adamw.lr", "optimizer.sgd.lr"]
        );
        assert_eq!(found[0].values, [Some("2".to_owned()), None, Some("4".to_owned())]);
        assert_eq!(found[2].values[0].as_deref(), Some("[0.9, 0.95]"));
        assert_eq!(found[2].values[2], None);
    }

    #[test]
    fn one_run_and_damaged_files_differ_in_nothing() {
        assert_eq!(setting_differences(&[Some("a: 1\n")].map(settings_of)), []);
        assert_eq!(setting_differences(&[Some("a: 1\n"), Some("a: [")].map(settings_of)), []);
        assert_eq!(setting_differences(&[Some("a: 1\n"), Some("a: 1\n")].map(settings_of)), []);
    }
}
