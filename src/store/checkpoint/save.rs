//! Writes one checkpoint into an empty folder.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;

use super::format::{FORMAT, FileRecord, Float, MODEL, OPTIMIZER, STATE, StateFile, header, tensors};
use super::hash::{StateHash, StateHasher, each_chunk};
use crate::exec::TrainState;
use crate::store::error::StoreError;
use crate::store::files::sync_dir;

/// How files come to be: `File::create_new`, or a test's stand-in for a disk that fills up.
pub(super) type Create<'a> = &'a dyn Fn(&Path) -> io::Result<File>;

/// Writes `state` into `folder` and makes it durable. `val_loss` is that of these weights, where it was measured.
pub(super) fn write(
    folder: &Path,
    state: &TrainState,
    plan_hash: &str,
    val_loss: Option<f64>,
    create: Create<'_>,
) -> Result<StateHash, StoreError> {
    let mut hasher = StateHasher::new(state.step, state.tokens);
    let mut files = BTreeMap::new();
    for (name, sections) in [(MODEL, 0..1), (OPTIMIZER, 1..state.moments + 1)] {
        let record = sections_file(&folder.join(name), state, sections, &mut hasher, create)?;
        files.insert(name.to_owned(), record);
    }
    let hash = hasher.finish();
    let file = StateFile {
        format: FORMAT,
        step: state.step,
        tokens: state.tokens,
        best: state.best.map(Into::into),
        val_loss: val_loss.map(Float),
        plan_hash: plan_hash.to_owned(),
        moments: state.moments,
        state_hash: hash.state.clone(),
        weights_hash: hash.weights.clone(),
        files,
    };
    let path = folder.join(STATE);
    let mut bytes = serde_json::to_vec_pretty(&file).map_err(|e| StoreError::damaged(&path, e.to_string()))?;
    bytes.push(b'\n');
    let put = || -> io::Result<()> {
        let mut out = create(&path)?;
        out.write_all(&bytes)?;
        out.sync_all()
    };
    put().map_err(StoreError::io("writing", &path))?;
    sync_dir(folder)?;
    Ok(hash)
}

/// One safetensors file of `sections` of the buffer.
fn sections_file(
    path: &Path,
    state: &TrainState,
    sections: Range<usize>,
    hasher: &mut StateHasher,
    create: Create<'_>,
) -> Result<FileRecord, StoreError> {
    let header = header(&tensors(&state.layout, sections.clone()))
        .map_err(|e| StoreError::damaged(path, format!("its header: {e}")))?;
    let mut out = create(path).map_err(StoreError::io("creating", path))?;
    let mut digest = blake3::Hasher::new();
    digest.update(&header);
    out.write_all(&header).map_err(StoreError::io("writing", path))?;
    let mut bytes = header.len() as u64;
    for section in sections {
        each_chunk(&state.section(section)?, &mut |chunk| {
            digest.update(chunk);
            hasher.update(section, chunk);
            bytes += chunk.len() as u64;
            out.write_all(chunk).map_err(StoreError::io("writing", path))
        })?;
    }
    out.sync_all().map_err(StoreError::io("syncing", path))?;
    Ok(FileRecord { bytes, blake3: digest.finalize().to_hex().to_string() })
}
