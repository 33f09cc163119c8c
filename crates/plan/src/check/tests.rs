//! Right programs pass; every mutation is rejected with a message that names the instruction.

mod shards;

use super::check;
use crate::check::CheckError;
use crate::testing::{compiled, experiment};
use runner_spec::experiment::{AutoOr, Parallel, ParallelMode, Pipeline, PipelineSchedule, ShardedState};
use runner_spec::program::{BlockRange, Instruction, Program};

use Instruction::{
    AllReduce, Backward, BackwardInput, BackwardWeight, BroadcastWeights, CountTokens, Evaluate, Forward,
    GatherParameters, Load, OptimizerStep, PrefetchParameters, RecvActivation, RecvGradient, ReduceScatter,
    ReduceToRoot, ReleaseParameters, SendActivation, SendGradient, SumTied, WaitBuckets,
};

fn forward(mb: usize) -> Instruction {
    Forward { mb, chunk: 0, blocks: None }
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

/// [`ddp`] whose replicas divide `state`.
fn divided(state: ShardedState) -> Vec<Program> {
    let shard = Some(state);
    programs(Parallel { mode: ParallelMode::Ddp, replicas: 2, bucket_mb: 0.01, shard, ..Parallel::single() })
}

fn sharded() -> Vec<Program> {
    divided(ShardedState::Optimizer)
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

/// The error of `programs` after `mutate` has changed the step of `rank`.
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
fn mistakes_in_the_program_of_one_rank_are_found() {
    let of = |mutate: fn(&mut Program)| rejected(single(), 0, mutate);
    let dropped = of(|p| remove(p, backward(2)));
    insta::assert_snapshot!(dropped, @"rank 0, step[12] ClipNorm 1: Backward 2 has not run: rows 4 … 5 would be missing from the gradients");
    let twice = of(|p| p.step.insert(7, backward(0)));
    insta::assert_snapshot!(twice, @"rank 0, step[7] Backward 0: step[6] Backward 0 has already run it: rows 0 … 1 would reach the gradients twice");
    let early = of(|p| {
        p.step.pop();
        p.step.insert(0, OptimizerStep);
    });
    insta::assert_snapshot!(early, @"rank 0, step[0] OptimizerStep: Backward 0 has not run: rows 0 … 1 would be missing from the gradients");
    let swapped = of(|p| swap(p, forward(0), backward(0)));
    insta::assert_snapshot!(swapped, @"rank 0, step[5] Backward 0: Forward 0 has not run");
    let late_load = of(|p| {
        remove(p, Load { mb: 3 });
        p.step.insert(5, Load { mb: 3 });
    });
    insta::assert_snapshot!(late_load, @"rank 0, step[3] CountTokens: Load 3 has not run: row 6 would not be counted");
    let uncounted = of(|p| remove(p, CountTokens { numerator: 1 }));
    insta::assert_snapshot!(uncounted, @"rank 0, step[4] Forward 0: CountTokens has not run: the weight of a token is unknown");
    let double = of(|p| p.step[4] = CountTokens { numerator: 2 });
    insta::assert_snapshot!(double, @"rank 0, step[4] CountTokens (each weighs 2): each token would weigh 2 / valid tokens of the global batch, not 1");
    let unloaded = of(|p| remove(p, Load { mb: 0 }));
    insta::assert_snapshot!(unloaded, @"rank 0, step[3] CountTokens: Load 0 has not run: rows 0 … 1 would not be counted");
    let loaded_twice = of(|p| p.step.insert(1, Load { mb: 0 }));
    insta::assert_snapshot!(loaded_twice, @"rank 0, step[1] Load 0: step[0] Load 0 has already loaded it: its tokens would be counted twice");
    let forwarded_twice = of(|p| p.step.insert(6, forward(0)));
    insta::assert_snapshot!(forwarded_twice, @"rank 0, step[6] Forward 0: step[5] Forward 0 has already run it");
    let foreign = of(|p| p.step.insert(4, Load { mb: 4 }));
    insta::assert_snapshot!(foreign, @"rank 0, step[4] Load 4: there is no micro-batch 4: the rank's 7 rows make 4");
    let unclipped = of(|p| {
        p.step.remove(13);
    });
    insta::assert_snapshot!(unclipped, @"rank 0, step[13] OptimizerStep: ClipNorm has not run: the gradients are neither measured nor clipped");
    let unused = of(|p| {
        p.step.pop();
    });
    insta::assert_snapshot!(unused, @"rank 0, step: there is no OptimizerStep: the weights never change");
    let after = of(|p| p.step.push(OptimizerStep));
    insta::assert_snapshot!(after, @"rank 0, step[15] OptimizerStep: it comes after step[14] OptimizerStep, which ends the step");
    let misplaced = of(|p| p.step.insert(0, Evaluate));
    insta::assert_snapshot!(misplaced, @"rank 0, step[0] Evaluate: it is periodic, not part of a step");
    let foreign_sum = of(|p| p.step.insert(13, SumTied));
    insta::assert_snapshot!(foreign_sum, @"rank 0, step[13] SumTied: this rank shares no embedding with another stage");
    let part = of(|p| p.step[6] = Backward { mb: 0, chunk: 0, blocks: Some(BlockRange { start: 2, end: 5 }) });
    insta::assert_snapshot!(part, @"rank 0, step[13] ClipNorm 1: Backward 0 has not run: rows 0 … 1 would be missing from the gradients");
}

#[test]
fn slices_must_tile_the_global_batch() {
    let short = rejected(single(), 0, |p| {
        p.batch.slice = (0, 6);
        p.step.retain(|i| i.mb() != Some(3));
    });
    insta::assert_snapshot!(short, @"rank 0, gradients: no Backward adds row 6 of the global batch");
    let outside = rejected(single(), 0, |p| p.batch.slice = (1, 7));
    insta::assert_snapshot!(outside, @"rank 0, batch: its slice, 7 rows from row 1, leaves the global batch of 7 rows");
    let empty = rejected(single(), 0, |p| p.batch.micro_batch = 0);
    insta::assert_snapshot!(empty, @"rank 0, batch: 7 rows in micro-batches of 0");
    let outside = rejected(ddp(), 1, |p| p.batch.slice = (2, 8));
    insta::assert_snapshot!(outside, @"rank 1, batch: its slice, 8 rows, 2 apart, from row 2, leaves the global batch of 16 rows");
    let overlapping = rejected(ddp(), 1, |p| p.batch.slice = (0, 8));
    insta::assert_snapshot!(overlapping, @"rank 1, step[6] Backward 0: row 0 of the global batch reaches the gradients twice, first by rank 0, step[6] Backward 0: its coefficient is 2, not 1");
    // Replicas of 9 and 7 rows, in 3 and 4 micro-batches, the last of one row: odd, and right.
    let mut uneven = ddp();
    for (rank, slice, micro_batch) in [(0, (0, 9), 3), (1, (9, 7), 2)] {
        (uneven[rank].batch.slice, uneven[rank].batch.micro_batch) = (slice, micro_batch);
        uneven[rank].batch.stride = 1;
    }
    let last = uneven[0].step.iter().rposition(|i| *i == forward(3)).expect("the last micro-batch");
    let third = position(&uneven[0], forward(2));
    // Micro-batch 3 takes the place of micro-batch 2, which was the last but one.
    let step: Vec<Instruction> = uneven[0].step.drain(last..).collect();
    uneven[0].step.truncate(third);
    uneven[0].step.retain(|i| *i != Load { mb: 3 });
    uneven[0].step.extend(step.into_iter().map(|i| match i {
        Forward { chunk, blocks, .. } => Forward { mb: 2, chunk, blocks },
        Backward { chunk, blocks, .. } => Backward { mb: 2, chunk, blocks },
        other => other,
    }));
    proved(&uneven).expect("every row once");
}

#[test]
fn a_checkpoint_knows_the_evaluation_before_it() {
    let late = rejected(single(), 0, |p| p.periodic.reverse());
    insta::assert_snapshot!(late, @"rank 0, periodic[2] Evaluate: it comes after Checkpoint, which needs its result");
    let never = rejected(single(), 0, |p| p.periodic[0].every = 0);
    insta::assert_snapshot!(never, @"rank 0, periodic[0] Evaluate: it is due every 0 steps, which is never");
    let rare = rejected(dp(), 0, |p| p.periodic[0].every *= 2);
    insta::assert_snapshot!(rare, @"rank 0, periodic[1] Evaluate: BroadcastWeights does not come before it each time: the replicas have the last step's weights");
    let more = rejected(dp(), 0, |p| p.periodic[1].also_every = vec![7]);
    insta::assert_snapshot!(more, @"rank 0, periodic[1] Evaluate: BroadcastWeights does not come before it each time: the replicas have the last step's weights");
    let sample = rejected(dp(), 0, |p| p.periodic.retain(|p| p.instruction == Instruction::Sample));
    insta::assert_snapshot!(sample, @"rank 0, periodic[0] Sample: BroadcastWeights does not come before it each time: the replicas have the last step's weights");
    let start = rejected(dp(), 0, |p| p.start = vec![Evaluate]);
    insta::assert_snapshot!(start, @"rank 0, start[0] Evaluate: BroadcastWeights does not come before it: the replicas have their own weights");
    let stale = rejected(dp(), 1, |p| p.periodic.retain(|p| p.instruction != BroadcastWeights));
    insta::assert_snapshot!(stale, @"rank 1, periodic[0] Evaluate: BroadcastWeights does not come before it each time: the replicas have the last step's weights");
}

#[test]
fn mistakes_in_programs_of_a_sharded_optimizer_are_found() {
    let all = |mutate: fn(&mut Program)| {
        let mut programs = sharded();
        proved(&programs).expect("right before it is changed");
        programs.iter_mut().for_each(mutate);
        proved(&programs).expect_err("the mutation must be rejected").to_string()
    };
    let gather = GatherParameters { bucket: 0 };
    let dropped = rejected(sharded(), 1, |p| remove(p, GatherParameters { bucket: 0 }));
    insta::assert_snapshot!(dropped, @"rank 1, step[15] Forward[blocks 3 … 4] 0: GatherParameters bucket 0 has not run: the replicas have the last step's weights");
    let late = rejected(sharded(), 0, |p| {
        remove(p, gather);
        let last = p.step.iter().rposition(|i| matches!(i, Forward { mb: 0, .. })).expect("there is one");
        p.step.insert(last + 1, gather);
    });
    insta::assert_snapshot!(late, @"rank 0, step[15] Forward[blocks 3 … 4] 0: GatherParameters bucket 0 has not run: the replicas have the last step's weights");
    let twice = rejected(sharded(), 0, |p| p.step.insert(position(p, gather), gather));
    insta::assert_snapshot!(twice, @"rank 0, step[16] GatherParameters bucket 0: step[15] GatherParameters bucket 0 has already done it");
    let after_update = all(|p| {
        remove(p, GatherParameters { bucket: 0 });
        p.step.push(GatherParameters { bucket: 0 });
    });
    insta::assert_snapshot!(after_update, @"rank 0, step[15] Forward[blocks 3 … 4] 0: GatherParameters bucket 0 has not run: the replicas have the last step's weights");
    let [zero, one] = [0, 1].map(|bucket| PrefetchParameters { bucket });
    let swapped = rejected(sharded(), 1, |p| swap(p, zero, one));
    insta::assert_snapshot!(swapped, @"rank 0, step[7] PrefetchParameters bucket 1: rank 1 issues step[7] PrefetchParameters bucket 0 in its place: both would wait forever");
    let foreign = rejected(sharded(), 0, |p| p.step.insert(0, GatherParameters { bucket: 9 }));
    insta::assert_snapshot!(foreign, @"rank 0, step[0] GatherParameters bucket 9: there is no bucket 9: there are 4");
    let unsharded = rejected(ddp(), 0, |p| p.step.insert(5, GatherParameters { bucket: 0 }));
    insta::assert_snapshot!(unsharded, @"rank 0, step[5] GatherParameters bucket 0: every rank has its own weights here");
    let circle = rejected(sharded(), 1, |p| {
        remove(p, PrefetchParameters { bucket: 0 });
        remove(p, GatherParameters { bucket: 0 });
        p.step.insert(0, GatherParameters { bucket: 0 });
    });
    insta::assert_snapshot!(circle, @"rank 0, step[4] CountTokens: it waits forever: for rank 1 at step[0] GatherParameters bucket 0, which waits for rank 0 at step[4] CountTokens");
    let stale = all(|p| p.periodic.retain(|p| p.instruction != GatherParameters { bucket: 1 }));
    insta::assert_snapshot!(stale, @"rank 0, periodic[3] Evaluate: GatherParameters bucket 1 does not come before it each time: the replicas have the last step's weights");
    let own_weights = all(|p| p.start = vec![Evaluate]);
    insta::assert_snapshot!(own_weights, @"rank 0, start[0] Evaluate: GatherParameters bucket 3 does not come before it: the replicas have their own weights");
    // Gradients are summed as without shards: each reaches the replica that updates with it.
    let unsummed = all(|p| remove(p, AllReduce { bucket: 0 }));
    insta::assert_snapshot!(unsummed, @"rank 0, step[30] WaitBuckets: AllReduce bucket 0 has not started");
    let gap = all(|p| p.shards[1].start = p.shards[0].end + 1);
    insta::assert_snapshot!(gap, @"rank 0, shards: no replica holds all of transformer.h.0.mlp.c_proj.weight: it would never be updated as a whole");
    let cut = all(|p| (p.shards[0].end, p.shards[1].start) = (p.shards[0].end - 1, p.shards[0].end - 1));
    insta::assert_snapshot!(cut, @"rank 0, shards: no replica holds all of transformer.h.0.mlp.c_fc.weight: it would never be updated as a whole");
    let shared = all(|p| p.shards[1].start = 0);
    insta::assert_snapshot!(shared, @"rank 0, shards: 2 replicas hold elements of transformer.wte.weight: it would be updated twice");
    let unowned = all(|p| p.shards[1].end = p.shards[1].start);
    insta::assert_snapshot!(unowned, @"rank 0, shards: no replica holds all of transformer.h.0.mlp.c_proj.weight: it would never be updated as a whole");
    let few = all(|p| p.shards.truncate(1));
    insta::assert_snapshot!(few, @"rank 0, shards: there are 1 for 2 replicas in mode Ddp");
    let different = rejected(sharded(), 1, |p| p.shards.swap(0, 1));
    insta::assert_snapshot!(different, @"rank 1, chunks: its blocks, buckets or shards are not those of rank 0, of the same stage");
}

#[test]
fn mistakes_in_data_parallel_programs_are_found() {
    let dropped = rejected(ddp(), 1, |p| remove(p, AllReduce { bucket: 1 }));
    insta::assert_snapshot!(dropped, @"rank 1, step[19] WaitBuckets: AllReduce bucket 1 has not started");
    let twice = rejected(ddp(), 0, |p| {
        let at = position(p, AllReduce { bucket: 0 });
        p.step.insert(at, AllReduce { bucket: 0 });
    });
    insta::assert_snapshot!(twice, @"rank 0, step[14] AllReduce bucket 0: step[13] AllReduce bucket 0 has already summed it: its gradients would count twice");
    // The synchronization moves from the last micro-batch to the one before.
    let early = rejected(ddp(), 0, |p| {
        remove(p, AllReduce { bucket: 0 });
        let at = position(p, forward(3));
        p.step.insert(at, AllReduce { bucket: 0 });
    });
    insta::assert_snapshot!(early, @"rank 0, step[11] AllReduce bucket 0: Backward 3 has not run: rows 12 and 14 would be missing from bucket 0");
    let after = rejected(ddp(), 0, |p| {
        remove(p, AllReduce { bucket: 0 });
        let at = position(p, backward(2));
        p.step.insert(at, AllReduce { bucket: 0 });
    });
    insta::assert_snapshot!(after, @"rank 0, step[10] AllReduce bucket 0: Backward 2 has not run: rows 8 and 10 would be missing from bucket 0");
    let unwaited = rejected(ddp(), 0, |p| remove(p, WaitBuckets));
    insta::assert_snapshot!(unwaited, @"rank 0, step[20] ClipNorm 1: WaitBuckets has not run: the sums over the replicas may not be there yet");
    // Both ranks sum the same, one in a different order.
    let mut programs = ddp();
    let (a, b) = (position(&programs[1], AllReduce { bucket: 0 }), position(&programs[1], AllReduce { bucket: 1 }));
    let moved = programs[1].step.remove(a);
    programs[1].step.insert(b, moved);
    let order = proved(&programs).expect_err("the orders differ");
    insta::assert_snapshot!(order, @"rank 0, step[13] AllReduce bucket 0: rank 1 issues step[14] AllReduce bucket 1 in its place: both would wait forever");
    let weight = rejected(ddp(), 1, |p| p.step[4] = CountTokens { numerator: 2 });
    insta::assert_snapshot!(weight, @"rank 1, step[4] CountTokens (each weighs 2): each token would weigh 2 / valid tokens of the global batch, not 1");
    let uncovered = rejected(ddp(), 1, |p| {
        p.buckets.pop();
    });
    insta::assert_snapshot!(uncovered, @"rank 1, buckets: block 0 is in 0 buckets: its gradients would be summed 0 times, not once");
    let other = rejected(ddp(), 1, |p| p.buckets.swap(0, 1));
    insta::assert_snapshot!(other, @"rank 1, step[13] AllReduce bucket 0: Backward 3 has not run: rows 13 and 15 would be missing from bucket 0");
    let wrong_kind = rejected(ddp(), 0, |p| {
        let at = position(p, AllReduce { bucket: 0 });
        p.step[at] = ReduceToRoot { bucket: 0 };
    });
    insta::assert_snapshot!(wrong_kind, @"rank 0, step[13] ReduceToRoot bucket 0: this is not how gradients are summed in this mode");

    let unreduced = rejected(dp(), 1, |p| remove(p, ReduceToRoot { bucket: 0 }));
    insta::assert_snapshot!(unreduced, @"rank 1, step[14] ClipNorm 1: ReduceToRoot bucket 0 has not run: the rows of the other replicas would be missing");
    let old_weights = rejected(dp(), 1, |p| remove(p, BroadcastWeights));
    insta::assert_snapshot!(old_weights, @"rank 1, step[5] Forward 0: BroadcastWeights has not run: the replicas have the last step's weights");
    let not_the_root = rejected(dp(), 1, |p| {
        p.step.pop();
        p.step.push(OptimizerStep);
    });
    insta::assert_snapshot!(not_the_root, @"rank 1, step[16] OptimizerStep: this rank holds no optimizer state: the root updates");
}

#[test]
fn mistakes_in_programs_of_pipelines_are_found() {
    use PipelineSchedule::{Gpipe, OneFOneB, ZeroBubble};
    let unsent = rejected(pipeline(OneFOneB, 3, 1), 0, |p| remove(p, SendActivation { mb: 2, chunk: 0, to: 1 }));
    insta::assert_snapshot!(unsent, @"rank 1, step[18] RecvActivation←0 2: what comes next from rank 0 is micro-batch 3 for part 1 of the model (step[17] SendActivation→1 3)");
    let last_unsent = rejected(pipeline(OneFOneB, 3, 1), 0, |p| remove(p, SendActivation { mb: 7, chunk: 0, to: 1 }));
    insta::assert_snapshot!(last_unsent, @"rank 0, step[36] RecvGradient←1 6: it waits forever: for rank 1 at step[48] RecvActivation←0 7, which waits for rank 0 at step[36] RecvGradient←1 6");
    let unreceived = rejected(pipeline(Gpipe, 2, 1), 0, |p| remove(p, RecvGradient { mb: 7, chunk: 0, from: 1 }));
    insta::assert_snapshot!(unreceived, @"rank 0, step[39] Backward 7: RecvGradient 7 has not run");
    // Two receives swapped, with the forwards that they belong to.
    let swapped = rejected(pipeline(Gpipe, 2, 1), 1, |p| {
        swap(p, RecvActivation { mb: 0, chunk: 0, from: 0 }, RecvActivation { mb: 1, chunk: 0, from: 0 });
        swap(p, forward(0), forward(1));
    });
    insta::assert_snapshot!(swapped, @"rank 1, step[9] RecvActivation←0 1: what comes next from rank 0 is micro-batch 0 for part 1 of the model (step[10] SendActivation→1 0)");
    let gradients_swapped = rejected(pipeline(OneFOneB, 2, 1), 0, |p| {
        swap(p, RecvGradient { mb: 4, chunk: 0, from: 1 }, RecvGradient { mb: 5, chunk: 0, from: 1 });
        swap(p, backward(4), backward(5));
    });
    insta::assert_snapshot!(gradients_swapped, @"rank 0, step[29] RecvGradient←1 5: what comes next from rank 1 is micro-batch 4 for part 0 of the model (step[28] SendGradient→0 4)");
    // Stage 1 sends the first gradient last.
    let gradient_late = rejected(pipeline(Gpipe, 2, 1), 1, |p| {
        let send = SendGradient { mb: 0, chunk: 0, to: 0 };
        remove(p, send);
        let at = position(p, backward(7));
        p.step.insert(at + 1, send);
    });
    insta::assert_snapshot!(gradient_late, @"rank 0, step[25] RecvGradient←1 0: what comes next from rank 1 is micro-batch 1 for part 0 of the model (step[27] SendGradient→0 1)");
    let tied = rejected(pipeline(OneFOneB, 2, 1), 1, |p| remove(p, SumTied));
    insta::assert_snapshot!(tied, @"rank 1, step[41] ClipNorm 1: SumTied has not run: the tied embedding would change differently on its two stages");
    let tied_early = rejected(pipeline(OneFOneB, 2, 1), 0, |p| {
        remove(p, SumTied);
        let at = position(p, backward(7));
        p.step.insert(at, SumTied);
    });
    insta::assert_snapshot!(tied_early, @"rank 0, step[40] SumTied: Backward 7 has not run: rows 14 … 15 would be missing from the sum over both stages");
    let wrong_stage = rejected(pipeline(OneFOneB, 3, 1), 0, |p| {
        let at = position(p, SendActivation { mb: 0, chunk: 0, to: 1 });
        p.step[at] = SendActivation { mb: 0, chunk: 0, to: 2 };
    });
    insta::assert_snapshot!(wrong_stage, @"rank 0, step[10] SendActivation→2 0: part 1 of the model is on stage 1, not 2");
    let weights = rejected(pipeline(ZeroBubble, 2, 1), 0, |p| {
        remove(p, BackwardWeight { mb: 3, chunk: 0, blocks: None });
    });
    insta::assert_snapshot!(weights, @"rank 0, step[48] SumTied: BackwardWeight 3 has not run: rows 6 … 7 would be missing from the sum over both stages");
    let input = rejected(pipeline(ZeroBubble, 2, 1), 0, |p| remove(p, BackwardInput { mb: 3, chunk: 0 }));
    insta::assert_snapshot!(input, @"rank 0, step[29] BackwardWeight 3: BackwardInput 3 has not run");
    let whole_after_split = rejected(pipeline(ZeroBubble, 2, 1), 0, |p| {
        let at = position(p, BackwardWeight { mb: 3, chunk: 0, blocks: None });
        p.step[at] = backward(3);
    });
    insta::assert_snapshot!(whole_after_split, @"rank 0, step[30] Backward 3: step[27] BackwardInput 3 has run a part of it");
    // The replicas of a stage are not synchronized on one of them.
    let replica = rejected(pipeline(OneFOneB, 2, 2), 3, |p| remove(p, AllReduce { bucket: 0 }));
    insta::assert_snapshot!(replica, @"rank 3, step[21] WaitBuckets: AllReduce bucket 0 has not started");
    let tied_before_replicas = rejected(pipeline(OneFOneB, 2, 2), 0, |p| swap(p, SumTied, WaitBuckets));
    insta::assert_snapshot!(tied_before_replicas, @"rank 0, step[22] SumTied: WaitBuckets has not run: the other replicas' gradients are missing");
    let blocks = rejected(pipeline(OneFOneB, 2, 1), 1, |p| p.chunks[0].start += 1);
    insta::assert_snapshot!(blocks, @"rank 1, chunks: part 1 of the model starts at block 4, but the previous one ended before 3");
    let rows = rejected(pipeline(OneFOneB, 2, 2), 2, |p| p.batch.slice = (1, 8));
    insta::assert_snapshot!(rows, @"rank 2, batch: its rows are not those of rank 0, which it is a later stage of");
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
    insta::assert_snapshot!(error, @"rank 0, step[11] RecvGradient←1 0: it waits forever: for rank 1 at step[9] RecvActivation←0 0, which waits for rank 0 at step[11] RecvGradient←1 0");
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

/// Every field that ranks must have in common, changed on one of them.
#[test]
fn ranks_are_of_one_run() {
    use runner_spec::experiment::Precision;
    use runner_spec::optimizer::{Optimizer, Sgd};
    use runner_spec::schedule::Decay;
    let changes: [fn(&mut Program); 13] = [
        |p| p.seed.data += 1,
        |p| p.model.norm_eps *= 2.0,
        |p| p.precision = Precision::Bf16,
        |p| p.master_weights = false,
        |p| p.batch.mask_padding = true,
        |p| p.optimizer = Optimizer::Sgd(Sgd { lr: 1.0, momentum: 0.9 }),
        |p| p.schedule.decay = Decay::Constant {},
        |p| p.steps += 1,
        |p| p.start = vec![Evaluate],
        |p| p.periodic[0].every += 1,
        |p| {
            p.periodic.remove(0);
        },
        |p| p.eval.loss = None,
        |p| p.batch.length -= 1,
    ];
    let said: Vec<String> = changes.into_iter().map(|change| rejected(ddp(), 1, change)).collect();
    insta::assert_snapshot!(said.join("\n"));
    let mesh = |mode: ParallelMode, stages| rejected(ddp(), 1, |p| (p.mesh.mode, p.mesh.stages) = (mode, stages));
    insta::assert_snapshot!(mesh(ParallelMode::Dp, 2), @"rank 1, mesh: 2 stages and 2 replicas do not fit mode Dp");
    insta::assert_snapshot!(mesh(ParallelMode::Single, 1), @"rank 1, mesh: 1 stages and 2 replicas do not fit mode Single");
}

/// Stage 0 sends all activations before it receives a gradient; stage 1 works in groups of three. With two slots each way,
/// stage 0 waits to send the sixth activation while stage 1 waits to send the third gradient.
#[test]
fn slots_grow_until_the_programs_get_through() {
    let of = |programs: &[Program]| check(&programs.iter().collect::<Vec<_>>()).map(|(_, meeting)| meeting);
    let mut programs = pipeline(PipelineSchedule::Gpipe, 2, 1);
    assert_eq!(of(&programs), Ok(2));
    let p = &mut programs[1];
    let first = position(p, RecvActivation { mb: 0, chunk: 0, from: 0 });
    let tail = p.step.split_off(position(p, SumTied));
    p.step.truncate(first);
    for group in [0..3, 3..6, 6..8] {
        for mb in group.clone() {
            p.step.extend([RecvActivation { mb, chunk: 0, from: 0 }, forward(mb)]);
        }
        for mb in group {
            p.step.extend([backward(mb), SendGradient { mb, chunk: 0, to: 0 }]);
        }
    }
    p.step.extend(tail);
    assert_eq!(of(&programs), Ok(4));
}
