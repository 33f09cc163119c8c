//! The planner as a whole: snapshots of what users see, the hash, and the errors. Also the fixtures of the other tests.

mod hash;
mod learning_rate;
mod published;
mod shards;
mod simulate;
mod stages;

use crate::compile;
use crate::testing::{Change, cluster, compiled, data, experiment};
use runner_spec::cluster::{ClusterFacts, DeviceFacts};
use runner_spec::data::DataFacts;
use runner_spec::experiment as e;
use runner_spec::format::choice_name;
use runner_spec::optimizer::Sgd;
use runner_spec::plan::{PROCESS_ITEM, Plan, RankPlan};
use runner_spec::program::{DataPosition, Device, EVAL_TOKENS_PER_FORWARD, Instruction};
use runner_spec::schedule::{Decay, StepDecay};

fn fails(change: impl FnOnce(&mut e::Experiment, &mut DataFacts)) -> String {
    let (mut experiment, mut data) = (experiment(), data());
    change(&mut experiment, &mut data);
    compile(&experiment, &data, &cluster()).expect_err("it cannot be planned").to_string()
}

/// Recomputation costs FLOPs that MFU does not count, and saves activations.
#[test]
fn recomputation_is_in_the_plan() {
    let mut experiment = experiment();
    let none = compiled(&experiment);
    let mut last = none.ranks[0].memory.activations;
    for recompute in [e::Recompute::Attention, e::Recompute::Block] {
        experiment.train.recompute = recompute;
        let plan = compiled(&experiment);
        assert!(plan.ranks[0].memory.activations < last && plan.ranks[0].flops.recomputed > 0.0);
        assert_eq!(plan.totals, none.totals);
        assert_eq!((&plan.math_hash, plan.hash == none.hash), (&none.math_hash, false));
        last = plan.ranks[0].memory.activations;
    }
}

#[test]
fn json_loads_back_to_an_equal_value() {
    let plan = compiled(&experiment());
    let json = serde_json::to_string_pretty(&plan).expect("serializes");
    assert_eq!(serde_json::from_str::<Plan>(&json).expect("loads"), plan);
}

#[test]
fn epochs_and_totals_are_counted() {
    let mut experiment = experiment();
    experiment.train = e::Train { steps: None, epochs: Some(2.0), ..experiment.train };
    let totals = compiled(&experiment).totals;
    // 1,000 rows twice / 8 rows a step.
    assert_eq!((totals.steps, totals.pace.tokens_per_step, totals.tokens), (250, 64, 16_000));
    assert_eq!((totals.epochs, totals.accumulation_steps), (2.0, 4));
}

/// Steps 0 to 9 had 4 rows each; then 8 rows a step.
#[test]
fn a_position_counts_the_rows_read_before_it() {
    let position = DataPosition { step: 10, epoch: 0, row: 40, rows: 40, tokens: 320 };
    let mut experiment = experiment();
    experiment.data.position = Some(position);
    let plan = compiled(&experiment);
    // 90 steps of 8 rows of 8 tokens follow: 720 rows, 5,760 tokens.
    assert_eq!((plan.totals.steps, plan.totals.tokens, plan.totals.epochs), (100, 6_080, 0.76));
    assert_ne!(plan.math_hash, compiled(&self::experiment()).math_hash);
    let after = plan.row_sequence().expect("a rank").position_after(100);
    assert_eq!(after, DataPosition { step: 100, epoch: 0, row: 760, rows: 760, tokens: 6_080 });
    insta::assert_snapshot!(fails(|x, _| x.data.position = Some(DataPosition { step: 1, row: 1_000, ..DataPosition::default() })), @"data.position.row: it must be below 1000, the rows of data.train, got 1000");
    // Epochs since the warmup, which ended before it, cannot be counted.
    let drops = Decay::Step(StepDecay { every: None, epochs: Some(1.0), gamma: 0.5 });
    let by_epochs = |start: u64| {
        let mut changed = experiment.clone();
        changed.data.position = Some(DataPosition { step: 20, ..position });
        changed.schedule = e::Schedule {
            start: e::ScheduleStart::At(e::ScheduleLength::Steps(start)),
            decay: drops.clone(),
            ..changed.schedule
        };
        compile(&changed, &data(), &cluster()).map(|plan| plan.ranks[0].program.schedule.clone())
    };
    assert!(by_epochs(0).expect_err("the warmup ended at step 10").to_string().contains("at step 20"));
    // 1,000 rows are 125 steps of 8 after a warmup of 10 steps from step 20.
    let schedule = by_epochs(20).expect("plans");
    assert_eq!([30, 154, 155].map(|step| schedule.rate(step)), [1e-3, 1e-3, 5e-4]);
}

#[test]
fn a_loss_without_validation_data_is_left_out_with_a_note() {
    let mut data = data();
    data.validation = None;
    let mut experiment = experiment();
    (experiment.eval.hellaswag, experiment.eval.samples) = (None, None);
    let plan = compile(&experiment, &data, &cluster()).expect("plans");
    assert!(plan.notes[0].contains("data.validation is not given"));
    let periodic: Vec<Instruction> = plan.ranks[0].program.periodic.iter().map(|p| p.instruction).collect();
    assert_eq!(periodic, [Instruction::Checkpoint]);
}

#[test]
fn each_evaluation_has_its_own_interval() {
    let mut experiment = experiment();
    experiment.parallel = e::Parallel { mode: e::ParallelMode::Dp, replicas: 2, ..e::Parallel::single() };
    experiment.eval.hellaswag.iter_mut().for_each(|set| set.every = Some(10));
    experiment.eval.samples.iter_mut().for_each(|samples| samples.every = Some(50));
    let plan = compiled(&experiment);
    let program = &plan.ranks[0].program;
    let periodic: Vec<String> = program.periodic.iter().map(ToString::to_string).collect();
    // A sample is drawn where a loss is measured, so it adds no exchange of weights.
    let expected = [
        "BroadcastWeights after every 10 and every 25 steps, and after the last",
        "Evaluate after every 10 and every 25 steps, and after the last",
        "Sample after every 50 steps, and after the last",
        "Checkpoint after every 50 steps, and after the last",
    ];
    assert_eq!(periodic, expected);
    assert_eq!((program.loss_every(), program.task_every("hellaswag")), (Some(25), Some(10)));
    let due = |done| (program.eval.is_loss_due(done, 100), program.eval.tasks()[0].is_due(done, 100));
    assert_eq!([0, 10, 25, 50].map(due), [(true, true), (false, true), (true, false), (true, true)]);
    let odd = |done| (program.eval.is_loss_due(done, 77), program.eval.tasks()[0].is_due(done, 77));
    assert_eq!(odd(77), (true, true), "the last step");
    experiment.eval.loss = None;
    let program = &compiled(&experiment).ranks[0].program;
    assert_eq!(
        (program.loss_every(), program.task_every("hellaswag"), program.every(Instruction::Evaluate)),
        (None, Some(10), Some(10))
    );
}

#[test]
fn a_model_that_does_not_fit_gets_a_note_with_an_offer() {
    let mut experiment = experiment();
    experiment.batch = e::Batch { sequences: 512, micro_batch: 512, warmup: None };
    let plan = |memory: u64| {
        let mut cluster = cluster();
        cluster.devices[0].memory_bytes = Some(memory);
        compile(&experiment, &data(), &cluster).expect("plans").shortage.unwrap_or_default()
    };
    assert_eq!(plan(24 << 30), "");
    insta::assert_snapshot!(plan(60 << 20), @"memory: the run needs about 67.56 MiB on cpu, 7.56 MiB more than fits into 60.00 MiB; batch.micro_batch 256 (at most 58.40 MiB a rank) fits, and so does train.recompute: block (at most 56.03 MiB a rank)");
    insta::assert_snapshot!(plan(1 << 20), @"memory: the run needs about 67.56 MiB on cpu, 66.56 MiB more than fits into 1.00 MiB; no batch.micro_batch fits; a smaller model, more stages or an optimizer with less state may");
}

#[test]
fn reports_mistakes_in_the_words_of_the_file() {
    insta::assert_snapshot!(fails(|x, _| x.model.vocab_size = Some(200)), @"model.vocab_size: must be at least 257, because the tokenizer produces ids 0 to 256, got 200; raise it, or delete the key");
    insta::assert_snapshot!(fails(|x, _| x.data.layout = e::Layout::packed(32)), @"data.layout: rows of 32 tokens do not fit model.context_length 16: shorten the layout's length to 16, or raise the context length");
    insta::assert_snapshot!(fails(|x, _| (x.batch.sequences, x.data.drop_last) = (1_001, true)), @"data.drop_last: it leaves out rows that do not fill a batch, but an epoch has 1,000 rows (8,001 tokens in the source) and batch.sequences is 1,001; set data.drop_last to false, which reads 1.001 epochs in each step, or use at most 1,000 sequences");
    insta::assert_snapshot!(fails(|x, _| x.schedule.warmup = e::ScheduleLength::Steps(101).into()), @"schedule.warmup.steps: must be at most the 100 steps of the run, got 101");
    insta::assert_snapshot!(fails(|x, _| {
        x.schedule.warmup = e::ScheduleLength::Steps(101).into();
        x.train.steps = None;
        x.train.tokens = Some(6_400);
    }), @"schedule.warmup.steps: must be at most the 100 steps of the run (from train.tokens 6400), got 101");
    insta::assert_snapshot!(fails(|x, _| x.device = e::DeviceChoice::Cuda), @"device: cuda is not on this machine, which has cpu");
    insta::assert_snapshot!(fails(|_, d| d.choice = None), @"eval.hellaswag: its items were not prepared");
    insta::assert_snapshot!(fails(|x, _| x.model.heads = 3), @"model.d_model: 16 = 5·3 + 1 is not a multiple of model.heads 3");
    insta::assert_snapshot!(fails(|x, _| x.model.layers = 0), @"model.layers: must be at least 1, got 0");
    insta::assert_snapshot!(fails(|x, _| x.model.layers = usize::MAX), @"model: its sizes give about 8.3e22 parameters in 18446744073709551615 layers, more than any device holds");
    insta::assert_snapshot!(fails(|x, _| x.model.pad_vocab_to = Some(0)), @"model.pad_vocab_to: 257 has no multiple of 0 above it");
    insta::assert_snapshot!(fails(|x, _| x.batch.micro_batch = 9), @"batch.micro_batch: must be 1 to 8, the sequences of a step, got 9");
    insta::assert_snapshot!(fails(|x, d| {
        (x.batch.sequences, d.train.rows) = (1 << 40, 1 << 41);
    }), @"batch.micro_batch: 1099511627776 sequences / 2 = 549755813888 micro-batches in a step; at most 65536 can be planned, so use at least 16777216");
    insta::assert_snapshot!(fails(|x, _| x.checkpoint.every = 0), @"checkpoint.every: must be at least 1, got 0");
}

/// A program is never built for sizes that only a mistake explains; none of these may panic, hang or allocate.
#[test]
fn absurd_sizes_do_not_panic() {
    let sizes = [0, 1, 3, 1 << 20, 1 << 40, usize::MAX];
    for size in sizes {
        for other in sizes {
            let (mut x, mut d) = (experiment(), data());
            (x.batch.sequences, x.batch.micro_batch) = (size, other);
            d.train.rows = u64::MAX;
            let _ = compile(&x, &d, &cluster());
            let mut x = experiment();
            (x.model.d_model, x.model.heads, x.model.kv_heads) = (size, other, other);
            (x.model.vocab_size, x.model.pad_vocab_to) = (Some(size), Some(other));
            let _ = compile(&x, &data(), &cluster());
            let mut x = experiment();
            (x.model.context_length, x.data.layout) = (size, e::Layout::packed(other));
            if let Some(samples) = &mut x.eval.samples {
                (samples.count, samples.max_tokens) = (size, other);
            }
            let _ = compile(&x, &data(), &cluster());
        }
    }
}

/// `nodes` machines with one CPU of `memory` bytes each.
fn machines(nodes: usize, memory: u64) -> ClusterFacts {
    let one = &cluster().devices[0];
    let device = |node| DeviceFacts { node, memory_bytes: Some(memory), ..one.clone() };
    ClusterFacts { devices: (0..nodes).map(device).collect(), ..cluster() }
}

fn pipeline(stages: usize, partition: e::AutoOr<Vec<usize>>) -> e::Experiment {
    let mut experiment = experiment();
    experiment.model.layers = 12;
    experiment.model.d_model = 256;
    experiment.model.d_ff = 1024;
    let schedule = e::PipelineSchedule::OneFOneB;
    experiment.batch = e::Batch { sequences: 8, micro_batch: 1, warmup: None };
    let pipeline = e::Pipeline { stages, partition, schedule, chunks: 1, microbatches: 8 };
    experiment.parallel =
        e::Parallel { mode: e::ParallelMode::Pipeline, pipeline: Some(pipeline), ..e::Parallel::single() };
    experiment
}

#[test]
fn a_model_too_large_for_any_rank_fits_a_pipeline() {
    let cluster = machines(3, 220 << 20);
    let mut single = pipeline(3, e::AutoOr::Auto);
    single.parallel = e::Parallel::single();
    let one = machines(1, 220 << 20);
    let refused = compile(&single, &data(), &one).expect("plans");
    assert!(refused.shortage.is_some(), "{}", refused.ranks[0].memory.total());
    let plan = compile(&pipeline(3, e::AutoOr::Auto), &data(), &cluster).expect("plans");
    assert_eq!(plan.shortage, None);
    let whole = plan.totals.parameters;
    let parts: Vec<u64> = plan.ranks.iter().map(|r| r.params.total).collect();
    // The tied embedding is there twice.
    let copy = (plan.ranks[0].program.model.vocab_size * 256) as u64;
    assert_eq!(parts.iter().sum::<u64>(), whole + copy);
    assert!(parts.iter().all(|&p| p < whole / 2), "{parts:?} of {whole}");
}

#[test]
fn a_stage_that_does_not_fit_is_named() {
    let plan = |memory| {
        let uneven = pipeline(3, e::AutoOr::Given(vec![2, 2, 8]));
        compile(&uneven, &data(), &machines(3, memory)).expect("plans")
    };
    // Where memory is short, no copies of saved states are planned.
    let memory = &plan(1 << 40).ranks[2].memory;
    let need = memory.total() - memory.checkpoint;
    let shortage = plan(need - (10 << 20)).shortage.expect("stage 2 is too large");
    assert!(shortage.contains("memory: stage 2 needs about ") && shortage.contains(", 10.00 MiB more than fits into "));
}

/// A message of a step has 1 row of 8 tokens; multiple choice is scored in forwards of more.
#[test]
fn messages_are_as_long_as_the_longest() {
    let mut experiment = pipeline(3, e::AutoOr::Auto);
    let mut slot = || {
        let rank = &compiled(&experiment).ranks[1];
        let slots = rank.memory.items.iter().find(|item| item.what == "activations and gradients in flight");
        experiment.eval.hellaswag = None;
        experiment.eval.samples = None;
        slots.expect("a stage between two others").bytes
    };
    let (with_choice, alone) = (slot(), slot());
    assert_eq!((with_choice, alone), (EVAL_TOKENS_PER_FORWARD as u64 * 256 * 4, 8 * 256 * 4));
}

#[test]
fn dp_is_heavier_on_the_root() {
    let mut experiment = experiment();
    experiment.parallel = e::Parallel { mode: e::ParallelMode::Dp, replicas: 2, ..e::Parallel::single() };
    let plan = compiled(&experiment);
    let memory: Vec<_> = plan.ranks.iter().map(|r| &r.memory).collect();
    assert_eq!((memory[0].weights, memory[0].gradients), (memory[1].weights, memory[1].gradients));
    assert_eq!((memory[0].optimizer, memory[1].optimizer), (2 * memory[0].weights, 0));
}

fn sharded(replicas: usize) -> e::Experiment {
    let mut experiment = experiment();
    let shard = Some(e::ShardedState::Optimizer);
    experiment.parallel = e::Parallel { mode: e::ParallelMode::Ddp, replicas, shard, ..e::Parallel::single() };
    experiment
}

/// By hand: with AdamW a rank holds 4 bytes of weights and 8 of moments for each parameter of its shard, and 4 of weights and 4 of
/// gradients for each of the model. In bf16 with master weights the model's weights are 2 bytes, and gains and biases are f32 besides.
#[test]
fn a_sharded_optimizer_is_divided() {
    for (precision, masters) in [(e::Precision::Fp32, true), (e::Precision::Bf16, true), (e::Precision::Bf16, false)] {
        let mut experiment = sharded(4);
        (experiment.precision, experiment.master_weights) = (precision, masters);
        let plan = compiled(&experiment);
        let (n, other) = (plan.ranks[0].params.total, plan.ranks[0].params.other);
        let shards: Vec<u64> = plan.ranks.iter().map(|r| r.program.shard().expect("a shard").len() as u64).collect();
        assert_eq!(shards.iter().sum::<u64>(), n);
        for (rank, &shard) in plan.ranks.iter().zip(&shards) {
            let want = match (precision, masters) {
                (e::Precision::Fp32, _) => [4 * shard + 4 * n, 4 * n, 8 * shard],
                (_, true) => [4 * shard + 2 * n + 4 * other, 4 * n, 8 * shard],
                (_, false) => [2 * shard + 2 * n + 4 * other, 2 * n, 4 * shard],
            };
            assert_eq!([rank.memory.weights, rank.memory.gradients, rank.memory.optimizer], want, "{precision:?}");
        }
    }
    let alone = compiled(&sharded(1));
    assert!(alone.ranks[0].program.shards.is_empty(), "one replica has all");
    assert!(alone.notes.iter().any(|note| note.starts_with("parallel.shard has no effect")), "{:?}", alone.notes);
}

#[test]
fn a_sharded_optimizer_changes_the_hash_and_not_the_mathematics() {
    let mut whole = sharded(2);
    whole.parallel.shard = None;
    let mut hashes = vec![compiled(&whole).hash];
    for state in [e::ShardedState::Optimizer, e::ShardedState::Gradients, e::ShardedState::Parameters] {
        let mut experiment = sharded(2);
        experiment.parallel.shard = Some(state);
        let plan = compiled(&experiment);
        assert_eq!(plan.math_hash, compiled(&whole).math_hash);
        assert!(!hashes.contains(&plan.hash), "{state:?}");
        hashes.push(plan.hash);
    }
}

#[test]
fn a_sharded_optimizer_is_proposed_where_it_fits() {
    let mut experiment = pipeline(2, e::AutoOr::Auto);
    experiment.parallel = e::Parallel { mode: e::ParallelMode::Ddp, replicas: 4, ..e::Parallel::single() };
    let plan = |bytes| compile(&experiment, &data(), &machines(4, bytes)).expect("plans").shortage;
    let proposed = plan(256 << 20).expect("moments do not fit");
    assert!(proposed.contains("parallel.shard: optimizer (at most 217.15 MiB a rank)"), "{proposed}");
    assert!(!plan(211 << 20).expect("moments do not fit").contains("parallel.shard"), "nor does a shard of them");
    experiment.parallel.shard = Some(e::ShardedState::Optimizer);
    // There, no copies of saved states are planned.
    let sharded = compile(&experiment, &data(), &machines(4, 226 << 20)).expect("plans");
    assert_eq!(sharded.shortage, None);
    let largest = sharded.ranks.iter().map(|rank| rank.memory.total()).max();
    assert_eq!(largest.map(crate::quantity::bytes).as_deref(), Some("217.15 MiB"));
}

/// Memory in which plain ddp does not fit is enough for what is proposed. GPUs have a context and NCCL's buffers, too.
#[test]
fn gpus_divide_as_much_state_as_they_must() {
    let named = runner_machine::cluster_description::named_cluster("1x4xH100").expect("known");
    let plan = |shard, memory: Option<u64>| {
        let mut experiment = pipeline(2, e::AutoOr::Auto);
        experiment.batch.micro_batch = 2;
        // They would gather all weights.
        (experiment.eval.loss, experiment.eval.hellaswag, experiment.eval.samples) = (None, None, None);
        experiment.parallel =
            e::Parallel { mode: e::ParallelMode::Ddp, replicas: 4, shard, bucket_mb: 2.0, ..e::Parallel::single() };
        let memory = |gpu: &DeviceFacts| DeviceFacts { memory_bytes: memory.or(gpu.memory_bytes), ..gpu.clone() };
        let devices = named.devices.iter().map(memory).collect();
        compile(&experiment, &data(), &ClusterFacts { devices, kernels: cluster().kernels, ..named.clone() })
            .expect("plans")
    };
    let need = |shard| plan(shard, None).ranks.iter().map(|rank| rank.memory.total()).max().expect("ranks");
    let mut larger = need(None);
    for state in [e::ShardedState::Optimizer, e::ShardedState::Gradients, e::ShardedState::Parameters] {
        let need = need(Some(state));
        assert!(need < larger, "{state:?}");
        larger = need;
        // A plan may fill 95 percent.
        let memory = Some(need.div_ceil(95) * 100);
        let proposed = plan(None, memory).shortage.expect("it does not fit");
        let change =
            format!("parallel.shard: {} (at most {} a rank)", choice_name(&state), crate::quantity::bytes(need));
        assert!(proposed.contains(&change), "{proposed}");
        assert_eq!(plan(Some(state), memory).shortage, None);
    }
}

#[test]
fn an_optimizer_that_cannot_be_sharded_is_refused() {
    let named = runner_machine::cluster_description::named_cluster("1x2xH100").expect("known");
    let mut mixed = sharded(2);
    mixed.parallel.devices = e::AutoOr::Given(vec![Device::Cuda(1), Device::Cpu]);
    let devices = cluster().devices.into_iter().chain(named.devices).collect();
    let of_two_kinds = compile(&mixed, &data(), &ClusterFacts { devices, ..cluster() }).expect_err("two kinds");
    insta::assert_snapshot!(of_two_kinds.to_string(), @"parallel.shard: ranks that divide state must all be on CPUs, or all on GPUs, but rank 1 is on cpu, and rank 0 on cuda:1; list devices of one kind in parallel.devices, or delete the key");
    let mut experiment = sharded(64);
    experiment.batch = e::Batch { sequences: 64, micro_batch: 1, warmup: None };
    let many = compile(&experiment, &data(), &cluster()).expect_err("too many").to_string();
    insta::assert_snapshot!(many, @"parallel.shard: 40 tensors cannot be divided among 64 replicas; use fewer replicas, or delete the key");
}

#[test]
fn ranks_need_devices_and_batches_that_divide() {
    let fails = |change: &dyn Fn(&mut e::Experiment), cluster: &ClusterFacts| {
        let mut experiment = pipeline(3, e::AutoOr::Auto);
        change(&mut experiment);
        compile(&experiment, &data(), cluster).expect_err("it cannot be planned").to_string()
    };
    insta::assert_snapshot!(fails(&|x| x.parallel.replicas = 2, &machines(4, 1 << 30)), @"parallel: 3 stages · 2 replicas = 6 ranks need a device each, but there are 4 devices");
    insta::assert_snapshot!(fails(&|x| x.parallel.replicas = 3, &cluster()), @"parallel.replicas: batch.sequences 8 = 2·3 + 2 does not divide among 3 replicas");
    insta::assert_snapshot!(fails(&|x| x.model.layers = 2, &cluster()), @"parallel.pipeline.stages: 3 stages · 1 chunks = 3 parts, but the model has 2 layers, and each part needs one");
    let cuda = |x: &mut e::Experiment| x.parallel.devices = e::AutoOr::Given(vec![Device::Cuda(0); 3]);
    insta::assert_snapshot!(fails(&cuda, &cluster()), @"parallel.devices: cuda:0 is not on this machine, which has cpu");
    let interleaved = |x: &mut e::Experiment| {
        if let Some(p) = &mut x.parallel.pipeline {
            (p.schedule, p.chunks) = (e::PipelineSchedule::Interleaved, 2);
        }
    };
    insta::assert_snapshot!(fails(&interleaved, &cluster()), @"parallel.pipeline.microbatches: interleaved_1f1b needs a multiple of the stages: 8 micro-batches = 2·3 + 2");
}

/// Layouts are other plans of the same mathematics.
#[test]
fn a_layout_changes_the_hash_and_not_the_mathematics() {
    let single = compiled(&experiment());
    let mut ddp = experiment();
    ddp.parallel = e::Parallel { mode: e::ParallelMode::Ddp, replicas: 2, ..e::Parallel::single() };
    ddp.batch.micro_batch = 4;
    ddp.eval.every = 7;
    let ddp = compiled(&ddp);
    assert_ne!(single.hash, ddp.hash);
    assert_eq!(single.math_hash, ddp.math_hash);
    let changes: [Change<e::Experiment>; 4] = [
        ("seed", |x| x.seed = 1.into()),
        ("batch", |x| x.batch.sequences = 16),
        ("optimizer", |x| x.optimizer = e::Optimizer::Sgd(Sgd { lr: 1e-3, momentum: 0.0 })),
        ("clip", |x| x.train.clip_norm = None),
    ];
    for (what, change) in changes {
        let mut changed = experiment();
        change(&mut changed);
        assert_ne!(compiled(&changed).math_hash, single.math_hash, "{what}");
    }
}

#[test]
fn the_replicas_of_dp_share_a_process() {
    let mut experiment = experiment();
    for (mode, processes) in [(e::ParallelMode::Ddp, [1, 1]), (e::ParallelMode::Dp, [1, 0])] {
        experiment.parallel = e::Parallel { mode, replicas: 2, ..e::Parallel::single() };
        let plan = compiled(&experiment);
        let count = |rank: &RankPlan| rank.memory.items.iter().filter(|i| i.what == PROCESS_ITEM).count();
        assert_eq!(plan.ranks.iter().map(count).collect::<Vec<_>>(), processes, "{mode:?}");
    }
}
