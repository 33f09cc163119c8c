//! Hashes of a training state, by which runs are compared bit for bit, and the reading of its bytes.

use candle_core::Tensor;
use serde::{Deserialize, Serialize};

use super::format::PartFileKind;
use super::part::PartSpec;
use crate::error::StoreError;
use runner_compute::kernels::{bytes, on_host};
use runner_compute::state::TrainState;

/// BLAKE3 hashes, 64 hex digits each. Numbers enter as little-endian bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateHash {
    /// Over step, tokens and the whole buffer: weights, then moments.
    pub state: String,
    /// Over the weights alone.
    pub weights: String,
}

/// The hashes of `state`.
///
/// # Errors
/// If the buffer cannot be read from its device.
pub fn hash_state(state: &TrainState) -> Result<StateHash, StoreError> {
    let mut hasher = PartHasher::new(PartSpec::WHOLE, state.step, state.tokens);
    for kind in PartFileKind::BOTH {
        for section in kind.sections(state.moments) {
            each_chunk(&state.section(section)?, &mut |bytes| {
                hasher.update(kind, bytes);
                Ok(())
            })?;
        }
    }
    Ok(hasher.finish())
}

/// Hashes the bytes of a part as they are read or written: all weights, then the moments.
pub(super) struct PartHasher {
    state: blake3::Hasher,
    weights: blake3::Hasher,
}

impl PartHasher {
    /// The hasher of `part`. The hash of a checkpoint in one part is that of the state, which begins with `step` and `tokens`.
    pub(super) fn new(part: PartSpec, step: u64, tokens: u64) -> Self {
        let state = if part.count == 1 { position_hasher(step, tokens) } else { blake3::Hasher::new() };
        Self { state, weights: blake3::Hasher::new() }
    }

    pub(super) fn update(&mut self, kind: PartFileKind, bytes: &[u8]) {
        hash_bytes(&mut self.state, bytes);
        if kind == PartFileKind::Model {
            hash_bytes(&mut self.weights, bytes);
        }
    }

    pub(super) fn finish(self) -> StateHash {
        let [state, weights] = [self.state, self.weights].map(|hash| hash.finalize().to_hex().to_string());
        StateHash { state, weights }
    }
}

/// Gives `bytes` to `hasher`, on all threads of the current pool. Outside of one the calling thread hashes them, because rayon's global pool
/// would take all cores, whatever `--threads` says.
pub(super) fn hash_bytes(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    if rayon::current_thread_index().is_some() {
        hasher.update_rayon(bytes);
    } else {
        hasher.update(bytes);
    }
}

/// A hasher that has received the position in the run.
fn position_hasher(step: u64, tokens: u64) -> blake3::Hasher {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&step.to_le_bytes());
    hasher.update(&tokens.to_le_bytes());
    hasher
}

/// The hash of a state in several parts: over step, tokens and the parts' hashes (as hex digits) in order.
pub fn whole_hash<'a>(step: u64, tokens: u64, parts: impl Iterator<Item = &'a StateHash>) -> StateHash {
    let mut state = position_hasher(step, tokens);
    let mut weights = blake3::Hasher::new();
    for part in parts {
        state.update(part.state.as_bytes());
        weights.update(part.weights.as_bytes());
    }
    PartHasher { state, weights }.finish()
}

/// Bytes that are read or written at a time: a multiple of four, so that no number is cut; enough for the threads that hash them, and few
/// enough to stay in the third-level cache between their hashes and the write.
pub(super) const CHUNK_BYTES: usize = 1 << 22;

const _: () =
    assert!(cfg!(target_endian = "little"), "files of checkpoints hold numbers as little-endian processors do");

/// Calls `sink` with the bytes of a contiguous tensor, little-endian, chunk by chunk. A CPU's tensor is not copied.
pub(super) fn each_chunk(
    tensor: &Tensor,
    sink: &mut dyn FnMut(&[u8]) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    bytes::read(&on_host(tensor)?, |bytes| bytes.chunks(CHUNK_BYTES).try_for_each(sink))?
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use candle_core::{DType, Device};

    use super::*;
    use crate::checkpoint::entries::dir_name;
    use crate::checkpoint::{Checkpoints, load_state};
    use runner_compute::testing::{random_state, spec, with_buffer};
    use runner_spec::model::layout::ParamLayout;
    use runner_spec::model::{ModelSpec, parameters};

    #[test]
    fn hashes_are_of_the_documented_bytes() {
        let state = random_state(5, 2);
        let buffer: Vec<f32> = state.buffer.to_vec1().unwrap();
        let bytes: Vec<u8> = buffer.iter().flat_map(|v| v.to_le_bytes()).collect();
        let mut all = 5u64.to_le_bytes().to_vec();
        all.extend(state.tokens.to_le_bytes());
        all.extend(&bytes);
        let hash = hash_state(&state).unwrap();
        assert_eq!(hash.state, blake3::hash(&all).to_hex().as_str());
        assert_eq!(hash.weights, blake3::hash(&bytes[..4 * state.layout.total]).to_hex().as_str());
    }

    /// A state of several chunks, of which one ends inside of a tensor, on the threads of a pool and on the calling one.
    #[test]
    fn a_large_state_has_the_same_hashes_on_any_number_of_threads() {
        let spec = ModelSpec { vocab_size: 4099, d_model: 260, ..spec() };
        let layout = Arc::new(ParamLayout::new(parameters(&spec)));
        let mut state = TrainState { step: 3, ..TrainState::zeroed(layout, 2, DType::F32, &Device::Cpu).unwrap() };
        let values = (0..state.buffer.elem_count() as u32).map(|i| f32::from_bits(i.wrapping_mul(2_654_435_761) >> 2));
        state.buffer = Tensor::from_iter(values, &Device::Cpu).unwrap();
        for dtype in [DType::F32, DType::BF16] {
            state.buffer = state.buffer.to_dtype(dtype).unwrap();
            let bytes = bytes::read(&state.buffer, <[u8]>::to_vec).unwrap();
            assert!(bytes.len() > CHUNK_BYTES);
            let all = [&3u64.to_le_bytes()[..], &state.tokens.to_le_bytes(), &bytes].concat();
            let expected = blake3::hash(&all).to_hex();
            assert_eq!(hash_state(&state).unwrap().state, expected.as_str());
            for threads in [1, 3] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| {
                    assert_eq!(hash_state(&state).unwrap().state, expected.as_str());
                    let folder = tempfile::tempdir().unwrap();
                    Checkpoints::open(folder.path(), "abc", 9).unwrap().save(&state, None).unwrap();
                    let saved = folder.path().join(dir_name(3));
                    let read = load_state(&saved, Some("abc"), &state.layout, 2, dtype).unwrap();
                    assert_eq!(bytes::read(&read.buffer, <[u8]>::to_vec).unwrap(), bytes);
                });
            }
        }
    }

    #[test]
    fn one_bit_anywhere_changes_the_hash() {
        let state = random_state(5, 2);
        let before = hash_state(&state).unwrap();
        let mut values: Vec<f32> = state.buffer.to_vec1().unwrap();
        let last = values.len() - 1;
        values[last] = f32::from_bits(values[last].to_bits() ^ 1);
        assert_ne!(hash_state(&with_buffer(&state, values)).unwrap(), before);
        let later = TrainState { step: 6, ..random_state(5, 2) };
        assert_ne!(hash_state(&later).unwrap(), before);
    }
}
