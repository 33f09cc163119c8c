//! Right programs pass; every mutation is rejected with a message that names the instruction.

use super::check;
use crate::config::experiment::{AutoOr, Parallel, ParallelMode, Pipeline, PipelineSchedule};
use crate::plan::check::CheckError;
use crate::plan::program::{Blocks, Instruction, Program};
use crate::plan::tests::{compiled, experiment};

use Instruction::{
    AllReduce, Backward, BackwardInput, BackwardWeight, BroadcastWeights, CountTokens, Evaluate, Forward, Load,
    OptimizerStep, RecvActivation, RecvGradient, ReduceToRoot, SendActivation, SendGradient, SumTied, WaitBuckets,
};

fn forward(mb: usize) -> Instruction {
    Forward { mb, chunk: 0 }
}

fn backward(mb: usize) -> Instruction {
    Backward { mb, chunk: 0, blocks: None }
}

fn programs(parallel: Parallel) -> Vec<Program> {
    let mut experiment = experiment();
    experiment.parallel = parallel;
    experiment.batch.sequences = 16;
    let plan = compiled(&experiment);
    plan.ranks.into_iter().map(|r| r.program).collect()
}

/// One rank; 4 micro-batches of 2, 2, 2 and 1 rows.
fn single() -> Vec<Program> {
    let mut experiment = experiment();
    experiment.batch.sequences = 7;
    compiled(&experiment).ranks.into_iter().map(|r| r.program).collect()
}

/// 2 replicas of 4 micro-batches; small buckets, so that there are several.
fn ddp() -> Vec<Program> {
    programs(Parallel { mode: ParallelMode::Ddp, replicas: 2, bucket_mb: 0.01, ..Parallel::single() })
}

fn dp() -> Vec<Program> {
    programs(Parallel { mode: ParallelMode::Dp, replicas: 2, ..Parallel::single() })
}

fn pipeline(schedule: PipelineSchedule, stages: usize, replicas: usize) -> Vec<Program> {
    let pipeline = Pipeline { stages, partition: AutoOr::Auto, schedule, chunks: 1, microbatches: 8 / replicas };
    programs(Parallel { mode: ParallelMode::Pipeline, replicas, pipeline: Some(pipeline), ..Parallel::single() })
}

fn proved(programs: &[Program]) -> Result<(), CheckError> {
    check(&programs.iter().collect::<Vec<_>>()).map(|_| ())
}

/// What is said of `programs` after `mutate` has changed the step of `rank`.
fn rejected(mut programs: Vec<Program>, rank: usize, mutate: impl FnOnce(&mut Program)) -> String {
    proved(&programs).expect("right before it is changed");
    mutate(&mut programs[rank]);
    proved(&programs).expect_err("the mutation must be rejected").to_string()
}

fn position(program: &Program, instruction: Instruction) -> usize {
    program.step.iter().position(|i| *i == instruction).expect("it is there")
}

fn remove(program: &mut Program, instruction: Instruction) {
    program.step.remove(position(program, instruction));
}

fn swap(program: &mut Program, a: Instruction, b: Instruction) {
    let (a, b) = (position(program, a), position(program, b));
    program.step.swap(a, b);
}

#[test]
fn one_rank() {
    let of = |mutate: fn(&mut Program)| rejected(single(), 0, mutate);
    let dropped = of(|p| remove(p, backward(2)));
    insta::assert_snapshot!(dropped, @"");
    let twice = of(|p| p.step.insert(7, backward(0)));
    insta::assert_snapshot!(twice, @"");
    let early = of(|p| {
        p.step.pop();
        p.step.insert(0, OptimizerStep);
    });
    insta::assert_snapshot!(early, @"");
    let swapped = of(|p| swap(p, forward(0), backward(0)));
    insta::assert_snapshot!(swapped, @"");
    let late_load = of(|p| {
        remove(p, Load { mb: 3 });
        p.step.insert(5, Load { mb: 3 });
    });
    insta::assert_snapshot!(late_load, @"");
    let uncounted = of(|p| remove(p, CountTokens { numerator: 1 }));
    insta::assert_snapshot!(uncounted, @"");
    let double = of(|p| p.step[4] = CountTokens { numerator: 2 });
    insta::assert_snapshot!(double, @"");
    let unloaded = of(|p| remove(p, Load { mb: 0 }));
    insta::assert_snapshot!(unloaded, @"");
    let loaded_twice = of(|p| p.step.insert(1, Load { mb: 0 }));
    insta::assert_snapshot!(loaded_twice, @"");
    let forwarded_twice = of(|p| p.step.insert(6, forward(0)));
    insta::assert_snapshot!(forwarded_twice, @"");
    let foreign = of(|p| p.step.insert(4, Load { mb: 4 }));
    insta::assert_snapshot!(foreign, @"");
    let unclipped = of(|p| {
        p.step.remove(13);
    });
    insta::assert_snapshot!(unclipped, @"");
    let unused = of(|p| {
        p.step.pop();
    });
    insta::assert_snapshot!(unused, @"");
    let after = of(|p| p.step.push(OptimizerStep));
    insta::assert_snapshot!(after, @"");
    let misplaced = of(|p| p.step.insert(0, Evaluate));
    insta::assert_snapshot!(misplaced, @"");
    let foreign_sum = of(|p| p.step.insert(13, SumTied));
    insta::assert_snapshot!(foreign_sum, @"");
    let part = of(|p| p.step[6] = Backward { mb: 0, chunk: 0, blocks: Some(Blocks { start: 2, end: 5 }) });
    insta::assert_snapshot!(part, @"");
}

#[test]
fn slices_must_tile_the_global_batch() {
    let short = rejected(single(), 0, |p| {
        p.batch.slice = (0, 6);
        p.step.retain(|i| i.mb() != Some(3));
    });
    insta::assert_snapshot!(short, @"");
    let outside = rejected(single(), 0, |p| p.batch.slice = (1, 7));
    insta::assert_snapshot!(outside, @"");
    let empty = rejected(single(), 0, |p| p.batch.micro_batch = 0);
    insta::assert_snapshot!(empty, @"");
    let overlapping = rejected(ddp(), 1, |p| p.batch.slice = (6, 8));
    insta::assert_snapshot!(overlapping, @"");
    let mut uneven = ddp();
    // A last micro-batch of another size: 16 rows as 9 and 7, in micro-batches of 2.
    for (rank, slice) in [(0, (0, 9)), (1, (9, 7))] {
        let p = &mut uneven[rank];
        (p.batch.slice, p.batch.micro_batch) = (slice, if rank == 0 { 3 } else { 2 });
    }
    // Rank 0 has 3 micro-batches now, rank 1 still 4.
    assert_eq!(uneven[1].batch.rows(3), (15, 1));
    uneven[0].step.retain(|i| i.mb() != Some(3));
    let error = proved(&uneven).expect_err("the buckets were summed with the micro-batch that is gone");
    insta::assert_snapshot!(error, @"");
}

#[test]
fn a_checkpoint_knows_the_evaluation_before_it() {
    let late = rejected(single(), 0, |p| p.periodic.reverse());
    insta::assert_snapshot!(late, @"");
    let never = rejected(single(), 0, |p| p.periodic[0].every = 0);
    insta::assert_snapshot!(never, @"");
    let stale = rejected(dp(), 1, |p| p.periodic.retain(|p| p.instruction != BroadcastWeights));
    insta::assert_snapshot!(stale, @"");
}

#[test]
fn data_parallel() {
    let dropped = rejected(ddp(), 1, |p| remove(p, AllReduce { bucket: 1 }));
    insta::assert_snapshot!(dropped, @"");
    let twice = rejected(ddp(), 0, |p| {
        let at = position(p, AllReduce { bucket: 0 });
        p.step.insert(at, AllReduce { bucket: 0 });
    });
    insta::assert_snapshot!(twice, @"");
    // The synchronization moves from the last micro-batch to the one before.
    let early = rejected(ddp(), 0, |p| {
        remove(p, AllReduce { bucket: 0 });
        let at = position(p, forward(3));
        p.step.insert(at, AllReduce { bucket: 0 });
    });
    insta::assert_snapshot!(early, @"");
    let after = rejected(ddp(), 0, |p| {
        remove(p, AllReduce { bucket: 0 });
        let at = position(p, backward(2));
        p.step.insert(at, AllReduce { bucket: 0 });
    });
    insta::assert_snapshot!(after, @"");
    let unwaited = rejected(ddp(), 0, |p| remove(p, WaitBuckets));
    insta::assert_snapshot!(unwaited, @"");
    // Both ranks sum the same, one in another order.
    let mut programs = ddp();
    let (a, b) = (position(&programs[1], AllReduce { bucket: 0 }), position(&programs[1], AllReduce { bucket: 1 }));
    let moved = programs[1].step.remove(a);
    programs[1].step.insert(b, moved);
    let order = proved(&programs).expect_err("the orders differ");
    insta::assert_snapshot!(order, @"");
    let weight = rejected(ddp(), 1, |p| p.step[4] = CountTokens { numerator: 2 });
    insta::assert_snapshot!(weight, @"");
    let uncovered = rejected(ddp(), 1, |p| {
        p.buckets.pop();
    });
    insta::assert_snapshot!(uncovered, @"");
    let other = rejected(ddp(), 1, |p| p.buckets.swap(0, 1));
    insta::assert_snapshot!(other, @"");
    let wrong_kind = rejected(ddp(), 0, |p| {
        let at = position(p, AllReduce { bucket: 0 });
        p.step[at] = ReduceToRoot { bucket: 0 };
    });
    insta::assert_snapshot!(wrong_kind, @"");

    let unreduced = rejected(dp(), 1, |p| remove(p, ReduceToRoot { bucket: 0 }));
    insta::assert_snapshot!(unreduced, @"");
    let old_weights = rejected(dp(), 1, |p| remove(p, BroadcastWeights));
    insta::assert_snapshot!(old_weights, @"");
    let not_the_root = rejected(dp(), 1, |p| {
        p.step.pop();
        p.step.push(OptimizerStep);
    });
    insta::assert_snapshot!(not_the_root, @"");
}

#[test]
fn pipelines() {
    use PipelineSchedule::{Gpipe, OneFOneB, ZeroBubble};
    let unsent = rejected(pipeline(OneFOneB, 3, 1), 0, |p| remove(p, SendActivation { mb: 2, chunk: 0, to: 1 }));
    insta::assert_snapshot!(unsent, @"");
    let last_unsent = rejected(pipeline(OneFOneB, 3, 1), 0, |p| remove(p, SendActivation { mb: 7, chunk: 0, to: 1 }));
    insta::assert_snapshot!(last_unsent, @"");
    let unreceived = rejected(pipeline(Gpipe, 2, 1), 0, |p| remove(p, RecvGradient { mb: 7, chunk: 0, from: 1 }));
    insta::assert_snapshot!(unreceived, @"");
    // Two receives swapped, with the forwards that they belong to.
    let swapped = rejected(pipeline(Gpipe, 2, 1), 1, |p| {
        swap(p, RecvActivation { mb: 0, chunk: 0, from: 0 }, RecvActivation { mb: 1, chunk: 0, from: 0 });
        swap(p, forward(0), forward(1));
    });
    insta::assert_snapshot!(swapped, @"");
    let gradients_swapped = rejected(pipeline(OneFOneB, 2, 1), 0, |p| {
        swap(p, RecvGradient { mb: 4, chunk: 0, from: 1 }, RecvGradient { mb: 5, chunk: 0, from: 1 });
        swap(p, backward(4), backward(5));
    });
    insta::assert_snapshot!(gradients_swapped, @"");
    // Stage 0 wants the gradient of the first micro-batch before it has sent its activation: nobody can begin.
    let circle = rejected(pipeline(Gpipe, 2, 1), 1, |p| {
        let send = SendGradient { mb: 0, chunk: 0, to: 0 };
        remove(p, send);
        let at = position(p, WaitForLast::instruction(p));
        p.step.insert(at + 1, send);
    });
    insta::assert_snapshot!(circle, @"");
    let tied = rejected(pipeline(OneFOneB, 2, 1), 1, |p| remove(p, SumTied));
    insta::assert_snapshot!(tied, @"");
    let tied_early = rejected(pipeline(OneFOneB, 2, 1), 0, |p| {
        remove(p, SumTied);
        let at = position(p, backward(7));
        p.step.insert(at, SumTied);
    });
    insta::assert_snapshot!(tied_early, @"");
    let wrong_stage = rejected(pipeline(OneFOneB, 3, 1), 0, |p| {
        let at = position(p, SendActivation { mb: 0, chunk: 0, to: 1 });
        p.step[at] = SendActivation { mb: 0, chunk: 0, to: 2 };
    });
    insta::assert_snapshot!(wrong_stage, @"");
    let weights = rejected(pipeline(ZeroBubble, 2, 1), 0, |p| {
        remove(p, BackwardWeight { mb: 3, chunk: 0, blocks: None });
    });
    insta::assert_snapshot!(weights, @"");
    let input = rejected(pipeline(ZeroBubble, 2, 1), 0, |p| remove(p, BackwardInput { mb: 3, chunk: 0 }));
    insta::assert_snapshot!(input, @"");
    let whole_after_split = rejected(pipeline(ZeroBubble, 2, 1), 0, |p| {
        let at = position(p, BackwardWeight { mb: 3, chunk: 0, blocks: None });
        p.step[at] = backward(3);
    });
    insta::assert_snapshot!(whole_after_split, @"");
    // The replicas of a stage are not synchronized on one of them.
    let replica = rejected(pipeline(OneFOneB, 2, 2), 3, |p| remove(p, AllReduce { bucket: 0 }));
    insta::assert_snapshot!(replica, @"");
    let tied_before_replicas = rejected(pipeline(OneFOneB, 2, 2), 0, |p| swap(p, SumTied, WaitBuckets));
    insta::assert_snapshot!(tied_before_replicas, @"");
    let blocks = rejected(pipeline(OneFOneB, 2, 1), 1, |p| p.chunks[0].start += 1);
    insta::assert_snapshot!(blocks, @"");
    let rows = rejected(pipeline(OneFOneB, 2, 2), 2, |p| p.batch.slice = (8, 8));
    insta::assert_snapshot!(rows, @"");
}

/// The last receive of a stage's forwards: what GPipe waits for before any backward.
struct WaitForLast;

impl WaitForLast {
    fn instruction(program: &Program) -> Instruction {
        let last = program.batch.micro_batches() - 1;
        if program.stage() == 0 { forward(last) } else { backward(last) }
    }
}

/// A circle that only the capacity of channels or the order of sends and receives closes.
#[test]
fn waits_in_a_circle_are_found() {
    let mut programs = pipeline(PipelineSchedule::OneFOneB, 2, 1);
    // Stage 0 waits for the gradient of micro-batch 0 before it sends the activation of micro-batch 0.
    let p = &mut programs[0];
    let send = SendActivation { mb: 1, chunk: 0, to: 1 };
    let at = position(p, send);
    p.step.remove(at);
    let after = position(p, backward(1));
    p.step.insert(after, send);
    let first = SendActivation { mb: 0, chunk: 0, to: 1 };
    let at = position(p, first);
    p.step.remove(at);
    let after = position(p, backward(0));
    p.step.insert(after + 1, first);
    let error = proved(&programs).expect_err("nobody can begin");
    insta::assert_snapshot!(error, @"");
}

#[test]
fn every_layout_is_proved() {
    let mut count = 0;
    for schedule in [
        PipelineSchedule::Gpipe,
        PipelineSchedule::OneFOneB,
        PipelineSchedule::Interleaved,
        PipelineSchedule::ZeroBubble,
    ] {
        for (stages, replicas, tied, layers) in
            [(1, 1, true, 3), (2, 1, true, 6), (2, 2, false, 6), (3, 1, true, 6), (3, 4, true, 7), (4, 2, false, 9)]
        {
            let interleaved = schedule == PipelineSchedule::Interleaved;
            let chunks = if interleaved { 2 } else { 1 };
            if interleaved && stages == 1 {
                continue;
            }
            for per_stage in 1..4 {
                let microbatches = stages * per_stage;
                let pipeline = Pipeline { stages, partition: AutoOr::Auto, schedule, chunks, microbatches };
                let mut experiment = experiment();
                (experiment.model.layers, experiment.model.tie_embeddings) = (layers.max(stages * chunks), tied);
                let mode = ParallelMode::Pipeline;
                experiment.batch.sequences = microbatches * replicas * 2;
                experiment.batch.micro_batch = 2;
                experiment.parallel =
                    Parallel { mode, replicas, bucket_mb: 0.01, pipeline: Some(pipeline), ..Parallel::single() };
                let plan = compiled(&experiment);
                assert_eq!(plan.ranks.len(), stages * replicas);
                count += 1;
            }
        }
    }
    for (mode, replicas) in
        [(ParallelMode::Dp, 2), (ParallelMode::Dp, 4), (ParallelMode::Ddp, 2), (ParallelMode::Ddp, 8)]
    {
        programs(Parallel { mode, replicas, ..Parallel::single() });
        count += 1;
    }
    assert_eq!(count, 3 * (6 + 6 + 5 + 6) + 4);
}
