//! Recomputation in the backward gives the same bits under every schedule, and saves as much memory as planned. These tests
//! count the allocations of the process, so they have a separate binary.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot be set up has failed")]
#![allow(clippy::print_stdout, reason = "the table of bytes, with --nocapture")]

use std::alloc::System;
use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use candle_core::{DType, Device, Tensor};
use runner_compute::model::{Model, Params};
use runner_compute::nn::MicroBatch;
use runner_compute::state::TrainState;
use runner_config::LoadOptions;
use runner_data::{DataRequest, Prepared, prepare};
use runner_executor::Observer;
use runner_executor::{Resources, initial_state};
use runner_plan::compile;
use runner_ranks::threads;
use runner_ranks::threads::ThreadRank;
use runner_spec::cluster::ClusterFacts;
use runner_spec::event::{Event, ObserveError, WatchedMemory};
use runner_spec::experiment::{Activation, Family, NormPlace, Recompute};
use runner_spec::model::layout::ParamLayout;
use runner_spec::model::parts::Buffer;
use runner_spec::model::{Decoder, ModelOptions, ModelSpec, QkNorm, parameters};
use runner_spec::plan::MemoryCategory;
use runner_spec::plan::{Plan, RankPlan};
use runner_threads::heap::{peak_bytes, restart_peak};
use runner_threads::large_blocks::LargeBlocks;

#[global_allocator]
static ALLOCATOR: LargeBlocks<System> = LargeBlocks::new(System);

/// Held while a test runs: allocations are counted for the whole process, so the tests must not overlap.
fn lock_measurements() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

const LAYOUTS: [&str; 6] = [
    "batch: {sequences: 12, micro_batch: 3}",
    "batch: {sequences: 12, micro_batch: 3}\nparallel: {mode: ddp, replicas: 2, bucket_mb: 0.004}",
    "batch: {sequences: 12}\nparallel: {mode: pipeline, pipeline: {stages: 2, schedule: gpipe, microbatches: 4}}",
    "batch: {sequences: 12}\nparallel: {mode: pipeline, pipeline: {stages: 2, schedule: interleaved_1f1b, chunks: 2, microbatches: 4}}",
    "batch: {sequences: 12}\nparallel: {mode: pipeline, pipeline: {stages: 2, schedule: zero_bubble, microbatches: 4}}",
    "batch: {sequences: 24}\nparallel: {mode: pipeline, replicas: 2, bucket_mb: 0.004, pipeline: {stages: 3, schedule: zero_bubble, microbatches: 4}}",
];

const MODELS: [&str; 4] = [
    "family: gpt2, dropout: 0.1, heads: 2, d_ff: 48",
    "family: llama, heads: 4, kv_heads: 2, d_ff: 48",
    "family: gpt2, norm: post, activation: relu, positions: sinusoidal, dropout: 0.1, mlp_dropout: 0.2, heads: 2, d_ff: 48",
    "family: llama, heads: 4, kv_heads: 2, d_ff: 48, values: {first: {embedding: {}}, half: {output: {layers: [1]}}, \
     skipped: {output: {layers: [1, 0], in: [2, 3]}}, own: {table: {in: [1, 3]}}, shared: {table: {in: [0, 2], shared: [0, 0]}}, \
     smear: {scalar: {initial: 0.5}}, near: {gate: {channels: 5}}, resid: {scalar: {initial: 1.2}}, mix: {scalar: {initial: 0.3}}, \
     skip: {scalar: {initial: -1, sigmoid: true}}, open: {gate: {channels: 3}}, weak: {scalar: {initial: 0.4}}, \
     wide: {gate: {channels: 7}}, out: {scalar: {initial: 0.2}}}, \
     sums: {embedding: ['x + smear * near * previous(x)', 'norm(x)'], layer: ['x + skip * skipped', 'resid * x + mix * first'], \
     value: ['v + 3 * open * own + weak * shared'], attended: ['wide * y'], head: ['x - out * half']}",
];

struct Case {
    plan: Plan,
    prepared: Prepared,
}

fn case(model: &str, rest: &str) -> Case {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let dir = FOLDER.get_or_init(|| tempfile::tempdir().unwrap());
    let yaml = format!(
        "name: again\nmodel: {{{model}}}\ndata: {{tokenizer: {{bytes: {{}}}}, train: {{builtin: {{corpus: stories}}}}}}\n\
         optimizer: {{adamw: {{lr: 3e-3}}}}\neval: {{every: 100, loss: {{batches: 1}}}}\n{rest}\n"
    );
    let file = dir.path().join("again.yaml");
    fs::write(&file, yaml).unwrap();
    let loaded = runner_config::load(&file, &LoadOptions::default()).unwrap_or_else(|e| panic!("{}", e.render(false)));
    let experiment = loaded.experiment;
    let request = DataRequest {
        data: &experiment.data,
        tasks: &[],
        cache_dir: &dir.path().join("cache"),
        test: None,
        vocab_size: experiment.model.vocab_size,
        recorded_tokenizer: None,
    };
    let prepared = prepare(&request, &|_| {}).unwrap();
    let kernels = runner_compute::kernel_workspace();
    let cluster = ClusterFacts { kernels, ..runner_machine::local_cluster::cpu_cluster(1) };
    let plan = compile(&experiment, &prepared.facts, &cluster).unwrap_or_else(|e| panic!("{rest}: {e}"));
    Case { plan, prepared }
}

/// Losses and gradient norms as bits, and what the last watched step held.
#[derive(Debug, Default, PartialEq)]
struct ObservedRun {
    steps: Vec<[u64; 2]>,
    memory: Vec<WatchedMemory>,
}

impl Observer for ObservedRun {
    fn checkpoint(&mut self, _: &TrainState, _: bool) -> Result<(), ObserveError> {
        Ok(())
    }

    fn observe(&mut self, event: &Event) -> Result<(), ObserveError> {
        match event {
            Event::Step(m) => self.steps.push([m.loss.to_bits(), m.grad_norm.to_bits()]),
            Event::Watched(w) => self.memory.clone_from(&w.memory),
            _ => {}
        }
        Ok(())
    }
}

/// Returns what the run reported, and its weights and moments by rank.
fn run<'a>(case: &'a Case) -> (ObservedRun, BTreeMap<usize, Vec<u32>>) {
    let Prepared { dataset, tokenizer, tasks, .. } = &case.prepared;
    let resources = Resources { dataset, tokenizer, tasks };
    let thread_rank = |rank: &'a RankPlan| ThreadRank {
        program: &rank.program,
        threads: 1,
        state: initial_state(&rank.program, None).unwrap(),
    };
    let ranks = case.plan.ranks.iter().map(thread_rank).collect();
    let mut observed = ObservedRun::default();
    let stop = AtomicBool::new(false);
    let outcomes = threads::run(ranks, case.plan.channel_slots, &resources, &stop, &mut observed).unwrap();
    let bits = |o: &runner_executor::TrainedRank| {
        let flat: Vec<f32> = o.state.buffer.to_dtype(DType::F32).unwrap().to_vec1().unwrap();
        flat.into_iter().map(f32::to_bits).collect()
    };
    (observed, outcomes.iter().enumerate().map(|(rank, outcome)| (rank, bits(outcome))).collect())
}

/// Losses, gradient norms, weights and moments after three steps, in f32 and in bf16.
#[test]
fn recomputation_gives_the_same_bits() {
    let _lock = lock_measurements();
    for model in MODELS {
        for (layout, precision) in LAYOUTS.into_iter().zip(["fp32", "bf16"].into_iter().cycle()) {
            let of = |recompute: &str| {
                let model = format!("{model}, layers: 4, d_model: 16, context_length: 16");
                let rest = format!("train: {{steps: 3, recompute: {recompute}}}\nprecision: {precision}\n{layout}");
                case(&model, &rest)
            };
            let none = of("none");
            let kept = run(&none);
            assert_eq!(kept.0.steps.len(), 3);
            for recompute in ["attention", "block"] {
                let again = of(recompute);
                assert_ne!(again.plan.hash, none.plan.hash, "the plan says what is computed again");
                assert_eq!(again.plan.math_hash, none.plan.math_hash, "and that the numbers are the same");
                let observed = run(&again);
                assert_eq!(observed.0.steps, kept.0.steps, "{model}, {layout}, {recompute}");
                assert!(observed.1 == kept.1, "{model}, {layout}, {recompute}: weights and moments");
            }
        }
    }
}

/// The bytes that the plan gives a step: activations and the workspace of tensors; and the blocks of bf16 products, of which threads keep
/// some from step to step.
fn planned(rank: &RankPlan) -> (u64, u64) {
    let items = || rank.memory.items.iter();
    let bytes = |what: &str| items().filter(|i| i.what.starts_with(what)).map(|i| i.bytes * i.count).sum::<u64>();
    let activations =
        items().filter(|i| i.category == MemoryCategory::Activations).map(|i| i.bytes * i.count).sum::<u64>();
    (activations + bytes("beyond") + bytes("attention tiles"), bytes("blocks of products"))
}

/// Tensors below 16 KiB (statistics) are not counted, and a product's packed panels are not planned: 8%.
#[test]
fn memory_falls_as_planned() {
    let _lock = lock_measurements();
    for model in MODELS {
        let mut last = (u64::MAX, u64::MAX);
        for recompute in ["none", "attention", "block"] {
            let model = format!("{model}, layers: 8, d_model: 64, context_length: 128");
            let model = model.replace("d_ff: 48", "d_ff: 256");
            let case = case(
                &model,
                &format!("train: {{steps: 2, recompute: {recompute}}}\nbatch: {{sequences: 8, micro_batch: 4}}"),
            );
            let (observed, _) = run(&case);
            let (measured, planned) = (observed.memory[0].step.expect("it is counted"), planned(&case.plan.ranks[0]).0);
            println!(
                "{recompute:<10} planned {planned:>10} measured {measured:>10} {:.3}",
                measured as f64 / planned as f64
            );
            assert!(measured.abs_diff(planned) * 100 < planned * 8, "{model}, {recompute}: {measured} of {planned}");
            assert!(measured < last.0 && planned < last.1, "{model}, {recompute}");
            last = (measured, planned);
        }
    }
}

/// In bf16 activations and the weights that products read take 2 bytes a number. Without master weights gradients and moments do, too. A
/// model of many small matrices shows in the step's peak that the whole of either is never held in f32.
#[test]
fn bf16_takes_the_planned_memory() {
    let _lock = lock_measurements();
    for family in ["family: gpt2, heads: 2, d_ff: 512", "family: llama, heads: 4, kv_heads: 2, d_ff: 384"] {
        for (layers, rows) in [(24, 1), (4, 8)] {
            let model =
                format!("{family}, layers: {layers}, d_model: 128, context_length: 128, vocab_size: 1024, dropout: 0");
            let model = if family.contains("llama") { model.replace(", dropout: 0", "") } else { model };
            let batch = format!("batch: {{sequences: {rows}, micro_batch: {rows}}}");
            let of = |precision: &str| case(&model, &format!("train: {{steps: 2}}\n{precision}\n{batch}"));
            let mut totals = vec![of("precision: fp32").plan.ranks[0].memory.total()];
            for masters in [true, false] {
                let case = of(&format!("precision: bf16\nmaster_weights: {masters}"));
                let (rank, observed) = (&case.plan.ranks[0], run(&case).0.memory[0]);
                let memory = &rank.memory;
                let held = [observed.weights, observed.gradients, observed.optimizer];
                assert_eq!(held, [memory.weights, memory.gradients, memory.optimizer], "{model}, masters: {masters}");
                let (total, other) = (rank.params.total, rank.params.other);
                let expected = if masters {
                    [6 * total, 4 * total, 8 * total]
                } else {
                    [2 * total + 4 * other, 2 * total, 4 * total]
                };
                assert_eq!(held, expected, "{model}, masters: {masters}");
                let (measured, (tensors, blocks)) = (observed.step.expect("it is counted"), planned(rank));
                println!("{model}, {rows} rows, masters: {masters}: planned {tensors} + {blocks}, measured {measured}");
                let what = format!("{model}, {rows} rows, masters: {masters}: {measured} of {tensors} + {blocks}");
                assert!(measured * 100 < (tensors + blocks) * 108 && measured * 100 > tensors * 92, "{what}");
                totals.push(memory.total());
            }
            assert!(totals.is_sorted_by(|a, b| a > b), "{model}: {totals:?}");
        }
    }
}

/// The bytes that one block keeps, and the peak of its backward beyond them. Statistics are below 16 KiB, which are not counted.
fn measured(spec: &ModelSpec, dtype: DType, recompute: Recompute, block: usize, pool: &rayon::ThreadPool) -> [u64; 2] {
    let blocks = block..block + 1;
    let layout = Arc::new(ParamLayout::new(parameters(spec)));
    let flat = Tensor::randn(0.0_f32, 0.1, layout.total, &Device::Cpu).unwrap();
    let gradients = Params::new(layout.clone(), flat.zeros_like().unwrap());
    let params = match dtype {
        DType::BF16 => Params::rounded(layout.clone(), flat).unwrap(),
        _ => Params::new(layout.clone(), flat),
    };
    let model = Model::new(spec, layout, blocks.clone(), 7, &params.flat).unwrap().with_recompute(recompute);
    let ids = vec![0; ROWS * LENGTH];
    let mb = MicroBatch { training: true, ..model.micro_batch(&ids, ids.clone(), LENGTH).unwrap() };
    let hidden = || {
        let hidden = Tensor::randn(0.0_f32, 1.0, (ROWS * LENGTH, spec.d_model), &Device::Cpu).unwrap();
        hidden.to_dtype(dtype).unwrap()
    };
    let (mut saved, dy, x) = (Vec::new(), hidden(), hidden());
    let mut measured = [0, 0];
    // The first pass fills the threads' buffers of products.
    for _ in 0..2 {
        let input = (block > 0).then(|| x.copy().unwrap().into());
        let dy = (block <= spec.layers).then(|| dy.clone().into());
        pool.install(|| {
            let start = restart_peak().unwrap();
            let forward = model.forward_with_hook(&params, input, &mb, &mut |_, _| Ok(())).unwrap();
            saved.extend(forward.1);
            drop(forward.0);
            let before = restart_peak().unwrap();
            if block > spec.layers {
                // The head holds the most in a split backward, which keeps the logits' gradient for later.
                drop(model.backward_input(&params, std::mem::take(&mut saved), dy, &mb).unwrap());
            } else {
                model.backward_blocks(&params, &gradients, &mut saved, dy, &mb, blocks.clone()).unwrap();
            }
            measured = [before - start, peak_bytes().unwrap() - before];
        });
    }
    measured
}

const ROWS: usize = 4;
const LENGTH: usize = 256;

/// Layers under each recomputation, the head, and the embedding, which keeps nothing and holds its gradient before the dropout mask.
#[test]
fn every_part_keeps_and_holds_what_it_declares() {
    let _lock = lock_measurements();
    let sizes = |family| ModelSpec { d_ff: 256, ..ModelSpec::with_defaults(family, [64, LENGTH, 1, 2, 64]) };
    let gpt2 = |options| ModelSpec { options, ..sizes(Family::Gpt2) };
    let post = ModelOptions { norm: NormPlace::Post, ..ModelOptions::default() };
    let relu = ModelOptions { activation: Some(Activation::Relu), ..post.clone() };
    let relu2 = ModelOptions { activation: Some(Activation::Relu2), ..ModelOptions::default() };
    let encoder = ModelOptions { mlp_dropout: 0.1, final_norm: false, head_bias: true, ..relu.clone() };
    let dropout = ModelSpec { dropout: 0.1, ..gpt2(encoder) };
    let grouped = ModelSpec { kv_heads: 1, ..sizes(Family::Llama) };
    let llama = |options| ModelSpec { options, ..sizes(Family::Llama) };
    let output = ModelOptions { norm: NormPlace::Output, qk_norm: QkNorm::Width, ..ModelOptions::default() };
    let both = ModelOptions { norm: NormPlace::Both, qk_norm: QkNorm::Head, head_dim: Some(48), ..output.clone() };
    let models = [
        gpt2(ModelOptions::default()),
        gpt2(post),
        gpt2(relu),
        gpt2(relu2),
        dropout,
        sizes(Family::Llama),
        grouped,
        llama(output),
        llama(both),
    ];
    // One pool for all models: threads of a pool that was dropped free their buffers later.
    let pool = runner_threads::threads::thread_pool(1).unwrap();
    let mut wrong = Vec::new();
    for (spec, dtype) in models.iter().flat_map(|spec| [(spec, DType::F32), (spec, DType::BF16)]) {
        let Decoder { embedding, layers, head, .. } = spec.decoder();
        let layer = &layers.pattern()[0];
        let of = |elements: usize| (elements * ROWS * LENGTH * dtype.size_in_bytes()) as u64;
        let bytes = |buffers: &[Buffer]| of(buffers.iter().filter(|b| !b.always_f32).map(|b| b.per_position).sum());
        // The input and the gradient of the output were there before.
        let stream = of(spec.d_model);
        let mut compare = |what: &str, measured: [u64; 2], stated: [u64; 2]| {
            if measured != stated {
                wrong.push(format!("{what} of {spec:?}, {dtype:?}: {measured:?} instead of {stated:?}"));
            }
        };
        for recompute in [Recompute::None, Recompute::Attention, Recompute::Block] {
            let (kept, all) = (bytes(&layer.kept(recompute)), bytes(&layer.kept(Recompute::None)));
            // Without dropout the gradient of the MLP's output is that of the layer's, so one tensor fewer is alive than the part declares.
            let shared = if spec.dropout > 0.0 { stream } else { 2 * stream };
            let held = match recompute {
                Recompute::None => bytes(&layer.held()) - shared,
                Recompute::Block => all - kept + bytes(&layer.held()) - shared,
                Recompute::Attention => (bytes(&layer.held()) - shared)
                    .max(bytes(&layer.held_with_attention()).saturating_sub(kept + stream)),
            };
            let what = format!("a layer, {recompute:?},");
            compare(&what, measured(spec, dtype, recompute, 1, &pool), [kept - stream, held]);
        }
        let head_held = bytes(&[head.held()]);
        compare(
            "the head",
            measured(spec, dtype, Recompute::None, 2, &pool),
            [bytes(&head.kept()) - stream, head_held],
        );
        let held = if embedding.dropout > 0.0 { stream } else { 0 };
        compare("the embedding", measured(spec, dtype, Recompute::None, 0, &pool), [0, held]);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
