//! What downloading tells the outside.

/// A part of a file has arrived.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Downloading {
    /// Which of `files`, from 1.
    pub file: usize,
    pub files: usize,
    /// Of this file.
    pub bytes_done: u64,
    pub bytes_total: u64,
    pub bytes_per_second: f64,
}

/// Hears of it, as often as once a block.
pub type Report<'a> = dyn Fn(Downloading) + 'a;
