//! `data.json`: the files from which a run read its data, so that they are found again by their content.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::RecordError;
use super::files::{check_format, if_present, read_sealed_json, sealed_json};
use super::names::DATA;
use super::run_dir::has_private_settings;
use runner_files::write_atomic_as;
use runner_spec::data::DataFile;

const FORMAT: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct DataFiles {
    format: u32,
    /// In the order in which they are read, part by part.
    files: Vec<DataFile>,
}

/// Reads the files of data that the run directory `run` recorded; `None` if it recorded none.
///
/// # Errors
/// If the record is damaged, or of a newer version.
pub fn read_data_files(run: &Path) -> Result<Option<Vec<DataFile>>, RecordError> {
    let path = run.join(DATA);
    let Some(record) = if_present(read_sealed_json::<DataFiles>(&path))? else { return Ok(None) };
    check_format(&path, record.format, FORMAT)?;
    Ok(Some(record.files))
}

/// Records the `files` of data of the run directory `run`, unless it has a record of them. Their paths are part of the settings, which may be
/// private.
///
/// # Errors
/// If the record cannot be written, and those of `files`.
pub fn write_data_files_once<E: From<RecordError>>(
    run: &Path,
    files: impl FnOnce() -> Result<Vec<DataFile>, E>,
) -> Result<(), E> {
    let path = run.join(DATA);
    if path.exists() {
        return Ok(());
    }
    let bytes = sealed_json(&path, &DataFiles { format: FORMAT, files: files()? })?;
    Ok(write_atomic_as(&path, &bytes, has_private_settings(run)).map_err(RecordError::io("writing", &path))?)
}
