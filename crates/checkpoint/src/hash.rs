//! Hashes of a training state, by which runs are compared bit for bit.

use super::part::{PartFileKind, PartSpec, StateHash};
use super::state_reader::StateReader;
use crate::error::RecordError;

/// The hashes of `state`.
///
/// # Errors
/// If its numbers cannot be read.
pub fn hash_state(state: &StateReader<'_>) -> Result<StateHash, RecordError> {
    let mut hasher = PartHasher::new(PartSpec::WHOLE, state.step, state.tokens);
    for kind in PartFileKind::BOTH {
        for section in kind.sections(state.moments) {
            (state.read)(section, state.layout.first_in_section(section)..state.layout.total, &mut |bytes| {
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

const _: () =
    assert!(cfg!(target_endian = "little"), "files of checkpoints hold numbers as little-endian processors do");
