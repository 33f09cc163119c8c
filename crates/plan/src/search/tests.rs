//! The search beside what the planner says of every layout.

use super::*;
use crate::testing::{cluster, data, experiment, measured};
use runner_machine::cluster_description::named_cluster;
use runner_spec::experiment::ParallelMode;

/// A named cluster with the workspace of kernels.
fn named(name: &str) -> ClusterFacts {
    ClusterFacts { kernels: cluster().kernels, ..named_cluster(name).expect("a known device") }
}

/// `cluster` whose devices have so much memory.
fn with_memory(mut cluster: ClusterFacts, bytes: u64) -> ClusterFacts {
    for device in &mut cluster.devices {
        device.memory_bytes = Some(bytes);
    }
    cluster
}

/// Machines of several kinds, on which some layouts do not fit.
fn clusters() -> Vec<ClusterFacts> {
    let mut cpu = measured(1e-6);
    cpu.devices[0].threads = 4;
    let mut mixed = named("1x4xH100");
    // One GPU has half of the memory.
    mixed.devices[2].memory_bytes = Some(40 << 30);
    let small = with_memory(named("1x4xA100"), 1_100 << 20);
    vec![cpu.clone(), with_memory(cpu, 206 << 20), named("2x2xH100"), small, mixed]
}

/// Every layout that the evaluator has bounds for: with its simulated costs, and those of its plan.
fn for_each_layout(
    experiment: &Experiment,
    cluster: &ClusterFacts,
    mut see: impl FnMut(&Candidate, LayoutCosts, &RankedLayout),
) -> usize {
    let base = base_layout(experiment).apply(experiment);
    let plan = compile(&base, &data(), cluster).unwrap();
    let first = &plan.ranks[0];
    let report = |_: SearchProgress| {};
    let mut search = Search::new(&base, cluster, &first.program, &report);
    search.bound_all(&base.parallel, most_ranks(experiment, cluster, &first.hardware)).unwrap();
    let fit = std::mem::take(&mut search.fit);
    for candidate in &fit {
        let costs = search.simulate(candidate).unwrap().expect("it fits");
        let ranked = rank_layout(&candidate.layout, experiment, &data(), cluster).unwrap();
        see(candidate, costs, &ranked);
    }
    fit.len()
}

#[test]
fn evaluated_costs_are_those_of_the_plan() {
    let mut bf16 = experiment();
    bf16.precision = runner_spec::experiment::Precision::Bf16;
    bf16.model.tie_embeddings = false;
    for experiment in [experiment(), bf16] {
        for cluster in clusters() {
            let compared = for_each_layout(&experiment, &cluster, |candidate, costs, planned| {
                let name = format!("{:?}", candidate.layout);
                assert_eq!(costs.memory, planned.memory_bytes, "{name}");
                assert_eq!(costs.sent, planned.sent_bytes, "{name}");
                assert_eq!(costs.seconds, planned.step_seconds, "{name}");
                let least = candidate.costs.seconds;
                assert!(least <= costs.seconds * (1.0 + 1e-9), "{name}: at least {least}, but {}", costs.seconds);
            });
            assert!(compared > 20, "{compared}");
        }
    }
}

/// Layouts that the search says do not fit are refused by the planner, too, and it finds all that fit.
#[test]
fn the_layouts_that_fall_out_do_not_fit() {
    let (experiment, cluster) = (experiment(), with_memory(named("1x4xA100"), 583 << 20));
    let found = search(&experiment, &data(), &cluster, &|_| {}).unwrap();
    assert!(found.fit < found.layouts, "some are too large");
    let closest = found.excluded.iter().find(|out| out.reason.contains("closest lacks")).expect("the closest");
    let refused: usize = found.excluded.iter().filter(|out| out.reason.contains(" layout")).map(|out| out.count).sum();
    assert_eq!(found.fit + refused, found.layouts, "{closest:?}");
}

#[test]
fn the_best_is_the_fastest_of_all() {
    for cluster in clusters() {
        let experiment = experiment();
        let found = search(&experiment, &data(), &cluster, &|_| {}).unwrap();
        let (mut times, mut all) = (Vec::new(), Vec::new());
        for_each_layout(&experiment, &cluster, |_, costs, _| {
            times.push(costs.seconds);
            all.push(costs);
        });
        times.sort_by(f64::total_cmp);
        let mut best: Vec<f64> = found.shortest_forecasts.iter().map(|layout| layout.step_seconds).collect();
        assert!(found.shortest_forecasts.is_sorted_by(|a, b| a.rank_seconds() <= b.rank_seconds()));
        best.sort_by(f64::total_cmp);
        // Moved layers may be faster still.
        assert!(best.iter().zip(&times).all(|(found, all)| found <= all), "{best:?}, not {times:?}");
        for costs in all {
            let is_known = |known: &RankedLayout| {
                let RankedLayout { step_seconds: seconds, memory_bytes: memory, sent_bytes: sent, .. } = *known;
                stands_for(&LayoutCosts { seconds, memory, sent }, &costs)
            };
            assert!(found.front.iter().any(is_known), "nothing on the front stands for {costs:?}");
        }
    }
}

#[test]
fn layouts_keep_the_mathematics() {
    let experiment = experiment();
    let found = search(&experiment, &data(), &named("1x4xH100"), &|_| {}).unwrap();
    for ranked in found.shortest_forecasts.iter().chain(&found.front) {
        let plan = compile(&ranked.layout.apply(&experiment), &data(), &named("1x4xH100")).unwrap();
        assert_eq!(plan.math_hash, found.math_hash);
        assert_eq!(plan.hash, ranked.hash);
        assert_eq!(plan.validation_rows(), compile(&experiment, &data(), &cluster()).unwrap().validation_rows());
    }
    assert_eq!(found.current.expect("it fits").layout, Layout::of(&experiment));
}

#[test]
fn the_devices_of_the_file_are_kept() {
    let mut experiment = experiment();
    let listed = AutoOr::Given(vec![Device::Cuda(0), Device::Cuda(2)]);
    experiment.parallel = Parallel { mode: ParallelMode::Ddp, replicas: 2, devices: listed, ..Parallel::single() };
    let found = search(&experiment, &data(), &named("1x4xH100"), &|_| {}).unwrap();
    assert!(
        found
            .shortest_forecasts
            .iter()
            .all(|layout| layout.ranks == 2 && layout.layout.parallel.devices == experiment.parallel.devices)
    );
}

#[test]
fn a_search_needs_speeds_and_memory() {
    let error = search(&experiment(), &data(), &cluster(), &|_| {}).unwrap_err().to_string();
    insta::assert_snapshot!(error, @"parallel: a search ranks layouts by time, but the speed of Example CPU or of its links is unknown; run `runner calibrate` to measure this machine's CPU, or describe the devices in a cluster file (`--cluster`)");
    let error =
        search(&experiment(), &data(), &with_memory(named("1x2xH100"), 1 << 20), &|_| {}).unwrap_err().to_string();
    insta::assert_snapshot!(error, @"parallel: no layout fits: 129 layouts too large for the memory; the closest lacks 547.63 MiB: single, micro-batches of 8, recompute none");
}

#[test]
fn divisors_ascend() {
    assert_eq!(divisors(12), [1, 2, 3, 4, 6, 12]);
    assert_eq!(divisors(16), [1, 2, 4, 8, 16]);
    assert_eq!(divisors(1), [1]);
    assert_eq!(lighter_ends(&[4, 4, 1]), [vec![3, 4, 2]]);
    assert_eq!(lighter_ends(&[2, 2]), [vec![1, 3], vec![3, 1]]);
}

/// No schedule is made that would fill the memory.
#[test]
fn a_huge_batch_is_searched_without_its_many_micro_batches() {
    let mut experiment = experiment();
    experiment.batch = runner_spec::experiment::Batch { sequences: 1 << 26, micro_batch: 1 << 20, warmup: None };
    let found = search(&experiment, &data(), &named("1x2xH100"), &|_| {}).unwrap();
    let left_out = |out: &Exclusion| out.reason.contains("more than 65,536 passes of a rank");
    assert!(found.excluded.iter().any(left_out), "{:?}", found.excluded);
}

#[test]
fn auto_is_the_largest_micro_batch_that_fits() {
    let with = |micro_batch| {
        let mut x = experiment();
        x.batch = runner_spec::experiment::Batch { sequences: 64, micro_batch, warmup: None };
        (x.eval.loss, x.eval.hellaswag, x.eval.samples) = (None, None, None);
        x
    };
    let plan = |micro_batch, cluster: &ClusterFacts| compile(&with(micro_batch), &data(), cluster).unwrap();
    let need = |micro_batch| plan(micro_batch, &named("1x1xA100")).ranks[0].memory.total();
    let cluster = with_memory(named("1x1xA100"), u64::midpoint(need(16), need(32)) / 95 * 100);
    let largest = |cluster: &ClusterFacts| largest_micro_batch(&with(64), &data(), cluster).unwrap();
    let FittingMicroBatch { rows, note } = largest(&cluster);
    assert_eq!((rows, plan(rows, &cluster).shortage), (16, None));
    assert!(plan(2 * rows, &cluster).shortage.is_some(), "{rows} is not the largest");
    insta::assert_snapshot!(note, @"batch.micro_batch: auto is 16: the largest divisor of a replica's 64 sequences that fits the memory; 32 lacks 293.00 KiB");
    assert_eq!(largest(&named("1x1xA100")).rows, 64);
    let full = with_memory(named("1x1xA100"), 1 << 20);
    assert_eq!((largest(&full).rows, plan(1, &full).shortage.is_some()), (1, true));
    // A schedule that is longer than the training does not matter.
    let mut long = with(64);
    long.schedule.warmup = runner_spec::experiment::ScheduleLength::Steps(1_000_000).into();
    assert_eq!(largest_micro_batch(&long, &data(), &cluster).unwrap().rows, 16);
}
