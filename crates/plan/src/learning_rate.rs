//! The learning-rate schedule of a run, and warnings of rates of 0 and of decays that do not finish.

use std::ops::Range;

use crate::error::{PlanError, Result, refuse};
use runner_spec::experiment::{Experiment, ScheduleLength, TrainLength};
use runner_spec::format::{count, counted};
use runner_spec::plan::{Pace, first_step};
use runner_spec::program::RowSequence;
use runner_spec::schedule::{Cooldown, Decay, DecayLength, LrSchedule, ScheduleStart};

/// Turns lengths of a run of `steps` steps into steps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepClock<'a> {
    pub(crate) steps: u64,
    pub(crate) pace: &'a Pace,
}

impl StepClock<'_> {
    /// The steps of `length` from step `first` on.
    fn steps_from(self, first: u64, length: ScheduleLength) -> u64 {
        match length {
            ScheduleLength::Tokens(tokens) if !self.pace.earlier_stages.is_empty() => {
                let end = self.nearest(self.pace.tokens_after(first) + tokens as f64, first.saturating_add(tokens));
                end.saturating_sub(first).max(1)
            }
            _ => length.steps(self.steps, self.pace.tokens_per_step),
        }
    }

    /// The steps of `length` before the end of the run.
    fn steps_to_end(self, length: ScheduleLength) -> u64 {
        match length {
            ScheduleLength::Tokens(tokens) if !self.pace.earlier_stages.is_empty() => {
                let (all, last) = (self.pace.tokens_after(self.steps), self.pace.tokens_per_step.max(1) as f64);
                if tokens as f64 > all {
                    return self.steps + ((tokens as f64 - all) / last).ceil() as u64;
                }
                let start = self.nearest(self.pace.tokens_after(self.steps) - tokens as f64, self.steps);
                self.steps.saturating_sub(start).max(1)
            }
            _ => length.steps(self.steps, self.pace.tokens_per_step),
        }
    }

    /// The step, at most `most`, after which the number of tokens is closest to `tokens`.
    fn nearest(self, tokens: f64, most: u64) -> u64 {
        let enough = first_step(most, |step| self.pace.tokens_after(step) >= tokens);
        let fewer = enough.saturating_sub(1);
        let distance = |step| (self.pace.tokens_after(step) - tokens).abs();
        if distance(fewer) < distance(enough) { fewer } else { enough }
    }
}

/// The schedule with its open lengths filled in from the run's. Its steps read `rows`. `notes` receive the steps of lengths in tokens.
pub(crate) fn lr_schedule(
    experiment: &Experiment,
    rows: &RowSequence,
    clock: StepClock<'_>,
    notes: &mut Vec<String>,
) -> Result<LrSchedule> {
    let StepClock { steps, pace } = clock;
    let warmup = experiment.schedule.warmup;
    let length = warmup.length();
    let in_steps = |length: ScheduleLength| Some(clock.steps_from(0, length));
    let first = match experiment.schedule.start {
        ScheduleStart::At(start) => clock.steps_from(0, start),
        ScheduleStart::Fork => 0,
    };
    let warmup_steps = clock.steps_from(first, length);
    check_warmup(experiment, length, warmup_steps, steps)?;
    let wrong = |(message, help): (String, String)| PlanError::value("schedule.start", format!("{message}: {help}"));
    let start = experiment.schedule.start_step(Some(steps), warmup_steps, in_steps).map_err(wrong)?.unwrap_or(first);
    let decay_start = start.saturating_add(warmup_steps);
    let after_warmup = steps - decay_start;
    let misplaced = |(key, message): (String, String)| PlanError::value(key, message);
    let cooldown = experiment.schedule.cooldown.clone().unwrap_or_default();
    let rest = cooldown.length.map_or(after_warmup, |length| clock.steps_to_end(length));
    if rest > after_warmup {
        refuse!("schedule.cooldown", "must be at most the {after_warmup} steps after the warmup, got {rest} steps")
    }
    let mut later_decays = cooldown.decay_starts(rest, decay_start, steps, in_steps).map_err(misplaced)?;
    let hold_steps = later_decays.remove(0) - decay_start;
    let decay = experiment.schedule.decay.clone().placed(decay_start, steps, in_steps).map_err(misplaced)?;
    if let Decay::InverseSqrt(inverse_sqrt) = decay
        && let Some((message, help)) =
            inverse_sqrt.mistake(warmup_steps, |length| Some(clock.steps_from(start, length)))
    {
        refuse!("schedule.decay.inverse_sqrt", "{message}: {help}");
    }
    let given = decay.length();
    let decay_first = if matches!(decay, Decay::InverseSqrt(_)) { start } else { decay_start };
    let given_steps = given.as_ref().map(|given| clock.steps_from(decay_first, given.length));
    let start_length = if let ScheduleStart::At(length) = experiment.schedule.start { Some(length) } else { None };
    let every = if matches!(decay, Decay::Step(_)) { ".every" } else { "" };
    let mut parts = vec![
        ("schedule.start".to_owned(), start_length, 0, start),
        ("schedule.warmup".to_owned(), Some(length), start, warmup_steps),
        (
            format!("schedule.decay.{}{every}", decay.name()),
            given.map(|given| given.length),
            decay_first,
            given_steps.unwrap_or(0),
        ),
        ("schedule.cooldown".to_owned(), cooldown.length, decay_start + hold_steps, rest),
    ];
    let from_start = |key, point| (key, Some(point), 0, clock.steps_from(0, point));
    let at = cooldown.at.iter().enumerate();
    parts.extend(at.map(|(index, point)| from_start(format!("schedule.cooldown.at.{index}"), *point)));
    if let Decay::Piecewise(points) = &experiment.schedule.decay {
        let key = |index| format!("schedule.decay.piecewise.{index}.at");
        parts.extend(points.iter().enumerate().map(|(index, point)| from_start(key(index), point.at)));
    }
    note_tokens(experiment, pace, parts, notes)?;
    refuse_tokens_of_unequal_steps(&decay, &cooldown, pace)?;
    let decay = decay.planned(given_steps, rest, warmup_steps, rows.epoch_rows(), experiment.batch.sequences as u64);
    let hold_steps = hold_steps.max(decay.hold_steps(warmup_steps));
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
    if matches!(decay, Decay::Rows(_)) && !pace.earlier_stages.is_empty() {
        refuse!("schedule.decay.step.epochs", "it cannot be used with stages; use `schedule.decay.step.every`");
    }
    let peak = peak(experiment, rows.position_after(steps).tokens);
    Ok(LrSchedule { peak, start, warmup_steps, warmup_from: warmup.from, hold_steps, later_decays, decay })
}

/// Refuses lengths in tokens of parts that repeat, if the stages have steps of different numbers of tokens: the parts would differ in steps.
fn refuse_tokens_of_unequal_steps(decay: &Decay, cooldown: &Cooldown, pace: &Pace) -> Result<()> {
    let repeats = decay.repeats() || matches!(decay, Decay::Step(_));
    let of_decay = decay.length().filter(|_| repeats).map(|given| (given.key, given.length));
    let of_cooldown = cooldown.length.filter(|_| !cooldown.at.is_empty());
    let of_cooldown = of_cooldown.map(|length| ("schedule.cooldown.tokens".to_owned(), length));
    let mut lengths = of_decay.into_iter().chain(of_cooldown);
    let in_tokens = lengths.find(|(_, length)| matches!(length, ScheduleLength::Tokens(_)));
    let Some((key, _)) = in_tokens else { return Ok(()) };
    if pace.earlier_stages.iter().any(|stage| stage.tokens_per_step != pace.tokens_per_step) {
        refuse!(
            key,
            "the length repeats, so it cannot be given in tokens with stages whose steps have different numbers of them; give it in steps"
        );
    }
    Ok(())
}

/// Refuses a warmup of `warmup_steps` steps, which the file gives as `length`, if it is longer than the run.
fn check_warmup(experiment: &Experiment, length: ScheduleLength, warmup_steps: u64, steps: u64) -> Result<()> {
    if warmup_steps > steps {
        let from = match experiment.train.length() {
            Ok(TrainLength::Steps(_)) | Err(_) => String::new(),
            Ok(length) => format!(" (from {})", length.describe()),
        };
        match length {
            ScheduleLength::Tokens(tokens) => refuse!(
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
    Ok(())
}

/// Notes the steps of those `parts` of the schedule whose lengths are given in tokens. A part has its key, its length as the file gives it, the
/// step from which it counts, and its steps.
///
/// # Errors
/// If a length counts tokens from before a fork that changed the batch or the data.
fn note_tokens(
    experiment: &Experiment,
    pace: &Pace,
    parts: Vec<(String, Option<ScheduleLength>, u64, u64)>,
    notes: &mut Vec<String>,
) -> Result<()> {
    for (section, length, first, in_steps) in parts {
        let Some(ScheduleLength::Tokens(tokens)) = length else { continue };
        let key = format!("{section}.tokens");
        // Steps before this one may have had a different number of tokens.
        if let Some(position) = experiment.data.position.filter(|position| first < position.step) {
            refuse!(
                key,
                "it counts tokens from step {first}, but this fork changed the batch or the data at step {}; use `{section}.steps`",
                position.step
            );
        }
        let (exact, rounded) = (tokens as f64 / pace.tokens_per_step.max(1) as f64, counted(in_steps, "step"));
        notes.push(match pace.earlier_stages.as_slice() {
            [] => format!("{key}: {} tokens are {exact:.2} steps, rounded to {rounded}", count(tokens)),
            _ => format!("{key}: {} tokens are about {rounded}", count(tokens)),
        });
    }
    Ok(())
}

/// The peak learning rate of a run of `tokens` tokens.
fn peak(experiment: &Experiment, tokens: u64) -> f64 {
    let factor = experiment.train.transfer.map_or(1.0, |transfer| transfer.token_factor(tokens));
    experiment.optimizer.lr() * factor
}

/// A note that no checkpoint is saved where a decay ends before the run does; `every` is the interval of checkpoints.
pub(crate) fn describe_unsaved_decays(schedule: &LrSchedule, every: u64) -> Option<String> {
    let length = schedule.decay.steps()?;
    let starts = [schedule.decay_start()].into_iter().chain(schedule.later_decays.iter().copied());
    let ends = starts.take(schedule.later_decays.len()).map(|start| start + length);
    let unsaved: Vec<String> = ends.filter(|end| !end.is_multiple_of(every.max(1))).map(count).collect();
    let shown = unsaved.first()?;
    let others = if unsaved.len() > 1 {
        format!(" and at {}", counted(unsaved.len() as u64 - 1, "other"))
    } else {
        String::new()
    };
    Some(format!(
        "schedule.cooldown.at: no checkpoint is saved at step {shown}{others}, where a decay ends; make the points multiples of \
         checkpoint.every, {every}"
    ))
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
        "`--set schedule.start=fork` counts from the fork".to_owned()
    } else if matches!(schedule.decay, Decay::Piecewise(_)) {
        format!("give the last point of schedule.decay.piecewise a factor above 0, or end the run at step {end}")
    } else {
        format!("set schedule.start to decay later, or end the run at step {end}")
    };
    format!("the learning rate is 0 {which}: the decay starts after step {start} and ends after step {end}; {advice}")
}

/// A warning that the decay of a run of `steps` steps ends after the run.
pub(crate) fn describe_unfinished_decay(decay: &Decay, schedule: &LrSchedule, steps: u64) -> Option<String> {
    let rest = steps.saturating_sub(schedule.decay_start());
    let DecayLength { key, advice, .. } = decay.length()?;
    let length = match &schedule.decay {
        Decay::InverseSqrt(_) => return None,
        planned => planned.length()?.length.known_steps(None)?,
    };
    (length > rest).then(|| {
        let (length, rest, total) = (counted(length, "step"), count(rest), count(steps));
        format!(
            "{key} is {length}, but only {rest} of the run's {total} steps follow its warmup, so the run ends before \
             the decay does; use at most {rest} steps, or {advice}"
        )
    })
}
