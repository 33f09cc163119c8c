//! Writes one part of a checkpoint into the folder that the leader commits.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use super::entries;
use super::hash::{PartHasher, hash_bytes};
use super::header::header_of_part;
use super::part::{PartFileKind, PartRecord, PartSpec};
use super::state_reader::StateReader;
use crate::error::RecordError;
use crate::files::FileRecord;
use crate::files::sync_dir;
use runner_spec::model::layout::{ParamEntry, join_ranges};

/// Creates a file: `File::create_new`, or a stand-in of a test for a disk that is full.
pub type Create<'a> = &'a dyn Fn(&Path) -> io::Result<File>;

/// Writes the entries `owned` of `state.layout`, with their moments, durably into `folder`, which need not exist. `create` makes the
/// files. The part counts once [`super::Checkpoints::commit`] has committed it.
///
/// # Errors
/// `Save`, with the checkpoint to resume from; an index that the layout does not have.
pub fn write_part(
    folder: &Path,
    part: PartSpec,
    state: &StateReader<'_>,
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
    state: &StateReader<'_>,
    owned: &[usize],
    kind: PartFileKind,
    hasher: &mut PartHasher,
    create: Create<'_>,
) -> Result<FileRecord, RecordError> {
    let entries: Vec<_> = owned.iter().map(|&index| &state.layout.entries[index]).collect();
    let header =
        header_of_part(part, state.step, state.layout, &entries, kind.sections(state.moments), state.number_type);
    let mut out = create(path).map_err(RecordError::io("creating", path))?;
    let mut digest = blake3::Hasher::new();
    digest.update(&header);
    out.write_all(&header).map_err(RecordError::io("writing", path))?;
    let mut bytes = header.len() as u64;
    for section in kind.sections(state.moments) {
        for range in join_ranges(state.layout.having(section, &entries).map(ParamEntry::range)) {
            (state.read)(section, range, &mut |chunk| {
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
