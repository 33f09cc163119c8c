//! Writes weights that come piece by piece to their places in files: converted, matrices turned where the format has them the
//! other way round, rows cut off. What is held is at most one tensor.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::dtype::Dtype;
use super::error::WeightsError;
use runner_spec::model::layout::{ParamEntry, ParamLayout};

/// Elements converted at a time.
const CHUNK: usize = 1 << 16;

/// Where a parameter goes.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) file: usize,
    /// The first byte of its place.
    pub(super) at: u64,
    /// Elements that are written, from the first: whole rows.
    pub(super) elements: usize,
    /// Written as [in, out].
    pub(super) transposed: bool,
}

/// A file to write, and what it begins with.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) path: PathBuf,
    pub(super) header: Vec<u8>,
    /// Its size when it is done.
    pub(super) bytes: u64,
}

/// Files in the making.
#[derive(Debug)]
pub(super) struct Writer<'a> {
    layout: &'a ParamLayout,
    dtype: Dtype,
    files: Vec<(PathBuf, File)>,
    /// One for each entry of the layout; `None`: it is not written.
    targets: Vec<Option<Target>>,
    /// Of the tensor that is to be turned: what has come of it.
    turning: Vec<f32>,
    numbers: Vec<f32>,
    bytes: Vec<u8>,
}

impl<'a> Writer<'a> {
    /// Creates `files`, each in its whole size, zero where nothing comes.
    pub(super) fn begin(
        layout: &'a ParamLayout,
        dtype: Dtype,
        files: &[Begun],
        targets: Vec<Option<Target>>,
    ) -> Result<Self, WeightsError> {
        let mut open = Vec::with_capacity(files.len());
        for Begun { path, header, bytes } in files {
            let mut file = File::create(path).map_err(WeightsError::io(path))?;
            file.write_all(header).and_then(|()| file.set_len(*bytes)).map_err(WeightsError::io(path))?;
            open.push((path.clone(), file));
        }
        let (turning, numbers, bytes) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { layout, dtype, files: open, targets, turning, numbers, bytes })
    }

    /// Takes the elements from `place` of the layout's buffer on: little-endian f32 of one tensor, which come in order.
    pub(super) fn take(&mut self, place: u64, piece: &[u8]) -> Result<(), WeightsError> {
        let place = place as usize;
        let index = self.layout.entries.partition_point(|entry| entry.range().end <= place);
        let Some(entry) = self.layout.entries.get(index) else { return Ok(()) };
        let Some(target) = self.targets.get(index).cloned().flatten() else { return Ok(()) };
        self.numbers.resize(piece.len() / 4, 0.0);
        Dtype::F32.decode(piece, &mut self.numbers);
        if target.transposed {
            if place == entry.offset {
                self.turning.clear();
            }
            self.turning.extend_from_slice(&self.numbers);
            return if self.turning.len() == entry.spec.len() { self.turned(entry, &target) } else { Ok(()) };
        }
        let first = place - entry.offset;
        let numbers = std::mem::take(&mut self.numbers);
        let kept = numbers.len().min(target.elements.saturating_sub(first));
        let written = self.put(entry, &target, first, &numbers[..kept]);
        self.numbers = numbers;
        written
    }

    /// Writes `numbers` from element `first` of `target` on.
    fn put(&mut self, entry: &ParamEntry, target: &Target, first: usize, numbers: &[f32]) -> Result<(), WeightsError> {
        let (path, file) = &self.files[target.file];
        let mut at = target.at + (first * self.dtype.size()) as u64;
        for numbers in numbers.chunks(CHUNK) {
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

    /// Writes the matrix that has come, [out, in], as [in, out].
    fn turned(&mut self, entry: &ParamEntry, target: &Target) -> Result<(), WeightsError> {
        let &[out, columns] = entry.spec.shape.as_slice() else { return Ok(()) };
        let matrix = std::mem::take(&mut self.turning);
        let rows = (CHUNK / out.max(1)).max(1);
        let mut numbers = Vec::with_capacity(rows * out);
        let mut first = 0;
        while first < columns {
            let n = rows.min(columns - first);
            numbers.clear();
            for i in first..first + n {
                numbers.extend((0..out).map(|o| matrix[o * columns + i]));
            }
            self.put(entry, target, first * out, &numbers)?;
            first += n;
        }
        self.turning = matrix;
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

/// Writes `text` to a new file, durably.
pub(super) fn small(path: &Path, text: &str) -> Result<(), WeightsError> {
    let write = || -> std::io::Result<()> {
        let mut file = File::create(path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    write().map_err(WeightsError::io(path))
}
