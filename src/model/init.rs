//! Initial weights: a function of the seed, the parameter's name and the element, the same under every layout.

use rayon::prelude::*;

use super::params::ParamEntry;
use super::spec::Init;
use crate::kernels::Philox;

/// Fills `values`, the elements of `entry`, with what it starts as.
pub fn fill(values: &mut [f32], entry: &ParamEntry, seed: u64) {
    const CHUNK: usize = 4096;
    match entry.spec.init {
        Init::Zeros => values.fill(0.0),
        Init::Ones => values.fill(1.0),
        Init::Normal { std } => {
            let stream = Philox::new(seed, &format!("init {}", entry.spec.name));
            values.par_chunks_mut(CHUNK).enumerate().for_each(|(task, values)| {
                for (i, four) in values.chunks_mut(4).enumerate() {
                    let normals = stream.normals((task * CHUNK / 4 + i) as u64);
                    for (v, n) in four.iter_mut().zip(normals) {
                        *v = (n * std) as f32;
                    }
                }
            });
        }
    }
}
