//! Content of a run's files that this program does not write, such as keys that somebody added. Commands that read runs pass over it.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::checkpoint::{dir_name, has_only_own_content};
use super::data_files::DataFiles;
use super::error::RecordError;
use super::files::{if_present, read_plan, read_sealed_json};
use super::lines::for_each_record;
use super::manifest::Manifest;
use super::metrics::MetricLine;
use super::names::CHECKPOINTS;
use super::run_dir::{DATA, MANIFEST, METRICS, PLAN, SAMPLES, SUMMARY, read_manifest};
use super::summary::Summary;
use runner_files::sealed_json::CONTENT_HASH;
use runner_spec::event::SampleText;
use runner_spec::plan::Plan;

/// The files of the run directory `run`, and of its checkpoint of the step `saved`, that have more than this program writes, by their paths
/// within the run.
///
/// # Errors
/// If a file cannot be read, or the checkpoint is of a different plan.
pub fn find_foreign_content(run: &Path, saved: Option<u64>) -> Result<Vec<String>, RecordError> {
    type IsOwn = fn(&Path) -> Result<bool, RecordError>;
    let files: [(&str, IsOwn); 6] = [
        (MANIFEST, |path| Ok(is_own::<Manifest>(&read_sealed_json(path)?))),
        (SUMMARY, |path| Ok(is_own::<Summary>(&read_sealed_json(path)?))),
        (DATA, |path| Ok(is_own::<DataFiles>(&read_sealed_json(path)?))),
        (PLAN, |path| Ok(is_own::<Plan>(&read_plan(path)?))),
        (METRICS, has_own_lines::<MetricLine>),
        (SAMPLES, has_own_lines::<SampleText>),
    ];
    let mut found = Vec::new();
    for (name, is_own) in files {
        if if_present(is_own(&run.join(name)))? == Some(false) {
            found.push(name.to_owned());
        }
    }
    if let Some(step) = saved
        && !has_only_own_content(&run.join(CHECKPOINTS), step, &read_manifest(run)?.plan_hash)?
    {
        found.push(format!("{CHECKPOINTS}/{}", dir_name(step)));
    }
    Ok(found)
}

/// True if `value` is what `T` writes, and nothing else. The hash of the content is not part of it.
pub(crate) fn is_own<T: Serialize + DeserializeOwned>(value: &Value) -> bool {
    let mut value = value.clone();
    if let Some(fields) = value.as_object_mut() {
        fields.remove(CONTENT_HASH);
    }
    let written = serde_json::from_value::<T>(value.clone()).and_then(|own| serde_json::to_string(&own));
    written.and_then(|text| serde_json::from_str::<Value>(&text)).is_ok_and(|written| written == value)
}

/// True if each line of the file `path` is what `T` writes.
fn has_own_lines<T: Serialize + DeserializeOwned>(path: &Path) -> Result<bool, RecordError> {
    let mut is_all = true;
    let read = for_each_record(path, &mut |line: Value| is_all &= is_own::<T>(&line))?;
    Ok(is_all && read.damaged == 0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_key_that_the_program_does_not_write_is_foreign() {
        let line = json!({"kind": "eval", "step": 4, "val_loss": 1.5});
        assert!(is_own::<MetricLine>(&line));
        for (key, value) in [("accuracy", json!(0.9)), ("hellaswag_n", json!(null)), ("step", json!(4.0))] {
            let mut line = line.clone();
            line[key] = value;
            assert!(!is_own::<MetricLine>(&line), "{key}");
        }
    }
}
