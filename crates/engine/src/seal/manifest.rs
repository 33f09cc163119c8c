//! `manifest.json` of a sealed run: what it claims, and the hash of every file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

use runner_files::safetensors_header::{HeaderError, SafetensorsHeader, read_header};
use runner_files::sealed_json::{CONTENT_HASH, Seal, check_seal};
use runner_files::{children, open_regular, read_regular_text};
use runner_record::RecordError;
use runner_record::checkpoint::StateHash;
use runner_record::files::{check_format, check_texts, file_name};
use runner_record::manifest::{DataHashes, RunStatus};
use runner_record::run_dir::CHECKPOINTS;
use runner_spec::error::{CommandError, Result};

pub(super) const FORMAT: u32 = 1;
/// The manifest of a sealed run.
pub(super) const MANIFEST: &str = "manifest.json";
/// The model card.
pub(super) const CARD: &str = "README.md";
/// The folder with the record of the run, which is a run directory.
pub(super) const RUN: &str = "run";

/// The largest header of a safetensors file, in bytes.
const MAX_HEADER_BYTES: u64 = 100 << 20;
/// The number of bytes read at a time.
const BLOCK_BYTES: usize = 1 << 20;

/// The whole file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct SealManifest {
    pub(super) format: u32,
    /// The program that sealed the run: its version, and the hash of its sources.
    pub(super) version: String,
    pub(super) source_hash: Option<String>,
    /// The id of the run.
    pub(super) run: String,
    pub(super) plan_hash: String,
    pub(super) status: RunStatus,
    /// The last recorded step.
    pub(super) steps: u64,
    pub(super) data: DataHashes,
    /// The hash of the state after the last step.
    pub(super) final_hash: Option<String>,
    pub(super) weights: SealedWeights,
    /// The training state from which steps can be trained again.
    pub(super) state: Option<SealedState>,
    pub(super) files: Vec<SealedFile>,
}

/// The exported weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SealedWeights {
    /// The step of their checkpoint.
    pub(super) step: u64,
    /// The hashes of that checkpoint.
    pub(super) state_hash: Option<String>,
    pub(super) weights_hash: Option<String>,
    /// True if they are as `transformers` reads them, else as checkpoints have them.
    #[serde(rename = "hugging_face")]
    pub(super) is_hugging_face: bool,
}

/// A checkpoint in the folder of the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SealedState {
    pub(super) step: u64,
    pub(super) state_hash: String,
    pub(super) bytes: u64,
}

/// A file of a sealed run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SealedFile {
    /// Within the folder, with `/`.
    pub(super) path: String,
    pub(super) bytes: u64,
    /// BLAKE3 of the content.
    pub(super) hash: String,
    /// BLAKE3 of the bytes of each tensor of a safetensors file, in the order of the file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) tensors: Vec<TensorHash>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TensorHash {
    pub(super) name: String,
    pub(super) hash: String,
}

/// How a file differs from the manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FileChange {
    Changed,
    Missing,
    /// It is there, and cannot be read: a link, or something that the system refuses.
    Unreadable,
    Added,
}

/// A file that has changed since the run was sealed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChangedFile {
    /// Within the folder.
    pub path: String,
    pub change: FileChange,
    /// The BLAKE3 hash in the manifest; `None` for an added file.
    pub sealed: Option<String>,
    /// The hash now; `None` for a file that is missing or cannot be read.
    pub found: Option<String>,
    /// The first tensor of weights that differs.
    pub tensor: Option<String>,
}

impl SealManifest {
    /// Reads the manifest of the sealed run in `folder`. The second value is its content hash; `None` if it does not match its content.
    ///
    /// # Errors
    /// If there is none, or it is of a newer format.
    pub(super) fn read(folder: &Path) -> Result<(Self, Option<String>)> {
        let path = folder.join(MANIFEST);
        let text = read_regular_text(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => CommandError::request(format!(
                "{} is not a sealed run: it has no {MANIFEST}; `runner seal RUN DIR` makes one",
                folder.display()
            )),
            _ => CommandError::io(format!("reading {}", path.display()))(error),
        })?;
        check_texts(&path, &text, &[])?;
        let damaged = |error: serde_json::Error| {
            CommandError::from(RecordError::damaged(&path, format!("it is not the manifest of a sealed run: {error}")))
        };
        let manifest: Self = serde_json::from_str(&text).map_err(damaged)?;
        check_format(&path, manifest.format, FORMAT)?;
        let is_intact = check_seal(&text).map_err(damaged)? == Seal::Intact;
        let value: serde_json::Value = serde_json::from_str(&text).map_err(damaged)?;
        let hash = value[CONTENT_HASH].as_str().filter(|_| is_intact).map(str::to_owned);
        Ok((manifest, hash))
    }

    /// The files in `folder` that have changed since the run was sealed, or cannot be read.
    pub(super) fn changed_files(&self, folder: &Path) -> Vec<ChangedFile> {
        let sealed: BTreeMap<&str, &SealedFile> = self.files.iter().map(|file| (file.path.as_str(), file)).collect();
        let present: BTreeSet<String> = list_files(folder).into_iter().filter(|path| path != MANIFEST).collect();
        let mut changed = Vec::new();
        for (path, file) in &sealed {
            let is_in_closed_folder = || {
                present
                    .iter()
                    .any(|closed| path.strip_prefix(closed.as_str()).is_some_and(|rest| rest.starts_with('/')))
            };
            if !present.contains(*path) && !is_in_closed_folder() {
                let (path, sealed) = ((*path).to_owned(), Some(file.hash.clone()));
                changed.push(ChangedFile { path, change: FileChange::Missing, sealed, found: None, tensor: None });
                continue;
            }
            let Ok(now) = SealedFile::read(folder, (*path).to_owned()) else {
                let (path, sealed) = ((*path).to_owned(), Some(file.hash.clone()));
                changed.push(ChangedFile { path, change: FileChange::Unreadable, sealed, found: None, tensor: None });
                continue;
            };
            if now.hash != file.hash || now.bytes != file.bytes {
                let tensors = file.tensors.iter().zip(&now.tensors);
                let tensor = tensors.filter(|(then, now)| then != now).map(|(then, _)| then.name.clone()).next();
                changed.push(ChangedFile {
                    path: (*path).to_owned(),
                    change: FileChange::Changed,
                    sealed: Some(file.hash.clone()),
                    found: Some(now.hash),
                    tensor,
                });
            }
        }
        for path in present.into_iter().filter(|path| !sealed.contains_key(path.as_str())) {
            let found = SealedFile::read(folder, path.clone()).ok().map(|file| file.hash);
            changed.push(ChangedFile { path, change: FileChange::Added, sealed: None, found, tensor: None });
        }
        changed
    }
}

impl SealedFile {
    /// Hashes the file at `path` within `folder`.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn read(folder: &Path, path: String) -> Result<Self> {
        let full = folder.join(&path);
        let failed = || format!("reading {}", full.display());
        // What a link points to is not in the folder.
        if !fs::symlink_metadata(&full).map_err(CommandError::io(failed()))?.is_file() {
            return Err(CommandError::failure(format!("{}: it is not a regular file", failed())));
        }
        let mut file = open_regular(&full).map_err(CommandError::io(failed()))?;
        let bytes = file.metadata().map_err(CommandError::io(failed()))?.len();
        let is_weights = full.extension().is_some_and(|end| end == "safetensors");
        let header =
            if is_weights { read_header_of(&mut file, bytes).map_err(CommandError::io(failed()))? } else { None };
        let mut whole = blake3::Hasher::new();
        let mut tensors = Vec::new();
        if let Some(header) = header {
            whole.update(&header.bytes);
            for (name, info) in header.tensors {
                let mut hasher = blake3::Hasher::new();
                let [begin, end] = info.data_offsets;
                read_bytes(&mut file, end - begin, &mut |block| {
                    whole.update(block);
                    hasher.update(block);
                })
                .map_err(CommandError::io(failed()))?;
                tensors.push(TensorHash { name, hash: hasher.finalize().to_hex().to_string() });
            }
        } else {
            file = open_regular(&full).map_err(CommandError::io(failed()))?;
        }
        // The rest: all of a file without tensors.
        read_bytes(&mut file, u64::MAX, &mut |block| {
            whole.update(block);
        })
        .map_err(CommandError::io(failed()))?;
        Ok(Self { path, bytes, hash: whole.finalize().to_hex().to_string(), tensors })
    }
}

/// The header of a safetensors file; `None` if it is damaged.
pub(super) fn read_header_of(file: &mut File, bytes: u64) -> io::Result<Option<SafetensorsHeader>> {
    match read_header(file, bytes, MAX_HEADER_BYTES) {
        Ok(header) => Ok(Some(header)),
        Err(HeaderError::Content(_)) => Ok(None),
        Err(HeaderError::Io(error)) => Err(error),
    }
}

/// Passes the next `count` bytes of `file`, or as many as there are, to `take`.
fn read_bytes(file: &mut File, count: u64, take: &mut dyn FnMut(&[u8])) -> io::Result<()> {
    let mut rest = file.take(count);
    let mut block = vec![0; BLOCK_BYTES];
    loop {
        let read = rest.read(&mut block)?;
        if read == 0 {
            return Ok(());
        }
        take(&block[..read]);
    }
}

/// The files in `folder` and below, by their paths within it. A link is not followed, and a folder below may be closed: each counts as a file
/// that cannot be read.
pub(super) fn list_files(folder: &Path) -> Vec<String> {
    let mut files = Vec::new();
    let mut folders = vec![(folder.to_owned(), String::new())];
    while let Some((path, prefix)) = folders.pop() {
        for child in children(&path) {
            let name = format!("{prefix}{}", file_name(&child));
            if runner_files::is_real_folder(&child) && fs::read_dir(&child).is_ok() {
                folders.push((child, format!("{name}/")));
            } else {
                files.push(name);
            }
        }
    }
    files.sort();
    files
}

/// The bytes of the checkpoints among the `files` of a sealed run.
pub(super) fn state_bytes(files: &[SealedFile]) -> u64 {
    let prefix = format!("{RUN}/{CHECKPOINTS}/");
    files.iter().filter(|file| file.path.starts_with(&prefix)).map(|file| file.bytes).sum()
}

impl SealedWeights {
    /// True if a checkpoint of the same step with the hashes `hash` contradicts this. Its state counts only with `has_same_state`.
    pub(super) fn contradicts(&self, hash: &StateHash, has_same_state: bool) -> bool {
        let differs = |claim: &Option<String>, hash: &String| claim.as_ref().is_some_and(|claim| claim != hash);
        differs(&self.weights_hash, &hash.weights) || (has_same_state && differs(&self.state_hash, &hash.state))
    }

    /// The weights of the checkpoint of `step`, which has the hashes `hash`.
    pub(super) fn new(step: u64, hash: Option<StateHash>, is_hugging_face: bool) -> Self {
        let (state_hash, weights_hash) = hash.map(|hash| (hash.state, hash.weights)).unzip();
        Self { step, state_hash, weights_hash, is_hugging_face }
    }
}
