//! Stages of the training: where they end, what they read and count, and what cannot be a stage.

use super::fails;
use crate::compile;
use crate::testing::{cluster, compiled, data, experiment};
use runner_spec::experiment::{self as e, BatchWarmup, ScheduleLength, Train, TrainStage};
use runner_spec::plan::Plan;
use runner_spec::schedule::{Cooldown, CosineDecay, CosineRepeat, Decay, DecayTarget, StepDecay};

fn stage(until: ScheduleLength) -> TrainStage {
    TrainStage { until, ..TrainStage::default() }
}

/// 20 steps of 4 rows cut in two, then to half of the run 4 rows; then 8 rows.
fn staged() -> e::Experiment {
    let mut experiment = experiment();
    experiment.train.stages = vec![
        TrainStage { sequences: Some(8), length: Some(4), ..stage(ScheduleLength::Steps(20)) },
        TrainStage { sequences: Some(4), ..stage(ScheduleLength::Share(0.5)) },
    ];
    experiment
}

/// The end and the tokens of a step of each earlier stage.
fn ends(plan: &Plan) -> Vec<(u64, u64)> {
    plan.totals.pace.earlier_stages.iter().map(|stage| (stage.until, stage.tokens_per_step)).collect()
}

#[test]
fn stages_read_consecutive_rows_and_count_their_tokens() {
    let plan = compiled(&staged());
    assert_eq!((plan.totals.steps, ends(&plan)), (100, vec![(20, 32), (50, 32)]));
    // 50 steps of 4 rows of 8 tokens and 50 of 8 rows.
    assert_eq!((plan.totals.tokens, plan.totals.epochs), (50 * 32 + 50 * 64, 0.6));
    assert_eq!(plan.totals.pace.tokens_after(60), (50 * 32 + 10 * 64) as f64);
    let rows = plan.row_sequence().expect("a rank");
    let program = &plan.ranks[0].program;
    let mut read = Vec::new();
    for step in 0..100 {
        let batch = program.batch_at(step);
        read.extend((0..batch.sequences / batch.pieces).map(|row| rows.place(step, row as u64)));
    }
    assert_eq!(read, (0..600).map(|row| (0, row)).collect::<Vec<_>>());
    let flops = plan.totals.pace.flops_after(100);
    let last = plan.totals.pace.flops_per_step;
    // Attention over half the row takes fewer FLOPs.
    assert!(flops < 75.0 * last && flops > 70.0 * last, "{flops} {last}");
}

/// A run with stages is as long as possible within its tokens, FLOPs or epochs.
#[test]
fn lengths_are_the_most_steps_that_do_not_exceed_them() {
    let of = |train: Train| {
        let mut experiment = staged();
        experiment.train = Train { steps: None, stages: experiment.train.stages, ..train };
        compiled(&experiment).totals
    };
    // Half of the steps have 32 tokens and half 64; the middle of an odd number is rounded up.
    for (tokens, steps) in [(4800, 100), (4799, 99), (4800 + 31, 100), (4800 + 32, 101), (4800 + 96, 102)] {
        let totals = of(Train { tokens: Some(tokens), ..Train::default() });
        assert_eq!(totals.steps, steps, "{tokens}");
        assert!(totals.tokens <= tokens && tokens - totals.tokens < 64, "{tokens}");
    }
    let all = compiled(&staged()).totals;
    let flops = all.pace.flops_after(100);
    assert_eq!(of(Train { flops: Some(flops), ..Train::default() }).steps, 100);
    assert_eq!(of(Train { flops: Some(0.999 * flops), ..Train::default() }).steps, 99);
    assert_eq!(of(Train { epochs: Some(0.6), ..Train::default() }).steps, 100);
    let ratio = 4800.0 / all.parameters as f64;
    assert_eq!(of(Train { tokens_per_parameter: Some(ratio), ..Train::default() }).steps, 100);
}

#[test]
fn ends_in_tokens_are_the_nearest_steps() {
    let mut experiment = staged();
    experiment.train.stages[0].until = ScheduleLength::Tokens(650);
    experiment.train.stages[1].until = ScheduleLength::Tokens(1_000);
    // 20.3 and 31.25 steps of 32 tokens.
    assert_eq!(ends(&compiled(&experiment)), [(20, 32), (31, 32)]);
    experiment.train.stages.clear();
    experiment.batch.warmup = Some(BatchWarmup { from: 2, increment: None, until: ScheduleLength::Tokens(960) });
    // 320 tokens each: 20 steps of 16, 10 of 32, and 6.7 of 48.
    assert_eq!(ends(&compiled(&experiment)), [(20, 16), (30, 32), (37, 48)]);
    assert_eq!(compiled(&experiment).totals.tokens, 320 + 320 + 7 * 48 + 63 * 64);
}

/// Lengths of the schedule in tokens add up what the stages read.
#[test]
fn lengths_of_the_schedule_follow_the_tokens_of_stages() {
    let mut experiment = staged();
    experiment.schedule.warmup = ScheduleLength::Tokens(1_600 + 640).into();
    experiment.schedule.decay = Decay::Linear(DecayTarget::default());
    experiment.schedule.cooldown = Some(ScheduleLength::Tokens(640).into());
    let plan = compiled(&experiment);
    let schedule = &plan.ranks[0].program.schedule;
    assert_eq!((schedule.warmup_steps, schedule.decay_start()), (60, 90));
    let notes: Vec<&String> = plan.notes.iter().filter(|note| note.contains("tokens are")).collect();
    insta::assert_snapshot!(notes[0], @"schedule.warmup.tokens: 2,240 tokens are about 60 steps");
}

/// A plan shows the memory of its largest stage.
#[test]
fn memory_is_planned_for_the_largest_stage() {
    let mut large = experiment();
    large.train.stages =
        vec![TrainStage { sequences: Some(512), micro_batch: Some(512), ..stage(ScheduleLength::Steps(5)) }];
    let plan = compiled(&large);
    assert!(plan.notes.iter().any(|note| note.contains("the stage that ends at step 5, which needs the most")));
    let mut cluster = cluster();
    cluster.devices[0].memory_bytes = Some(compiled(&experiment()).ranks[0].memory.total() + (1 << 20));
    assert!(compile(&large, &data(), &cluster).expect("planned").shortage.is_some());
    large.train.stages.clear();
    (large.batch.sequences, large.batch.micro_batch) = (512, 512);
    assert_eq!(plan.ranks[0].memory, compiled(&large).ranks[0].memory);
}

#[test]
fn drops_are_given_in_tokens_if_all_steps_have_as_many() {
    let every = |every| {
        let mut experiment = experiment();
        experiment.train.stages = vec![TrainStage { micro_batch: Some(2), ..stage(ScheduleLength::Steps(20)) }];
        experiment.schedule.decay = Decay::Step(StepDecay { every: Some(every), epochs: None, gamma: 0.5 });
        compiled(&experiment).ranks[0].program.schedule.clone()
    };
    // 8 rows of 8 tokens.
    assert_eq!(every(ScheduleLength::Tokens(640)), every(ScheduleLength::Steps(10)));
}

#[test]
fn stages_that_do_not_fit_are_refused() {
    let with = |change: &dyn Fn(&mut e::Experiment)| {
        fails(|experiment, _| {
            experiment.train.stages = staged().train.stages;
            change(experiment);
        })
    };
    insta::assert_snapshot!(with(&|x| x.train.steps = Some(30)), @"train.stages.1.until: the stage must end after step 20, the end of the stage before, got step 15");
    insta::assert_snapshot!(with(&|x| x.train.stages[1].until = ScheduleLength::Steps(100)), @"train.stages.1.until: the stage must end before step 100, the end of the run, got step 100");
    insta::assert_snapshot!(with(&|x| x.train.stages[0].until = ScheduleLength::Steps(0)), @"train.stages.0.until: the stage must end after step 0, the start of the run, got step 0");
    insta::assert_snapshot!(with(&|x| x.train.stages[0].length = Some(3)), @"train.stages.0.length: must divide the length of the layout, 8, got 3");
    insta::assert_snapshot!(with(&|x| x.train.stages[0].sequences = Some(7)), @"train.stages.0.length: does not fit: a row of 8 tokens is cut into 2 sequences of 4, and the 7 sequences of a step must be whole rows, a multiple of 2");
    insta::assert_snapshot!(with(&|x| x.train.stages[0].windows = vec![3]), @"train.stages.0.windows: must have one for each window of the model, which has no window; got 1");
    insta::assert_snapshot!(with(&|x| x.train.stages[1].sequences = Some(0)), @"train.stages.1: in this stage, batch.sequences: must be at least 1, got 0");
    insta::assert_snapshot!(with(&|x| (x.data.drop_last, x.data.epoch_rows, x.train.stages[1].sequences) = (true, Some(10), Some(12))), @"train.stages.1: each step reads 12 rows, but data.drop_last leaves out rows that do not fill a batch, and an epoch has 10");
    let drops = |every| Decay::Step(StepDecay { every: Some(every), epochs: None, gamma: 0.5 });
    insta::assert_snapshot!(with(&|x| x.schedule.decay = drops(ScheduleLength::Tokens(64))), @"schedule.decay.step.every: the length repeats, so it cannot be given in tokens with stages whose steps have different numbers of them; give it in steps");
    insta::assert_snapshot!(with(&|x| x.train = Train { steps: None, tokens: Some(31), ..x.train.clone() }), @"train.tokens: the first step takes 32 tokens, more than 31 tokens; a run needs at least one step");
    let tokens = Some(ScheduleLength::Tokens(640));
    insta::assert_snapshot!(with(&|x| x.schedule.decay = Decay::Cosine(CosineDecay { length: tokens, repeat: CosineRepeat::Restart, ..CosineDecay::default() })), @"schedule.decay.cosine.tokens: the length repeats, so it cannot be given in tokens with stages whose steps have different numbers of them; give it in steps");
    insta::assert_snapshot!(with(&|x| {
        x.schedule.decay = Decay::Linear(DecayTarget::default());
        x.schedule.cooldown = Some(Cooldown { length: tokens, at: vec![ScheduleLength::Steps(50)] });
    }), @"schedule.cooldown.tokens: the length repeats, so it cannot be given in tokens with stages whose steps have different numbers of them; give it in steps");
    insta::assert_snapshot!(with(&|x| x.train.stages = vec![stage(ScheduleLength::Steps(1)); 300]), @"train.stages: must be at most 256 stages");
}

/// Plans without stages have the hashes that they had, and each part of a stage changes them.
#[test]
fn stages_are_in_the_hashes() {
    let mut plans = vec![compiled(&experiment()), compiled(&staged())];
    let changes: [fn(&mut TrainStage); 3] = [
        |stage| stage.sequences = Some(16),
        |stage| (stage.sequences, stage.length) = (Some(8), None),
        |stage| stage.until = ScheduleLength::Steps(21),
    ];
    for change in changes {
        let mut experiment = staged();
        change(&mut experiment.train.stages[0]);
        plans.push(compiled(&experiment));
    }
    for hash in [|plan: &Plan| plan.hash.clone(), |plan: &Plan| plan.math_hash.clone()] {
        let distinct: std::collections::BTreeSet<String> = plans.iter().map(hash).collect();
        assert_eq!(distinct.len(), plans.len());
    }
    let windowed = |windows: Vec<u32>| {
        let mut experiment = staged();
        experiment.model.options.window = Some(8);
        experiment.train.stages[0].windows = windows;
        compiled(&experiment)
    };
    let [narrow, wide] = [vec![2], vec![3]].map(windowed);
    assert!(narrow.hash != wide.hash && narrow.math_hash != wide.math_hash);
    let mut rounded = staged();
    rounded.train.stages[0].micro_batch = Some(1);
    let rounded = compiled(&rounded);
    assert_eq!((rounded.math_hash == plans[1].math_hash, rounded.hash == plans[1].hash), (true, false));
}
