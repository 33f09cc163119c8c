//! Samples of one model under different layouts: the same bytes, drawn by all replicas.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::common::layouts::{LayoutCase, compile_file};
use runner_comm::{LocalComm, Region};
use runner_compute::state::TrainState;
use runner_executor::{IgnoreEvents, InstructionList, Observer, ProgressMonitor, Resources, initial_state};
use runner_plan::ranks::topology::topology;
use runner_spec::event::{Event, ObserveError};
use runner_spec::program::{Instruction, Program};

const MAX_TOKENS: usize = 30;

/// A run of one step, whose rate is too small to change a weight, with `samples` of a model and `settings`.
fn case(settings: &str, samples: &str) -> LayoutCase {
    let dir = tempfile::tempdir().unwrap();
    let text: String = (0..400).map(|i| ["a hill ", "the fox ", "saw snow ", "in spring "][i * i % 7 % 4]).collect();
    fs::write(dir.path().join("input.txt"), text).unwrap();
    let yaml = format!(
        "name: samples\ndata: {{tokenizer: {{bytes: {{}}}}, train: {{text: {{files: [input.txt]}}}}, \
         layout: {{packed: {{length: 24}}}}}}\ntrain: {{steps: 1}}\noptimizer: {{adamw: {{lr: 1e-30}}}}\n\
         eval: {{loss: null, samples: {{{samples}, max_tokens: {MAX_TOKENS}}}}}\n{settings}\n"
    );
    compile_file(dir.path(), "samples.yaml", &yaml, &runner_machine::local_cluster::cpu_cluster(1))
}

/// Counts the forward passes of a rank's part of the model for samples.
struct SampleMonitor<'a> {
    program: &'a Program,
    samples: AtomicBool,
    passes: AtomicUsize,
}

impl ProgressMonitor for SampleMonitor<'_> {
    fn enter_instruction(&self, _: u64, list: InstructionList, index: usize) {
        let periodic = self.program.periodic.get(index).filter(|_| list == InstructionList::Periodic);
        self.samples.store(periodic.is_some_and(|p| p.instruction == Instruction::Sample), Ordering::Relaxed);
    }

    fn heartbeat(&self) {
        if self.samples.load(Ordering::Relaxed) {
            self.passes.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[derive(Default)]
struct Texts(Vec<String>);

impl Observer for Texts {
    fn observe(&mut self, event: &Event) -> Result<(), ObserveError> {
        if let Event::Sample(s) = event {
            self.0.push(format!("{} {}: {}", s.prompt, s.index, s.text));
        }
        Ok(())
    }

    fn checkpoint(&mut self, _: &TrainState, _: bool) -> Result<(), ObserveError> {
        Ok(())
    }
}

/// Runs `case`. Returns the texts that rank 0 reports, and the number of forward passes of each rank's model for samples.
fn run(case: &LayoutCase) -> (Vec<String>, Vec<usize>) {
    let plan = &case.plan;
    let region = Region::anonymous(&topology(&plan.ranks[0].program, plan.channel_slots, 4)).unwrap();
    let resources = Resources::from(&case.prepared);
    let stop = AtomicBool::new(false);
    let run_rank = |program: &Program, observer: &mut dyn Observer| {
        let monitor = SampleMonitor { program, samples: AtomicBool::new(false), passes: AtomicUsize::new(0) };
        let comm = LocalComm::new(Arc::clone(&region), program.rank).unwrap();
        let state = initial_state(program, None).unwrap();
        if let Err(error) = runner_executor::run(program, &resources, &comm, &monitor, state, &stop, observer) {
            region.abort(program.rank);
            panic!("rank {}: {error}", program.rank);
        }
        monitor.passes.into_inner()
    };
    let mut texts = Texts::default();
    let passes = thread::scope(|scope| {
        let (first, others) = plan.ranks.split_first().unwrap();
        let run_rank = &run_rank;
        let others: Vec<_> =
            others.iter().map(|rank| scope.spawn(move || run_rank(&rank.program, &mut IgnoreEvents))).collect();
        let first = run_rank(&first.program, &mut texts);
        std::iter::once(first).chain(others.into_iter().map(|rank| rank.join().unwrap())).collect()
    });
    (texts.0, passes)
}

const LAYOUTS: [(&str, &str); 5] = [
    ("batch: {sequences: 12}", "single"),
    ("batch: {sequences: 12}\nparallel: {mode: ddp, replicas: 2}", "ddp 2"),
    ("batch: {sequences: 12}\nparallel: {mode: ddp, replicas: 3}", "ddp 3"),
    (
        "batch: {sequences: 12}\nparallel: {mode: pipeline, replicas: 2, pipeline: {stages: 2, schedule: gpipe, microbatches: 2}}",
        "2 x 2",
    ),
    ("batch: {sequences: 12}\nparallel: {mode: dp, replicas: 2}", "dp 2"),
];

/// Kernels round sums differently for other numbers of rows, which in bf16 changes a token every few texts. Only batches that are the same
/// under every layout give the same texts.
#[test]
fn every_layout_draws_the_same_bytes() {
    let samples = "prompts: [a hill, the fox saw snow], count: 7, top_k: null, temperature: 0.4";
    for precision in ["fp32", "bf16"] {
        for model in ["family: gpt2", "family: llama, kv_heads: 1"]
            .map(|family| format!("{family}, tie_embeddings: false, init: {{pytorch: {{embedding: normal}}}}"))
        {
            let texts = |layout: &str| {
                let model =
                    format!("model: {{{model}, layers: 4, heads: 2, d_model: 64, d_ff: 128, context_length: 24}}");
                run(&case(&format!("{model}\nprecision: {precision}\n{layout}"), samples)).0
            };
            let single = texts(LAYOUTS[0].0);
            assert_eq!(single.len(), 14);
            assert!(single[..7].windows(2).all(|pair| pair[0][8..] != pair[1][8..]), "each has its own generator");
            for (layout, name) in &LAYOUTS[1..] {
                assert_eq!(texts(layout), single, "{model}, {precision}, {name}");
            }
        }
    }
}

/// Batches have up to 4 continuations of a prompt, and are dealt out in turn.
#[test]
fn replicas_divide_the_continuations() {
    let model = "model: {family: gpt2, layers: 4, heads: 2, d_model: 16, d_ff: 32, context_length: 24}";
    let passes = |layout: &str, samples: &str| {
        run(&case(&format!("{model}\n{layout}"), &format!("{samples}, temperature: 0.0"))).1
    };
    let [single, two, three, pipelines, _] = LAYOUTS.map(|(layout, _)| layout);
    let batches =
        |layout, samples| passes(layout, samples).iter().map(|passes| passes / MAX_TOKENS).collect::<Vec<_>>();
    for (samples, expected) in [
        ("prompts: [a], count: 5", [vec![2], vec![1, 1], vec![1, 1, 0], vec![1, 1, 1, 1]]),
        ("prompts: [a, b, c], count: 5", [vec![6], vec![3, 3], vec![2, 2, 2], vec![3, 3, 3, 3]]),
        ("prompts: [a], count: 32", [vec![8], vec![4, 4], vec![3, 3, 2], vec![4, 4, 4, 4]]),
        ("prompts: [a, b], count: 1", [vec![2], vec![1, 1], vec![1, 1, 0], vec![1, 1, 1, 1]]),
    ] {
        assert_eq!([single, two, three, pipelines].map(|layout| batches(layout, samples)), expected, "{samples}");
    }
}
