//! One part of a checkpoint: the tensors that one rank owns, which it writes into the folder that the leader commits.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::entries;
use super::format::{FileRecord, PartFileKind};
use super::hash::{PartHasher, StateHash, hash_bytes};
use super::header::header_of_part;
use super::state_bytes::StateBytes;
use crate::error::RecordError;
use crate::files::sync_dir;
use runner_spec::error::PlainError;
use runner_spec::model::layout::join_ranges;

/// Creates a file: `File::create_new`, or a stand-in of a test for a disk that is full.
pub type Create<'a> = &'a dyn Fn(&Path) -> io::Result<File>;

/// The index of a part, from 0, and the number of parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartSpec {
    pub index: usize,
    pub count: usize,
}

impl PartSpec {
    /// The only part of a checkpoint.
    pub const WHOLE: Self = Self { index: 0, count: 1 };
}

/// The content of a part, as its rank reports it to the leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartRecord {
    pub part: PartSpec,
    pub step: u64,
    pub moments: usize,
    pub files: BTreeMap<String, FileRecord>,
    /// Over the tensors' bytes, weights before moments. Where there is one part, `state` begins with step and tokens.
    pub hash: StateHash,
}

impl PartRecord {
    /// The record of the part's file of `kind`.
    pub(super) fn file(&self, kind: PartFileKind) -> Option<&FileRecord> {
        self.files.get(&kind.file_name(self.part))
    }

    /// Checks that the record describes the two files of a part. The message of the error continues the name of the file or part.
    pub(super) fn check_names(&self) -> Result<(), PlainError> {
        match PartFileKind::BOTH.iter().find(|kind| self.file(**kind).is_none()) {
            Some(kind) => Err(PlainError::failure(format!("does not describe {}", kind.file_name(self.part)))),
            None if self.files.len() > 2 => Err(PlainError::failure("describes files that a checkpoint does not have")),
            None => Ok(()),
        }
    }
}

/// Writes the entries `owned` of `state.layout`, with their moments, durably into `folder`, which need not exist. `create` makes the
/// files. The part counts once [`super::Checkpoints::commit`] has committed it.
///
/// # Errors
/// `Save`, with what is left to resume from; an index that the layout does not have.
pub fn write(
    folder: &Path,
    part: PartSpec,
    state: &StateBytes<'_>,
    owned: &[usize],
    create: Create<'_>,
) -> Result<PartRecord, RecordError> {
    let put = || -> Result<PartRecord, RecordError> {
        // The first rank creates it. The folder above must exist: otherwise the run has been deleted.
        match fs::create_dir(folder) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            made => made.map_err(RecordError::io("creating", folder))?,
        }
        let mut owned = owned.to_vec();
        owned.sort_unstable();
        owned.dedup();
        if part.index >= part.count || owned.last().is_some_and(|&last| last >= state.layout.entries.len()) {
            let message = format!("part {part:?} of {} tensors cannot be written", state.layout.entries.len());
            return Err(RecordError::damaged(folder, message));
        }
        let mut hasher = PartHasher::new(part, state.step, state.tokens);
        let mut files = BTreeMap::new();
        for kind in PartFileKind::BOTH {
            let name = kind.file_name(part);
            let record = write_file(&folder.join(&name), part, state, &owned, kind, &mut hasher, create)?;
            files.insert(name, record);
        }
        sync_dir(folder)?;
        Ok(PartRecord { part, step: state.step, moments: state.moments, files, hash: hasher.finish() })
    };
    put().map_err(|cause| entries::save_failed(folder.parent().unwrap_or(folder), state.step, cause))
}

/// Writes the safetensors file of `kind`, with the entries `owned`, which are in buffer order.
fn write_file(
    path: &Path,
    part: PartSpec,
    state: &StateBytes<'_>,
    owned: &[usize],
    kind: PartFileKind,
    hasher: &mut PartHasher,
    create: Create<'_>,
) -> Result<FileRecord, RecordError> {
    let entries: Vec<_> = owned.iter().map(|&index| &state.layout.entries[index]).collect();
    let header = header_of_part(part, state.step, &entries, kind.sections(state.moments), state.number_type);
    let mut out = create(path).map_err(RecordError::io("creating", path))?;
    let mut digest = blake3::Hasher::new();
    digest.update(&header);
    out.write_all(&header).map_err(RecordError::io("writing", path))?;
    let mut bytes = header.len() as u64;
    let ranges = join_ranges(entries.iter().map(|entry| entry.range()));
    for section in kind.sections(state.moments) {
        for range in &ranges {
            (state.read)(section, range.clone(), &mut |chunk| {
                hash_bytes(&mut digest, chunk);
                hasher.update(kind, chunk);
                bytes += chunk.len() as u64;
                out.write_all(chunk).map_err(RecordError::io("writing", path))
            })?;
        }
    }
    out.sync_all().map_err(RecordError::io("syncing", path))?;
    Ok(FileRecord { bytes, blake3: digest.finalize().to_hex().to_string() })
}
