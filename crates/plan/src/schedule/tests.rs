//! The properties that the literature states for each schedule: completeness, live activations, bubbles.

use std::collections::HashMap;

use super::{Pass, ScheduledPass, schedule};
use runner_spec::experiment::PipelineSchedule::{self, Gpipe, Interleaved, OneFOneB, ZeroBubble};

/// Schedules of many sizes; the chunks are 1 except for the interleaved one.
fn cases() -> impl Iterator<Item = (PipelineSchedule, usize, usize, usize)> {
    let sizes = (1..6_usize).flat_map(|stages| (1..13_usize).map(move |mbs| (stages, mbs)));
    sizes.flat_map(|(stages, mbs)| {
        let plain = [Gpipe, OneFOneB, ZeroBubble].map(|kind| (kind, stages, 1, mbs));
        let interleaved = [2, 3].map(|chunks| (Interleaved, stages, chunks, mbs));
        plain.into_iter().chain(interleaved.into_iter().filter(move |_| mbs % stages == 0))
    })
}

/// Units of time until everything is done, by running the passes as soon as what they need is there. Forward, input and
/// weight pass take one unit of each chunk, a whole backward two.
fn makespan(passes: &[Vec<ScheduledPass>], chunks: usize) -> usize {
    let stages = passes.len();
    let last = stages * chunks - 1;
    let mut done: HashMap<(bool, usize, usize), usize> = HashMap::new();
    let mut next = vec![0; stages];
    let mut clock = vec![0; stages];
    loop {
        let mut moved = false;
        for stage in 0..stages {
            while let Some(op) = passes[stage].get(next[stage]) {
                let part = op.chunk * stages + stage;
                let needs = match op.pass {
                    Pass::Forward if part == 0 => Some(0),
                    Pass::Forward => done.get(&(true, op.mb, part - 1)).copied(),
                    Pass::Backward | Pass::BackwardInput if part == last => Some(0),
                    Pass::Backward | Pass::BackwardInput => done.get(&(false, op.mb, part + 1)).copied(),
                    Pass::BackwardWeight => Some(0),
                };
                let Some(ready) = needs else { break };
                let end = clock[stage].max(ready) + if op.pass == Pass::Backward { 2 } else { 1 };
                clock[stage] = end;
                if op.pass != Pass::BackwardWeight {
                    done.insert((op.pass == Pass::Forward, op.mb, part), end);
                }
                next[stage] += 1;
                moved = true;
            }
        }
        if !moved {
            assert!((0..stages).all(|s| next[s] == passes[s].len()), "the schedule cannot be run");
            return clock.into_iter().max().unwrap_or(0);
        }
    }
}

/// The most (micro-batch, chunk) pairs whose activations are live at once: from the forward to the end of the backward.
fn peak_live(passes: &[ScheduledPass]) -> usize {
    let (mut live, mut peak) = (0_usize, 0);
    for pass in passes {
        match pass.pass {
            Pass::Forward => live += 1,
            Pass::Backward | Pass::BackwardWeight => live = live.saturating_sub(1),
            Pass::BackwardInput => {}
        }
        peak = peak.max(live);
    }
    peak
}

#[test]
fn every_piece_of_work_is_there_once_and_in_order() {
    for (kind, stages, chunks, mbs) in cases() {
        let all = schedule(kind, stages, chunks, mbs);
        assert_eq!(all.len(), stages);
        for passes in &all {
            let mut at: HashMap<ScheduledPass, usize> = HashMap::new();
            for (i, op) in passes.iter().enumerate() {
                assert_eq!(at.insert(*op, i), None, "{kind:?} {op:?} twice");
            }
            for mb in 0..mbs {
                for chunk in 0..chunks {
                    let place = |pass| at.get(&ScheduledPass::new(pass, mb, chunk)).copied();
                    let forward = place(Pass::Forward).expect("a forward");
                    let order = match kind {
                        ZeroBubble => vec![place(Pass::BackwardInput), place(Pass::BackwardWeight)],
                        _ => vec![place(Pass::Backward)],
                    };
                    let order: Vec<usize> = order.into_iter().map(|p| p.expect("a backward")).collect();
                    assert!(forward < order[0] && order.is_sorted(), "{kind:?}");
                }
            }
            assert_eq!(passes.len(), mbs * chunks * if kind == ZeroBubble { 3 } else { 2 });
        }
    }
}

#[test]
fn live_activations_are_the_literatures() {
    for (kind, stages, chunks, mbs) in cases() {
        for (stage, passes) in schedule(kind, stages, chunks, mbs).iter().enumerate() {
            let live = peak_live(passes);
            match kind {
                Gpipe => assert_eq!(live, mbs),
                OneFOneB => assert_eq!(live, (stages - stage).min(mbs)),
                // One more than the forwards that run ahead.
                Interleaved => {
                    assert_eq!(live, ((stages - stage - 1) * 2 + (chunks - 1) * stages + 1).min(mbs * chunks));
                }
                ZeroBubble => assert!(live <= stages.min(mbs)),
            }
        }
    }
}

/// GPipe and 1F1B waste (stages − 1) forwards and backwards, 3 units each; interleaving divides that by the chunks (in
/// units of a chunk the sum stays, and there are `chunks` times as many units). ZB-H1's bubble is (stages − 1)·(F + I − W)
/// = stages − 1; the greedy order comes close.
#[test]
fn bubbles_are_the_literatures() {
    for (kind, stages, chunks, mbs) in cases() {
        let busy = 3 * mbs * chunks;
        let bubble = makespan(&schedule(kind, stages, chunks, mbs), chunks) - busy;
        match kind {
            ZeroBubble => {
                let enough = mbs >= stages;
                assert!(bubble >= stages - 1 || !enough, "{stages} {mbs}: {bubble}");
                assert!(bubble <= 2 * (stages - 1) || !enough, "{stages} {mbs}: {bubble}");
            }
            _ => assert_eq!(bubble, 3 * (stages - 1), "{kind:?} {stages} stages, {chunks} chunks, {mbs} micro-batches"),
        }
    }
}
