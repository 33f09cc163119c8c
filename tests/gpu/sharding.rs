//! Replicas on GPUs that divide training state compute what replicas that all hold it compute.
//!
//! NCCL adds numbers in its own order, which may differ between a sum for all ranks and one for a single rank, so losses and weights agree as
//! under layouts that differ. The emulated NCCL adds in the order of ranks: there they are equal, bit for bit. Norms are sums of squares in
//! f64, which each replica of sharded gradients adds up in its shard: they differ by a few roundings of 1e-16 each.

#![cfg(feature = "nccl")]

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use runner_compute::state::TrainState;
use runner_executor::{Observer, RunControls, TrainedRank, initial_state};
use runner_spec::event::{Event, ObserveError, TraceLine, WatchedMemory};

use crate::common::layouts::{LayoutCase, MODELS, MUON, ObservedRun, layout_case_on, run_with_controls, weights};
use crate::device::gpus;
use crate::layouts::cluster;

const STEPS: usize = 5;

/// The values of `parallel.shard`.
const STATES: [&str; 3] = ["optimizer", "gradients", "parameters"];

const F64_SUM: f64 = 1e-13;

/// What a run reported, its traces, and the memory of its ranks in the last step that was watched.
#[derive(Default)]
struct Reported {
    run: ObservedRun,
    trace: Vec<TraceLine>,
    memory: Vec<WatchedMemory>,
}

impl Observer for Reported {
    fn checkpoint(&mut self, _: &TrainState, _: bool) -> Result<(), ObserveError> {
        Ok(())
    }

    fn observe(&mut self, event: &Event) -> Result<(), ObserveError> {
        if let Event::Watched(step) = event {
            self.memory.clone_from(&step.memory);
        }
        self.run.observe(event)
    }

    fn trace(&mut self, lines: &[TraceLine]) -> Result<(), ObserveError> {
        self.trace.extend_from_slice(lines);
        Ok(())
    }
}

fn ddp(model: &str, replicas: usize, micro_batch: usize, shard: Option<&str>, more: &str) -> LayoutCase {
    let shard = shard.map_or_else(String::new, |state| format!(", shard: {state}"));
    let layout = format!(
        "batch: {{sequences: 24, micro_batch: {micro_batch}}}\n\
         parallel: {{mode: ddp, replicas: {replicas}, bucket_mb: 0.004{shard}}}"
    );
    layout_case_on(model, &layout, &format!("device: cuda\n{more}"), STEPS, &cluster(4))
}

/// Trains from the first step, or from the states that `from` ended with.
fn train(case: &LayoutCase, until: Option<u64>, trace: bool, from: &[TrainedRank]) -> (Reported, Vec<TrainedRank>) {
    assert!(case.plan.ranks.iter().all(|rank| rank.device != runner_spec::program::Device::Cpu));
    let (mut reported, stop) = (Reported::default(), AtomicBool::new(false));
    let controls = RunControls { until, trace, ..RunControls::from(&stop) };
    let state = |program: &runner_spec::program::Program| match from.get(program.rank) {
        Some(TrainedRank { state, .. }) => {
            TrainState { layout: state.layout.clone(), buffer: state.buffer.clone(), ..*state }
        }
        None => initial_state(program, None).unwrap(),
    };
    let ranks = run_with_controls(case, controls, state, &mut reported);
    (reported, ranks)
}

/// The largest relative difference of the norms; all other numbers are equal.
fn norms_differ_by(a: &ObservedRun, b: &ObservedRun, name: &str) -> f64 {
    let without_norms = |run: &ObservedRun| -> (Vec<f64>, Vec<[f64; 4]>, Vec<String>) {
        (run.steps.iter().map(|step| step[0]).collect(), run.evals.clone(), run.samples.clone())
    };
    assert_eq!(without_norms(a), without_norms(b), "{name}");
    a.steps.iter().zip(&b.steps).map(|(a, b)| (a[1] - b[1]).abs() / b[1]).fold(0.0, f64::max)
}

/// Compares losses, norms, evaluations, samples and final weights with those of plain ddp, with accumulation and without, and the buffers
/// of the ranks with their plans.
fn agrees_with_ddp(model: &str, replicas: usize, more: &str) {
    for micro_batch in [12 / replicas, 24 / replicas] {
        let (plain, outcomes) = train(&ddp(model, replicas, micro_batch, None, more), None, false, &[]);
        let expected: BTreeMap<String, Vec<f64>> = weights(&outcomes);
        for state in STATES {
            let name = format!("{model}, {replicas} replicas of {micro_batch}, {state}, {more}");
            let case = ddp(model, replicas, micro_batch, Some(state), more);
            let (sharded, outcomes) = train(&case, None, false, &[]);
            assert_eq!((sharded.run.steps.len(), sharded.run.evals.len()), (STEPS, 1));
            let worst = norms_differ_by(&sharded.run, &plain.run, &name);
            assert!(worst <= if state == "optimizer" { 0.0 } else { F64_SUM }, "{name}: {worst:e}");
            assert_eq!(weights(&outcomes), expected, "{name}");
            for (rank, held) in case.plan.ranks.iter().zip(&sharded.memory) {
                let planned = [rank.memory.weights, rank.memory.gradients, rank.memory.optimizer];
                assert_eq!([held.weights, held.gradients, held.optimizer], planned, "{name}, rank {}", rank.rank);
            }
            assert_eq!(sharded.memory.len(), replicas);
        }
    }
}

#[test]
fn sharded_gpt2_with_dropout_agrees_with_ddp() {
    let Some(_) = gpus(2) else { return };
    agrees_with_ddp(MODELS[1].1, 2, "precision: fp32");
    agrees_with_ddp(MODELS[1].1, 2, "precision: bf16");
}

#[test]
fn sharded_llama_agrees_with_ddp() {
    let Some(_) = gpus(4) else { return };
    agrees_with_ddp(MODELS[3].1, 4, "precision: fp32");
    agrees_with_ddp(MODELS[3].1, 2, "precision: bf16");
}

#[test]
fn sharded_muon_agrees_with_ddp() {
    let Some(_) = gpus(3) else { return };
    agrees_with_ddp(MODELS[1].1, 3, &format!("precision: fp32\n{MUON}"));
    agrees_with_ddp(MODELS[3].1, 2, &format!("precision: bf16\n{MUON}"));
    agrees_with_ddp(MODELS[1].1, 2, &format!("precision: bf16\nmaster_weights: false\n{MUON}"));
}

#[test]
fn sharded_bf16_without_master_weights_agrees_with_ddp() {
    let Some(_) = gpus(3) else { return };
    agrees_with_ddp(MODELS[2].1, 3, "precision: bf16\nmaster_weights: false");
}

/// The replicas of a pipeline's stages divide the optimizer's state of their stage.
#[test]
fn sharded_optimizers_of_pipelines_agree_with_whole_ones() {
    let Some(_) = gpus(4) else { return };
    for (model, schedule, precision) in [(MODELS[1].1, "1f1b", "fp32"), (MODELS[3].1, "zero_bubble", "bf16")] {
        let trained = |shard: &str| {
            let layout = format!(
                "batch: {{sequences: 24}}\nparallel: {{mode: pipeline, replicas: 2, bucket_mb: 0.004{shard}, \
                 pipeline: {{stages: 2, schedule: {schedule}, microbatches: 6}}}}\ndevice: cuda\nprecision: {precision}"
            );
            let (reported, ranks) = train(&layout_case_on(model, &layout, "", STEPS, &cluster(4)), None, false, &[]);
            (reported.run, weights(&ranks))
        };
        assert_eq!(trained(", shard: optimizer"), trained(""), "{model}, {schedule}");
    }
}

/// Half of a run and the rest are the whole run, and the same run again has the same bits.
#[test]
fn sharded_runs_resume_with_the_same_bits() {
    let Some(_) = gpus(2) else { return };
    for (state, more) in [("gradients", "precision: fp32"), ("parameters", "precision: bf16")] {
        let case = ddp(MODELS[1].1, 2, 6, Some(state), more);
        let (whole, trained) = train(&case, None, false, &[]);
        let (first, half) = train(&case, Some(2), false, &[]);
        let (rest, resumed) = train(&case, None, false, &half);
        assert_eq!((first.run.steps.len(), rest.run.steps.len()), (2, STEPS - 2));
        assert_eq!([first.run.steps, rest.run.steps].concat(), whole.run.steps, "{state}");
        assert_eq!((rest.run.evals, weights(&resumed)), (whole.run.evals, weights(&trained)), "{state}");
    }
}

/// A trace gathers what is divided: it has the hashes of plain ddp.
#[test]
fn traces_of_sharded_runs_equal_those_of_whole_ones() {
    let Some(_) = gpus(2) else { return };
    let traced = |shard| train(&ddp(MODELS[3].1, 2, 12, shard, "precision: fp32"), Some(2), true, &[]).0.trace;
    let expected = traced(None);
    assert!(!expected.is_empty());
    for state in STATES {
        assert!(traced(Some(state)) == expected, "{state}");
    }
}
