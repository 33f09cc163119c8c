//! Exports the weights of a checkpoint, joined from its parts, to one safetensors file or to a receiver.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use candle_core::DType;

use super::entries::{CheckpointChoice, pick, unusable};
use super::format::{MODEL, PartFileKind};
use super::header::header_of_part;
use super::load::{CheckpointProblem, StoredCheckpoint, each_number};
use super::part::PartSpec;
use crate::error::StoreError;
use runner_files::OutputFile;
use runner_spec::model::layout::ParamLayout;

/// A file of weights that is in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportedWeights {
    pub path: PathBuf,
    pub bytes: u64,
    /// The step of the checkpoint.
    pub step: u64,
}

/// Writes the weights of a checkpoint in `folder` to `to/model.safetensors`, creating `to` and replacing a file of that
/// name: f32, in the order of `layout`, as a checkpoint in one part holds them if it is of f32. The file has a temporary name until all hashes
/// agree.
///
/// # Errors
/// If there is no such checkpoint, it cannot be used (then the next good one is named), or the file cannot be written.
pub fn export_weights(
    folder: &Path,
    which: CheckpointChoice,
    layout: &ParamLayout,
    to: &Path,
) -> Result<ExportedWeights, StoreError> {
    runner_files::create_dir_all(to).map_err(StoreError::io("creating", to))?;
    let path = to.join(MODEL);
    let output = OutputFile::create(&path, true, false).map_err(StoreError::io("creating", &path))?;
    let entries: Vec<_> = layout.entries.iter().collect();
    let header = header_of_part(PartSpec::WHOLE, 0, &entries, PartFileKind::Model.sections(0), DType::F32);
    let out = output.as_file();
    let write =
        |bytes: &[u8], position: u64| out.write_all_at(bytes, position).map_err(StoreError::io("writing", &path));
    write(&header, 0)?;
    let base = header.len() as u64;
    let step = stream_weights(folder, which, layout, &mut |place, bytes| Ok(write(bytes, base + 4 * place)?))?;
    output.finish().map_err(StoreError::io("renaming into place", &path))?;
    Ok(ExportedWeights { path, bytes: base + 4 * layout.total as u64, step })
}

/// Receives pieces of weights: the position of the first element in the layout's flat buffer, and the bytes, little-endian f32. The
/// pieces of a tensor come in order, and each piece belongs to one tensor.
pub type WeightSink<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Sends the weights of a checkpoint in `folder`, from all its parts, to `sink`. They are right only if this returns without an error.
/// Returns the checkpoint's step.
///
/// # Errors
/// If there is no such checkpoint, or it cannot be used (then the next good one is named); `Receiver` with an error of `sink`.
pub fn stream_weights(
    folder: &Path,
    which: CheckpointChoice,
    layout: &ParamLayout,
    sink: WeightSink<'_>,
) -> Result<u64, StoreError> {
    let entry = pick(folder, which)?;
    let mut read = || -> Result<u64, CheckpointProblem> {
        let stored = StoredCheckpoint::open(&entry.path, None)?;
        let places = stored.find(layout, 0)?;
        let mut widened = Vec::new();
        stored.read(&places, false, &mut |place, dtype, bytes| {
            widened.clear();
            each_number(dtype, bytes, |number| widened.extend(number.to_le_bytes()));
            sink(place, &widened).map_err(StoreError::Receiver)
        })?;
        Ok(stored.state.step)
    };
    read().map_err(|bad| unusable(folder, &entry, bad))
}
