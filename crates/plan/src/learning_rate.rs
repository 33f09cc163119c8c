//! The learning-rate schedule of a run, and warnings of rates of 0 and of decays that do not finish.

use std::ops::Range;

use crate::error::{PlanError, Result, refuse};
use runner_spec::experiment::{Experiment, ScheduleLength, TrainLength};
use runner_spec::format::{count, counted};
use runner_spec::schedule::{Decay, DecayLength, LrSchedule};

/// The schedule with its open lengths filled in from the run's; an epoch has `epoch_rows` rows, and a step `step_tokens` tokens. `notes`
/// receive the steps of lengths in tokens.
pub(crate) fn lr_schedule(
    experiment: &Experiment,
    steps: u64,
    epoch_rows: u64,
    step_tokens: u64,
    notes: &mut Vec<String>,
) -> Result<LrSchedule> {
    let warmup = experiment.schedule.warmup;
    let length = warmup.length();
    let warmup_steps = length.map_or(0, |length| length.steps(steps, step_tokens));
    if warmup_steps > steps {
        let from = match experiment.train.length() {
            Ok(TrainLength::Steps(_)) | Err(_) => String::new(),
            Ok(length) => format!(" (from {})", length.describe()),
        };
        match length {
            Some(ScheduleLength::Tokens(tokens)) => refuse!(
                "schedule.warmup.tokens",
                "must be at most the {steps} steps of the run{from}, got {tokens} tokens, which are {warmup_steps} steps"
            ),
            _ => {
                refuse!(
                    "schedule.warmup.steps",
                    "must be at most the {steps} steps of the run{from}, got {warmup_steps}"
                )
            }
        }
    }
    let wrong = |(message, help): (String, String)| PlanError::value("schedule.start", format!("{message}: {help}"));
    let start = experiment.schedule.start_step(Some(steps), warmup_steps).map_err(wrong)?;
    let decay_start = start.saturating_add(warmup_steps);
    let after_warmup = steps - decay_start;
    let in_steps = |length: ScheduleLength| Some(length.steps(steps, step_tokens));
    let misplaced = |(key, message): (String, String)| PlanError::value(key, message);
    let cooldown = experiment.schedule.cooldown.clone().unwrap_or_default();
    let rest = cooldown.length().and_then(in_steps).unwrap_or(after_warmup);
    if rest > after_warmup {
        refuse!("schedule.cooldown", "must be at most the {after_warmup} steps after the warmup, got {rest} steps")
    }
    let mut later_decays = cooldown.decay_starts(rest, decay_start, steps, in_steps).map_err(misplaced)?;
    let hold_steps = later_decays.remove(0) - decay_start;
    let mut parts = vec![
        ("schedule.warmup.tokens".to_owned(), length, start),
        ("schedule.cooldown.tokens".to_owned(), cooldown.length(), decay_start + hold_steps),
    ];
    let at = cooldown.at.iter().enumerate();
    parts.extend(at.map(|(index, point)| (format!("schedule.cooldown.at.{index}.tokens"), Some(*point), 0)));
    if let Decay::Piecewise(points) = &experiment.schedule.decay {
        let key = |index| format!("schedule.decay.piecewise.{index}.at.tokens");
        parts.extend(points.iter().enumerate().map(|(index, point)| (key(index), Some(point.at), 0)));
    }
    for (key, length, first) in parts {
        let Some(ScheduleLength::Tokens(tokens)) = length else { continue };
        // Steps before this one may have had a different number of tokens.
        if let Some(position) = experiment.data.position.filter(|position| first < position.step) {
            refuse!(
                key.clone(),
                "it counts tokens from step {first}, but this fork changed the batch or the data at step {}; use `{}`",
                position.step,
                key.replace("tokens", "steps")
            );
        }
        let exact = tokens as f64 / step_tokens.max(1) as f64;
        let rounded = counted(ScheduleLength::Tokens(tokens).steps(steps, step_tokens), "step");
        notes.push(format!("{key}: {} tokens are {exact:.2} steps, rounded to {rounded}", count(tokens)));
    }
    let decay = experiment.schedule.decay.clone().placed(decay_start, steps, in_steps).map_err(misplaced)?;
    if let Decay::InverseSqrt(inverse_sqrt) = decay
        && let Some((message, help)) = inverse_sqrt.mistake(warmup_steps)
    {
        refuse!("schedule.decay.inverse_sqrt", "{message}: {help}");
    }
    let hold_steps = hold_steps.max(decay.hold_steps(warmup_steps));
    let decay = decay.planned(rest, warmup_steps, epoch_rows, experiment.batch.sequences as u64);
    if let Some(position) = experiment.data.position.filter(|position| decay_start < position.step)
        && matches!(decay, Decay::Rows(_))
    {
        refuse!(
            "schedule.decay.step.epochs",
            "it counts epochs from step {decay_start}, but this fork changed the batch or the data at step {}; set `schedule.start: {}`, or use \
             `schedule.decay.step.every`",
            position.step,
            position.step
        );
    }
    let peak = peak(experiment, steps.saturating_mul(step_tokens));
    Ok(LrSchedule { peak, start, warmup_steps, warmup_from: warmup.from, hold_steps, later_decays, decay })
}

/// The peak learning rate of a run of `tokens` tokens.
fn peak(experiment: &Experiment, tokens: u64) -> f64 {
    let factor = experiment.train.transfer.map_or(1.0, |transfer| transfer.token_factor(tokens));
    experiment.optimizer.lr() * factor
}

/// Warnings of steps whose learning rate is 0, in a run of `steps` steps that inherited the first of them.
pub(crate) fn zero_rate_warnings(schedule: &LrSchedule, inherited: u64, steps: u64) -> impl Iterator<Item = String> {
    let own = schedule.zero_rate_steps(steps).into_iter().filter(move |zero| zero.end > inherited);
    own.map(move |zero| describe_zero_rates(schedule, &zero, inherited))
}

fn describe_zero_rates(schedule: &LrSchedule, zero: &Range<u64>, inherited: u64) -> String {
    if zero.start < schedule.decay_start() {
        let step = count(zero.end);
        return format!(
            "the learning rate is 0 in step {step}, which changes no weights: the warmup starts from 0; set schedule.warmup.from above 0"
        );
    }
    let (start, end) = (count(schedule.decay_start()), count(zero.start));
    let first = zero.start.max(inherited);
    let which = match zero.end - first {
        1 => format!("in step {}, which changes no weights", count(zero.end)),
        _ => format!("in steps {} to {}, which change no weights", count(first + 1), count(zero.end)),
    };
    let advice = if inherited > 0 && zero.start <= inherited {
        "`--set schedule.start=fork` counts from the fork, and `--cooldown N` decays from the rate of the checkpoint"
            .to_owned()
    } else {
        format!("set schedule.start to decay later, or end the run at step {end}")
    };
    format!("the learning rate is 0 {which}: the decay starts after step {start} and ends at step {end}; {advice}")
}

/// A warning that the decay of a run of `steps` steps ends after the run.
pub(crate) fn describe_unfinished_decay(decay: &Decay, schedule: &LrSchedule, steps: u64) -> Option<String> {
    let rest = steps.saturating_sub(schedule.decay_start());
    let DecayLength { key, steps: length, advice } = decay.length()?;
    (length > rest).then(|| {
        let (length, rest, total) = (count(length), count(rest), count(steps));
        format!(
            "{key} is {length}, but only {rest} of the run's {total} steps follow its warmup, so the run ends before \
             the decay does; use at most {rest}, or {advice}"
        )
    })
}
