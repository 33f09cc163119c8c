//! The simulation against the literature in unit times, and what it says of communication and of known machines.

use crate::compile;
use crate::forecast::simulate::{Message, StepCosts, Transfer, UnitCosts, simulate};
use crate::forecast::timeline::timeline;
use crate::testing::{compiled, data, experiment, measured};
use runner_spec::experiment as e;
use runner_spec::forecast::ForecastBasis;
use runner_spec::plan::Plan;
use runner_spec::program::{Instruction, Program};
use runner_spec::rates::{BlockSeconds, DeviceRates};

use e::PipelineSchedule::{self, Gpipe, Interleaved, OneFOneB, ZeroBubble};

/// 24 layers in `stages` stages, and as many micro-batches of one row as said.
fn pipeline(schedule: PipelineSchedule, stages: usize, chunks: usize, microbatches: usize) -> e::Experiment {
    let mut x = experiment();
    x.model.layers = 24;
    x.batch = e::Batch { sequences: microbatches, micro_batch: 1, warmup: None };
    let partition = e::AutoOr::Given(vec![24 / stages / chunks; stages * chunks]);
    let pipeline = e::Pipeline { stages, partition, schedule, chunks, microbatches };
    x.parallel = e::Parallel { mode: e::ParallelMode::Pipeline, pipeline: Some(pipeline), ..e::Parallel::single() };
    x
}

fn ddp(replicas: usize) -> e::Experiment {
    let mut x = experiment();
    x.parallel = e::Parallel { mode: e::ParallelMode::Ddp, replicas, bucket_mb: 0.01, ..e::Parallel::single() };
    x
}

fn programs(plan: &Plan) -> Vec<&Program> {
    (0..plan.mesh.stages).map(|s| &plan.ranks[plan.mesh.rank(s, 0)].program).collect()
}

/// GPipe and 1F1B waste p − 1 of (m + p − 1) forwards and backwards; interleaving divides the waste by the chunks.
#[test]
fn bubbles_are_the_literatures() {
    for stages in [1, 2, 3, 4, 6] {
        for mbs in [stages, 2 * stages, 4 * stages] {
            let (p, m) = (stages as f64, mbs as f64);
            for (schedule, chunks) in [(Gpipe, 1), (OneFOneB, 1), (Interleaved, 2)] {
                if stages == 1 && schedule == Interleaved {
                    continue;
                }
                let plan = compiled(&pipeline(schedule, stages, chunks, mbs));
                let trace = simulate(&programs(&plan), plan.channel_slots, &UnitCosts).expect("it ends");
                let v = chunks as f64;
                let want = (p - 1.0) / (m * v + p - 1.0);
                for sums in &trace.stages {
                    let got = sums.waiting / trace.seconds;
                    assert!((got - want).abs() < 1e-12, "{schedule:?} {stages} {mbs}: {got}, not {want}");
                }
            }
            let trace = |schedule| {
                let plan = compiled(&pipeline(schedule, stages, 1, mbs));
                simulate(&programs(&plan), plan.channel_slots, &UnitCosts).expect("it ends").seconds
            };
            assert!(trace(ZeroBubble) <= trace(OneFOneB), "{stages} {mbs}");
            assert!(stages == 1 || trace(ZeroBubble) < trace(OneFOneB), "{stages} {mbs}");
        }
    }
}

/// The times that a stage computes, waits and communicates add up to the step.
#[test]
fn the_parts_of_a_stage_add_up() {
    for schedule in [Gpipe, OneFOneB, ZeroBubble] {
        let plan = compiled(&pipeline(schedule, 4, 1, 6));
        let prices = Fixed { reduce: 0.0, message: 0.3, latency: 0.05 };
        let trace = simulate(&programs(&plan), plan.channel_slots, &prices).expect("it ends");
        for s in &trace.stages {
            let sum = s.compute + s.waiting + s.communication;
            // Sums of a few hundred terms.
            assert!((sum - trace.seconds).abs() < 1e-9, "{sum} of {}", trace.seconds);
        }
        assert!(trace.stages.iter().any(|s| s.communication > 0.0));
    }
}

/// UnitCosts of computation, and given times of communication.
struct Fixed {
    reduce: f64,
    message: f64,
    latency: f64,
}

impl StepCosts for Fixed {
    fn compute(&self, stage: usize, program: &Program, instruction: &Instruction) -> f64 {
        UnitCosts.compute(stage, program, instruction)
    }

    fn message(&self, _: usize, _: usize, _: &Program, _: Message) -> Transfer {
        Transfer { latency: self.latency, seconds: self.message, copied_by_ranks: false }
    }

    fn collective(&self, _: usize, _: &Program, instruction: &Instruction) -> f64 {
        if matches!(instruction, Instruction::AllReduce { .. }) { self.reduce } else { 0.0 }
    }
}

/// Four micro-batches of 3 units; the sums start during the last backward, and only the rest after it shows.
#[test]
fn sums_hide_behind_the_backward() {
    let plan = compiled(&ddp(2));
    let programs = programs(&plan);
    let buckets = programs[0].buckets.len();
    assert!(buckets >= 3, "{buckets} buckets");
    let of = |reduce| {
        let prices = Fixed { reduce, message: 0.0, latency: 0.0 };
        simulate(&programs, plan.channel_slots, &prices).expect("it ends")
    };
    let micro_batches = programs[0].batch.micro_batches() as f64;
    let (quick, slow) = (of(0.01), of(10.0));
    // All but the last bucket's sum is hidden. Tolerance: sums of a few terms.
    assert!((quick.seconds - (3.0 * micro_batches + 0.01)).abs() < 1e-9, "{}", quick.seconds);
    assert!((quick.stages[0].communication - 0.01).abs() < 1e-9);
    // One after the other, from the first bucket on: the last backward hides less than its own two units.
    let exposed = slow.stages[0].communication;
    assert!(exposed > 10.0 * buckets as f64 - 2.0 && exposed < 10.0 * buckets as f64, "{exposed}");
}

#[test]
fn messages_take_latency_and_bytes_in_turn() {
    let plan = compiled(&pipeline(Gpipe, 2, 1, 4));
    let prices = Fixed { reduce: 0.0, message: 2.0, latency: 0.5 };
    let trace = simulate(&programs(&plan), 8, &prices).expect("it ends");
    // The link is busy from 1 to 9 with four activations of 2; the last arrives at 9.5 and is forwarded to 10.5. Then four
    // backwards to 18.5; the first stage has the last gradient 2.5 later and its backward takes 2.
    assert_eq!(trace.seconds, 10.5 + 8.0 + 2.5 + 2.0);
    // With one slot the next message leaves when the last has been taken: activations at 3.5, 6, 8.5 and 11. The first gradient
    // is sent at 14 and taken at 16.5, and then one every 2.5, each sender waiting: the last at 24, and its backward takes 2.
    let held = simulate(&programs(&plan), 1, &prices).expect("it ends");
    assert_eq!(held.seconds, 26.0);
}

/// The tiny model has 3 layers, a head and an embedding, each 3 units per position; 64 positions a step, and the update.
#[test]
fn a_measured_machine_is_predicted_from_its_points() {
    let plan = compile(&experiment(), &data(), &measured(1e-6)).expect("plans");
    let forecast = plan.forecast.expect("rates are known");
    assert_eq!(forecast.basis, ForecastBasis::Measured);
    let want = 1e-6 * (64.0 * 5.0 * 3.0 + 100.0);
    // Through logarithms.
    assert!((forecast.step_seconds - want).abs() < 1e-9 * want.max(1.0), "{} not {want}", forecast.step_seconds);
    assert_eq!(forecast.stages.len(), 1);
    assert_eq!(forecast.stages[0].bubble, 0.0);
    assert_eq!(forecast.stages[0].memory_bytes, plan.ranks[0].memory.total());
    assert!((forecast.run_seconds - 100.0 * forecast.step_seconds).abs() < 1e-12);
    let mut bf16 = experiment();
    bf16.precision = e::Precision::Bf16;
    let slower = compile(&bf16, &data(), &measured(1e-6)).expect("plans").forecast.expect("known").step_seconds;
    assert!(slower > 1.5 * forecast.step_seconds);
}

#[test]
fn a_forecast_from_a_disturbed_calibration_says_so() {
    let mut busy = measured(1e-6);
    for rates in busy.rates.devices.values_mut() {
        if let DeviceRates::Measured(rates) = rates {
            rates.disturbance = Some("5 processes computed".to_owned());
        }
    }
    let [plan, calm] = [&busy, &measured(1e-6)].map(|on| compile(&experiment(), &data(), on).expect("plans"));
    let basis = |plan: &Plan| plan.forecast.as_ref().expect("known").basis;
    assert_eq!(
        (basis(&plan), basis(&calm), &plan.hash),
        (ForecastBasis::Disturbed, ForecastBasis::Measured, &calm.hash)
    );
}

#[test]
fn without_rates_there_is_no_forecast_and_it_is_not_in_the_hash() {
    let without = compiled(&experiment());
    assert_eq!(without.forecast, None);
    let with = compile(&experiment(), &data(), &measured(1e-6)).expect("plans");
    assert!(with.forecast.is_some());
    assert_eq!((with.hash, with.math_hash), (without.hash, without.math_hash));
}

#[test]
fn measured_times_do_not_change_the_plan() {
    let mut x = pipeline(OneFOneB, 3, 1, 8);
    if let Some(pipeline) = &mut x.parallel.pipeline {
        pipeline.partition = e::AutoOr::Auto;
    }
    let by_flops = compiled(&x);
    assert!(by_flops.notes.iter().any(|n| n.ends_with("(by FLOPs)")), "{:?}", by_flops.notes);
    let by_times = compile(&x, &data(), &measured(1e-6)).expect("plans");
    assert_eq!((by_flops.hash, by_flops.notes), (by_times.hash, by_times.notes));
}

/// GPT-2 124M in bf16, micro-batches of 64 rows of 1,024, on data for it.
fn gpt2_124m() -> e::Experiment {
    let mut x = experiment();
    x.model = e::Model {
        vocab_size: Some(50_257),
        context_length: 1024,
        layers: 12,
        heads: 12,
        kv_heads: 12,
        d_model: 768,
        d_ff: 3072,
        ..x.model
    };
    x.data.layout = e::Layout::packed(1024);
    x.batch = e::Batch { sequences: 512, micro_batch: 64, warmup: None };
    x.precision = e::Precision::Bf16;
    x.parallel = e::Parallel { mode: e::ParallelMode::Ddp, replicas: 8, ..e::Parallel::single() };
    x
}

/// GPT-2 124M in steps of one micro-batch on one H100: docs/gpu-check.md has the measurements.
fn measured_step(precision: e::Precision, rows: usize) -> e::Experiment {
    let mut x = gpt2_124m();
    x.model.vocab_size = Some(50_304);
    x.batch = e::Batch { sequences: rows, micro_batch: rows, warmup: None };
    (x.precision, x.parallel) = (precision, e::Parallel::single());
    x
}

/// The measurements that the assumed efficiencies were chosen by: llm.c's 218k tokens/s per A100 on 8 of them, and this program's on an H100
/// at 64 rows in each precision. Those at 32 and 16 rows were not used.
#[test]
fn known_devices_are_near_their_measurements() {
    use e::Precision::{Bf16, Fp32, Tf32};
    let forecast = |x: &e::Experiment, cluster: &str| {
        let cluster = runner_machine::cluster_description::named_cluster(cluster).expect("known");
        compile(x, &data(), &cluster).expect("plans").forecast.expect("known")
    };
    let a100 = forecast(&gpt2_124m(), "1x8xA100").tokens_per_second_per_device;
    assert!((a100 / 218e3 - 1.0).abs() < 0.05, "{a100:.0} tokens/s, measured 218k");
    for (precision, rows, measured_ms) in [
        (Bf16, 64, 117.6),
        (Tf32, 64, 319.1),
        (Fp32, 64, 1236.2),
        (Bf16, 32, 58.9),
        (Bf16, 16, 30.9),
        (Tf32, 32, 160.9),
        (Tf32, 16, 82.2),
    ] {
        let ms = 1e3 * forecast(&measured_step(precision, rows), "1x1xH100").step_seconds;
        let tolerance = if rows == 64 { 0.01 } else { 0.05 };
        assert!(
            (ms / measured_ms - 1.0).abs() < tolerance,
            "{precision:?}, {rows} rows: {ms:.1} ms, measured {measured_ms}"
        );
    }
}

/// What an H100 punishes: dropout, and bf16 state. Each was measured once, with 16 rows, and has a number in `block_time.rs`
/// that was fitted to it.
#[test]
fn measured_penalties_are_forecast() {
    type Change = fn(&mut e::Experiment);
    let forecast = |change: Change| {
        let mut x = measured_step(e::Precision::Bf16, 16);
        change(&mut x);
        let cluster = runner_machine::cluster_description::named_cluster("1x1xH100").expect("known");
        1e3 * compile(&x, &data(), &cluster).expect("plans").forecast.expect("known").step_seconds
    };
    let penalties: [(Change, f64); 2] = [(|x| x.model.dropout = 0.1, 39.4), (|x| x.master_weights = false, 34.7)];
    for (index, (change, measured_ms)) in penalties.into_iter().enumerate() {
        let ms = forecast(change);
        assert!((ms / measured_ms - 1.0).abs() < 0.01, "case {index}: {ms:.1} ms, measured {measured_ms}");
    }
}

/// Attention takes as long for eight heads of 96 as for eight of 128.
#[test]
fn heads_are_filled_up_to_the_widths_of_kernels() {
    let forecast = |heads: usize| {
        let mut x = measured_step(e::Precision::Bf16, 16);
        (x.model.heads, x.model.kv_heads) = (heads, heads);
        let cluster = runner_machine::cluster_description::named_cluster("1x1xH100").expect("known");
        compile(&x, &data(), &cluster).expect("plans").forecast.expect("known").step_seconds
    };
    let [narrow, wide] = [8, 6].map(forecast);
    assert!(wide < narrow && narrow < wide * 1.1, "{narrow} {wide}");
}

#[test]
fn too_few_devices_is_a_mistake_of_the_file() {
    let cluster = runner_machine::cluster_description::named_cluster("1x4xH100").expect("known");
    let error = compile(&gpt2_124m(), &data(), &cluster).expect_err("8 replicas on 4 devices");
    insta::assert_snapshot!(error.to_string());
}

#[test]
fn schedules_are_drawn_as_grids() {
    let grid = |schedule, chunks, mbs| {
        let plan = compiled(&pipeline(schedule, 3, chunks, mbs));
        timeline(&plan).expect("small").grid().join("\n")
    };
    insta::assert_snapshot!(grid(OneFOneB, 1, 6));
    insta::assert_snapshot!(grid(ZeroBubble, 1, 6));
    insta::assert_snapshot!(grid(Interleaved, 2, 6));
    let long = grid(Gpipe, 1, 64);
    assert!(long.contains(" … ") && long.lines().all(|l| l.chars().count() <= 160), "{long}");
    insta::assert_snapshot!(long);
}

#[test]
fn halves_of_a_backward_are_its_whole() {
    let block = BlockSeconds { forward: 1.0, input: 0.5, weight: 0.75 };
    assert_eq!((block.backward(), block.total(), block.times(2.0).input), (1.25, 2.25, 1.0));
}
