//! `manifest.json` of a sealed run: what it claims, and the hash of every file.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

use runner_files::safetensors_header::{HeaderError, read_header};
use runner_files::sealed_json::is_intact;
use runner_files::{children, open_regular, read_regular_text};
use runner_inputs::Host;
use runner_record::RecordError;
use runner_record::checkpoint::step_of_folder;
use runner_record::files::{check_format, check_texts, file_name};
use runner_record::run_dir::{CHECKPOINTS, RESOLVED};
use runner_spec::error::{CommandError, Result};

const FORMAT: u32 = 1;
/// The manifest of a sealed run.
pub(super) const MANIFEST: &str = "manifest.json";
pub(super) const README: &str = "README.md";
/// The folder with the record of the run, which is a run directory.
pub(super) const RUN: &str = "run";

/// The largest header of a safetensors file, in bytes.
const MAX_HEADER_BYTES: u64 = 100 << 20;
/// The number of bytes read at a time.
const BLOCK_BYTES: usize = 1 << 20;

/// The whole file. What the record says is not repeated here: `files` has its hashes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SealManifest {
    pub(super) format: u32,
    /// The program that sealed the run: its version, and the hash of its sources.
    pub(super) version: String,
    pub(super) source_hash: Option<String>,
    /// The id of the run.
    pub(super) run: String,
    /// The step of the exported weights.
    pub(super) weights_step: u64,
    pub(super) files: Vec<SealedFile>,
    #[serde(default, skip_serializing)]
    content_hash: Option<String>,
}

#[derive(Deserialize)]
struct FormatField {
    format: u32,
}

/// A file of a sealed run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
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
    /// The manifest of `files`, with the weights of the checkpoint of `weights_step` of the run with the id `run`.
    pub(super) fn new(run: String, weights_step: u64, files: Vec<SealedFile>, host: &Host) -> Self {
        let (version, source_hash) = (env!("CARGO_PKG_VERSION").to_owned(), host.build.source_hash.clone());
        Self { format: FORMAT, version, source_hash, run, weights_step, files, content_hash: None }
    }

    /// True if this program sealed the run. A different version may write the README in other words, or count differently.
    pub(super) fn is_of_this_program(&self, host: &Host) -> bool {
        self.version == env!("CARGO_PKG_VERSION") && self.source_hash == host.build.source_hash
    }

    /// Reads the manifest of the sealed run in `folder`. The second value is its content hash; `None` if it does not match its content.
    ///
    /// # Errors
    /// If there is none, or it is of a newer format.
    pub(super) fn read(folder: &Path) -> Result<(Self, Option<String>)> {
        let path = folder.join(MANIFEST);
        let not_sealed = |why: String| {
            let folder = folder.display();
            CommandError::request(format!("{folder} is not a sealed run: {why}; `runner seal RUN DIR` makes one"))
        };
        if folder.join(RESOLVED).exists() {
            return Err(not_sealed("it is a run".to_owned()));
        }
        let text = read_regular_text(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => not_sealed(format!("it has no {MANIFEST}")),
            _ => CommandError::io(format!("reading {}", path.display()))(error),
        })?;
        check_texts(&path, &text, &[])?;
        let damaged = |error: serde_json::Error| {
            CommandError::from(RecordError::damaged(&path, format!("it is not the manifest of a sealed run: {error}")))
        };
        check_format(&path, serde_json::from_str::<FormatField>(&text).map_err(damaged)?.format, FORMAT)?;
        let manifest: Self = serde_json::from_str(&text).map_err(damaged)?;
        let hash = manifest.content_hash.clone().filter(|_| is_intact(&text));
        Ok((manifest, hash))
    }

    /// The step and the size in bytes of the training state from which steps can be trained again.
    pub(super) fn state(&self) -> Option<(u64, u64)> {
        let prefix = format!("{RUN}/{CHECKPOINTS}/");
        let files = self.files.iter().filter_map(|file| Some((file.path.strip_prefix(&prefix)?, file.bytes)));
        let step = files.clone().find_map(|(path, _)| step_of_folder(path.split('/').next()?))?;
        Some((step, files.map(|(_, bytes)| bytes).sum()))
    }

    /// The files in `folder` that have changed since the run was sealed, or cannot be read. The second value says which files are as they
    /// were, but have tensors with other hashes than this manifest lists.
    pub(super) fn changed_files(&self, folder: &Path) -> (Vec<ChangedFile>, Vec<String>) {
        let mut files: BTreeMap<String, Option<&SealedFile>> =
            list_files(folder).into_iter().map(|path| (path, None)).collect();
        files.remove(MANIFEST);
        files.extend(self.files.iter().map(|file| (file.path.clone(), Some(file))));
        let (mut changed, mut contradictions) = (Vec::new(), Vec::new());
        for (path, sealed) in files {
            let is_missing = matches!(fs::symlink_metadata(folder.join(&path)), Err(error) if error.kind() == io::ErrorKind::NotFound);
            let found = SealedFile::read(folder, path.clone()).ok();
            let change = match (sealed, &found) {
                (None, _) => FileChange::Added,
                (Some(_), None) if is_missing => FileChange::Missing,
                (Some(_), None) => FileChange::Unreadable,
                (Some(sealed), Some(found)) if sealed.hash != found.hash => FileChange::Changed,
                (Some(sealed), Some(found)) => {
                    if sealed != found {
                        contradictions
                            .push(format!("{MANIFEST} lists another size or other tensors of {path} than it has"));
                    }
                    continue;
                }
            };
            let tensors = sealed.zip(found.as_ref()).map(|(sealed, found)| sealed.tensors.iter().zip(&found.tensors));
            let tensor =
                tensors.into_iter().flatten().find(|(then, now)| then != now).map(|(then, _)| then.name.clone());
            let (sealed, found) = (sealed.map(|file| file.hash.clone()), found.map(|file| file.hash));
            changed.push(ChangedFile { path, change, sealed, found, tensor });
        }
        (changed, contradictions)
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
        let header = is_weights.then(|| read_header(&mut file, bytes, MAX_HEADER_BYTES));
        let header = match header {
            Some(Err(HeaderError::Io(error))) => return Err(CommandError::io(failed())(error)),
            Some(Ok(header)) => Some(header),
            // A damaged header counts as other bytes.
            Some(Err(HeaderError::Content(_))) | None => None,
        };
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

/// The files in `folder` and below, by their paths within it. A link is not followed, and a folder below may be closed or empty: each counts as
/// a file that cannot be read.
pub(super) fn list_files(folder: &Path) -> Vec<String> {
    let mut files = Vec::new();
    let mut folders = vec![(folder.to_owned(), String::new())];
    while let Some((path, prefix)) = folders.pop() {
        for child in children(&path) {
            let name = format!("{prefix}{}", file_name(&child));
            if runner_files::is_real_folder(&child)
                && fs::read_dir(&child).is_ok_and(|mut entries| entries.next().is_some())
            {
                folders.push((child, format!("{name}/")));
            } else {
                files.push(name);
            }
        }
    }
    files.sort();
    files
}
