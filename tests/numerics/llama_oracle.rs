//! Forwards against other forwards: Llama against `candle_transformers`, generation over the key-value cache and losses
//! against the training forward.

use std::collections::HashMap;

use crate::common::{
    WholePasses as _, assert_close_relative, below, micro_batch, model_for, random_params, small_gpt2, small_llama,
    values,
};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::llama as peer;
use runner_compute::model::{Model, Params};
use runner_spec::data::IGNORED_TARGET;
use runner_spec::model::{ModelSpec, parameters};

/// Two f32 forwards that differ in the order of sums and in exp, some tens of roundings deep: a few times 10 · 6e-8 of the
/// largest logit.
const F32_TOLERANCE: f64 = 1e-5;

fn in_f32(params: &Params) -> Params {
    Params::new(params.layout.clone(), params.flat.to_dtype(DType::F32).unwrap())
}

fn peer_model(spec: &ModelSpec, params: &Params) -> (peer::Llama, peer::Config) {
    let config = peer::Config {
        hidden_size: spec.d_model,
        intermediate_size: spec.d_ff,
        vocab_size: spec.vocab_size,
        num_hidden_layers: spec.layers,
        num_attention_heads: spec.heads,
        num_key_value_heads: spec.kv_heads,
        use_flash_attn: false,
        rms_norm_eps: spec.norm_eps,
        rope_theta: spec.rope_theta as f32,
        bos_token_id: None,
        eos_token_id: None,
        rope_scaling: None,
        max_position_embeddings: spec.context_length,
        tie_word_embeddings: spec.tie_embeddings,
    };
    let entries = params.layout.entries.iter().enumerate();
    let tensors: HashMap<String, Tensor> =
        entries.map(|(i, e)| (e.spec.name.clone(), params.parameter(i).unwrap().copy().unwrap())).collect();
    let weights = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
    (peer::Llama::load(weights, &config).unwrap(), config)
}

/// The peer gives the last position's logits, so it is asked for every prefix.
#[test]
fn llama_agrees_with_candle_transformers() {
    for (tie_embeddings, kv_heads, rope_theta) in [(false, 2, 100.0), (true, 2, 10_000.0), (false, 4, 500_000.0)] {
        let spec = ModelSpec { tie_embeddings, kv_heads, rope_theta, vocab_size: 50, ..small_llama() };
        let params = in_f32(&random_params(parameters(&spec), 0.3));
        let model = model_for(&spec, &params);
        let (batch, seq) = (2, spec.context_length);
        let ids = below("oracle ids", batch * seq, spec.vocab_size);
        let ours = model.logits(&params, &micro_batch(&ids, Vec::new(), seq)).unwrap();
        let ours = ours.reshape((batch, seq, spec.vocab_size)).unwrap();
        let (peer, config) = peer_model(&spec, &params);
        let ids = Tensor::from_vec(ids, (batch, seq), &Device::Cpu).unwrap();
        for length in 1..=seq {
            let mut cache = peer::Cache::new(false, DType::F32, &config, &Device::Cpu).unwrap();
            let prefix = ids.narrow(1, 0, length).unwrap().contiguous().unwrap();
            let theirs = peer.forward(&prefix, 0, &mut cache).unwrap();
            let ours = ours.narrow(1, length - 1, 1).unwrap();
            let what = format!("logits after {length} tokens, {kv_heads} KV heads, tied: {tie_embeddings}");
            assert_close_relative(&what, &values(&ours), &values(&theirs), F32_TOLERANCE);
        }
    }
}

fn families() -> Vec<ModelSpec> {
    let long = |s: ModelSpec| ModelSpec { context_length: 80, ..s };
    vec![
        long(small_gpt2()),
        long(small_llama()),
        long(ModelSpec { kv_heads: 1, tie_embeddings: true, ..small_llama() }),
    ]
}

/// Columns `from..from + n` of the rows of `seq` ids.
fn columns(ids: &[u32], seq: usize, from: usize, n: usize) -> Vec<u32> {
    ids.chunks_exact(seq).flat_map(|row| row[from..from + n].to_vec()).collect()
}

/// f64, so that nothing but a mistake separates the two: 1e-12 is a few thousand roundings.
#[test]
fn the_cache_gives_the_logits_of_the_whole_forward() {
    for spec in families() {
        let params = random_params(parameters(&spec), 0.3);
        let model = model_for(&spec, &params);
        let (batch, seq) = (2, 75);
        let ids = below("generated ids", batch * seq, spec.vocab_size);
        let all = model.logits(&params, &micro_batch(&ids, Vec::new(), seq)).unwrap();
        let all = all.reshape((batch, seq, spec.vocab_size)).unwrap();
        // Token by token; a long prefill, then steps; several chunks, one of which crosses a tile of the forward.
        let plans = [vec![1; seq], [vec![66], vec![1; 9]].concat(), vec![5, 1, 60, 3, 6], vec![seq]];
        for plan in plans {
            let mut cache = model.new_cache(batch, seq, &params.flat).unwrap();
            let mut done = 0;
            for n in plan {
                let logits = model.extend_chunk(&params, &columns(&ids, seq, done, n), None, &mut cache).unwrap();
                done += n;
                assert_eq!(cache.length, done);
                let expected = values(&all.narrow(1, done - 1, 1).unwrap());
                let what = format!("{:?}: logits after {done} tokens", spec.family);
                assert_close_relative(&what, &values(&logits), &expected, 1e-12);
            }
        }
    }
}

#[test]
fn the_cache_refuses_inputs_that_do_not_fit() {
    for spec in families() {
        let params = random_params(parameters(&spec), 0.3);
        let model = model_for(&spec, &params);
        let mut cache = model.new_cache(2, 4, &params.flat).unwrap();
        assert!(model.extend_chunk(&params, &[], None, &mut cache).is_err());
        assert!(model.extend_chunk(&params, &[1, 2, 3], None, &mut cache).is_err(), "3 ids are not 2 rows");
        assert!(model.extend_chunk(&params, &[1; 10], None, &mut cache).is_err(), "5 tokens in a cache of 4");
        assert!(model.extend_chunk(&params, &[spec.vocab_size as u32; 2], None, &mut cache).is_err(), "no such token");
        model.extend_chunk(&params, &[1; 8], None, &mut cache).unwrap();
        assert!(model.extend_chunk(&params, &[1; 2], None, &mut cache).is_err(), "a fifth token");
        // Larger than the context: the context is the limit.
        let mut cache = model.new_cache(1, 1000, &params.flat).unwrap();
        assert!(model.extend_chunk(&params, &[1; 81], None, &mut cache).is_err());
    }
}

/// Rows beyond the context are an error in every forward, for learned and for rotary positions.
#[test]
fn rows_beyond_the_context_are_refused() {
    for spec in families() {
        let params = random_params(parameters(&spec), 0.3);
        let model = model_for(&spec, &params);
        let mb = micro_batch(&[1; 81], vec![1; 81], 81);
        assert!(model.forward(&params, None, &mb).is_err(), "{:?}", spec.family);
        assert!(model.losses(&params, &mb).is_err(), "{:?}", spec.family);
    }
}

fn losses_both_ways(spec: &ModelSpec, model: &Model, params: &Params, what: &str, tolerance: f64) {
    let seq = 75;
    // More rows than the head takes at a time, some ignored.
    let ids = below("ids of losses", 6 * seq, spec.vocab_size);
    let mut targets = below("targets of losses", 6 * seq, spec.vocab_size);
    targets.iter_mut().step_by(7).for_each(|t| *t = IGNORED_TARGET);
    let mb = micro_batch(&ids, targets.clone(), seq);
    let (expected, _) = model.forward_losses(params, &mb);
    let losses = model.losses(params, &mb).unwrap();
    let in_f64 = |x: &[f32]| x.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
    assert_close_relative(what, &in_f64(&losses), &in_f64(&expected), tolerance);
    assert!(targets.iter().zip(&losses).all(|(&t, &l)| (t == IGNORED_TARGET) == (l == 0.0)));
}

/// Losses are f32; in f64 only their last bit may differ.
#[test]
fn losses_without_a_backward_are_those_of_the_forward() {
    for spec in families() {
        let params = random_params(parameters(&spec), 0.3);
        let name = format!("{:?}", spec.family);
        losses_both_ways(&spec, &model_for(&spec, &params), &params, &name, f64::from(f32::EPSILON));
        let params = in_f32(&params);
        losses_both_ways(&spec, &model_for(&spec, &params), &params, &name, F32_TOLERANCE);
    }
}
