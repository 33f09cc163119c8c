//! Files of one JSON object per line: appended to while a run trains, cut back when it resumes from a checkpoint.

use std::borrow::Cow;
use std::fs::{self, File, Metadata};
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::RecordError;
use super::files::FileRecord;
use super::step_coverage::StepCoverage;
use runner_files::{append_owned, if_present, open_regular, parent_folder, put_in_place, temporary_file};
use runner_spec::format::{counted, json_bytes};

/// A line of more bytes is damaged: none that this program writes comes near it.
pub(crate) const MAX_LINE_BYTES: u64 = 16 << 20;

/// A line file that is open for appending. Each line is one write, so a kill leaves whole lines.
#[derive(Debug)]
pub struct LineFile {
    path: PathBuf,
    file: File,
    /// Bytes that the file has if nothing else writes to it.
    bytes: u64,
}

/// Counts of the lines of a file that was cut back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LineCounts {
    pub lines: u64,
    /// The training steps that kept lines have.
    pub train: u64,
    /// Lines of later steps.
    pub dropped: u64,
    /// Lines that are torn, or are not JSON objects with a step.
    pub damaged: u64,
}

#[derive(Deserialize)]
struct LineHead {
    step: u64,
    kind: Option<String>,
}

impl LineFile {
    /// Opens `path` for appending, creating it if need be. A link is an error: it would lead out of the run.
    pub fn append(path: &Path) -> Result<Self, RecordError> {
        let opened = append_owned(path);
        let file = opened.map_err(RecordError::io("opening", path))?;
        let bytes = file.metadata().map_err(RecordError::io("opening", path))?.len();
        Ok(Self { path: path.to_owned(), file, bytes })
    }

    /// Appends `value` as one line of JSON.
    pub fn write(&mut self, value: &impl Serialize) -> Result<(), RecordError> {
        let mut line = json_bytes(value);
        line.push(b'\n');
        self.write_bytes(&line)
    }

    /// Appends whole lines.
    pub fn write_bytes(&mut self, lines: &[u8]) -> Result<(), RecordError> {
        self.file.write_all(lines).map_err(RecordError::io("writing", &self.path))?;
        self.bytes += lines.len() as u64;
        Ok(())
    }

    /// Makes what was written durable.
    ///
    /// # Errors
    /// If it cannot be synced, or is no longer at its path, where others read it.
    pub fn sync(&self) -> Result<(), RecordError> {
        self.file.sync_data().map_err(RecordError::io("syncing", &self.path))?;
        let identity = |metadata: Metadata| (metadata.dev(), metadata.ino(), metadata.len());
        let own = self.file.metadata().map_err(RecordError::io("syncing", &self.path))?;
        let found = fs::metadata(&self.path).ok().map(identity);
        let message = match found {
            Some(found) if found == (own.dev(), own.ino(), self.bytes) => return Ok(()),
            Some(_) => "another program changed it while the run wrote it",
            None => "it was removed while the run wrote it",
        };
        Err(RecordError::damaged(&self.path, message))
    }
}

/// Removes the lines of `path` that are later than `step`, and damaged ones; without a step, all lines.
pub fn cut_after_step(path: &Path, step: Option<u64>) -> Result<LineCounts, RecordError> {
    keep_lines(path, |of_line| step.is_some_and(|step| of_line <= step))
}

/// Removes the lines of `path` for whose steps `is_kept` is false, and damaged ones. The file is replaced atomically, and only if there is
/// something to remove. A missing file counts as empty.
pub(crate) fn keep_lines(path: &Path, is_kept: impl Fn(u64) -> bool) -> Result<LineCounts, RecordError> {
    let counts = copy_lines(path, std::io::sink(), &is_kept, |line| line.into())?;
    if counts.dropped + counts.damaged > 0 {
        let temporary = temporary_file(parent_folder(path)).map_err(RecordError::io("rewriting", path))?;
        copy_lines(path, temporary.as_file(), &is_kept, |line| line.into())?;
        put_in_place(temporary, path, true).map_err(RecordError::io("rewriting", path))?;
    }
    Ok(counts)
}

/// Copies the lines of `from` that are not later than `step` to the new file `to`, without damaged ones. `edit` returns the bytes to write for
/// a line.
pub fn copy_through_step(
    from: &Path,
    to: &Path,
    step: u64,
    edit: impl Fn(&[u8]) -> Cow<'_, [u8]>,
) -> Result<LineCounts, RecordError> {
    let file = File::create_new(to).map_err(RecordError::io("writing", to))?;
    let counts = copy_lines(from, &file, |of_line| of_line <= step, edit)?;
    file.sync_all().map_err(RecordError::io("writing", to))?;
    Ok(counts)
}

/// Writes the whole lines of `path` for whose steps `is_kept` is true to `out`, as `edit` returns them, and counts all lines.
fn copy_lines(
    path: &Path,
    out: impl Write,
    is_kept: impl Fn(u64) -> bool,
    edit: impl Fn(&[u8]) -> Cow<'_, [u8]>,
) -> Result<LineCounts, RecordError> {
    let mut out = BufWriter::new(out);
    let (mut counts, mut train) = (LineCounts::default(), StepCoverage::default());
    let mut lines = LineReader::open(path)?;
    while let Some(line) = lines.next_line()? {
        match serde_json::from_slice::<LineHead>(line) {
            _ if !line.ends_with(b"\n") => counts.damaged += 1,
            Ok(head) if is_kept(head.step) => {
                counts.lines += 1;
                if head.kind.as_deref() == Some("train") {
                    train.add(head.step);
                }
                out.write_all(&edit(line)).map_err(RecordError::io("rewriting", path))?;
            }
            Ok(_) => counts.dropped += 1,
            Err(_) => counts.damaged += 1,
        }
    }
    out.flush().map_err(RecordError::io("rewriting", path))?;
    Ok(LineCounts { train: train.count(), ..counts })
}

/// What was read of a line file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinesRead {
    /// Lines that are not records.
    pub damaged: u64,
    /// True if the last line has no end and is not a record: it may still be written.
    pub is_torn_at_end: bool,
    /// Size and hash of the file.
    pub content: FileRecord,
}

/// Calls `take` with each line of `path` that is a `T`, in order. A missing file has no lines.
///
/// # Errors
/// If the file cannot be read.
pub fn for_each_record<T: DeserializeOwned>(path: &Path, take: &mut dyn FnMut(T)) -> Result<LinesRead, RecordError> {
    let mut lines = LineReader::open(path)?;
    let (mut damaged, mut is_torn_at_end, mut hasher) = (0, false, blake3::Hasher::new());
    while let Some(bytes) = lines.next_line()? {
        hasher.update(bytes);
        if let Ok(record) = serde_json::from_slice(bytes) {
            take(record);
        } else {
            damaged += 1;
            is_torn_at_end = !bytes.ends_with(b"\n");
        }
    }
    let content = FileRecord { bytes: hasher.count(), blake3: hasher.finalize().to_hex().to_string() };
    Ok(LinesRead { damaged, is_torn_at_end, content })
}

/// The warning about `damaged` lines of `path` that a reader left out; `None` if there are none.
pub fn describe_damaged_lines(path: &Path, damaged: u64) -> Option<String> {
    (damaged > 0).then(|| format!("{}: {} left out", path.display(), counted(damaged, "torn or damaged line")))
}

/// Reads a line file line by line.
#[derive(Debug)]
pub struct LineReader {
    path: PathBuf,
    /// `None` if there is no file.
    reader: Option<BufReader<File>>,
    buffer: Vec<u8>,
}

impl LineReader {
    /// Opens `path`; a missing file has no lines.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn open(path: &Path) -> Result<Self, RecordError> {
        let file = if_present(open_regular(path)).map_err(RecordError::io("reading", path))?;
        let reader = file.map(|file| BufReader::with_capacity(1 << 16, file));
        Ok(Self { path: path.to_owned(), reader, buffer: Vec::new() })
    }

    /// The next line with its line end; `None` at the end.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn next_line(&mut self) -> Result<Option<&[u8]>, RecordError> {
        let Some(reader) = &mut self.reader else { return Ok(None) };
        self.buffer.clear();
        let read = reader.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut self.buffer);
        let read = read.map_err(RecordError::io("reading", &self.path))?;
        Ok((read > 0).then_some(self.buffer.as_slice()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(content: &str, step: u64) -> (LineCounts, String) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        fs::write(&path, content).unwrap();
        let kept = cut_after_step(&path, Some(step)).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing temporary stays");
        (kept, fs::read_to_string(&path).unwrap())
    }

    #[test]
    fn later_lines_and_a_torn_end_are_removed() {
        let (k, text) = kept("{\"step\":1}\n{\"step\":2,\"x\":1}\n{\"step\":3}\n{\"step\":4,\"lo", 2);
        assert_eq!(text, "{\"step\":1}\n{\"step\":2,\"x\":1}\n");
        assert_eq!(k, LineCounts { lines: 2, dropped: 1, damaged: 1, ..LineCounts::default() });
    }

    #[test]
    fn without_a_checkpoint_an_evaluation_before_the_first_step_is_removed_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let eval = "{\"kind\":\"eval\",\"step\":0}\n";
        fs::write(&path, format!("{eval}{{\"kind\":\"train\",\"step\":1}}\n")).unwrap();
        let kept = cut_after_step(&path, Some(1)).unwrap();
        assert_eq!((kept.lines, kept.train), (2, 1));
        cut_after_step(&path, Some(0)).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), eval);
        cut_after_step(&path, None).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "");
    }

    #[test]
    fn a_last_line_without_its_end_is_torn_even_if_it_parses() {
        // "step": 12 may be the beginning of "step": 120.
        let (k, text) = kept("{\"step\":1}\n{\"step\":2}", 9);
        assert_eq!((text.as_str(), k.damaged), ("{\"step\":1}\n", 1));
    }

    #[test]
    fn a_copy_ends_at_the_step() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("a.jsonl"), dir.path().join("b.jsonl"));
        let text = "{\"kind\":\"train\",\"step\":1}\n{\"step\":2}\nrubbish\n{\"step\":3}\n{\"step\":2";
        fs::write(&from, text).unwrap();
        assert_eq!(
            copy_through_step(&from, &to, 2, |line| line.into()).unwrap(),
            LineCounts { lines: 2, train: 1, dropped: 1, damaged: 2 }
        );
        assert_eq!(fs::read_to_string(&to).unwrap(), "{\"kind\":\"train\",\"step\":1}\n{\"step\":2}\n");
        assert_eq!(fs::read_to_string(&from).unwrap(), text);
        assert!(copy_through_step(&from, &to, 2, |line| line.into()).is_err(), "never over another file");
        copy_through_step(&dir.path().join("none"), &dir.path().join("c"), 2, |line| line.into()).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("c")).unwrap(), "");
    }

    #[test]
    fn whole_files_are_left_alone() {
        let text = "{\"step\":1}\n{\"step\":2}\n";
        assert_eq!(kept(text, 2), (LineCounts { lines: 2, ..LineCounts::default() }, text.to_owned()));
        assert_eq!(kept("", 5).0, LineCounts::default());
        assert_eq!(cut_after_step(Path::new("no/such/file"), Some(1)).unwrap(), LineCounts::default());
    }

    #[test]
    fn damaged_lines_are_removed() {
        let (k, text) = kept("\0\0\0\n{\"step\":1}\n[]\n{\"step\":-1}\n\n", 5);
        assert_eq!(
            (text.as_str(), k),
            ("{\"step\":1}\n", LineCounts { lines: 1, damaged: 4, ..LineCounts::default() })
        );
    }

    #[test]
    fn step_zero_keeps_nothing_of_the_training() {
        assert_eq!(kept("{\"step\":1}\n", 0).1, "");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn reports_a_full_disk() {
        let path = PathBuf::from("/dev/full");
        let file = File::options().append(true).open(&path).unwrap();
        let mut full = LineFile { path, file, bytes: 0 };
        let error = full.write(&serde_json::json!({"step": 1})).unwrap_err().to_string();
        assert!(error.contains("the disk is full") && error.contains("/dev/full"), "{error}");
    }

    #[test]
    fn a_file_that_is_removed_or_changed_meanwhile_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        fs::write(&path, "{\"step\":1}\n").unwrap();
        let mut file = LineFile::append(&path).unwrap();
        file.write_bytes(b"{\"step\":2}\n").unwrap();
        file.sync().unwrap();
        fs::write(&path, "{\"step\":2}\n").unwrap();
        assert!(file.sync().unwrap_err().to_string().contains("another program changed it"));
        fs::remove_file(&path).unwrap();
        assert!(file.sync().unwrap_err().to_string().contains("it was removed"));
        fs::write(&path, "{\"step\":1}\n{\"step\":2}\n").unwrap();
        assert!(
            file.sync().unwrap_err().to_string().contains("another program changed it"),
            "another file of its size"
        );
    }

    #[test]
    fn a_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("log.txt"), dir.path().join("other"));
        fs::write(&other, "kept").unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        assert!(LineFile::append(&path).is_err());
    }
}
