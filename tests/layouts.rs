//! One experiment under every layout: the same losses, gradient norms, evaluations and samples, up to rounding; the same
//! layout twice, the same bits. Ranks are threads here; `ranks.rs` starts processes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot be set up has failed")]
#![allow(clippy::print_stdout, reason = "the table of deviations, with --nocapture")]

use std::collections::BTreeMap;
use std::fs;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use candle_core::{DType, Device, Tensor};
use runner::config::{self, LoadOptions};
use runner::data::{DataRequest, Prepared, prepare};
use runner::exec::{Event, ObserveError, Observer, Orders, Outcome, Resources, TraceLine, TrainState, initial_state};
use runner::launch::threads::{self, Seated};
use runner::plan::{ClusterFacts, Plan, RankPlan, compile};

const STEPS: usize = 50;

/// 24 sequences a step. Single takes them as 4 micro-batches of 6.
const LAYOUTS: [(&str, &str); 16] = [
    ("single", "batch: {sequences: 24, micro_batch: 6}"),
    ("dp 2", "batch: {sequences: 24, micro_batch: 3}\nparallel: {mode: dp, replicas: 2, bucket_mb: 0.004}"),
    ("ddp 2", "batch: {sequences: 24, micro_batch: 3}\nparallel: {mode: ddp, replicas: 2, bucket_mb: 0.004}"),
    ("ddp 4", "batch: {sequences: 24, micro_batch: 2}\nparallel: {mode: ddp, replicas: 4, bucket_mb: 0.02}"),
    (
        "gpipe 2",
        "batch: {sequences: 24}\nparallel: {mode: pipeline, pipeline: {stages: 2, schedule: gpipe, microbatches: 4}}",
    ),
    (
        "gpipe 3",
        "batch: {sequences: 24}\nparallel: {mode: pipeline, pipeline: {stages: 3, schedule: gpipe, microbatches: 4}}",
    ),
    (
        "1f1b 2",
        "batch: {sequences: 24}\nparallel: {mode: pipeline, pipeline: {stages: 2, schedule: 1f1b, microbatches: 4}}",
    ),
    (
        "1f1b 3",
        "batch: {sequences: 24}\nparallel: {mode: pipeline, pipeline: {stages: 3, schedule: 1f1b, microbatches: 4}}",
    ),
    (
        "interleaved 2",
        "batch: {sequences: 24}\nparallel: {mode: pipeline, pipeline: {stages: 2, schedule: interleaved_1f1b, chunks: 2, microbatches: 4}}",
    ),
    (
        "interleaved 3",
        "batch: {sequences: 24}\nparallel: {mode: pipeline, pipeline: {stages: 3, schedule: interleaved_1f1b, chunks: 2, microbatches: 6}}",
    ),
    (
        "zero bubble 2",
        "batch: {sequences: 24}\nparallel: {mode: pipeline, pipeline: {stages: 2, schedule: zero_bubble, microbatches: 4}}",
    ),
    (
        "zero bubble 3",
        "batch: {sequences: 24}\nparallel: {mode: pipeline, pipeline: {stages: 3, schedule: zero_bubble, microbatches: 4}}",
    ),
    (
        "gpipe 2 x 2",
        "batch: {sequences: 24}\nparallel: {mode: pipeline, replicas: 2, bucket_mb: 0.004, pipeline: {stages: 2, schedule: gpipe, microbatches: 4}}",
    ),
    (
        "1f1b 2 x 2",
        "batch: {sequences: 24}\nparallel: {mode: pipeline, replicas: 2, bucket_mb: 0.004, pipeline: {stages: 2, schedule: 1f1b, microbatches: 4}}",
    ),
    (
        "interleaved 2 x 2",
        "batch: {sequences: 24}\nparallel: {mode: pipeline, replicas: 2, bucket_mb: 0.004, pipeline: {stages: 2, schedule: interleaved_1f1b, chunks: 2, microbatches: 4}}",
    ),
    (
        "zero bubble 2 x 2",
        "batch: {sequences: 24}\nparallel: {mode: pipeline, replicas: 2, bucket_mb: 0.004, pipeline: {stages: 2, schedule: zero_bubble, microbatches: 4}}",
    ),
];

/// A stack of PyTorch's encoder layers.
const ENCODER: &str = "family: gpt2, norm: post, activation: relu, positions: sinusoidal, embedding_scale: true, \
     head_bias: true, final_norm: false, tie_embeddings: false, init: {pytorch: {embedding: 0.1}}";

const MODELS: [(&str, &str); 5] = [
    ("gpt2, tied", "family: gpt2, dropout: 0.0"),
    ("gpt2, tied, dropout", "family: gpt2, dropout: 0.1"),
    ("gpt2, untied, dropout", "family: gpt2, dropout: 0.1, tie_embeddings: false"),
    ("llama, untied", "family: llama, kv_heads: 1"),
    ("llama, tied", "family: llama, kv_heads: 1, tie_embeddings: true"),
];

/// Documents of different lengths, some longer than a row and most shorter: rows are padded.
fn folder() -> &'static tempfile::TempDir {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let words = ["the", "old", "fox", "ran", "over", "a", "hill", "and", "saw", "snow", "in", "spring"];
        let document = |i: usize| {
            let text: Vec<&str> = (0..3 + i * 7 % 23).map(|w| words[(i * 31 + w * w * 17) % words.len()]).collect();
            serde_json::json!({ "text": text.join(" ") }).to_string() + "\n"
        };
        fs::write(dir.path().join("docs.jsonl"), (0..200).map(document).collect::<String>()).unwrap();
        dir
    })
}

struct Case {
    plan: Plan,
    prepared: Prepared,
}

fn case(model: &str, layout: &str, steps: usize) -> Case {
    masked_case(model, layout, steps, "causal")
}

fn masked_case(model: &str, layout: &str, steps: usize, mask: &str) -> Case {
    let dir = folder().path();
    let yaml = format!(
        "name: layouts\nmodel: {{{model}, layers: 6, heads: 2, d_model: 16, d_ff: 32, context_length: 24}}\n\
         data:\n  tokenizer: {{bpe: {{vocab_size: 300, special_tokens: ['[BOT]', '[EOT]', '[PAD]']}}}}\n  \
         train: {{jsonl: {{files: [docs.jsonl], field: text}}}}\n  validation: {{fraction: 0.1}}\n  \
         layout: {{padded: {{length: 24, bos: '[BOT]', eos: '[EOT]', pad: '[PAD]', mask: {mask}}}}}\n\
         train: {{steps: {steps}}}\noptimizer: {{adamw: {{lr: 3e-3}}}}\nschedule: {{warmup: {{steps: 5}}}}\n\
         eval: {{every: 25, loss: {{batches: 1000}}, hellaswag: {{builtin: stories, limit: 6}}, \
         samples: {{prompts: [the old, snow in], count: 2, max_tokens: 30, temperature: 0.0}}}}\n{layout}\n"
    );
    let name = format!("{:x}.yaml", yaml.bytes().fold(7_u64, |h, b| h.wrapping_mul(31).wrapping_add(u64::from(b))));
    let file = dir.join(name);
    fs::write(&file, yaml).unwrap();
    let experiment =
        config::load(&file, &LoadOptions::default()).unwrap_or_else(|e| panic!("{layout}: {e}")).experiment;
    let request = DataRequest {
        data: &experiment.data,
        choice: experiment.eval.hellaswag.as_ref(),
        seed: experiment.seed,
        cache_dir: &dir.join("cache"),
        test: None,
        vocab_size: experiment.model.vocab_size,
    };
    let prepared = prepare(&request, &|_| {}).unwrap();
    let plan =
        compile(&experiment, &prepared.facts, &ClusterFacts::local(1)).unwrap_or_else(|e| panic!("{layout}: {e}"));
    Case { plan, prepared }
}

/// What a run says of itself.
#[derive(Debug, Default, PartialEq)]
struct Told {
    /// Loss and gradient norm of each step.
    steps: Vec<[f64; 2]>,
    /// Validation loss and multiple-choice accuracies.
    evals: Vec<[f64; 3]>,
    samples: Vec<String>,
}

impl Observer for Told {
    fn observe(&mut self, event: &Event<'_>) -> Result<(), ObserveError> {
        match event {
            Event::Step(m) => self.steps.push([m.loss, m.grad_norm]),
            Event::Eval(m) => {
                let numbers = [m.val_loss, m.hellaswag_acc, m.hellaswag_acc_norm];
                self.evals.push(numbers.map(|n| n.expect("it is evaluated")));
            }
            Event::Sample(s) => self.samples.push(format!("{} {}: {}", s.prompt, s.index, s.text)),
            _ => {}
        }
        Ok(())
    }
}

/// The run's story, and its final weights by name.
fn run<'a>(case: &'a Case, dtype: DType) -> (Told, BTreeMap<String, Vec<f64>>) {
    let Prepared { dataset, tokenizer, choice, .. } = &case.prepared;
    let resources = Resources { dataset, tokenizer, choice: choice.as_deref() };
    let state = |rank: &RankPlan| {
        let mut state = initial_state(&rank.program).unwrap();
        state.buffer = state.buffer.to_dtype(dtype).unwrap();
        state
    };
    let seat = |rank: &'a RankPlan| Seated { program: &rank.program, threads: 1, state: state(rank) };
    let ranks = case.plan.ranks.iter().map(seat).collect();
    let mut told = Told::default();
    let stop = AtomicBool::new(false);
    let outcomes = threads::run(ranks, case.plan.channel_slots, &resources, &stop, &mut told).unwrap();
    (told, weights(&outcomes))
}

fn weights(outcomes: &[Outcome]) -> BTreeMap<String, Vec<f64>> {
    let mut out = BTreeMap::new();
    for outcome in outcomes {
        let state = &outcome.state;
        let flat: Vec<f64> = state.weights().unwrap().to_dtype(DType::F64).unwrap().to_vec1().unwrap();
        for entry in &state.layout.entries {
            let values = flat[entry.range()].to_vec();
            if let Some(earlier) = out.insert(entry.spec.name.clone(), values.clone())
                && outcome.state.moments > 0
            {
                assert_eq!(earlier, values, "{} differs between ranks", entry.spec.name);
            }
        }
    }
    out
}

fn relative(a: f64, b: f64) -> f64 {
    (a - b).abs() / b.abs().max(1e-12)
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
    let single = run(&case(model, LAYOUTS[0].1, STEPS), DType::F64);
    assert_eq!((single.0.steps.len(), single.0.evals.len(), single.0.samples.len()), (STEPS, 2, 8));
    assert!(single.0.steps[STEPS - 1][0] < 0.8 * single.0.steps[0][0], "{name} learns");
    for (layout, yaml) in &LAYOUTS[1..] {
        let other = run(&case(model, yaml, STEPS), DType::F64);
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

#[test]
fn gpt2_tied() {
    agrees(0);
}

#[test]
fn gpt2_tied_with_dropout() {
    agrees(1);
}

#[test]
fn gpt2_untied_with_dropout() {
    agrees(2);
}

#[test]
fn llama_untied() {
    agrees(3);
}

#[test]
fn llama_tied() {
    agrees(4);
}

#[test]
fn encoder_layers() {
    agree("encoder layers", &format!("{ENCODER}, dropout: 0.0"));
}

#[test]
fn encoder_layers_with_dropout() {
    agree("encoder, dropout", &format!("{ENCODER}, dropout: 0.1, mlp_dropout: 0.1"));
}

/// Layouts that differ in kind.
const KINDS: [usize; 6] = [0, 1, 3, 5, 13, 15];

/// Losses and weights are the same to the bit whether attention sees padding or not: in the forward no token that counts
/// comes behind padding, and in the backward what padding adds to sums is 0 times something finite. That the mask is there
/// shows in the outputs of layers, which are traced with the padded positions.
#[test]
fn the_padding_mask_changes_padding_alone() {
    #[derive(Default)]
    struct Traced(Told, Vec<TraceLine>);
    impl Observer for Traced {
        fn observe(&mut self, event: &Event<'_>) -> Result<(), ObserveError> {
            self.0.observe(event)
        }

        fn trace(&mut self, lines: &[TraceLine]) -> Result<(), ObserveError> {
            self.1.extend_from_slice(lines);
            Ok(())
        }
    }
    let run = |model: &str, layout: &str, mask: &str| {
        let case = masked_case(model, layout, 12, mask);
        let Prepared { dataset, tokenizer, choice, .. } = &case.prepared;
        let resources = Resources { dataset, tokenizer, choice: choice.as_deref() };
        let state = |rank: &RankPlan| initial_state(&rank.program).unwrap();
        let seat = |rank: usize| Seated {
            program: &case.plan.ranks[rank].program,
            threads: 1,
            state: state(&case.plan.ranks[rank]),
        };
        let ranks = (0..case.plan.ranks.len()).map(seat).collect();
        let (mut told, stop) = (Traced::default(), AtomicBool::new(false));
        let orders = Orders { trace: true, ..Orders::from(&stop) };
        let outcomes = threads::run(ranks, case.plan.channel_slots, &resources, orders, &mut told).unwrap();
        assert_eq!(case.plan.ranks[0].program.batch.mask_padding, mask != "causal");
        (told, weights(&outcomes), case.plan)
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
            // The first rank tells of the layers that it holds.
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
fn bf16_without_master_weights() {
    let with = |layout: &str| case(MODELS[1].1, &format!("{layout}\nprecision: bf16\nmaster_weights: false"), 20);
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
    let single = run(&case(model, LAYOUTS[0].1, 20), DType::F32);
    for (layout, yaml) in LAYOUTS {
        let case = case(model, yaml, 20);
        let (first, second) = (run(&case, DType::F32), run(&case, DType::F32));
        assert_eq!(first, second, "{layout}");
        for (a, b) in first.0.steps.iter().zip(&single.0.steps) {
            assert!(relative(a[0], b[0]) < 1e-4 && relative(a[1], b[1]) < 1e-3, "{layout}: {a:?} and {b:?}");
        }
    }
}

/// One weight of one rank is off by one unit in the last place: told before the first step.
#[test]
fn ranks_that_start_differently_are_refused() {
    for (layout, rank, what) in [(2, 1, "weights and moments"), (6, 1, "tied embedding")] {
        let case = case(MODELS[0].1, LAYOUTS[layout].1, 5);
        let Prepared { dataset, tokenizer, choice, .. } = &case.prepared;
        let resources = Resources { dataset, tokenizer, choice: choice.as_deref() };
        let seat = |r: &RankPlan| -> (usize, TrainState) {
            let mut state = initial_state(&r.program).unwrap();
            if r.rank == rank {
                let mut values: Vec<f32> = state.buffer.to_vec1().unwrap();
                let name = "transformer.wte.weight";
                let at = state.layout.find(name).unwrap().offset;
                values[at] = f32::from_bits(values[at].to_bits() + 1);
                state.buffer = Tensor::from_vec(values, state.buffer.elem_count(), &Device::Cpu).unwrap();
            }
            (r.rank, state)
        };
        let states: Vec<(usize, TrainState)> = case.plan.ranks.iter().map(seat).collect();
        let ranks = states
            .into_iter()
            .map(|(rank, state)| Seated { program: &case.plan.ranks[rank].program, threads: 1, state })
            .collect();
        let stop = AtomicBool::new(false);
        let result = threads::run(ranks, case.plan.channel_slots, &resources, &stop, &mut Told::default());
        let error = result.expect_err("the ranks differ").to_string();
        assert!(error.contains(what), "{error}");
    }
}
