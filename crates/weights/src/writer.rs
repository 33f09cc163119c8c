//! Writes pieces of weights to their positions in files: converted, with matrices transposed and rows cut off where the format
//! requires it. At most one tensor is in memory.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::dtype::Dtype;
use super::error::WeightsError;
use runner_spec::model::layout::{ParamEntry, ParamLayout};

/// Elements converted at a time.
const CHUNK_ELEMENTS: usize = 1 << 16;

/// The destination of a parameter.
#[derive(Debug, Clone)]
pub(super) struct TensorDestination {
    pub(super) file: usize,
    /// The position of its first byte.
    pub(super) at: u64,
    /// The number of elements that are written, from the first: whole rows.
    pub(super) elements: usize,
    /// True if the file has the matrix as [in, out].
    pub(super) transposed: bool,
}

/// A file to write, with the bytes of its header.
#[derive(Debug)]
pub(super) struct NewFile {
    /// The temporary path.
    pub(super) path: PathBuf,
    /// The path that the user named, for messages.
    pub(super) target: PathBuf,
    pub(super) header: Vec<u8>,
    /// The size of the complete file.
    pub(super) bytes: u64,
}

/// Writes unfinished files.
#[derive(Debug)]
pub(super) struct Writer<'a> {
    layout: &'a ParamLayout,
    dtype: Dtype,
    files: Vec<(PathBuf, File)>,
    /// One for each entry of the layout; `None`: it is not written.
    targets: Vec<Option<TensorDestination>>,
    /// The elements so far of a matrix that is written transposed.
    matrix: Vec<f32>,
    bytes: Vec<u8>,
}

impl<'a> Writer<'a> {
    /// Creates `files`, each in its whole size and filled with zeros.
    pub(super) fn begin(
        layout: &'a ParamLayout,
        dtype: Dtype,
        files: &[NewFile],
        targets: Vec<Option<TensorDestination>>,
    ) -> Result<Self, WeightsError> {
        let mut open = Vec::with_capacity(files.len());
        for NewFile { path, target, header, bytes } in files {
            let mut file = File::create(path).map_err(WeightsError::io(target))?;
            file.write_all(header).and_then(|()| file.set_len(*bytes)).map_err(WeightsError::io(target))?;
            open.push((target.clone(), file));
        }
        Ok(Self { layout, dtype, files: open, targets, matrix: Vec::new(), bytes: Vec::new() })
    }

    /// Writes the elements from `position` of the layout's buffer on: little-endian f32 of one tensor, whose pieces come in order.
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
        let (path, file) = &self.files[target.file];
        let mut at = target.at + (first * self.dtype.size()) as u64;
        for numbers in numbers.chunks(CHUNK_ELEMENTS) {
            self.bytes.clear();
            if let Some(beyond) = self.dtype.encode(numbers, &mut self.bytes) {
                let (name, dtype) = (&entry.spec.name, self.dtype.torch_name());
                let message = format!("tensor {name} has {beyond:e}, which {dtype} cannot hold: take --dtype f32");
                return Err(WeightsError::Request(message));
            }
            file.write_all_at(&self.bytes, at).map_err(WeightsError::io(path))?;
            at += self.bytes.len() as u64;
        }
        Ok(())
    }

    /// Writes the complete matrix, [out, in], as [in, out].
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
        for (path, file) in &self.files {
            file.sync_all().map_err(WeightsError::io(path))?;
        }
        Ok(())
    }
}
