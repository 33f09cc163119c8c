//! The parts of an export that do not depend on its format.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::difference::beyond_format;
use super::dtype::Dtype;
use super::error::WeightsError;
use super::writer::{FileForm, NewFile, TensorDestination, Writer};
use runner_files::{OutputFile, create_dir_all, parent_folder};
use runner_spec::error::CommandError;
use runner_spec::model::ModelSpec;
use runner_spec::model::layout::ParamLayout;

/// Passes weights piece by piece to its argument: the position of the first element in the layout's buffer, and little-endian f32. The
/// pieces of a tensor come in order, without those of another between them.
/// Returns the step of the weights when all have been passed on and checked.
pub type WeightSource<'a> =
    &'a mut dyn FnMut(&mut dyn FnMut(u64, &[u8]) -> Result<(), WeightsError>) -> Result<u64, CommandError>;

/// The files of an export that are in place.
#[derive(Debug, Clone, PartialEq)]
pub struct WrittenFiles {
    pub files: Vec<PathBuf>,
    /// The size of all files.
    pub bytes: u64,
    /// The step of the checkpoint.
    pub step: u64,
    /// The largest difference between logits of the files and of the run, relative to the largest logit, if they were compared.
    pub logit_difference: Option<f64>,
    /// Notes about files that could not be written, with the reason.
    pub notes: Vec<String>,
}

/// Writes all weights of `source`.
pub(super) fn write_weights(
    layout: &ParamLayout,
    dtype: Dtype,
    files: &[NewFile],
    targets: Vec<Option<TensorDestination>>,
    source: WeightSource<'_>,
) -> Result<u64, WeightsError> {
    let mut writer = Writer::begin(layout, dtype, files, targets)?;
    let step = source(&mut |position, bytes| writer.write_piece(position, bytes)).map_err(WeightsError::Source)?;
    writer.finish()?;
    Ok(step)
}

/// Writes the file `to` with `write`, which returns the step of the weights, first under a temporary name. With `force`, replaces a file that
/// is there.
///
/// # Errors
/// If the file is there, or something cannot be read or written.
pub(super) fn write_file(
    to: &Path,
    force: bool,
    form: FileForm,
    write: impl FnOnce(NewFile) -> Result<u64, WeightsError>,
) -> Result<WrittenFiles, WeightsError> {
    if to.file_name().is_none() {
        return Err(WeightsError::Request(format!("cannot write to {}: name a file", to.display())));
    }
    let io_or_exists = |error: io::Error| match error.kind() {
        ErrorKind::AlreadyExists => WeightsError::already_exists(to),
        _ => WeightsError::io(to)(error),
    };
    let folder = parent_folder(to);
    if folder.exists() && !folder.is_dir() {
        return Err(WeightsError::is_a_file(folder));
    }
    create_dir_all(folder).map_err(WeightsError::io(folder))?;
    let output = OutputFile::create(to, force, false).map_err(io_or_exists)?;
    let step = write(NewFile { path: output.temporary_path().to_owned(), target: to.to_owned(), form })?;
    let bytes = output.as_file().metadata().map_err(WeightsError::io(to))?.len();
    // Another process may have been faster.
    output.finish().map_err(io_or_exists)?;
    Ok(WrittenFiles { files: vec![to.to_owned()], bytes, step, logit_difference: None, notes: Vec::new() })
}

/// Checks that `spec` has no extensions, which the formats of other programs lack.
///
/// # Errors
/// The first extension.
pub(super) fn refuse_extensions(spec: &ModelSpec, format: &str) -> Result<(), WeightsError> {
    match beyond_format(&spec.options).first() {
        Some((key, value)) => Err(WeightsError::Request(format!(
            "{format} cannot express `model.{key}: {value}`; use `--to safetensors`"
        ))),
        None => Ok(()),
    }
}
