//! A model's weights as another program reads them: what is asked for, and what came of it.

use std::path::PathBuf;

use super::dtype::Dtype;
use super::error::{Foreign, WeightsError};
use super::fits::beyond_format;
use super::writer::{Begun, Target, Writer};
use runner_spec::model::ModelSpec;
use runner_spec::model::layout::ParamLayout;

/// Hands out weights piece by piece: the first element's place in the layout's buffer, and little-endian f32. Returns the step
/// that they are of, once all have been handed out and found right.
pub type Source<'a> = &'a mut dyn FnMut(&mut dyn FnMut(u64, &[u8]) -> Result<(), WeightsError>) -> Result<u64, Foreign>;

/// What is in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    pub files: Vec<PathBuf>,
    pub bytes: u64,
    /// Of the checkpoint.
    pub step: u64,
    /// What could not be written, and why.
    pub notes: Vec<String>,
}

/// Writes all weights that `source` hands out.
pub(super) fn weights(
    layout: &ParamLayout,
    dtype: Dtype,
    files: &[Begun],
    targets: Vec<Option<Target>>,
    source: Source<'_>,
) -> Result<u64, WeightsError> {
    let mut writer = Writer::begin(layout, dtype, files, targets)?;
    let step = source(&mut |place, bytes| writer.take(place, bytes)).map_err(WeightsError::Source)?;
    writer.finish()?;
    Ok(step)
}

/// # Errors
/// If no format of others holds such a model.
pub(super) fn refuse_extensions(spec: &ModelSpec, format: &str) -> Result<(), WeightsError> {
    match beyond_format(spec).first() {
        Some((key, value)) => Err(WeightsError::Request(format!(
            "model.{key} is {value}, which {format} has not: --to safetensors writes the weights"
        ))),
        None => Ok(()),
    }
}
