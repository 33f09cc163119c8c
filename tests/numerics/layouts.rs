//! One experiment under every layout: the same losses, gradient norms, evaluations and samples, up to rounding; the same
//! layout twice, the same bits. Ranks are threads here; `ranks.rs` starts processes.

use std::sync::atomic::AtomicBool;

use crate::common::layouts::{
    ENCODER, LAYOUTS, LayoutCase, MODELS, MUON, ObservedRun, RECENT, STAGES, TRANSFER, layout_case,
    layout_case_of_epochs, layout_case_with_mask, run, weights,
};
use candle_core::{DType, Device, Tensor};
use runner_compute::state::TrainState;
use runner_data::Prepared;
use runner_executor::Observer;
use runner_executor::{Resources, RunControls, initial_state};
use runner_ranks::threads;
use runner_ranks::threads::ThreadRank;
use runner_spec::event::{Event, ObserveError, TraceLine};
use runner_spec::plan::RankPlan;

const STEPS: usize = 50;

fn relative(a: f64, b: f64) -> f64 {
    (a - b).abs() / b.abs().max(1e-12)
}

/// 20 sequences a step. Only the micro-batch of the first layout divides them.
const UNEVEN_LAYOUTS: [(&str, &str); 8] = [
    ("whole batch", "batch: {sequences: 20, micro_batch: 20}"),
    ("6 of 3 and one of 2", "batch: {sequences: 20, micro_batch: 3}"),
    ("dp 2", "batch: {sequences: 20, micro_batch: 3}\nparallel: {mode: dp, replicas: 2, bucket_mb: 0.004}"),
    ("ddp 2", "batch: {sequences: 20, micro_batch: 4}\nparallel: {mode: ddp, replicas: 2, bucket_mb: 0.004}"),
    (
        "gpipe 2, 8 chunks",
        "batch: {sequences: 20}\nparallel: {mode: pipeline, pipeline: {stages: 2, schedule: gpipe, microbatches: 8}}",
    ),
    (
        "interleaved 3",
        "batch: {sequences: 20, micro_batch: 7}\nparallel: {mode: pipeline, pipeline: {stages: 3, schedule: interleaved_1f1b, chunks: 2}}",
    ),
    (
        "zero bubble 3",
        "batch: {sequences: 20, micro_batch: 6}\nparallel: {mode: pipeline, pipeline: {stages: 3, schedule: zero_bubble}}",
    ),
    (
        "1f1b 2 x 2",
        "batch: {sequences: 20}\nparallel: {mode: pipeline, replicas: 2, bucket_mb: 0.004, pipeline: {stages: 2, schedule: 1f1b, microbatches: 4}}",
    ),
];

/// The tutorial on pipelines cuts 20 rows into 8 chunks, of which there are 7: `torch.arange(20).chunk(8)`.
#[test]
fn micro_batches_of_unequal_sizes_train_alike() {
    let model = MODELS[1].1;
    let tutorial = layout_case(model, UNEVEN_LAYOUTS[4].1, STEPS);
    let batch = &tutorial.plan.ranks[0].program.batch;
    let sizes: Vec<usize> = (0..batch.micro_batches()).map(|mb| batch.rows(mb).1).collect();
    assert_eq!(sizes, [3, 3, 3, 3, 3, 3, 2]);
    assert!(tutorial.plan.notes.iter().any(|note| note.contains("20 sequences in micro-batches of 3 are 7, not 8")));
    agree_among("20 rows", &UNEVEN_LAYOUTS, |layout| layout_case(model, layout, STEPS));
}

/// A batch of 24 rows reads an epoch of 7 more than three times, and the next step continues in its middle.
#[test]
fn batches_larger_than_an_epoch_train_alike() {
    agree_on("epochs of 7 rows", |layout| layout_case_of_epochs(MODELS[0].1, layout, STEPS, 7));
}

/// In f64 nothing but the order of sums differs, some 1e-13 over 50 steps (AdamW divides small gradients by their own size,
/// so that differences of 1e-16 grow). A token's loss is reported in f32, where a difference may fall on a rounding edge:
/// one unit in the last place, 6e-8. Tolerances are 100 times what is seen.
const LOSS: f64 = 2e-7;
const NORM: f64 = 1e-10;
const WEIGHT: f64 = 1e-11;

fn agrees(model: usize) {
    let (name, model) = MODELS[model];
    agree(name, model);
}

fn agree(name: &str, model: &str) {
    agree_on(name, |layout| layout_case(model, layout, STEPS));
}

fn agree_on(name: &str, case: impl Fn(&str) -> LayoutCase) {
    agree_among(name, &LAYOUTS, case);
}

/// Compares runs under `layouts` with the one under the first of them.
fn agree_among(name: &str, layouts: &[(&str, &str)], case: impl Fn(&str) -> LayoutCase) {
    let single = run(&case(layouts[0].1), DType::F64);
    assert_eq!((single.0.steps.len(), single.0.evals.len(), single.0.samples.len()), (STEPS, 2, 8));
    assert!(single.0.steps[STEPS - 1][0] < 0.8 * single.0.steps[0][0], "{name} learns");
    for (layout, yaml) in &layouts[1..] {
        let other = run(&case(yaml), DType::F64);
        let mut worst = [0.0_f64; 3];
        for (a, b) in other.0.steps.iter().zip(&single.0.steps) {
            worst[0] = worst[0].max(relative(a[0], b[0]));
            worst[1] = worst[1].max(relative(a[1], b[1]));
        }
        assert_eq!(other.0.steps.len(), STEPS);
        for (a, b) in other.0.evals.iter().zip(&single.0.evals) {
            worst[0] = worst[0].max(relative(a[0], b[0]));
            assert_eq!(a[1..], b[1..], "{name}, {layout}: multiple choice");
        }
        for (parameter, values) in &single.1 {
            for (a, b) in other.1[parameter].iter().zip(values) {
                worst[2] = worst[2].max((a - b).abs());
            }
        }
        println!("{name:<24}{layout:<20}loss {:.1e}  norm {:.1e}  weights {:.1e}", worst[0], worst[1], worst[2]);
        assert!(worst[0] < LOSS && worst[1] < NORM && worst[2] < WEIGHT, "{name}, {layout}: {worst:?}");
        assert_eq!(other.1.len(), single.1.len(), "{name}, {layout}: every parameter");
        assert_eq!(other.0.samples, single.0.samples, "{name}, {layout}");
    }
}

/// A Llama, whose gradients are not 0 but for rounding: Lion takes a whole step along the sign of the smallest gradient, and GPT-2's biases
/// of keys have only such.
#[test]
fn lion_trains_alike_under_every_layout() {
    let optimizer = "optimizer: {lion: {lr: 1e-3, weight_decay: 0.1}}";
    agree_on("llama, lion", |layout| layout_case(MODELS[3].1, &format!("{layout}\n{optimizer}"), STEPS));
}

/// Matrices by Muon, and groups with their own learning rate and decay.
#[test]
fn muon_trains_alike_under_every_layout() {
    agree_on("gpt2, muon", |layout| layout_case(MODELS[1].1, &format!("{layout}\n{MUON}"), STEPS));
    agree_among("llama, muon", &KINDS.map(|kind| LAYOUTS[kind]), |layout| {
        layout_case(MODELS[3].1, &format!("{layout}\n{MUON}"), STEPS)
    });
}

#[test]
fn transferred_settings_train_alike_under_every_kind_of_layout() {
    for model in [MODELS[2], MODELS[3]] {
        let layouts = KINDS.map(|kind| LAYOUTS[kind]);
        agree_among(model.0, &layouts, |layout| layout_case(model.1, &format!("{layout}\n{TRANSFER}"), STEPS));
    }
}

/// The batch, the length of rows and the window change twice.
#[test]
fn stages_train_alike_under_every_layout() {
    let case =
        |model: &str, layout: &str| layout_case(&format!("{model}, window: 9"), &format!("{layout}\n{STAGES}"), STEPS);
    let program = &case(MODELS[1].1, LAYOUTS[0].1).plan.ranks[0].program;
    let stages: Vec<_> = program.stages().iter().map(|stage| (stage.batch.sequences, stage.batch.length)).collect();
    assert_eq!(
        (stages, program.stage_ends().collect::<Vec<_>>()),
        (vec![(24, 12), (48, 24), (24, 24)], vec![12, 25, 50])
    );
    agree_on("gpt2, stages", |layout| case(MODELS[1].1, layout));
    agree_among("llama, stages", &[0, 3, 9].map(|place| LAYOUTS[place]), |layout| case(MODELS[3].1, layout));
}

#[test]
fn gpt2_tied_trains_alike_under_every_layout() {
    agrees(0);
}

#[test]
fn gpt2_tied_with_dropout_trains_alike_under_every_layout() {
    agrees(1);
}

#[test]
fn gpt2_untied_with_dropout_trains_alike_under_every_layout() {
    agrees(2);
}

#[test]
fn llama_untied_trains_alike_under_every_layout() {
    agrees(3);
}

#[test]
fn llama_tied_trains_alike_under_every_layout() {
    agrees(4);
}

#[test]
fn llama_with_pytorchs_initial_weights_trains_alike_under_every_layout() {
    agrees(5);
}

#[test]
fn encoder_layers_train_alike_under_every_layout() {
    agree("encoder layers", &format!("{ENCODER}, dropout: 0.0"));
}

#[test]
fn encoder_layers_with_dropout_train_alike_under_every_layout() {
    agree("encoder, dropout", &format!("{ENCODER}, dropout: 0.1, mlp_dropout: 0.1"));
}

/// Layouts that differ in kind.
const KINDS: [usize; 6] = [0, 1, 3, 5, 13, 15];

#[test]
fn recent_parts_train_alike_under_every_kind_of_layout() {
    for (name, model) in RECENT {
        agree_among(name, &KINDS.map(|kind| LAYOUTS[kind]), |layout| layout_case(model, layout, STEPS));
    }
}

/// Losses and weights are the same to the bit whether attention sees padding or not: in the forward no token that counts
/// comes behind padding, and in the backward what padding adds to sums is 0 times something finite. That the mask is there
/// shows in the outputs of layers, which are traced with the padded positions.
#[test]
fn the_padding_mask_changes_only_padding() {
    #[derive(Default)]
    struct Traced(ObservedRun, Vec<TraceLine>);
    impl Observer for Traced {
        fn checkpoint(&mut self, _: &TrainState, _: bool) -> Result<(), ObserveError> {
            Ok(())
        }

        fn observe(&mut self, event: &Event) -> Result<(), ObserveError> {
            self.0.observe(event)
        }

        fn trace(&mut self, lines: &[TraceLine]) -> Result<(), ObserveError> {
            self.1.extend_from_slice(lines);
            Ok(())
        }
    }
    let run = |model: &str, layout: &str, mask: &str| {
        let case = layout_case_with_mask(model, layout, 12, mask);
        let Prepared { dataset, tokenizer, tasks, .. } = &case.prepared;
        let resources = Resources { dataset, tokenizer, tasks };
        let state = |rank: &RankPlan| initial_state(&rank.program, None).unwrap();
        let thread_rank = |rank: usize| ThreadRank {
            program: &case.plan.ranks[rank].program,
            threads: 1,
            state: state(&case.plan.ranks[rank]),
        };
        let ranks = (0..case.plan.ranks.len()).map(thread_rank).collect();
        let (mut observed, stop) = (Traced::default(), AtomicBool::new(false));
        let orders = RunControls { trace: true, ..RunControls::from(&stop) };
        let outcomes = threads::run(ranks, case.plan.channel_slots, &resources, orders, &mut observed).unwrap();
        assert_eq!(case.plan.ranks[0].program.batch.mask_padding, mask != "causal");
        (observed, weights(&outcomes), case.plan)
    };
    for model in [MODELS[1].1, MODELS[3].1] {
        for (name, layout) in KINDS.map(|i| LAYOUTS[i]) {
            let (causal, causal_weights, plan) = run(model, layout, "causal");
            let (masked, masked_weights, other) = run(model, layout, "causal_and_padding");
            assert_eq!(masked.0, causal.0, "{model}, {name}");
            assert_eq!(masked_weights, causal_weights, "{model}, {name}");
            assert_eq!((plan.math_hash == other.math_hash, plan.hash == other.hash), (true, false));
            assert_eq!(masked.1.len(), causal.1.len());
            let differ = causal.1.iter().zip(&masked.1).filter(|(a, b)| a != b).map(|(a, _)| a);
            let names: std::collections::BTreeSet<&str> = differ.map(|line| line.name.as_str()).collect();
            // The first rank reports the layers that it holds.
            let held = |layer: &usize| plan.ranks[0].chunks.iter().any(|chunk| chunk.contains(layer + 1));
            let layers: Vec<String> = (0..6).filter(held).map(|layer| format!("output of layer {layer}")).collect();
            assert!(names.iter().copied().eq(layers.iter().map(String::as_str)), "{model}, {name}: {names:?}");
        }
    }
}

/// bf16 without master weights: all ranks hold the same bf16 values (`weights` compares them), the same layout twice gives the
/// same bits, and layouts agree as well as bf16 lets them: a weight that is rounded the other way is off by 2^-8, and the mean
/// over thousands of them by much less, so losses by a few 2^-8 at most.
#[test]
fn bf16_without_master_weights_trains_alike_under_every_layout() {
    let with =
        |layout: &str| layout_case(MODELS[1].1, &format!("{layout}\nprecision: bf16\nmaster_weights: false"), 20);
    let single = run(&with(LAYOUTS[0].1), DType::F32);
    for (name, layout) in KINDS.map(|i| LAYOUTS[i]) {
        let case = with(layout);
        let (first, second) = (run(&case, DType::F32), run(&case, DType::F32));
        assert_eq!(first, second, "{name}");
        let mut all = first.1.values().flatten();
        assert!(all.all(|&v| (v as f32).to_bits().trailing_zeros() >= 16), "{name}: bf16 values");
        for (a, b) in first.0.steps.iter().zip(&single.0.steps) {
            assert!(relative(a[0], b[0]) < 2e-2, "{name}: {a:?} and {b:?}");
        }
        assert!(first.0.steps[19][0] < first.0.steps[0][0], "{name} learns");
    }
}

/// f32, as runs are: every layout twice gives the same bits, and what it differs from `single` by is rounding. A sum of
/// some thousand f32 terms is off by about 1e-6 relative, and 20 steps of AdamW let that grow: 1e-4 is 100 times as much.
#[test]
fn the_same_layout_twice_gives_the_same_bits() {
    let model = MODELS[1].1;
    let single = run(&layout_case(model, LAYOUTS[0].1, 20), DType::F32);
    for (layout, yaml) in LAYOUTS {
        let case = layout_case(model, yaml, 20);
        let (first, second) = (run(&case, DType::F32), run(&case, DType::F32));
        assert_eq!(first, second, "{layout}");
        for (a, b) in first.0.steps.iter().zip(&single.0.steps) {
            assert!(relative(a[0], b[0]) < 1e-4 && relative(a[1], b[1]) < 1e-3, "{layout}: {a:?} and {b:?}");
        }
    }
}

/// One weight of one rank is off by one unit in the last place: the run fails before the first step.
#[test]
fn ranks_that_start_differently_are_refused() {
    for (layout, rank, what) in [(2, 1, "weights and moments"), (6, 1, "tied embedding")] {
        let case = layout_case(MODELS[0].1, LAYOUTS[layout].1, 5);
        let Prepared { dataset, tokenizer, tasks, .. } = &case.prepared;
        let resources = Resources { dataset, tokenizer, tasks };
        let thread_rank = |r: &RankPlan| -> (usize, TrainState) {
            let mut state = initial_state(&r.program, None).unwrap();
            if r.rank == rank {
                let mut values: Vec<f32> = state.buffer.to_vec1().unwrap();
                let name = "transformer.wte.weight";
                let at = state.layout.entry(name).unwrap().offset;
                values[at] = f32::from_bits(values[at].to_bits() + 1);
                state.buffer = Tensor::from_vec(values, state.buffer.elem_count(), &Device::Cpu).unwrap();
            }
            (r.rank, state)
        };
        let states: Vec<(usize, TrainState)> = case.plan.ranks.iter().map(thread_rank).collect();
        let ranks = states
            .into_iter()
            .map(|(rank, state)| ThreadRank { program: &case.plan.ranks[rank].program, threads: 1, state })
            .collect();
        let stop = AtomicBool::new(false);
        let result = threads::run(ranks, case.plan.channel_slots, &resources, &stop, &mut ObservedRun::default());
        let error = result.expect_err("the ranks differ").to_string();
        assert!(error.contains(what), "{error}");
    }
}
