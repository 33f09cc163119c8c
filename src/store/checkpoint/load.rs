//! Reads one checkpoint, believing nothing: sizes, layout and hashes must all agree before a number is used.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use candle_core::{Device, Tensor};

use super::format::{FORMAT, FileRecord, MODEL, OPTIMIZER, STATE, StateFile, compare, tensors};
use super::hash::{StateHash, StateHasher};
use crate::exec::TrainState;
use crate::model::ParamLayout;
use crate::store::error::StoreError;
use crate::store::files::read_json;

/// Why a checkpoint cannot be used.
#[derive(Debug)]
pub(super) enum Bad {
    /// Its content is wrong: an earlier checkpoint may serve.
    Content(String),
    /// The machine refused: trying another would hide it.
    Machine(StoreError),
}

impl Bad {
    fn io(path: &Path, error: io::Error) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        match error.kind() {
            io::ErrorKind::NotFound => Self::Content(format!("{name} is missing")),
            io::ErrorKind::UnexpectedEof => Self::Content(format!("{name} is cut short")),
            _ => Self::Machine(StoreError::io("reading", path)(error)),
        }
    }
}

/// `state.json` of the checkpoint in `folder`.
pub(super) fn state_file(folder: &Path) -> Result<StateFile, Bad> {
    let path = folder.join(STATE);
    let file: StateFile = read_json(&path).map_err(|error| match error {
        StoreError::Io { path, source, .. } => Bad::io(&path, source),
        StoreError::Damaged { message, .. } => Bad::Content(format!("{STATE}: {message}")),
        other => Bad::Machine(other),
    })?;
    if file.format != FORMAT {
        let message = format!("{STATE} is of format {}, this version reads format {FORMAT}", file.format);
        return Err(Bad::Content(message));
    }
    Ok(file)
}

/// Whether the files in `folder` are there in the sizes that its state file gives.
pub(super) fn looks_whole(folder: &Path) -> Result<StateFile, Bad> {
    let state = state_file(folder)?;
    for name in [MODEL, OPTIMIZER] {
        checked_size(&folder.join(name), record(&state, name)?)?;
    }
    Ok(state)
}

fn record<'a>(state: &'a StateFile, name: &str) -> Result<&'a FileRecord, Bad> {
    state.files.get(name).ok_or_else(|| Bad::Content(format!("{STATE} does not describe {name}")))
}

fn checked_size(path: &Path, record: &FileRecord) -> Result<u64, Bad> {
    let size = std::fs::metadata(path).map_err(|e| Bad::io(path, e))?.len();
    if size == record.bytes {
        return Ok(size);
    }
    let how = if size < record.bytes { "cut short" } else { "too long" };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Err(Bad::Content(format!("{name} is {how}: {size} bytes, {STATE} says {}", record.bytes)))
}

/// The whole state, for going on with a run of `plan_hash`.
pub(super) fn state(
    folder: &Path,
    layout: &Arc<ParamLayout>,
    moments: usize,
    plan_hash: &str,
    device: &Device,
) -> Result<(TrainState, StateHash), Bad> {
    let file = looks_whole(folder)?;
    if file.plan_hash != plan_hash {
        let [theirs, ours] = [&file.plan_hash, plan_hash].map(|h| h.chars().take(8).collect::<String>());
        return Err(Bad::Content(format!("it is of another plan ({theirs}; this run's is {ours})")));
    }
    if file.moments != moments {
        let message = format!("it holds {} optimizer moments, this run's optimizer has {moments}", file.moments);
        return Err(Bad::Content(message));
    }
    let mut buffer = Vec::new();
    let mut hasher = StateHasher::new(file.step, file.tokens);
    for (name, sections) in [(MODEL, 0..1), (OPTIMIZER, 1..moments + 1)] {
        let reserve = layout.total * if name == MODEL { 1 + moments } else { 0 };
        read(&folder.join(name), record(&file, name)?, layout, sections, reserve, &mut buffer, &mut hasher)?;
    }
    let hash = hasher.finish();
    if hash.state != file.state_hash {
        return Err(Bad::Content(format!("{STATE} was altered: step and tokens do not match its hash")));
    }
    let buffer = tensor(buffer, device)?;
    let best = file.best.map(Into::into);
    let state = TrainState { step: file.step, tokens: file.tokens, best, layout: layout.clone(), buffer, moments };
    Ok((state, hash))
}

/// The weights alone, [layout.total], and the steps they were trained for.
pub(super) fn weights(folder: &Path, layout: &ParamLayout, device: &Device) -> Result<(Tensor, u64), Bad> {
    let file = state_file(folder)?;
    let mut buffer = Vec::new();
    let mut hasher = StateHasher::new(file.step, file.tokens);
    read(&folder.join(MODEL), record(&file, MODEL)?, layout, 0..1, layout.total, &mut buffer, &mut hasher)?;
    Ok((tensor(buffer, device)?, file.step))
}

fn tensor(buffer: Vec<f32>, device: &Device) -> Result<Tensor, Bad> {
    let len = buffer.len();
    Tensor::from_vec(buffer, len, device).map_err(|e| Bad::Machine(e.into()))
}

/// Bytes read at a time; a multiple of four.
const CHUNK: usize = 1 << 18;

/// Appends the numbers of one safetensors file to `buffer`, which grows once by `reserve`. Everything about the file is
/// checked against `layout` and its size on disk before that.
fn read(
    path: &Path,
    record: &FileRecord,
    layout: &ParamLayout,
    sections: Range<usize>,
    reserve: usize,
    buffer: &mut Vec<f32>,
    hasher: &mut StateHasher,
) -> Result<(), Bad> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let content = |message: String| Bad::Content(format!("{name}: {message}"));
    let size = checked_size(path, record)?;
    let mut file = File::open(path).map_err(|e| Bad::io(path, e))?;
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(|e| Bad::io(path, e))?;
    let data = 4 * (layout.total * sections.len()) as u64;
    let header_len = u64::from_le_bytes(length);
    if Some(size) != header_len.checked_add(8 + data) {
        return Err(content(format!("{size} bytes with a header of {header_len} do not hold {data} bytes of tensors")));
    }
    let expected = tensors(layout, sections.clone());
    // A header that is right is about this long; a longer one is not read.
    if header_len > 4096 + 1024 * expected.len() as u64 {
        return Err(content(format!("a header of {header_len} bytes is none of ours")));
    }
    let mut header = vec![0; header_len as usize];
    file.read_exact(&mut header).map_err(|e| Bad::io(path, e))?;
    compare(&header, &expected).map_err(content)?;
    let mut digest = blake3::Hasher::new();
    digest.update(&length);
    digest.update(&header);
    if buffer.try_reserve_exact(reserve).is_err() {
        let message = format!("no memory for {} bytes of it", 4 * reserve);
        return Err(Bad::Machine(StoreError::damaged(path, message)));
    }
    let mut bytes = vec![0; CHUNK];
    for section in sections {
        let mut left = 4 * layout.total;
        while left > 0 {
            let part = &mut bytes[..left.min(CHUNK)];
            file.read_exact(part).map_err(|e| Bad::io(path, e))?;
            digest.update(part);
            hasher.update(section, part);
            buffer.extend(part.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
            left -= part.len();
        }
    }
    if digest.finalize().to_hex().as_str() != record.blake3 {
        return Err(content(format!("its content does not match the hash in {STATE}")));
    }
    Ok(())
}
