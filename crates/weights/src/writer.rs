//! Writes pieces of weights to their positions in files: converted, with matrices transposed and rows cut off where the format
//! requires it. At most one tensor is in memory.

use std::fs::File;
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use super::dtype::Dtype;
use super::error::WeightsError;
use runner_spec::model::layout::{ParamEntry, ParamLayout};

/// The multiple of bytes at which the data of an archive's entry begins, as PyTorch has it.
const ENTRY_ALIGNMENT: u16 = 64;
/// Larger entries have their sizes in the fields of zip64.
const MAX_ZIP32_BYTES: u64 = 0xffff_fffe;
/// Elements converted at a time.
const CHUNK_ELEMENTS: usize = 1 << 16;

/// The destination of a parameter.
#[derive(Debug, Clone)]
pub(super) struct TensorDestination {
    pub(super) file: usize,
    /// The position of its first byte; in an archive, the number of its entry.
    pub(super) at: u64,
    /// The number of elements that are written, from the first: whole rows.
    pub(super) elements: usize,
    /// True if the file has the matrix as `[in, out]`.
    pub(super) transposed: bool,
}

/// A file to write.
#[derive(Debug)]
pub(super) struct NewFile {
    /// The temporary path.
    pub(super) path: PathBuf,
    /// The path that the user named, for messages.
    pub(super) target: PathBuf,
    pub(super) form: FileForm,
}

/// How a file holds tensors.
#[derive(Debug)]
pub(super) enum FileForm {
    /// At positions after a header; with the size of the complete file.
    Plain { header: Vec<u8>, bytes: u64 },
    /// As entries of a zip archive of `torch.save`, after the entries that are given.
    Archive(Vec<(&'static str, Vec<u8>)>),
}

/// An unfinished file.
#[derive(Debug)]
enum OpenFile {
    Plain(File),
    /// Dropping an archive would finish it, and complain if that fails.
    Archive(ManuallyDrop<Box<ZipWriter<File>>>),
}

impl OpenFile {
    /// Begins `file`; a plain one in its whole size and filled with zeros.
    fn begin(NewFile { path, form, .. }: &NewFile) -> io::Result<Self> {
        let mut file = File::create(path)?;
        match form {
            FileForm::Plain { header, bytes } => {
                file.write_all(header)?;
                file.set_len(*bytes)?;
                Ok(Self::Plain(file))
            }
            FileForm::Archive(entries) => {
                let mut archive = Box::new(ZipWriter::new(file));
                for (name, bytes) in entries {
                    begin_entry(&mut archive, name, bytes.len())?;
                    archive.write_all(bytes)?;
                }
                Ok(Self::Archive(ManuallyDrop::new(archive)))
            }
        }
    }

    /// Writes `bytes` from byte `first` of `target` on, whose numbers have `width` bytes.
    fn write(&mut self, target: &TensorDestination, width: usize, first: usize, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(file) => file.write_all_at(bytes, target.at + first as u64),
            Self::Archive(archive) => {
                if first == 0 {
                    begin_entry(archive, &format!("data/{}", target.at), target.elements * width)?;
                }
                archive.write_all(bytes)
            }
        }
    }

    /// Makes the file durable.
    fn finish(self) -> io::Result<()> {
        let file = match self {
            Self::Plain(file) => file,
            Self::Archive(archive) => ManuallyDrop::into_inner(archive).finish()?,
        };
        file.sync_all()
    }
}

/// Begins an entry of `bytes` bytes in an archive of `torch.save`.
fn begin_entry(archive: &mut ZipWriter<File>, name: &str, bytes: usize) -> io::Result<()> {
    let options =
        SimpleFileOptions::default().with_alignment(ENTRY_ALIGNMENT).large_file(bytes as u64 > MAX_ZIP32_BYTES);
    Ok(archive.start_file(format!("archive/{name}"), options)?)
}

/// Writes unfinished files.
#[derive(Debug)]
pub(super) struct Writer<'a> {
    layout: &'a ParamLayout,
    dtype: Dtype,
    files: Vec<(PathBuf, OpenFile)>,
    /// One for each entry of the layout; `None`: it is not written.
    targets: Vec<Option<TensorDestination>>,
    /// The elements so far of a matrix that is written transposed.
    matrix: Vec<f32>,
    bytes: Vec<u8>,
}

impl<'a> Writer<'a> {
    /// Begins `files`. Tensors of an archive are written one after another.
    pub(super) fn begin(
        layout: &'a ParamLayout,
        dtype: Dtype,
        files: &[NewFile],
        targets: Vec<Option<TensorDestination>>,
    ) -> Result<Self, WeightsError> {
        let mut open = Vec::with_capacity(files.len());
        for file in files {
            open.push((file.target.clone(), OpenFile::begin(file).map_err(WeightsError::io(&file.target))?));
        }
        Ok(Self { layout, dtype, files: open, targets, matrix: Vec::new(), bytes: Vec::new() })
    }

    /// Writes the elements from `position` of the layout's buffer on: little-endian f32 of one tensor, whose pieces come one after another.
    pub(super) fn write_piece(&mut self, position: u64, piece: &[u8]) -> Result<(), WeightsError> {
        let position = position as usize;
        let index = self.layout.entries.partition_point(|entry| entry.range().end <= position);
        let Some(entry) = self.layout.entries.get(index) else { return Ok(()) };
        let Some(target) = self.targets.get(index).cloned().flatten() else { return Ok(()) };
        let mut numbers = vec![0.0; piece.len() / 4];
        Dtype::F32.decode(piece, &mut numbers);
        let first = position - entry.offset;
        if target.transposed {
            self.matrix.truncate(first);
            self.matrix.extend(numbers);
            return if self.matrix.len() == entry.spec.len() { self.write_transposed(entry, &target) } else { Ok(()) };
        }
        numbers.truncate(target.elements.saturating_sub(first));
        self.write_numbers(entry, &target, first, &numbers)
    }

    /// Writes `numbers` from element `first` of `target` on.
    fn write_numbers(
        &mut self,
        entry: &ParamEntry,
        target: &TensorDestination,
        first: usize,
        numbers: &[f32],
    ) -> Result<(), WeightsError> {
        let (path, file) = &mut self.files[target.file];
        let width = self.dtype.size();
        let mut at = first * width;
        for numbers in numbers.chunks(CHUNK_ELEMENTS) {
            self.bytes.clear();
            if let Some(beyond) = self.dtype.encode(numbers, &mut self.bytes) {
                let (name, dtype) = (&entry.spec.name, self.dtype.torch_name());
                let message = format!(
                    "tensor {name}: {beyond:e} is out of range for {dtype}; use `--dtype bf16` or `--dtype f32`"
                );
                return Err(WeightsError::Request(message));
            }
            file.write(target, width, at, &self.bytes).map_err(WeightsError::io(path))?;
            at += self.bytes.len();
        }
        Ok(())
    }

    /// Writes the complete matrix, `[out, in]`, as `[in, out]`.
    fn write_transposed(&mut self, entry: &ParamEntry, target: &TensorDestination) -> Result<(), WeightsError> {
        let &[out, columns] = entry.spec.shape.as_slice() else { return Ok(()) };
        let matrix = std::mem::take(&mut self.matrix);
        let rows = (CHUNK_ELEMENTS / out.max(1)).max(1);
        let mut numbers = Vec::with_capacity(rows * out);
        let mut first = 0;
        while first < columns {
            let n = rows.min(columns - first);
            numbers.clear();
            for i in first..first + n {
                numbers.extend((0..out).map(|o| matrix[o * columns + i]));
            }
            self.write_numbers(entry, target, first * out, &numbers)?;
            first += n;
        }
        self.matrix = matrix;
        Ok(())
    }

    /// Makes the files durable.
    pub(super) fn finish(self) -> Result<(), WeightsError> {
        for (path, file) in self.files {
            file.finish().map_err(WeightsError::io(&path))?;
        }
        Ok(())
    }
}
