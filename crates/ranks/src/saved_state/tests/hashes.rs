//! Hashes of states and of single tensors.

use super::super::*;
use runner_checkpoint::{Checkpoints, chosen_step, dir_name, first_difference, hash_state, recorded_hash};
use runner_compute::testing::{random_state, spec, values, with_buffer};
use runner_spec::model::{ModelSpec, parameters};

#[test]
fn hashes_are_of_the_documented_bytes() {
    let state = random_state(5, 2);
    let buffer: Vec<f32> = state.buffer.to_vec1().unwrap();
    let bytes: Vec<u8> = buffer.iter().flat_map(|v| v.to_le_bytes()).collect();
    let mut all = 5u64.to_le_bytes().to_vec();
    all.extend(state.tokens.to_le_bytes());
    all.extend(&bytes);
    let hash = hash_state(&state_reader(&state)).unwrap();
    assert_eq!(hash.state, blake3::hash(&all).to_hex().as_str());
    assert_eq!(hash.weights, blake3::hash(&bytes[..4 * state.layout.total]).to_hex().as_str());
}

/// A state of several chunks, one of which ends inside a tensor, on the threads of a pool and on the calling one.
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
        assert!(bytes.len() > 1 << 22);
        let all = [&3u64.to_le_bytes()[..], &state.tokens.to_le_bytes(), &bytes].concat();
        let expected = blake3::hash(&all).to_hex();
        assert_eq!(hash_state(&state_reader(&state)).unwrap().state, expected.as_str());
        for threads in [1, 3] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                assert_eq!(hash_state(&state_reader(&state)).unwrap().state, expected.as_str());
                let folder = tempfile::tempdir().unwrap();
                Checkpoints::open(folder.path(), "abc", 9).unwrap().save(&state_reader(&state), None).unwrap();
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
    let before = hash_state(&state_reader(&state)).unwrap();
    let mut values: Vec<f32> = state.buffer.to_vec1().unwrap();
    let last = values.len() - 1;
    values[last] = f32::from_bits(values[last].to_bits() ^ 1);
    assert_ne!(hash_state(&state_reader(&with_buffer(&state, values))).unwrap(), before);
    let later = TrainState { step: 6, ..random_state(5, 2) };
    assert_ne!(hash_state(&state_reader(&later)).unwrap(), before);
}

#[test]
fn the_first_tensor_that_differs_is_named() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let save = |dir: &tempfile::TempDir, state: &TrainState| {
        Checkpoints::open(dir.path(), "abc", 9).unwrap().save(&state_reader(state), None).unwrap();
    };
    let state = random_state(3, 2);
    save(&dirs[0], &state);
    let difference = || first_difference(dirs[0].path(), dirs[1].path(), 3);
    assert!(difference().is_err(), "there is no second one");
    save(&dirs[1], &state);
    assert_eq!(difference().unwrap(), None);
    assert_eq!(recorded_hash(dirs[0].path(), 3), recorded_hash(dirs[1].path(), 3));
    assert_eq!(
        (recorded_hash(dirs[0].path(), 4), chosen_step(dirs[0].path(), CheckpointChoice::Latest).unwrap()),
        (None, 3)
    );
    for (index, suffix) in [(5, ""), (state.layout.total + 5, ".m"), (2 * state.layout.total + 5, ".v")] {
        let mut changed: Vec<f32> = values(&state).into_iter().map(f32::from_bits).collect();
        changed[index] += 1.0;
        std::fs::remove_dir_all(dirs[1].path()).unwrap();
        save(&dirs[1], &with_buffer(&state, changed));
        let name = format!("{}{suffix}", state.layout.entries[0].spec.name);
        assert_eq!(difference().unwrap(), Some(name));
    }
}
