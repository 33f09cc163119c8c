//! The parts of an export that do not depend on its format.

use std::path::PathBuf;

use super::difference::beyond_format;
use super::dtype::Dtype;
use super::error::WeightsError;
use super::writer::{NewFile, TensorDestination, Writer};
use runner_spec::error::CommandError;
use runner_spec::model::ModelSpec;
use runner_spec::model::layout::ParamLayout;

/// Passes weights piece by piece to its argument: the position of the first element in the layout's buffer, and little-endian f32.
/// Returns the step of the weights when all have been passed on and checked.
pub type WeightSource<'a> =
    &'a mut dyn FnMut(&mut dyn FnMut(u64, &[u8]) -> Result<(), WeightsError>) -> Result<u64, CommandError>;

/// The files of an export that are in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenFiles {
    pub files: Vec<PathBuf>,
    pub bytes: u64,
    /// The step of the checkpoint.
    pub step: u64,
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

/// Checks that `spec` has no extensions, which the formats of other programs lack.
///
/// # Errors
/// The first extension.
pub(super) fn refuse_extensions(spec: &ModelSpec, format: &str) -> Result<(), WeightsError> {
    match beyond_format(&spec.options).first() {
        Some((key, value)) => Err(WeightsError::Request(format!(
            "model.{key} is {value}, which {format} has not: --to safetensors writes the weights"
        ))),
        None => Ok(()),
    }
}
