//! Content of a run's files that this program does not write, such as keys that somebody added. Commands that read runs pass over it.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::checkpoint::{dir_name, is_checkpoint_as_written};
use super::data_files::DataFiles;
use super::error::RecordError;
use super::files::{if_present, indented_json, is_as_sealed, read_plan};
use super::lines::for_each_record;
use super::manifest::Manifest;
use super::metrics::MetricLine;
use super::names::CHECKPOINTS;
use super::run_dir::{DATA, MANIFEST, METRICS, PLAN, ROWS, SAMPLES, SUMMARY, TRACE, read_manifest};
use super::summary::Summary;
use runner_files::read_regular;
use runner_spec::event::{EvaluatedRows, SampleText, TraceLine};
use runner_spec::format::json_bytes;
use runner_spec::plan::Plan;

/// The files of the run directory `run`, and of its checkpoint of the step `saved`, that are not as this program writes them, by their paths
/// within the run.
///
/// # Errors
/// If a file cannot be read, or the checkpoint is of a different plan.
pub fn find_foreign_content(run: &Path, saved: Option<u64>) -> Result<Vec<String>, RecordError> {
    type IsAsWritten = fn(&Path) -> Result<bool, RecordError>;
    let files: [(&str, IsAsWritten); 8] = [
        (MANIFEST, is_as_sealed::<Manifest>),
        (SUMMARY, is_as_sealed::<Summary>),
        (DATA, is_as_sealed::<DataFiles>),
        (PLAN, |path| {
            let whole = read_regular(path).map_err(RecordError::io("reading", path))?;
            Ok(indented_json(path, &read_plan::<Plan>(path)?)? == whole)
        }),
        (METRICS, has_lines_of::<MetricLine>),
        (SAMPLES, has_lines_of::<SampleText>),
        (ROWS, has_lines_of::<EvaluatedRows>),
        (TRACE, has_lines_of::<TraceLine>),
    ];
    let mut found = Vec::new();
    for (name, is_as_written) in files {
        if if_present(is_as_written(&run.join(name)))? == Some(false) {
            found.push(name.to_owned());
        }
    }
    if let Some(step) = saved
        && !is_checkpoint_as_written(&run.join(CHECKPOINTS), step, &read_manifest(run)?.plan_hash)?
    {
        found.push(format!("{CHECKPOINTS}/{}", dir_name(step)));
    }
    Ok(found)
}

/// True if each line of the file `path` has the bytes that this program writes for its value of the type `T`.
fn has_lines_of<T: Serialize + DeserializeOwned>(path: &Path) -> Result<bool, RecordError> {
    let mut written = blake3::Hasher::new();
    let read = for_each_record(path, &mut |line: T| {
        written.update(&json_bytes(&line));
        written.update(b"\n");
    })?;
    Ok(read.damaged == 0 && read.content.blake3 == written.finalize().to_hex().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_the_program_does_not_write_is_foreign() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(METRICS);
        let is_own = |line: &str| {
            std::fs::write(&path, format!("{line}\n")).unwrap();
            has_lines_of::<MetricLine>(&path).unwrap()
        };
        assert!(is_own(r#"{"kind":"eval","step":4,"val_loss":1.5}"#));
        for line in [
            r#"{"kind":"eval","step":4,"val_loss":1.5,"accuracy":0.9}"#,
            r#"{"kind":"eval","step":4,"val_loss":1.5,"content_hash":"accuracy 99 %"}"#,
            r#"{"kind":"eval","step":4,"val_loss":1.5,"hellaswag_n":null}"#,
            r#"{"kind":"eval","step":4,"val_loss":1.50}"#,
            "",
        ] {
            assert!(!is_own(line), "{line}");
        }
    }
}
