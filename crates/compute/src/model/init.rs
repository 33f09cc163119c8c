//! Initial weights: a function of the seed, the parameter's name and the element, the same under every layout.

use rayon::prelude::*;

use runner_spec::model::ParamInit;
use runner_spec::model::layout::ParamEntry;
use runner_spec::philox::Philox;

use crate::kernels::cpu::Stored;

/// Fills `values`, the elements of `entry`, with their initial values.
pub fn fill<S: Stored<Real = f32>>(values: &mut [S], entry: &ParamEntry, seed: u64) {
    match entry.spec.init {
        ParamInit::Zeros => values.fill(S::store(0.0)),
        ParamInit::Ones => values.fill(S::store(1.0)),
        ParamInit::Constant { value } => values.fill(S::store(value as f32)),
        ParamInit::Normal { std } => fill_random(values, entry, seed, std, Philox::normals),
        ParamInit::Uniform { bound } => fill_random(values, entry, seed, bound, Philox::uniforms),
    }
}

/// Sets each value to `size` times one of the four numbers that `four(stream, index)` draws.
fn fill_random<S: Stored<Real = f32>>(
    values: &mut [S],
    entry: &ParamEntry,
    seed: u64,
    size: f64,
    four: fn(Philox, u64) -> [f64; 4],
) {
    const CHUNK: usize = 4096;
    let stream = Philox::new(seed, &format!("init {}", entry.spec.name));
    values.par_chunks_mut(CHUNK).enumerate().for_each(|(task, values)| {
        for (i, part) in values.chunks_mut(4).enumerate() {
            let drawn = four(stream, (task * CHUNK / 4 + i) as u64);
            for (v, x) in part.iter_mut().zip(drawn) {
                *v = S::store((x * size) as f32);
            }
        }
    });
}
