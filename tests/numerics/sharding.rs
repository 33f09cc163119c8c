//! Replicas that divide training state compute the bits that replicas which all hold it compute. Ranks are threads.

use std::collections::BTreeMap;

use crate::common::layouts::{
    ENCODER, LayoutCase, MODELS, MUON, ObservedRun, RECENT, STAGES, TRANSFER, layout_case, run, run_from, weights,
};
use candle_core::DType;
use runner_executor::initial_state;

const STEPS: usize = 12;

/// The values of `parallel.shard`.
const STATES: [&str; 3] = ["optimizer", "gradients", "parameters"];

fn case(model: &str, replicas: usize, micro_batch: usize, shard: Option<&str>, more: &str) -> LayoutCase {
    let shard = shard.map_or_else(String::new, |state| format!(", shard: {state}"));
    let layout = format!(
        "batch: {{sequences: 24, micro_batch: {micro_batch}}}\n\
         parallel: {{mode: ddp, replicas: {replicas}, bucket_mb: 0.004{shard}}}\n{more}"
    );
    layout_case(model, &layout, STEPS)
}

/// Losses, norms, evaluations, samples and final weights are equal, bit for bit, with accumulation and without.
fn same_bits(model: &str, replicas: usize, more: &str) -> BTreeMap<String, Vec<f64>> {
    let mut weights = BTreeMap::new();
    for micro_batch in [2, 24 / replicas] {
        let plain = run(&case(model, replicas, micro_batch, None, more), DType::F32);
        for state in STATES {
            let sharded = case(model, replicas, micro_batch, Some(state), more);
            let sizes: Vec<usize> = sharded.plan.ranks.iter().map(|rank| rank.program.state_layout().total).collect();
            let total = sharded.plan.totals.parameters as usize;
            assert_eq!(sizes.iter().sum::<usize>(), total);
            assert!(sizes.iter().all(|size| *size < total), "{sizes:?}");
            let observed = run(&sharded, DType::F32);
            assert_eq!((observed.0.steps.len(), observed.0.evals.len()), (STEPS, 1));
            assert_eq!(observed, plain, "{model}, {replicas} replicas of {micro_batch}, {state}, {more}");
        }
        weights = plain.1;
    }
    weights
}

#[test]
fn sharded_gpt2_with_dropout_has_the_bits_of_a_whole_one() {
    for replicas in 2..=4 {
        same_bits(MODELS[1].1, replicas, "");
    }
}

#[test]
fn sharded_llama_has_the_bits_of_a_whole_one() {
    for replicas in 2..=4 {
        same_bits(MODELS[3].1, replicas, "");
    }
}

#[test]
fn sharded_lion_has_the_bits_of_a_whole_one() {
    let optimizer = "optimizer: {lion: {lr: 1e-3, weight_decay: 0.1}}";
    same_bits(MODELS[3].1, 3, optimizer);
    same_bits(MODELS[1].1, 2, &format!("precision: bf16\nmaster_weights: false\n{optimizer}"));
}

/// Each matrix has one owner, which makes it orthogonal.
#[test]
fn sharded_muon_has_the_bits_of_a_whole_one() {
    for replicas in 2..=4 {
        same_bits(MODELS[1].1, replicas, MUON);
    }
    same_bits(MODELS[3].1, 3, &format!("precision: bf16\n{MUON}"));
    same_bits(MODELS[1].1, 2, &format!("precision: bf16\nmaster_weights: false\n{MUON}"));
}

#[test]
fn sharded_state_with_transferred_settings_has_the_bits_of_a_whole_one() {
    same_bits(MODELS[3].1, 3, TRANSFER);
}

#[test]
fn sharded_state_with_stages_has_the_bits_of_a_whole_one() {
    same_bits(&format!("{}, window: 9", MODELS[1].1), 2, STAGES);
    same_bits(&format!("{}, window: 9", MODELS[3].1), 3, &format!("precision: bf16\n{STAGES}"));
}

#[test]
fn sharded_tied_embeddings_and_encoder_layers_have_the_bits_of_whole_ones() {
    same_bits(MODELS[4].1, 3, "");
    same_bits(&format!("{ENCODER}, dropout: 0.1, mlp_dropout: 0.1"), 2, "");
}

#[test]
fn sharded_recent_parts_have_the_bits_of_whole_ones() {
    same_bits(RECENT[0].1, 2, "");
    same_bits(RECENT[1].1, 3, "precision: bf16");
}

#[test]
fn sharded_bf16_has_the_bits_of_a_whole_one() {
    for (model, replicas) in [(MODELS[1].1, 2), (MODELS[2].1, 4), (MODELS[3].1, 3)] {
        let masters = same_bits(model, replicas, "precision: bf16");
        let is_bf16 = |v: &f64| (*v as f32).to_bits().trailing_zeros() >= 16;
        assert!(!masters.values().flatten().all(is_bf16), "the masters are f32");
    }
}

#[test]
fn sharded_bf16_without_master_weights_has_the_bits_of_a_whole_one() {
    for (model, replicas) in [(MODELS[1].1, 3), (MODELS[3].1, 2)] {
        same_bits(model, replicas, "precision: bf16\nmaster_weights: false");
    }
}

/// The replicas of a pipeline's stages divide the optimizer's state of their stage.
#[test]
fn sharded_pipelines_have_the_bits_of_whole_ones() {
    for (model, schedule) in [(MODELS[1].1, "1f1b"), (MODELS[3].1, "zero_bubble"), (MODELS[4].1, "gpipe")] {
        let of = |shard: &str| {
            let layout = format!(
                "batch: {{sequences: 24}}\nparallel: {{mode: pipeline, replicas: 2, bucket_mb: 0.004{shard}, \
                 pipeline: {{stages: 2, schedule: {schedule}, microbatches: 6}}}}\n"
            );
            run(&layout_case(model, &layout, STEPS), DType::F32)
        };
        assert_eq!(of(", shard: optimizer"), of(""), "{model}, {schedule}");
    }
}

/// A weight of one replica's shard is the only copy: a different value there is a different run, not a replica that differs.
#[test]
fn a_shard_is_the_only_copy_of_its_weights() {
    let sharded = case(MODELS[0].1, 2, 2, Some("optimizer"), "");
    let trained = |scale: f64| {
        let mut observed = ObservedRun::default();
        let state = |program: &_| {
            let mut state = initial_state(program, None).unwrap();
            if program.rank == 1 {
                state.buffer = (state.buffer * scale).unwrap();
            }
            state
        };
        let outcomes = run_from(&sharded, state, &mut observed);
        (observed.steps, weights(&outcomes))
    };
    let (same, changed) = (trained(1.0), trained(0.5));
    assert_ne!(same.0[0], changed.0[0], "the first forward reads what rank 1 holds");
    assert_ne!(same.1, changed.1);
}
