//! One experiment under many layouts, run in one process: ranks are threads.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use candle_core::DType;
use runner_compute::state::TrainState;
use runner_config::LoadOptions;
use runner_data::{DataRequest, Prepared, prepare};
use runner_executor::Observer;
use runner_executor::{Resources, RunControls, TrainedRank, initial_state};
use runner_plan::compile;
use runner_ranks::threads;
use runner_ranks::threads::ThreadRank;
use runner_spec::cluster::ClusterFacts;
use runner_spec::event::{Event, ObserveError};
use runner_spec::measure::Measure;
use runner_spec::plan::{Plan, RankPlan};
use runner_spec::program::Program;

/// 24 sequences a step. Single takes them as 4 micro-batches of 6.
pub const LAYOUTS: [(&str, &str); 16] = [
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
pub const ENCODER: &str = "family: gpt2, norm: post, activation: relu, positions: sinusoidal, embedding_scale: true, \
     head_bias: true, final_norm: false, tie_embeddings: false, init: {pytorch: {embedding: 0.1}}";

/// Models that have, together, every option of recent ones.
pub const RECENT: [(&str, &str); 3] = [
    (
        "both norms, windows, caps",
        "family: llama, kv_heads: 1, tie_embeddings: true, norm: both, norm_gain: one_plus_weight, head_dim: 6, qk_norm: head, \
         activation: gelu, embedding_scale: true, embedding_norm: true, logit_softcap: 5, z_loss: 0.001, attention_scale: 0.5, \
         pattern: [{window: 3, rope_theta: 50}, {}]",
    ),
    (
        "norms of outputs, layers of one part",
        "family: llama, kv_heads: 1, norm: output, qk_norm: width, biases: attention, gated: false, activation: relu2, \
         rope_fraction: 0.5, rope_scaling: {linear: {factor: 2}}, pattern: [{}, {mlp: false}, {attention: false}, {rope: false}]",
    ),
    (
        "sums at every place",
        "family: llama, kv_heads: 1, values: {first: {embedding: {}}, half: {output: {layers: [2]}},          skipped: {output: {layers: [2, 1, 0], in: [3, 4, 5]}}, own: {table: {in: [1, 3]}},          shared: {table: {in: [0, 2, 5], shared: [0, 1, 0]}}, smear: {scalar: {initial: 0.5}}, near: {gate: {channels: 5}},          resid: {scalar: {initial: 1.2, initial_of_last: 0.8}}, mix: {scalar: {initial: 0.3}},          skip: {scalar: {initial: -1, sigmoid: true}}, open: {gate: {channels: 3}}, weak: {scalar: {initial: 0.4}},          wide: {gate: {channels: 7}}, out: {scalar: {initial: 0.2}}},          sums: {embedding: ['x + smear * near * previous(x)', 'norm(x)'],          layer: ['x + skip * skipped', 'resid * x + mix * first'], value: ['v + 3 * open * own + weak * shared'],          attended: ['2 * wide * y'], head: ['x - out * half']}",
    ),
];

pub const MODELS: [(&str, &str); 6] = [
    ("gpt2, tied", "family: gpt2, dropout: 0.0"),
    ("gpt2, tied, dropout", "family: gpt2, dropout: 0.1"),
    ("gpt2, untied, dropout", "family: gpt2, dropout: 0.1, tie_embeddings: false"),
    ("llama, untied", "family: llama, kv_heads: 1"),
    ("llama, tied", "family: llama, kv_heads: 1, tie_embeddings: true"),
    ("llama, PyTorch's start", "family: llama, kv_heads: 1, init: {pytorch: {embedding: normal}}"),
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

pub struct LayoutCase {
    pub plan: Plan,
    pub prepared: Prepared,
}

/// `layout` may have more keys of the experiment. Without an `optimizer`, it is AdamW.
pub fn layout_case(model: &str, layout: &str, steps: usize) -> LayoutCase {
    layout_case_with_mask(model, layout, steps, "causal")
}

/// The case in which each epoch reads `epoch_rows` rows.
pub fn layout_case_of_epochs(model: &str, layout: &str, steps: usize, epoch_rows: u64) -> LayoutCase {
    let keys = format!("\n  epoch_rows: {epoch_rows}");
    compile_layout_case(model, layout, steps, ["causal", &keys], &runner_machine::local_cluster::cpu_cluster(1))
}

/// The case on `cluster`, with `more` added to the experiment.
pub fn layout_case_on(model: &str, layout: &str, more: &str, steps: usize, cluster: &ClusterFacts) -> LayoutCase {
    compile_layout_case(model, &format!("{layout}\n{more}"), steps, ["causal", ""], cluster)
}

pub fn layout_case_with_mask(model: &str, layout: &str, steps: usize, mask: &str) -> LayoutCase {
    compile_layout_case(model, layout, steps, [mask, ""], &runner_machine::local_cluster::cpu_cluster(1))
}

/// `mask` is that of padded rows, `data_keys` are more lines of the section `data`.
fn compile_layout_case(
    model: &str,
    layout: &str,
    steps: usize,
    [mask, data_keys]: [&str; 2],
    cluster: &ClusterFacts,
) -> LayoutCase {
    let dir = folder().path();
    let optimizer = if layout.contains("optimizer:") { "" } else { "optimizer: {adamw: {lr: 3e-3}}\n" };
    let groups = match layout {
        _ if layout.contains("muon") => MUON_GROUPS,
        _ if layout.contains(TRANSFER) => ", transfer: {d_model: 8, layers: 2}",
        _ if layout.contains(STAGES) => {
            ", stages: [{until: {share: 0.24}, length: 12, windows: [3]}, {until: {share: 0.5}, sequences: 48, windows: [5]}]"
        }
        _ => "",
    };
    let rows = if layout.contains(STAGES) {
        "{packed: {length: 24}}".to_owned()
    } else {
        format!("{{padded: {{length: 24, bos: '[BOT]', eos: '[EOT]', pad: '[PAD]', mask: {mask}}}}}")
    };
    let yaml = format!(
        "name: layouts\nmodel: {{{model}, layers: 6, heads: 2, d_model: 16, d_ff: 32, context_length: 24}}\n\
         data:\n  tokenizer: {{bpe: {{vocab_size: 300, special_tokens: ['[BOT]', '[EOT]', '[PAD]']}}}}\n  \
         train: {{jsonl: {{files: [docs.jsonl], field: text}}}}\n  validation: {{fraction: 0.1}}\n  \
         layout: {rows}{data_keys}\n\
         train: {{steps: {steps}{groups}}}\n{optimizer}schedule: {{warmup: {{steps: 5}}}}\n\
         eval: {{every: 25, loss: {{batches: 1000}}, hellaswag: {{builtin: stories, limit: 6}}, \
         samples: {{prompts: [the old, snow in], count: 2, max_tokens: 30, temperature: 0.0}}}}\n{layout}\n"
    );
    let name = format!("{:x}.yaml", yaml.bytes().fold(7_u64, |h, b| h.wrapping_mul(31).wrapping_add(u64::from(b))));
    compile_file(dir, &name, &yaml, cluster)
}

/// Writes the experiment `yaml` to `dir`, prepares its data in a cache there, and plans it for `cluster`.
pub fn compile_file(dir: &Path, name: &str, yaml: &str, cluster: &ClusterFacts) -> LayoutCase {
    let file = dir.join(name);
    fs::write(&file, yaml).unwrap();
    let experiment =
        runner_config::load(&file, &LoadOptions::default()).unwrap_or_else(|e| panic!("{yaml}: {e}")).experiment;
    let tasks: Vec<_> = experiment.eval.tasks().map(|(name, task)| (name.to_owned(), task.clone())).collect();
    let request = DataRequest {
        data: &experiment.data,
        tasks: &tasks,
        cache_dir: &dir.join("cache"),
        test: None,
        vocab_size: experiment.model.vocab_size,
        recorded_tokenizer: None,
    };
    let prepared = prepare(&request, &|_| {}).unwrap();
    let plan = compile(&experiment, &prepared.facts, cluster).unwrap_or_else(|e| panic!("{yaml}: {e}"));
    LayoutCase { plan, prepared }
}

/// The events that a run reported.
#[derive(Debug, Default, PartialEq)]
pub struct ObservedRun {
    /// Loss and gradient norm of each step.
    pub steps: Vec<[f64; 2]>,
    /// Validation loss and multiple-choice accuracies.
    pub evals: Vec<[f64; 4]>,
    pub samples: Vec<String>,
}

impl Observer for ObservedRun {
    fn checkpoint(&mut self, _: &TrainState, _: bool) -> Result<(), ObserveError> {
        Ok(())
    }

    fn observe(&mut self, event: &Event) -> Result<(), ObserveError> {
        match event {
            Event::Step(m) => self.steps.push([m.loss, m.grad_norm]),
            Event::Eval(m) => {
                let numbers = ["val_loss", "hellaswag_acc", "hellaswag_acc_norm", "hellaswag_acc_norm_chars"];
                let numbers = numbers.map(|key| m.measured.get(&Measure::of_key(key).unwrap()));
                self.evals.push(numbers.map(|n| n.expect("it is evaluated")));
            }
            Event::Sample(s) => self.samples.push(format!("{} {}: {}", s.prompt, s.index, s.text)),
            _ => {}
        }
        Ok(())
    }
}

/// Runs the case with one thread for each rank. Returns what the run reported, and its final weights by name.
pub fn run(case: &LayoutCase, dtype: DType) -> (ObservedRun, BTreeMap<String, Vec<f64>>) {
    let mut observed = ObservedRun::default();
    let state = |program: &Program| {
        let mut state = initial_state(program, None).unwrap();
        state.buffer = state.buffer.to_dtype(dtype).unwrap();
        state
    };
    let outcomes = run_from(case, state, &mut observed);
    (observed, weights(&outcomes))
}

/// Runs the case with one thread for each rank, from the states that `state` gives them.
pub fn run_from(
    case: &LayoutCase,
    state: impl Fn(&Program) -> TrainState,
    observer: &mut (dyn Observer + Send),
) -> Vec<TrainedRank> {
    let stop = AtomicBool::new(false);
    run_with_controls(case, RunControls::from(&stop), state, observer)
}

/// The same until the step that `controls` name, or with a trace.
pub fn run_with_controls<'a>(
    case: &'a LayoutCase,
    controls: RunControls<'_>,
    state: impl Fn(&Program) -> TrainState,
    observer: &mut (dyn Observer + Send),
) -> Vec<TrainedRank> {
    let Prepared { dataset, tokenizer, tasks, .. } = &case.prepared;
    let resources = Resources { dataset, tokenizer, tasks };
    let thread_rank =
        |rank: &'a RankPlan| ThreadRank { program: &rank.program, threads: 1, state: state(&rank.program) };
    let ranks = case.plan.ranks.iter().map(thread_rank).collect();
    threads::run(ranks, case.plan.channel_slots, &resources, controls, observer).unwrap()
}

pub fn weights(outcomes: &[TrainedRank]) -> BTreeMap<String, Vec<f64>> {
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

/// Muon; [`layout_case`] adds [`MUON_GROUPS`].
pub const MUON: &str = "optimizer: {muon: {lr: 0.02, weight_decay: 0.1, cautious_decay: true, adamw: {lr: 3e-3}}}";
/// A comment with which [`layout_case`] transfers the settings of a smaller model.
pub const TRANSFER: &str = "# transfer";
/// A comment with which [`layout_case`] changes the batch, the row length and the window of a model with one window; its rows are packed.
pub const STAGES: &str = "# stages";
const MUON_GROUPS: &str =
    ", groups: [{match: '*.0.*', lr_scale: 0.5, weight_decay: 0.2}, {match: '*.1.*', lr_scale: 0.25}]";
