//! Plans as people read them.

use runner_machine::cluster_description::named_cluster;
use runner_plan::compile;
use runner_plan::testing::{cluster, compiled, data, experiment, gpt2_124m, measured};
use runner_spec::cluster::{ClusterFacts, DeviceFacts};
use runner_spec::data::SplitFacts;
use runner_spec::experiment as e;
use runner_spec::optimizer::{GroupOptions, Muon, Sgd};
use runner_spec::rates::DeviceRates;
use runner_spec::transfer::Transfer;

use super::{RenderOptions, render};

fn page(experiment: &e::Experiment) -> String {
    render(&compiled(experiment), &RenderOptions::default())
}

fn ddp(replicas: usize, shard: Option<e::ShardedState>) -> e::Experiment {
    let mut x = experiment();
    x.parallel = e::Parallel { mode: e::ParallelMode::Ddp, replicas, shard, bucket_mb: 0.01, ..e::Parallel::single() };
    x
}

/// GPT-2 124M on rows of 1,024 tokens.
fn gpt2() -> e::Experiment {
    let (mut x, m) = (experiment(), gpt2_124m(50_304));
    x.model = e::Model {
        vocab_size: Some(50_257),
        context_length: m.context_length,
        layers: m.layers,
        heads: m.heads,
        kv_heads: m.kv_heads,
        d_model: m.d_model,
        d_ff: m.d_ff,
        ..x.model
    };
    x.data.layout = e::Layout::packed(1024);
    x
}

#[test]
fn the_plan_as_text() {
    insta::assert_snapshot!(page(&experiment()));
}

#[test]
fn the_plan_in_full() {
    let mut experiment = experiment();
    experiment.batch = e::Batch { sequences: 3, micro_batch: 2, warmup: None };
    experiment.precision = e::Precision::Bf16;
    experiment.optimizer = e::Optimizer::Sgd(Sgd { lr: 5.0, momentum: 0.0 });
    experiment.train.clip_norm = None;
    let plan = compile(&experiment, &data(), &cluster().with_peak_flops(Some(2e11))).expect("plans");
    insta::assert_snapshot!(render(
        &plan,
        &RenderOptions { instructions: true, memory: true, ..RenderOptions::default() }
    ));
}

/// The parameters and rates of each group; who orthogonalizes what.
#[test]
fn plans_with_muon_and_transfer_as_text() {
    for (name, shard) in [("whole", None), ("sharded", Some(e::ShardedState::Optimizer))] {
        let mut experiment = ddp(2, shard);
        experiment.optimizer = e::Optimizer::Muon(Muon { weight_decay: 0.1, ..Muon::default() });
        let group = |pattern: &str, lr_scale, weight_decay| GroupOptions {
            r#match: pattern.to_owned(),
            lr_scale,
            weight_decay,
        };
        experiment.train.groups = vec![group("*.bias", Some(0.5), None), group("*.h.0.*", None, Some(0.2))];
        insta::assert_snapshot!(format!("muon_{name}"), page(&experiment));
    }
    let mut experiment = experiment();
    experiment.model.tie_embeddings = false;
    let transfer =
        Transfer { d_model: 8, layers: Some(1), depth_exponent: 1.0, tokens: Some(3200), token_exponent: 0.5 };
    experiment.train.transfer = Some(transfer);
    let plan = compiled(&experiment);
    insta::assert_snapshot!("transfer", render(&plan, &RenderOptions { plot: true, ..RenderOptions::default() }));
    // A transfer from a base of the model's own size gives the same plan as none.
    experiment.train.transfer = Some(Transfer { d_model: 16, layers: Some(3), tokens: None, ..transfer });
    let same = compiled(&experiment).hash;
    experiment.train.transfer = None;
    assert_eq!(same, compiled(&experiment).hash);
}

/// 64 sequences of 1,024 tokens in micro-batches of 4.
#[test]
fn gpt2_124m_as_text() {
    let mut experiment = gpt2();
    experiment.batch = e::Batch { sequences: 64, micro_batch: 4, warmup: None };
    let mut data = data();
    data.tokenizer_vocab = 50_257;
    (data.train.rows, data.train.tokens) = (297, 304_222);
    data.validation = Some(SplitFacts { rows: 33, tokens: 33_803, hash: "decaf".to_owned(), ..data.train.clone() });
    let plan = compile(&experiment, &data, &cluster()).expect("plans");
    insta::assert_snapshot!(render(&plan, &RenderOptions::default()));
}

#[test]
fn a_cluster_plan_as_text() {
    let mut x = gpt2();
    x.batch = e::Batch { sequences: 512, micro_batch: 4, warmup: None };
    x.precision = e::Precision::Bf16;
    let partition = e::AutoOr::Auto;
    let pipeline =
        e::Pipeline { stages: 4, partition, schedule: e::PipelineSchedule::OneFOneB, chunks: 1, microbatches: 32 };
    x.parallel.mode = e::ParallelMode::Pipeline;
    (x.parallel.replicas, x.parallel.pipeline) = (4, Some(pipeline));
    let named = named_cluster("2x8xH100").expect("known");
    let cluster = ClusterFacts { kernels: cluster().kernels, ..named };
    let plan = compile(&x, &data(), &cluster).expect("plans");
    insta::assert_snapshot!(render(&plan, &RenderOptions { price: Some(2.5), ..RenderOptions::default() }));
    let one = render(&plan, &RenderOptions { rank: Some(15), ..RenderOptions::default() });
    assert!(one.contains("rank 15") && !one.contains("rank 14"), "{one}");
}

/// The root of dp is heavier than its replicas, and the text shows it.
#[test]
fn dps_root_is_heavier() {
    let mut x = ddp(4, None);
    x.parallel.mode = e::ParallelMode::Dp;
    insta::assert_snapshot!(page(&x));
}

#[test]
fn recomputation_is_in_the_plan() {
    let mut experiment = experiment();
    experiment.train.recompute = e::Recompute::Block;
    insta::assert_snapshot!(page(&experiment));
}

#[test]
fn a_sharded_optimizer_is_divided() {
    let mut x = ddp(2, Some(e::ShardedState::Optimizer));
    x.parallel.bucket_mb = e::Parallel::single().bucket_mb;
    insta::assert_snapshot!(page(&x));
}

#[test]
fn the_first_line_says_that_a_plan_does_not_fit() {
    let (mut x, cluster) = (gpt2(), cluster());
    x.batch = e::Batch { sequences: 8, micro_batch: 1, warmup: None };
    let device = DeviceFacts { memory_bytes: Some(220 << 20), ..cluster.devices[0].clone() };
    let plan = compile(&x, &data(), &ClusterFacts { devices: vec![device], ..cluster }).expect("plans");
    let page = render(&plan, &RenderOptions::default());
    insta::assert_snapshot!(page.lines().next().unwrap_or_default());
}

#[test]
fn a_forecast_says_what_it_lacks_or_may_be_wrong_by() {
    let mut busy = measured(1e-6);
    for rates in busy.rates.devices.values_mut() {
        if let DeviceRates::Measured(rates) = rates {
            rates.disturbance = Some("5 processes computed".to_owned());
        }
    }
    let forecast = |cluster: &ClusterFacts| {
        let page = render(&compile(&experiment(), &data(), cluster).expect("plans"), &RenderOptions::default());
        page.lines().filter(|line| line.contains("calibrate")).collect::<Vec<_>>().join("\n")
    };
    insta::assert_snapshot!([cluster(), busy].map(|cluster| forecast(&cluster)).join("\n"));
    assert_eq!(forecast(&measured(1e-6)).matches("may be wrong").count(), 0);
}
