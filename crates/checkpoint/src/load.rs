//! Reads checkpoints. Sizes, headers and hashes must all agree before a number is used. Tensors are found by name, in whatever
//! parts there are.

use std::collections::HashMap;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::format::{FORMAT, FORMAT_PARTS, STATE, StateFile};
use super::hash::{PartHasher, hash_bytes};
use super::header::{self, NumberType, tensor_name};
use super::part::{PartFileKind, PartRecord};
use super::state_reader::CHUNK_BYTES;
use crate::error::RecordError;
use crate::files::{file_name, read_sealed_json};
use runner_files::open_regular;
use runner_files::safetensors_header::{HeaderError, SafetensorsHeader};
use runner_spec::format::short_hash;
use runner_spec::model::layout::ParamLayout;

/// The reason why a checkpoint cannot be used.
#[derive(Debug)]
pub(super) enum CheckpointProblem {
    /// Its content is wrong: an earlier checkpoint may be usable.
    Content(String),
    /// The machine failed: reading another checkpoint would hide that.
    Machine(RecordError),
}

impl CheckpointProblem {
    fn io(path: &Path, error: io::Error) -> Self {
        let name = file_name(path);
        match error.kind() {
            io::ErrorKind::NotFound => Self::Content(format!("{name} is missing")),
            io::ErrorKind::UnexpectedEof => Self::Content(format!("{name} is cut short")),
            // A folder or a pipe is there instead.
            io::ErrorKind::InvalidInput => Self::Content(format!("{name}: {error}")),
            _ => Self::Machine(RecordError::io("reading", path)(error)),
        }
    }

    /// The error for the checkpoint at `path`; `fallback` names the one to use instead.
    pub(super) fn error(self, path: &Path, fallback: impl FnOnce() -> String) -> RecordError {
        match self {
            Self::Machine(error) => error,
            Self::Content(message) => RecordError::Checkpoint { path: path.to_owned(), message, fallback: fallback() },
        }
    }
}

/// The failure of a checkpoint whose content is wrong.
fn content<T>(message: String) -> Result<T, CheckpointProblem> {
    Err(CheckpointProblem::Content(message))
}

/// Reads `state.json` of the checkpoint in `folder`.
pub(super) fn state_file(folder: &Path) -> Result<StateFile, CheckpointProblem> {
    let path = folder.join(STATE);
    let file: StateFile = read_sealed_json(&path).map_err(|error| match error {
        RecordError::Io { path, source, .. } => CheckpointProblem::io(&path, source),
        RecordError::Damaged { message, .. } => CheckpointProblem::Content(format!("{STATE}: {message}")),
        other => CheckpointProblem::Machine(other),
    })?;
    if ![FORMAT, FORMAT_PARTS].contains(&file.format) {
        let format = file.format;
        return content(format!(
            "{STATE} has format {format}, but this version of runner reads formats up to {FORMAT_PARTS}"
        ));
    }
    Ok(file)
}

/// Checks that the files of `part` are in `folder` in their sizes.
pub(super) fn check_sizes(folder: &Path, part: &PartRecord) -> Result<(), CheckpointProblem> {
    for (name, record) in &part.files {
        let size =
            std::fs::metadata(folder.join(name)).map_err(|e| CheckpointProblem::io(&folder.join(name), e))?.len();
        if size != record.bytes {
            let how = if size < record.bytes { "cut short" } else { "too long" };
            return content(format!("{name} is {how}: it has {size} bytes, but {STATE} records {}", record.bytes));
        }
    }
    Ok(())
}

/// A checkpoint whose files exist, with their headers.
#[derive(Debug)]
pub(super) struct StoredCheckpoint {
    pub(super) state: StateFile,
    /// Each part with its two files.
    parts: Vec<(PartRecord, [PartFile; 2])>,
    /// By kind of file and name, the part of each tensor and its index in the file.
    positions: HashMap<(usize, String), (usize, usize)>,
}

#[derive(Debug)]
struct PartFile {
    path: PathBuf,
    name: String,
    blake3: String,
    header: SafetensorsHeader,
    /// The type of all tensors: f32 or bf16.
    dtype: NumberType,
}

/// The destinations of the requested tensors: per part, file and tensor of the file, the first element in the destination.
pub(super) struct TensorPlaces(Vec<[Vec<Option<u64>>; 2]>);

/// Receives the requested elements: the destination of the first one, their type, and the bytes of a piece of them.
pub(super) type Sink<'a> = &'a mut dyn FnMut(u64, NumberType, &[u8]) -> Result<(), RecordError>;

impl StoredCheckpoint {
    /// Opens the checkpoint in `folder`, of the plan `plan_hash` where that is given, and reads its headers. No tensor may be in it
    /// twice.
    pub(super) fn open(folder: &Path, plan_hash: Option<&str>) -> Result<Self, CheckpointProblem> {
        let state = state_file(folder)?;
        if let Some(wanted) = plan_hash.filter(|wanted| *wanted != state.plan_hash) {
            let [theirs, ours] = [&state.plan_hash, wanted].map(short_hash);
            return content(format!("it belongs to a different plan ({theirs}; this run's is {ours})"));
        }
        let mut parts = Vec::new();
        for record in state.checked_parts().map_err(|error| CheckpointProblem::Content(error.text))? {
            check_sizes(folder, &record)?;
            let [model, optimizer] = PartFileKind::BOTH.map(|kind| PartFile::open(folder, &record, kind));
            parts.push((record, [model?, optimizer?]));
        }
        let mut positions = HashMap::new();
        for (part, (record, files)) in parts.iter().enumerate() {
            let [weights, moments] = files.each_ref().map(|file| file.header.tensors.len());
            // Some optimizers have a second moment of some tensors only.
            if !(weights * record.moments.min(1)..=weights * record.moments).contains(&moments) {
                let (name, count) = (&files[PartFileKind::Optimizer as usize].name, record.moments);
                return content(format!(
                    "{name} has {moments} tensors, but {STATE} records {count} moments of {weights} weights"
                ));
            }
            for (kind, file) in files.iter().enumerate() {
                for (index, (name, _)) in file.header.tensors.iter().enumerate() {
                    if let Some((first, _)) = positions.insert((kind, name.clone()), (part, index)) {
                        let [first, second] = [first, part].map(|part: usize| &parts[part].1[kind].name);
                        return content(format!("tensor {name} is in both {first} and {second}"));
                    }
                }
            }
        }
        Ok(Self { state, parts, positions })
    }

    /// True if the headers of its files are as this program writes them.
    pub(super) fn has_headers_as_written(&self) -> bool {
        let mut files = self.parts.iter().flat_map(|(record, files)| files.iter().map(move |file| (record, file)));
        files.all(|(record, file)| header::is_as_written(&file.header, record.part, record.step))
    }

    /// Finds every tensor of a flat buffer laid out by `layout`, weights and `moments` moments.
    pub(super) fn find(&self, layout: &ParamLayout, moments: usize) -> Result<TensorPlaces, CheckpointProblem> {
        if moments > 0 && self.state.moments != moments {
            let message =
                format!("it has {} optimizer moments, but this run's optimizer has {moments}", self.state.moments);
            return content(message);
        }
        let mut places = self.nothing();
        for kind in PartFileKind::BOTH {
            for section in kind.sections(moments) {
                let first = layout.first_in_section(section);
                for entry in layout.entries.iter().filter(|entry| entry.offset >= first) {
                    let name = tensor_name(&entry.spec.name, section);
                    let key = (kind as usize, name);
                    let Some(&(part, index)) = self.positions.get(&key) else {
                        let file = match self.parts.as_slice() {
                            [(_, files)] => format!("{} lacks", files[kind as usize].name),
                            _ => "none of its parts has".to_owned(),
                        };
                        return content(format!("{file} tensor {}", key.1));
                    };
                    let file = &self.parts[part].1[kind as usize];
                    let have = &file.header.tensors[index].1.shape;
                    if *have != entry.spec.shape {
                        let want = &entry.spec.shape;
                        let (file, name) = (&file.name, &key.1);
                        return content(format!("{file}: tensor {name} must have the shape {want:?}, found {have:?}"));
                    }
                    places.0[part][kind as usize][index] = Some(layout.place(section, entry.offset) as u64);
                }
            }
        }
        Ok(places)
    }

    /// Requests no tensor.
    pub(super) fn nothing(&self) -> TensorPlaces {
        TensorPlaces(
            self.parts.iter().map(|(_, files)| files.each_ref().map(|f| vec![None; f.header.tensors.len()])).collect(),
        )
    }

    /// Requests every tensor, weights before moments. Also returns their names, each with the end of its elements among all
    /// elements.
    pub(super) fn everything(&self) -> (TensorPlaces, Vec<(String, u64)>) {
        let mut places = self.nothing();
        let (mut names, mut at) = (Vec::new(), 0);
        for kind in PartFileKind::BOTH {
            for (part, (_, files)) in self.parts.iter().enumerate() {
                for (index, (name, info)) in files[kind as usize].header.tensors.iter().enumerate() {
                    places.0[part][kind as usize][index] = Some(at);
                    let bytes = info.data_offsets[1] - info.data_offsets[0];
                    at += bytes / files[kind as usize].dtype.bytes() as u64;
                    names.push((name.clone(), at));
                }
            }
        }
        (places, names)
    }

    /// Reads each file that holds a tensor of `places`, or every file if `all`. Hashes all bytes that it reads, and gives those of `places` to
    /// `sink`. The numbers that `sink` received are valid only if this returns no error.
    pub(super) fn read(&self, places: &TensorPlaces, all: bool, sink: Sink<'_>) -> Result<(), CheckpointProblem> {
        for ((record, files), places) in self.parts.iter().zip(&places.0) {
            let mut hasher = PartHasher::new(record.part, self.state.step, self.state.tokens);
            let mut read = 0;
            for ((kind, file), places) in PartFileKind::BOTH.into_iter().zip(files).zip(places) {
                if all || places.iter().any(Option::is_some) {
                    file.scan(places, &mut |bytes| hasher.update(kind, bytes), sink)?;
                    read += 1;
                }
            }
            if read == files.len() && hasher.finish() != record.hash {
                return content(format!("{STATE} was altered: its hashes do not match its step, tokens and tensors"));
            }
        }
        Ok(())
    }
}

impl PartFile {
    fn open(folder: &Path, record: &PartRecord, kind: PartFileKind) -> Result<Self, CheckpointProblem> {
        let name = kind.file_name(record.part);
        let path = folder.join(&name);
        let Some(expected) = record.file(kind) else {
            return content(format!("{STATE} does not describe {name}"));
        };
        let mut file = open_regular(&path).map_err(|e| CheckpointProblem::io(&path, e))?;
        let (header, dtype) = header::read(&mut file, expected.bytes).map_err(|bad| match bad {
            HeaderError::Content(message) => CheckpointProblem::Content(format!("{name}: {message}")),
            HeaderError::Io(error) => CheckpointProblem::io(&path, error),
        })?;
        if let Some(theirs) = header.metadata["step"].as_str().filter(|step| *step != record.step.to_string()) {
            return content(format!("{name} is from step {theirs}, but {STATE} is from step {}", record.step));
        }
        Ok(Self { path, name, blake3: expected.blake3.clone(), header, dtype })
    }

    /// Reads all tensors in one pass: `each` gets every byte of them, `sink` those with a place. The hash is over the
    /// header that was checked and the bytes that were handed out.
    fn scan(
        &self,
        places: &[Option<u64>],
        each: &mut dyn FnMut(&[u8]),
        sink: Sink<'_>,
    ) -> Result<(), CheckpointProblem> {
        let mut file = open_regular(&self.path).map_err(|e| CheckpointProblem::io(&self.path, e))?;
        file.seek(SeekFrom::Start(self.header.bytes.len() as u64)).map_err(|e| CheckpointProblem::io(&self.path, e))?;
        let mut digest = blake3::Hasher::new();
        digest.update(&self.header.bytes);
        let end = self.header.tensors.last().map_or(0, |(_, info)| info.data_offsets[1]);
        let mut tensors = self.header.tensors.iter().map(|(_, info)| info.data_offsets).zip(places).peekable();
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut at = 0;
        while at < end {
            let bytes = &mut chunk[..(end - at).min(CHUNK_BYTES as u64) as usize];
            file.read_exact(bytes).map_err(|e| CheckpointProblem::io(&self.path, e))?;
            hash_bytes(&mut digest, bytes);
            each(bytes);
            let next = at + bytes.len() as u64;
            while let Some(&([begin, end], place)) = tensors.peek() {
                let (from, to) = (begin.max(at), end.min(next));
                if let Some(place) = place.filter(|_| from < to) {
                    let first = place + (from - begin) / self.dtype.bytes() as u64;
                    sink(first, self.dtype, &bytes[(from - at) as usize..(to - at) as usize])
                        .map_err(CheckpointProblem::Machine)?;
                }
                if end > next {
                    break;
                }
                tensors.next();
            }
            at = next;
        }
        if digest.finalize().to_hex().as_str() != self.blake3 {
            return content(format!("{}: its content does not match the hash in {STATE}", self.name));
        }
        Ok(())
    }
}

/// Reads and checks every byte of the checkpoint in `folder`, of the plan `plan_hash` where that is given.
pub(super) fn verify(folder: &Path, plan_hash: Option<&str>) -> Result<StateFile, CheckpointProblem> {
    let stored = StoredCheckpoint::open(folder, plan_hash)?;
    stored.read(&stored.nothing(), true, &mut |_, _, _| Ok(()))?;
    Ok(stored.state)
}
