//! The metrics of a run as an event file of TensorBoard.

use std::fs;
use std::path::{Path, PathBuf};

use super::new_file::{already_there, unwritable, write_new_file};
use runner_record::timed_metrics::{EventFileWriter, TimedRecord, event_file_name};
use runner_spec::error::CommandError;

/// Writes `run` to an event file in the folder `dir/ID`. Returns the file, its events and its bytes. The file's name depends on
/// the run alone, so that another export replaces it.
///
/// # Errors
/// If the folder holds an event file, unless `force`; if the run cannot be read or the file cannot be written. Then
/// there is no new file.
pub fn export_tensorboard(run: &TimedRecord, dir: &Path, force: bool) -> Result<(PathBuf, u64, u64), CommandError> {
    let folder = dir.join(&run.id);
    runner_files::create_dir_all(&folder).map_err(unwritable(&folder))?;
    // TensorBoard shows all event files of a folder as one run.
    for entry in fs::read_dir(&folder).map_err(unwritable(&folder))? {
        let entry = entry.map_err(unwritable(&folder))?;
        if !force && entry.file_name().to_string_lossy().contains("tfevents") {
            return Err(already_there(&entry.path()));
        }
    }
    let path = folder.join(event_file_name(run));
    let fill = |out: &mut _| Ok(EventFileWriter::write_record(out, &path, run)?.count());
    let (count, bytes) = write_new_file(&path, force, fill)?;
    Ok((path, count, bytes))
}

#[cfg(test)]
mod tests {
    use runner_plan::testing::{compiled, experiment};
    use runner_record::testing::{timed_run, train};

    use runner_spec::error::ErrorKind;

    use super::*;

    #[test]
    fn an_event_file_is_replaced_only_by_force() {
        let dir = tempfile::tempdir().unwrap();
        let sessions = [(0, "2026-01-01T00:00:01.000Z")];
        let path = timed_run(dir.path(), &compiled(&experiment()), &sessions, &train(1, "2.5"));
        let record = TimedRecord::open(&path).unwrap();
        let logs = dir.path().join("logs");
        let (file, count, size) = export_tensorboard(&record, &logs, false).unwrap();
        assert_eq!((count, size), (2, fs::metadata(&file).unwrap().len()));
        assert_eq!(export_tensorboard(&record, &logs, false).unwrap_err().kind(), ErrorKind::Request);
        assert_eq!(export_tensorboard(&record, &logs, true).unwrap().0, file);
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1, "replaced, and nothing temporary stays");
    }
}
