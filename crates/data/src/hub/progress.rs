//! The progress of a download.

/// A part of a file has arrived.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Downloading {
    /// The number of the file, from 1.
    pub file: usize,
    pub files: usize,
    /// Bytes of this file.
    pub bytes_done: u64,
    pub bytes_total: u64,
    pub bytes_per_second: f64,
}

/// Receives progress, up to once per block.
pub type Report<'a> = dyn Fn(Downloading) + 'a;
