//! Criterion benches of the planner: plans of a GPT-2 1.5B for clusters of 1,024 and 10,000 devices, 64 micro-batches; and the search for
//! its best layout on 64 devices.

#![expect(clippy::unwrap_used, reason = "a bench that cannot run should stop")]
#![expect(clippy::print_stdout, reason = "the number of layouts belongs to their time")]

use std::collections::BTreeMap;

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use runner_config::{LoadOptions, load};
use runner_plan::compile;
use runner_plan::search::search;
use runner_spec::data::{Clipped, DataFacts, SplitFacts};
use runner_spec::experiment::Experiment;
use runner_spec::experiment::{AutoOr, Parallel, ParallelMode, Pipeline, PipelineSchedule};

const FILE: &str = "
version: 1
name: planner
model: {family: gpt2, layers: 48, heads: 25, d_model: 1600, context_length: 1024, vocab_size: 50257, pad_vocab_to: 128}
data:
  tokenizer: {bytes: {}}
  train: {builtin: {corpus: stories}}
  layout: {packed: {length: 1024}}
batch: {sequences: 64, micro_batch: 1}
train: {steps: 1000}
optimizer: {adamw: {lr: 1e-4}}
precision: bf16
";

/// An experiment in which each replica has 64 micro-batches of one row.
fn experiment(stages: usize, replicas: usize) -> Experiment {
    let file = std::env::temp_dir().join(format!("planner-bench-{}.yaml", std::process::id()));
    std::fs::write(&file, FILE).unwrap();
    let mut experiment = load(&file, &LoadOptions::default()).unwrap().experiment;
    std::fs::remove_file(&file).unwrap();
    experiment.batch.sequences = 64 * replicas;
    let pipeline =
        Pipeline { stages, partition: AutoOr::Auto, schedule: PipelineSchedule::OneFOneB, chunks: 1, microbatches: 64 };
    let (mode, pipeline) =
        if stages == 1 { (ParallelMode::Ddp, None) } else { (ParallelMode::Pipeline, Some(pipeline)) };
    experiment.parallel = Parallel { mode, replicas, pipeline, ..Parallel::single() };
    experiment
}

fn data() -> DataFacts {
    let train = SplitFacts {
        rows: 10_000_000,
        tokens: 10_240_000_000,
        documents: 1,
        clipped: Clipped::default(),
        hash: "assumed".to_owned(),
        text: None,
        overlaps: Vec::new(),
    };
    DataFacts {
        tokenizer_vocab: 50_257,
        tokenizer_hash: "assumed".to_owned(),
        train,
        validation: None,
        test: None,
        choice: None,
        tasks: BTreeMap::new(),
        weights: None,
        joins_documents: false,
    }
}

fn plans(c: &mut Criterion) {
    let mut group = c.benchmark_group("plan");
    group.sample_size(10).warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_secs(5));
    for (stages, replicas) in [(1, 1_024), (16, 64), (1, 10_000), (16, 625)] {
        let experiment = experiment(stages, replicas);
        let cluster =
            runner_machine::cluster_description::named_cluster(&format!("{}x8xH100", (stages * replicas).div_ceil(8)))
                .unwrap();
        let data = data();
        group.bench_function(format!("{stages} stages x {replicas} replicas"), |b| {
            b.iter(|| compile(black_box(&experiment), &data, &cluster).unwrap());
        });
    }
    group.finish();
}

/// More than ten thousand layouts of a batch of 512 rows.
fn layouts(c: &mut Criterion) {
    let mut experiment = experiment(1, 64);
    experiment.batch.sequences = 512;
    let cluster = runner_machine::cluster_description::named_cluster("8x8xH100").unwrap();
    let data = data();
    let found = search(&experiment, &data, &cluster, &|_| {}).unwrap();
    println!("{} layouts, of which {} fit and {} were simulated", found.layouts, found.fit, found.simulated);
    let mut group = c.benchmark_group("search");
    group.sample_size(10).warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_secs(10));
    group.bench_function(format!("{} layouts on 64 devices", found.layouts), |b| {
        b.iter(|| search(black_box(&experiment), &data, &cluster, &|_| {}).unwrap());
    });
    group.finish();
}

criterion_group!(benches, plans, layouts);
criterion_main!(benches);
