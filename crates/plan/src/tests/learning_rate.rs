//! Learning-rate schedules of plans.

use super::fails;
use crate::compile;
use crate::testing::{cluster, compiled, data, experiment};
use runner_spec::experiment as e;
use runner_spec::plan::Plan;
use runner_spec::program::DataPosition;
use runner_spec::schedule::{
    CosineDecay, CosineRepeat, Decay, DecayTarget, InverseSqrtDecay, LrSchedule, PointShape, ScheduleLength,
    SchedulePoint, StepDecay,
};
use runner_spec::transfer::Transfer;

#[test]
fn steps_with_a_rate_of_zero_get_a_warning() {
    let warnings = |schedule: e::Schedule| compiled(&e::Experiment { schedule, ..experiment() }).warnings;
    let linear = |steps| Decay::Linear(DecayTarget { last: 0.0, length: Some(ScheduleLength::Steps(steps)) });
    let warmup = |steps, from| e::Warmup { from, ..ScheduleLength::Steps(steps).into() };
    let start = e::ScheduleStart::default();
    assert!(warnings(e::Schedule { start, warmup: warmup(10, None), decay: linear(90), cooldown: None }).is_empty());
    insta::assert_snapshot!(warnings(e::Schedule { start, warmup: warmup(10, None), decay: linear(50), cooldown: None }).join("\n"), @"the learning rate is 0 in steps 61 to 100, which change no weights: the decay starts after step 10 and ends after step 60; set schedule.start to decay later, or end the run at step 60");
    insta::assert_snapshot!(warnings(e::Schedule { start, warmup: warmup(10, Some(0.0)), decay: linear(89), cooldown: None }).join("\n"), @r"
    the learning rate is 0 in step 1, which changes no weights: the warmup starts from 0; set schedule.warmup.from above 0
    the learning rate is 0 in step 100, which changes no weights: the decay starts after step 10 and ends after step 99; set schedule.start to decay later, or end the run at step 99
    ");
    let start = e::ScheduleStart::At(ScheduleLength::Steps(40));
    assert!(warnings(e::Schedule { start, warmup: warmup(10, None), decay: linear(50), cooldown: None }).is_empty());
}

#[test]
fn lengths_of_the_schedule_in_tokens_and_shares_become_steps() {
    use e::ScheduleLength::{Share, Steps, Tokens};
    let planned = |change: &dyn Fn(&mut e::Schedule)| {
        let mut experiment = experiment();
        change(&mut experiment.schedule);
        compiled(&experiment)
    };
    let schedule = |plan: &Plan| plan.ranks[0].program.schedule.clone();
    // 100 steps of 8 rows of 8 tokens.
    let steps = planned(&|s| s.warmup = Steps(10).into());
    let tokens = |tokens| planned(&|s| s.warmup = Tokens(tokens).into());
    let share = |share| planned(&|s| s.warmup = Share(share).into());
    for same in [tokens(640), tokens(671), share(0.1), share(0.104)] {
        assert_eq!((schedule(&same), &same.hash), (schedule(&steps), &steps.hash));
    }
    let lengths = [tokens(0), tokens(1), tokens(672), share(0.0), share(1e-9), share(0.105), share(1.0)];
    assert_eq!(lengths.map(|plan| schedule(&plan).warmup_steps), [0, 1, 11, 0, 1, 11, 100]);
    let cooldown = |length: ScheduleLength| {
        schedule(&planned(&|s| (s.warmup, s.cooldown) = (e::Warmup::default(), Some(length.into())))).hold_steps
    };
    assert_eq!([Steps(20), Tokens(1_280), Tokens(1_312), Share(0.2)].map(cooldown), [80, 80, 79, 80]);
    assert_eq!(tokens(671).notes[..1], ["schedule.warmup.tokens: 671 tokens are 10.48 steps, rounded to 10 steps"]);
    let from_tokens = |tokens| Tokens(tokens).into();
    insta::assert_snapshot!(fails(|x, _| x.schedule.warmup = from_tokens(6_464)), @"schedule.warmup.tokens: must be at most the 100 steps of the run, got 6464 tokens, which are 101 steps");
    insta::assert_snapshot!(fails(|x, _| {
        x.schedule.warmup = Share(0.5).into();
        x.schedule.cooldown = Some(Share(0.6).into());
    }), @"schedule.cooldown: must be at most the 50 steps after the warmup, got 60 steps");
    insta::assert_snapshot!(fails(|x, _| {
        x.data.position = Some(DataPosition { step: 10, epoch: 0, row: 40, rows: 40, tokens: 320 });
        x.schedule.warmup = from_tokens(64);
    }), @"schedule.warmup.tokens: it counts tokens from step 0, but this fork changed the batch or the data at step 10; use `schedule.warmup.steps`");
}

/// A fork that changed the batch has trained other numbers of tokens before.
#[test]
fn the_rate_for_a_token_horizon_counts_the_tokens_of_a_fork() {
    let mut experiment = experiment();
    experiment.model.tie_embeddings = false;
    let d_model = experiment.model.d_model;
    experiment.train.transfer =
        Some(Transfer { d_model, layers: None, depth_exponent: 1.0, tokens: Some(1_000), token_exponent: 0.5 });
    experiment.data.position = Some(DataPosition { step: 10, epoch: 0, row: 20, rows: 20, tokens: 240 });
    let plan = compiled(&experiment);
    // 100 steps, 90 of them of 64 tokens.
    assert_eq!(plan.totals.tokens, 240 + 90 * 64);
    assert!((plan.ranks[0].program.schedule.peak - 1e-3 / 6.0_f64.sqrt()).abs() < 1e-15);
}

#[test]
fn an_inverse_square_root_starts_after_the_warmup() {
    let schedule = |steps: Option<u64>, warmup| {
        let mut experiment = experiment();
        (experiment.schedule.warmup, experiment.schedule.decay) =
            (warmup, Decay::InverseSqrt(InverseSqrtDecay { length: steps.map(ScheduleLength::Steps) }));
        compile(&experiment, &data(), &cluster()).map(|plan| plan.ranks[0].program.schedule.clone())
    };
    // 640 tokens are 10 steps.
    let tokens = ScheduleLength::Tokens(640).into();
    let planned = schedule(None, tokens).expect("plans");
    assert_eq!(
        (planned.hold_steps, &planned.decay),
        (0, &Decay::InverseSqrt(InverseSqrtDecay { length: Some(ScheduleLength::Steps(10)) }))
    );
    assert_eq!([9, 10, 40, 90].map(|step| planned.rate(step)), [1e-3, 1e-3, 5e-4, 1e-3 / 3.0]);
    let planned = schedule(Some(25), tokens).expect("plans");
    assert_eq!([25, 100].map(|step| planned.rate(step)), [1e-3, 5e-4]);
    insta::assert_snapshot!(schedule(Some(9), tokens).expect_err("below the warmup"), @"schedule.decay.inverse_sqrt: `schedule.decay.inverse_sqrt.steps` must be at least the 10 steps of the warmup, got 9 steps: delete it, which means the steps of the warmup");
}

#[test]
fn decays_end_at_points_of_the_run() {
    use e::ScheduleLength::{Share, Steps, Tokens};
    let plan = |at: &[ScheduleLength]| {
        let mut experiment = experiment();
        experiment.schedule.decay = Decay::Linear(DecayTarget { last: 0.0, length: None });
        experiment.schedule.cooldown = Some(e::Cooldown { at: at.to_vec(), ..Steps(10).into() });
        compile(&experiment, &data(), &cluster())
    };
    let schedule = |at: &[ScheduleLength]| plan(at).expect("plans").ranks[0].program.schedule.clone();
    // 100 steps of 64 tokens, 10 of them warmup.
    let planned = schedule(&[Steps(30), Tokens(3_200)]);
    assert_eq!((planned.hold_steps, &planned.later_decays[..]), (10, &[40, 90][..]));
    let rates = [19, 25, 29, 30, 40, 45, 50, 89, 95, 99].map(|step| planned.rate(step) / 1e-3);
    let expected = [1.0, 0.5, 0.1, 1.0, 1.0, 0.5, 1.0, 1.0, 0.5, 0.1];
    assert!(rates.iter().zip(expected).all(|(got, want)| (got - want).abs() < 1e-12), "{rates:?}");
    assert_eq!(schedule(&[Steps(30), Share(0.5), Share(1.0)]), planned, "the end of the run may be given");
    let json = serde_json::to_string(&planned).expect("serializes");
    assert_eq!(serde_json::from_str::<LrSchedule>(&json).expect("loads"), planned);
    let fails = |at: &[ScheduleLength]| plan(at).expect_err("decays overlap").to_string();
    insta::assert_snapshot!(fails(&[Steps(19)]), @"schedule.cooldown.at.0: must be at least step 20, got step 19");
    insta::assert_snapshot!(fails(&[Steps(30), Steps(39)]), @"schedule.cooldown.at.1: must be at least step 40, got step 39");
    insta::assert_snapshot!(fails(&[Tokens(5_824)]), @"schedule.cooldown.at.0: must be at most step 90, got step 91");
}

#[test]
fn points_of_a_schedule_count_from_the_start_of_the_run() {
    use e::ScheduleLength::{Share, Steps, Tokens};
    let plan = |at: [ScheduleLength; 2]| {
        let mut experiment = experiment();
        let [first, last] = at.map(|at| SchedulePoint { at, factor: 1.0, shape: PointShape::Linear });
        experiment.schedule.decay = Decay::Piecewise(vec![first, SchedulePoint { factor: 0.0, ..last }]);
        compile(&experiment, &data(), &cluster())
    };
    // 100 steps of 64 tokens, 10 of them warmup.
    let planned = plan([Tokens(2_560), Share(1.0)]).expect("plans");
    assert_eq!(
        planned.notes[..1],
        ["schedule.decay.piecewise.0.at.tokens: 2,560 tokens are 40.00 steps, rounded to 40 steps"]
    );
    assert_eq!(planned.hash, plan([Steps(40), Steps(100)]).expect("plans").hash);
    let schedule = &planned.ranks[0].program.schedule;
    assert_eq!([9, 10, 40, 70, 85].map(|step| schedule.rate(step)), [1e-3, 1e-3, 1e-3, 5e-4, 2.5e-4]);
    let json = serde_json::to_string(schedule).expect("serializes");
    assert_eq!(serde_json::from_str::<LrSchedule>(&json).expect("loads"), *schedule);
    insta::assert_snapshot!(plan([Steps(9), Share(1.0)]).expect_err("in the warmup"), @"schedule.decay.piecewise.0.at: must be at least step 10, got step 9");
    insta::assert_snapshot!(plan([Steps(40), Tokens(2_560)]).expect_err("the same step"), @"schedule.decay.piecewise.1.at: must be at least step 41, got step 40");
}

/// The schedule's open end is the rest of the run.
#[test]
fn decay_takes_the_rest_of_the_run() {
    let schedule = compiled(&experiment()).ranks[0].program.schedule.clone();
    assert_eq!(
        schedule.decay,
        Decay::Cosine(CosineDecay { last: 0.1, length: Some(ScheduleLength::Steps(90)), ..CosineDecay::default() })
    );
}

/// 100 steps of 64 tokens.
#[test]
fn starts_and_decays_have_lengths_in_steps_tokens_and_shares() {
    use e::ScheduleLength::{Share, Steps, Tokens};
    let plan = |start: ScheduleLength, decay: Decay| {
        let mut experiment = experiment();
        (experiment.schedule.start, experiment.schedule.decay) = (e::ScheduleStart::At(start), decay);
        compiled(&experiment)
    };
    let target = |length| DecayTarget { last: 0.0, length: Some(length) };
    let linear = |length| Decay::Linear(target(length));
    let shapes: [&dyn Fn(ScheduleLength) -> Decay; 5] = [
        &|length| {
            let repeat = CosineRepeat::Restart;
            Decay::Cosine(CosineDecay { length: Some(length), repeat, ..CosineDecay::default() })
        },
        &linear,
        &|length| Decay::Sqrt(target(length)),
        &|length| Decay::InverseSqrt(InverseSqrtDecay { length: Some(length) }),
        &|every| Decay::Step(StepDecay { every: Some(every), epochs: None, gamma: 0.5 }),
    ];
    let drops = shapes[4];
    for decay in shapes {
        let planned = plan(Steps(20), decay(Steps(30)));
        for (start, length) in [(Tokens(1_300), Tokens(1_930)), (Share(0.2), Share(0.302))] {
            let other = plan(start, decay(length));
            assert_eq!(other.hash, planned.hash, "{:?}", other.ranks[0].program.schedule);
            assert_eq!(other.warnings.len(), planned.warnings.len(), "{:?}", other.warnings);
        }
    }
    let planned = plan(Tokens(1_300), drops(Tokens(1_930)));
    assert_eq!(
        planned.notes[..2],
        [
            "schedule.start.tokens: 1,300 tokens are 20.31 steps, rounded to 20 steps",
            "schedule.decay.step.every.tokens: 1,930 tokens are 30.16 steps, rounded to 30 steps"
        ]
    );
    let long = plan(Steps(0), linear(Tokens(6_400)));
    insta::assert_snapshot!(long.warnings.join("\n"), @"schedule.decay.linear.tokens is 100 steps, but only 90 of the run's 100 steps follow its warmup, so the run ends before the decay does; use at most 90 steps, or delete it, which means the rest of the run");
    let rest = DataPosition { step: 20, epoch: 0, row: 160, rows: 160, tokens: 1_280 };
    let fork = |start: ScheduleLength, decay: Decay| {
        fails(|x, _| {
            x.data.position = Some(rest);
            (x.schedule.start, x.schedule.decay) = (e::ScheduleStart::At(start), decay.clone());
        })
    };
    insta::assert_snapshot!(fork(Tokens(1_280), Decay::Constant {}), @"schedule.start.tokens: it counts tokens from step 0, but this fork changed the batch or the data at step 20; use `schedule.start.steps`");
    insta::assert_snapshot!(fork(Steps(5), linear(Tokens(640))), @"schedule.decay.linear.tokens: it counts tokens from step 15, but this fork changed the batch or the data at step 20; use `schedule.decay.linear.steps`");
    insta::assert_snapshot!(fails(|x, _| x.schedule.start = e::ScheduleStart::At(Tokens(5_824))), @"schedule.start: the schedule starts at step 91 with 10 steps of warmup, but the run has 100 steps: make the run at least 101 steps long, or start earlier");
    insta::assert_snapshot!(fails(|x, _| x.schedule.decay = shapes[3](Tokens(64))), @"schedule.decay.inverse_sqrt: `schedule.decay.inverse_sqrt.tokens` must be at least the 10 steps of the warmup, got 1 step: delete it, which means the steps of the warmup");
}

#[test]
fn decays_that_no_checkpoint_keeps_are_noted() {
    let notes = |at: &[u64], every| {
        let mut experiment = experiment();
        experiment.checkpoint.every = every;
        experiment.schedule.decay = Decay::Linear(DecayTarget::default());
        let at = at.iter().map(|step| ScheduleLength::Steps(*step)).collect();
        experiment.schedule.cooldown = Some(e::Cooldown { length: Some(ScheduleLength::Steps(10)), at });
        let notes = compiled(&experiment).notes.into_iter();
        notes.filter(|note| note.contains("cooldown.at:")).collect::<Vec<_>>().join("\n")
    };
    // The last decay ends with the run.
    assert_eq!([notes(&[50], 50), notes(&[], 7)], ["", ""]);
    insta::assert_snapshot!(notes(&[30, 60], 20), @"schedule.cooldown.at: no checkpoint is saved at step 30, where a decay ends; make the points multiples of checkpoint.every, 20");
    insta::assert_snapshot!(notes(&[30, 50], 20), @"schedule.cooldown.at: no checkpoint is saved at step 30 and at 1 other, where a decay ends; make the points multiples of checkpoint.every, 20");
}
