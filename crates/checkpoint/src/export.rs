//! Sends the numbers of a checkpoint, joined from its parts, to a receiver, or its weights to one safetensors file.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use half::bf16;

use super::entries::{CheckpointChoice, pick, unusable};
use super::format::SavedPosition;
use super::header::{NumberType, header_of_part};
use super::load::{CheckpointProblem, StoredCheckpoint};
use super::part::{MODEL, PartFileKind, PartSpec};
use crate::error::RecordError;
use runner_files::OutputFile;
use runner_spec::error::CommandError;
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
) -> Result<ExportedWeights, RecordError> {
    runner_files::create_dir_all(to).map_err(RecordError::io("creating", to))?;
    let path = to.join(MODEL);
    let output = OutputFile::create(&path, true, false).map_err(RecordError::io("creating", &path))?;
    let entries: Vec<_> = layout.entries.iter().collect();
    let header = header_of_part(PartSpec::WHOLE, 0, layout, &entries, PartFileKind::Model.sections(0), NumberType::F32);
    let out = output.as_file();
    let write =
        |bytes: &[u8], position: u64| out.write_all_at(bytes, position).map_err(RecordError::io("writing", &path));
    write(&header, 0)?;
    let base = header.len() as u64;
    let step = stream_weights(folder, which, layout, &mut |place, bytes| Ok(write(bytes, base + 4 * place)?))?;
    output.finish().map_err(RecordError::io("renaming into place", &path))?;
    Ok(ExportedWeights { path, bytes: base + 4 * layout.total as u64, step })
}

/// Receives pieces of a state: the position of the first element in the layout's flat buffer, and the bytes, little-endian f32. The
/// pieces of a tensor come in order, without those of another between them.
pub type NumberSink<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<(), CommandError>;

/// Sends the weights of a checkpoint in `folder`, from all its parts, to `sink`. They are right only if this returns without an error.
/// Returns the checkpoint's step. Changes nothing, so that the run may be training.
///
/// # Errors
/// If there is no such checkpoint, or it cannot be used (then the next good one is named); `Receiver` with an error of `sink`.
pub fn stream_weights(
    folder: &Path,
    which: CheckpointChoice,
    layout: &ParamLayout,
    sink: NumberSink<'_>,
) -> Result<u64, RecordError> {
    let entry = pick(folder, which)?;
    let read = stream(&entry.path, None, layout, 0, sink);
    read.map(|position| position.step).map_err(|bad| unusable(folder, &entry, bad))
}

/// Sends the numbers of the checkpoint at `path` to `sink`, as a flat buffer of `layout` has them, `[layout.state_len(moments)]`, whatever
/// layout and type wrote them: tensors are found by name. Files that the buffer does not need are not read, and every byte that is used is
/// checked; the numbers are right only if this returns without an error. With 0 `moments` only the weights are read; otherwise the checkpoint
/// must have as many. With a `plan_hash` the checkpoint must be of that plan. Changes nothing, so that all ranks may read at the same time.
///
/// # Errors
/// If the checkpoint cannot be used, lacks a tensor or has it in another shape, or the machine refuses; `Receiver` with an error of `sink`.
pub fn stream_state(
    path: &Path,
    plan_hash: Option<&str>,
    layout: &ParamLayout,
    moments: usize,
    sink: NumberSink<'_>,
) -> Result<SavedPosition, RecordError> {
    stream(path, plan_hash, layout, moments, sink).map_err(|bad| bad.error(path, String::new))
}

fn stream(
    path: &Path,
    plan_hash: Option<&str>,
    layout: &ParamLayout,
    moments: usize,
    sink: NumberSink<'_>,
) -> Result<SavedPosition, CheckpointProblem> {
    let stored = StoredCheckpoint::open(path, plan_hash)?;
    let places = stored.find(layout, moments)?;
    let mut widened = Vec::new();
    stored.read(&places, false, &mut |place, number_type, bytes| {
        let sent = match number_type {
            NumberType::F32 => sink(place, bytes),
            NumberType::Bf16 => {
                let numbers = bytes.as_chunks::<2>().0.iter().map(|number| bf16::from_le_bytes(*number).to_f32());
                widened.clear();
                widened.extend(numbers.flat_map(f32::to_le_bytes));
                sink(place, &widened)
            }
        };
        sent.map_err(RecordError::Receiver)
    })?;
    Ok(stored.state.saved_position())
}
