//! Exports the weights of a checkpoint, joined from its parts, to one safetensors file or to a receiver.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::entries::{CheckpointChoice, pick, unusable};
use super::format::{MODEL, PartFileKind};
use super::header;
use super::load::{CheckpointProblem, StoredCheckpoint};
use super::part::PartSpec;
use crate::error::StoreError;
use runner_files::{put_in_place, temporary_file};
use runner_spec::model::layout::ParamLayout;

/// A file of weights that is in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportedWeights {
    pub path: PathBuf,
    pub bytes: u64,
    /// Of the checkpoint.
    pub step: u64,
}

/// Writes the weights of a checkpoint in `folder` to `to/model.safetensors`, creating `to` and replacing a file of that
/// name: f32, in the order of `layout`, as a checkpoint in one part holds them. It is written under a temporary name, piece
/// by piece, and renamed when all hashes agree.
///
/// # Errors
/// If there is no such checkpoint, it cannot be used (then the next good one is named), or the file cannot be written.
pub fn export_weights(
    folder: &Path,
    which: CheckpointChoice,
    layout: &ParamLayout,
    to: &Path,
) -> Result<ExportedWeights, StoreError> {
    fs::create_dir_all(to).map_err(StoreError::io("creating", to))?;
    let entry = pick(folder, which)?;
    let path = to.join(MODEL);
    let temporary = temporary_file(to).map_err(StoreError::io("creating a file in", to))?;
    let (bytes, step) = join(&entry.path, layout, temporary.path()).map_err(|bad| unusable(folder, &entry, bad))?;
    put_in_place(temporary, &path, true).map_err(StoreError::io("renaming into place", &path))?;
    Ok(ExportedWeights { path, bytes, step })
}

/// Is handed pieces of weights: the first element's place in the flat buffer of the layout, and its bytes, little-endian f32. A
/// tensor comes in order, and no piece has bytes of two.
pub type WeightSink<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Hands the weights of a checkpoint in `folder`, of all its parts, to `pieces`; what they were given is good only if this
/// returns without an error. Returns the checkpoint's step.
///
/// # Errors
/// If there is no such checkpoint, or it cannot be used (then the next good one is named), and `Receiver` with those of `pieces`.
pub fn stream_weights(
    folder: &Path,
    which: CheckpointChoice,
    layout: &ParamLayout,
    pieces: WeightSink<'_>,
) -> Result<u64, StoreError> {
    let entry = pick(folder, which)?;
    let mut read = || -> Result<u64, CheckpointProblem> {
        let stored = StoredCheckpoint::open(&entry.path)?;
        let places = stored.find(layout, 0)?;
        stored.read(&places, false, &mut |place, bytes| pieces(place / 4, bytes).map_err(StoreError::Receiver))?;
        Ok(stored.state.step)
    };
    read().map_err(|bad| unusable(folder, &entry, bad))
}

/// The bytes written, and the checkpoint's step.
fn join(checkpoint: &Path, layout: &ParamLayout, path: &Path) -> Result<(u64, u64), CheckpointProblem> {
    let stored = StoredCheckpoint::open(checkpoint)?;
    let places = stored.find(layout, 0)?;
    let only = PartSpec { index: 0, count: 1 };
    let tensors = header::tensors(&layout.entries.iter().collect::<Vec<_>>(), PartFileKind::Model.sections(0));
    let header = header::write(&tensors, header::metadata(only, stored.state.step))
        .map_err(|e| CheckpointProblem::Machine(StoreError::damaged(path, format!("its header: {e}"))))?;
    let writing = |error: io::Error| StoreError::io("writing", path)(error);
    let mut out = File::create(path).map_err(|e| CheckpointProblem::Machine(writing(e)))?;
    out.write_all(&header).map_err(|e| CheckpointProblem::Machine(writing(e)))?;
    let base = header.len() as u64;
    stored.read(&places, false, &mut |place, bytes| {
        out.seek(SeekFrom::Start(base + place)).and_then(|_| out.write_all(bytes)).map_err(writing)
    })?;
    Ok((base + 4 * layout.total as u64, stored.state.step))
}
