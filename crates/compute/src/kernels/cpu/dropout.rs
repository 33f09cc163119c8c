//! Dropout masks: a function of (stream, step, sample, element), recomputed in the backward and equal under any layout.

use rayon::prelude::*;

use super::pieces::Pieces;
use super::{Real, Stored};
use runner_spec::philox::Philox;

/// The mask of one dropout site for one micro-batch.
#[derive(Debug, Clone)]
pub struct DropoutMask {
    pub stream: Philox,
    pub step: u64,
    /// Index within the global batch of the micro-batch's first sample.
    pub first_sample: u64,
    /// Distance between two samples in the global batch.
    pub sample_stride: u64,
    /// Probability of dropping.
    pub p: f64,
}

impl DropoutMask {
    /// An element is kept if its random word is not below this number.
    pub fn threshold(&self) -> u64 {
        (self.p * 4_294_967_296.0) as u64
    }

    /// Multiplies elements `first .. first + x.len()` of sample `sample` of the micro-batch by 0 or 1/(1 − p).
    pub fn apply<S: Stored>(&self, x: &mut [S], sample: usize, first: usize) {
        let keep = S::Real::real(1.0 / (1.0 - self.p));
        let threshold = self.threshold();
        let id = (self.first_sample + sample as u64 * self.sample_stride) as u32;
        let mut block = [0; 4];
        let mut current = u64::MAX;
        for (i, v) in x.iter_mut().enumerate() {
            let element = (first + i) as u64;
            if element / 4 != current {
                current = element / 4;
                block = self.stream.block([current as u32, (current >> 32) as u32, id, self.step as u32]);
            }
            let kept = u64::from(block[(element % 4) as usize]) >= threshold;
            *v = S::store(if kept { v.load() * keep } else { Real::ZERO });
        }
    }

    /// `apply` over whole samples of `width` elements each.
    pub fn apply_all<S: Stored>(&self, x: &mut [S], width: usize) {
        const CHUNK: usize = 4096;
        for (sample, x) in x.chunks_mut(width).enumerate() {
            x.par_chunks_mut(CHUNK).enumerate().for_each_piece(|(i, part)| self.apply(part, sample, i * CHUNK));
        }
    }
}
