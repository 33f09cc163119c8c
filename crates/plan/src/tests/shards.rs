//! What a rank with sharded state holds in a step.

use super::*;

/// The buffers that the instructions of a step make, counted one by one, are those that the plan says.
#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn sharded_gradients_and_weights_are_held_for_as_long_as_instructions_say() {
    use runner_spec::program::Instruction;
    use std::collections::BTreeMap;
    for (state, micro_batch, tied) in [
        (e::ShardedState::Gradients, 2, true),
        (e::ShardedState::Gradients, 4, true),
        (e::ShardedState::Gradients, 4, false),
        (e::ShardedState::Parameters, 1, true),
        (e::ShardedState::Parameters, 4, true),
        (e::ShardedState::Parameters, 4, false),
    ] {
        let mut experiment = sharded(2);
        (experiment.parallel.shard, experiment.parallel.bucket_mb) = (Some(state), 0.01);
        (experiment.batch.micro_batch, experiment.model.tie_embeddings) = (micro_batch, tied);
        experiment.model.layers = 12;
        let plan = compiled(&experiment);
        for rank in &plan.ranks {
            let (program, layout) = (&rank.program, rank.program.parameter_layout());
            let shard = program.shard().expect("a shard");
            let lengths = |bucket: usize, within: &std::ops::Range<usize>| -> Vec<usize> {
                let ranges = layout.block_ranges(program.buckets[bucket].range());
                let common = |range| runner_spec::model::layout::common_range(&range, within);
                ranges.into_iter().filter_map(common).map(|range| range.len()).collect()
            };
            let (all, matrices) = (0..layout.total, 0..layout.matrices);
            // What is held, as lengths of buffers, and the buffers that were given up.
            let (mut weights, mut gradients) = (BTreeMap::new(), BTreeMap::new());
            let mut spare = [Vec::new(), Vec::new()];
            let hold = |held: &mut BTreeMap<usize, Vec<usize>>, spare: &mut Vec<usize>, bucket, within| {
                held.entry(bucket).or_insert_with(|| {
                    let lengths = lengths(bucket, within);
                    for length in &lengths {
                        if let Some(index) = spare.iter().position(|other| other == length) {
                            spare.remove(index);
                        }
                    }
                    lengths
                });
            };
            let sum = |held: &BTreeMap<usize, Vec<usize>>, spare: &[usize]| {
                held.values().flatten().chain(spare).sum::<usize>()
            };
            let (mut sums, mut summed, mut scattering, mut most) = (0, 0, None, [0, 0]);
            for instruction in &program.step {
                match *instruction {
                    Instruction::GatherParameters { bucket } | Instruction::PrefetchParameters { bucket } => {
                        hold(&mut weights, &mut spare[0], bucket, &matrices);
                    }
                    Instruction::ReleaseParameters { bucket } => {
                        spare[0].extend(weights.remove(&bucket).expect("held"));
                    }
                    Instruction::Backward { .. } => {
                        let blocks = instruction.blocks_run(program).expect("blocks");
                        for bucket in program.buckets_read_by(blocks) {
                            hold(&mut gradients, &mut spare[1], bucket, &all);
                        }
                    }
                    _ => {}
                }
                most = [most[0].max(sum(&weights, &spare[0])), most[1].max(sum(&gradients, &spare[1]) + sums)];
                if matches!(instruction, Instruction::ReduceScatter { .. } | Instruction::WaitBuckets) {
                    if let Some(ended) = scattering.take() {
                        summed += lengths(ended, &shard).iter().sum::<usize>();
                        sums = shard.len();
                        most[1] = most[1].max(sum(&gradients, &spare[1]) + sums);
                        spare[1].extend(gradients.remove(&ended).expect("held"));
                        if micro_batch < 4 {
                            spare[1].clear();
                        }
                    }
                    scattering = instruction.bucket();
                }
            }
            assert_eq!(summed, shard.len());
            let vectors = layout.total - layout.matrices;
            let held = if state == e::ShardedState::Parameters { most[0] + vectors } else { layout.total };
            let want = [4 * (shard.len() + held), 4 * most[1]].map(|bytes| bytes as u64);
            assert_eq!([rank.memory.weights, rank.memory.gradients], want, "{state:?} {micro_batch} {tied}");
            if state == e::ShardedState::Parameters {
                assert!(held < layout.total, "some weights are not there");
            }
            // A tied embedding's gradients are there from the head's backward on.
            if micro_batch < 4 || !tied {
                assert_eq!(most[1] < layout.total, micro_batch == 4, "{state:?} {tied}");
            }
        }
    }
}
