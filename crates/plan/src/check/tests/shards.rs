//! Mutations of programs whose replicas divide gradients and weights.

use super::*;

#[test]
fn gradients_reach_their_owners() {
    let on_one = |mutate: fn(&mut Program)| rejected(divided(ShardedState::Gradients), 1, mutate);
    let dropped = on_one(|p| remove(p, ReduceScatter { bucket: 1 }));
    insta::assert_snapshot!(dropped, @"rank 1, step[30] WaitBuckets: ReduceScatter bucket 1 has not started");
    let twice = on_one(|p| {
        let at = position(p, ReduceScatter { bucket: 0 });
        p.step.insert(at, ReduceScatter { bucket: 0 });
    });
    insta::assert_snapshot!(twice, @"rank 1, step[25] ReduceScatter bucket 0: step[24] ReduceScatter bucket 0 has already summed it: its gradients would count twice");
    let whole = on_one(|p| {
        let at = position(p, ReduceScatter { bucket: 0 });
        p.step[at] = AllReduce { bucket: 0 };
    });
    insta::assert_snapshot!(whole, @"rank 1, step[24] AllReduce bucket 0: this is not how gradients are summed in this mode");
    let early = on_one(|p| {
        remove(p, ReduceScatter { bucket: 0 });
        let at = position(p, forward(3));
        p.step.insert(at, ReduceScatter { bucket: 0 });
    });
    insta::assert_snapshot!(early, @"rank 1, step[22] ReduceScatter bucket 0: Backward 3 has not run: rows 13 and 15 would be missing from bucket 0");
    let unwaited = on_one(|p| remove(p, WaitBuckets));
    insta::assert_snapshot!(unwaited, @"rank 1, step[31] ClipNorm 1: WaitBuckets has not run: the sums over the replicas may not be there yet");
    let released = on_one(|p| p.step.insert(position(p, WaitBuckets), ReleaseParameters { bucket: 0 }));
    insta::assert_snapshot!(released, @"rank 1, step[31] ReleaseParameters bucket 0: every replica keeps all weights here");
    let other = on_one(|p| p.sharded = ShardedState::Optimizer);
    insta::assert_snapshot!(other, @"rank 1, step[24] ReduceScatter bucket 0: this is not how gradients are summed in this mode");
}

#[test]
fn weights_are_there_when_they_are_read() {
    let on_one = |mutate: fn(&mut Program)| rejected(divided(ShardedState::Parameters), 1, mutate);
    let first_forward = |p: &Program| p.step.iter().position(|i| matches!(i, Forward { .. })).expect("there is one");
    let last_backward = |p: &Program| p.step.iter().rposition(|i| matches!(i, Backward { .. })).expect("there is one");
    let ungathered = on_one(|p| {
        let gather = p.step.iter().rposition(|i| matches!(i, GatherParameters { .. })).expect("there is one");
        p.step.remove(gather);
    });
    insta::assert_snapshot!(ungathered, @"rank 1, step[123] Backward[block 0] 3: GatherParameters bucket 3 has not run: its weights are not there");
    let released_early = on_one(|p| {
        let release = p.step.iter().position(|i| matches!(i, ReleaseParameters { .. })).expect("there is one");
        p.step.swap(release, release - 1);
    });
    insta::assert_snapshot!(released_early, @"rank 1, step[8] Forward[block 0] 0: GatherParameters bucket 3 has not run: its weights are not there");
    let gathered_twice = on_one(|p| {
        let gather = p.step.iter().position(|i| matches!(i, GatherParameters { .. })).expect("there is one");
        p.step.insert(gather, p.step[gather]);
    });
    insta::assert_snapshot!(gathered_twice, @"rank 1, step[6] GatherParameters bucket 3: step[5] GatherParameters bucket 3 has already done it");
    let prefetched_twice = on_one(|p| {
        let prefetch = p.step.iter().position(|i| matches!(i, PrefetchParameters { .. })).expect("there is one");
        p.step.insert(prefetch, p.step[prefetch]);
    });
    insta::assert_snapshot!(prefetched_twice, @"rank 1, step[7] PrefetchParameters bucket 2: step[6] PrefetchParameters bucket 2 has already done it");
    let kept = on_one(|p| {
        let release = p.step.iter().rposition(|i| matches!(i, ReleaseParameters { .. })).expect("there is one");
        p.step.remove(release);
    });
    insta::assert_snapshot!(kept, @"rank 1, step[128] OptimizerStep: ReleaseParameters bucket 3 has not run: the next step would read weights from before this update");
    // Both ranks gather the same, one in a different order.
    let mut programs = divided(ShardedState::Parameters);
    let at = first_forward(&programs[1]);
    programs[1].step.swap(at - 2, at - 1);
    let order = proved(&programs).expect_err("the orders differ");
    insta::assert_snapshot!(order, @"rank 0, step[5] GatherParameters bucket 3: rank 1 issues step[5] PrefetchParameters bucket 2 in its place: both would wait forever");
    let skipped = on_one(|p| {
        let at = p.step.iter().position(|i| matches!(i, Forward { .. })).expect("there is one");
        let Forward { mb, chunk, blocks: Some(blocks) } = p.step[at] else { panic!("a part of the chunk") };
        p.step[at] = Forward { mb, chunk, blocks: Some(BlockRange { start: blocks.start + 1, end: blocks.end + 1 }) };
    });
    insta::assert_snapshot!(skipped, @"rank 1, step[7] Forward[block 1] 0: expected block 0 next, got blocks 1 … 1");
    let cut = rejected(divided(ShardedState::Parameters), 1, |p| {
        p.step.remove(last_backward(p));
    });
    insta::assert_snapshot!(cut, @"rank 1, step[125] ReduceScatter bucket 3: Backward 3 has not run: rows 13 and 15 would be missing from bucket 3");
    // An evaluation leaves them as it found them.
    let left = on_one(|p| p.periodic.retain(|p| p.instruction != ReleaseParameters { bucket: 1 }));
    insta::assert_snapshot!(left, @"rank 1, periodic[4] Evaluate: ReleaseParameters bucket 1 does not come after it: the steps would read weights from before their updates");
    let unread = on_one(|p| p.periodic.retain(|p| p.instruction != GatherParameters { bucket: 1 }));
    insta::assert_snapshot!(unread, @"rank 1, periodic[3] Evaluate: GatherParameters bucket 1 does not come before it each time: the replicas have the last step's weights");
}
