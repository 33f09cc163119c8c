//! The checkpoint that a fork begins with: its place in the training data and in the schedule of the forked run, and what they mean for
//! the new run.

use std::path::Path;

use serde_json::Value;

use runner_compare::settings::{SettingDifference, SettingGroup, differences, is_choice};
use runner_compare::stored_plan;
use runner_record::checkpoint;
use runner_record::run_dir::CHECKPOINTS;
use runner_spec::data::DataFacts;
use runner_spec::experiment::{Experiment, Optimizer, Train};
use runner_spec::format::{count, counted, setting_text};
use runner_spec::plan::{Plan, Totals};
use runner_spec::program::{DataPosition, LrSchedule, Program, RowOrder, RowSequence};

use runner_spec::error::{CommandError, Result};

/// A change of the learning rate at a fork by more than this factor gets a warning.
const JUMP_FACTOR: f64 = 1.5;

/// A linear decay of the learning rate to the end of a fork.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cooldown {
    pub steps: u64,
    /// The share of the checkpoint's rate that is reached.
    pub share: f64,
}

/// The checkpoint of a forked run that has one.
#[derive(Debug)]
pub(super) struct ForkCheckpoint {
    pub(super) id: String,
    pub(super) plan: Plan,
    pub(super) step: u64,
    position: DataPosition,
    /// The tokens that its steps counted, without padding; `None` if the checkpoint cannot be read.
    tokens: Option<u64>,
}

/// The position in the training data of a fork.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ForkPosition {
    /// For the new experiment; `None`: the new run counts rows from the first one on, as the plan does without a position.
    pub(super) position: Option<DataPosition>,
    /// The changed keys that make reading start again at the first row; empty if it continues at the next row.
    pub(super) reordered_by: Vec<&'static str>,
}

impl ForkCheckpoint {
    /// Reads the plan of the run `id` in `path`, and the position of its checkpoint of `step`, which checkpoints of older versions do not
    /// record: then it follows from the plan.
    ///
    /// # Errors
    /// If the plan is missing or damaged, or has no ranks.
    pub(super) fn read(path: &Path, id: &str, step: u64) -> Result<Self> {
        let plan = stored_plan::read(path)?;
        let saved = checkpoint::recorded_position(&path.join(CHECKPOINTS), step);
        let planned = || plan.row_sequence().map(|rows| rows.position_after(step));
        let position = saved.as_ref().and_then(|saved| saved.data).or_else(planned).ok_or_else(|| {
            CommandError::failure(format!("{id}: its plan has no ranks, so the rows that it has read are unknown"))
        })?;
        Ok(Self { id: id.to_owned(), plan, step, position, tokens: saved.map(|saved| saved.tokens) })
    }

    fn program(&self) -> Option<&Program> {
        self.plan.ranks.first().map(|rank| &rank.program)
    }

    /// The learning rate that the forked run has in its next step.
    fn rate(&self) -> f64 {
        self.program().map_or(0.0, |program| program.schedule.rate(self.step))
    }

    /// The overrides that make a fork decay from the rate of the checkpoint, as `cooldown` describes, and end then.
    ///
    /// # Errors
    /// If the rate is 0, or `overrides` set what the cooldown sets.
    pub(super) fn cooldown_overrides(&self, cooldown: Cooldown, overrides: &[String]) -> Result<Vec<String>> {
        let (id, step, rate) = (&self.id, self.step, self.rate());
        if rate <= 0.0 {
            return Err(CommandError::request(format!(
                "--cooldown decays from the learning rate of the checkpoint, but that of {id} at step {step} is 0; \
                 fork from an earlier checkpoint"
            )));
        }
        let optimizer = self.program().map_or_else(Optimizer::default, |program| program.optimizer);
        let optimizer = &format!("optimizer.{}.lr", optimizer.description().name());
        let own = [[optimizer.as_str(), "schedule"].as_slice(), &Train::LENGTH_KEYS].concat();
        let is_below = |a: &str, b: &str| a == b || a.strip_prefix(b).is_some_and(|rest| rest.starts_with('.'));
        let mut given = overrides.iter().map(|set| set.split('=').next().unwrap_or(set).trim());
        if let Some(key) = given.find(|key| own.iter().any(|own| is_below(key, own) || is_below(own, key))) {
            return Err(CommandError::request(format!(
                "--cooldown sets the learning rate, the schedule and train.steps, so `--set {key}` cannot be used with it; set \
                 `schedule.start=fork` and the other keys instead"
            )));
        }
        let Cooldown { steps, share } = cooldown;
        Ok(vec![
            format!("{optimizer}={rate:?}"),
            "schedule.start=fork".to_owned(),
            "schedule.warmup.steps=0".to_owned(),
            "schedule.cooldown=null".to_owned(),
            format!("schedule.decay={{linear: {{final: {share:?}, steps: {steps}}}}}"),
            format!("train.steps={}", step.saturating_add(steps)),
        ])
    }

    /// The position of a fork with the settings `experiment`, whose data has the `facts`. It reads the rows after those that the checkpoint
    /// has read, if their order is the same. If not, it starts at the first row.
    pub(super) fn position_of_fork(&self, experiment: &Experiment, facts: &DataFacts) -> ForkPosition {
        let Some(program) = self.program() else { return ForkPosition { position: None, reordered_by: Vec::new() } };
        let (data, batch) = (&experiment.data, &experiment.batch);
        let order = RowOrder { sequential: !data.shuffle, drop_last: data.drop_last, epoch_rows: data.epoch_rows };
        let was_sequential = program.batch.order.sequential;
        let changes = [
            ("the training data or its layout", self.plan.data.train != facts.train),
            ("data.shuffle", was_sequential != order.sequential),
            ("seed.data", program.seed.data != experiment.seed.data && !(was_sequential && order.sequential)),
        ];
        let reordered_by: Vec<&str> = changes.into_iter().filter(|(_, changed)| *changed).map(|(key, _)| key).collect();
        if !reordered_by.is_empty() {
            let position = DataPosition { epoch: 0, row: 0, ..self.position };
            return ForkPosition { position: Some(position), reordered_by };
        }
        // A fork that needs no position to read the right rows has the plan of a run that is not a fork.
        let is_same = |position: &Option<DataPosition>| {
            let (sequences, length) = (batch.sequences, data.layout.length());
            let rows = RowSequence::new(sequences, length, order, *position, facts.train.rows);
            rows.position_after(self.step) == self.position
        };
        let known = [None, program.batch.position].into_iter().find(is_same);
        ForkPosition { position: known.unwrap_or(Some(self.position)), reordered_by }
    }

    /// What a fork of the plan `new`, which changes the first of `settings` to the second, begins with and adds, a line for each. Tokens are those that the loss counts, as in the record.
    pub(super) fn describe_fork(&self, new: &Plan, settings: [&Experiment; 2], position: &ForkPosition) -> Vec<String> {
        let Self { id, plan, step, position: read, tokens: inherited } = self;
        let (Some(old), Some(rows)) = (self.program(), new.row_sequence()) else { return Vec::new() };
        let schedule = schedule_of(new);
        let next = rows.position_after(*step);
        let epochs = plan.row_sequence().map_or(0.0, |rows| rows.epochs_after(*step));
        let mut lines = vec![format!(
            "{id} after {}: {} read, {epochs:.3} epochs; the next row is row {} of epoch {}",
            counted(*step, "step"),
            counted(read.rows, "row"),
            count(next.row + 1),
            count(next.epoch + 1),
        )];
        if !position.reordered_by.is_empty() {
            let what = position.reordered_by.join(" and ");
            let differ = if position.reordered_by.len() == 1 { "differs" } else { "differ" };
            lines.push(format!("{what} {differ} from that of {id}, so reading starts again at the first row"));
        }
        let sequences = new.totals.sequences_per_step;
        if old.batch.sequences != sequences {
            lines.push(format!("batch.sequences is {sequences}, was {}", old.batch.sequences));
        }
        lines.push(format!(
            "the learning rate of step {} is {}; that of {id} is {}",
            count(step + 1),
            rate(schedule.map_or(0.0, |schedule| schedule.rate(*step))),
            rate(self.rate())
        ));
        let optimizer = new.ranks.first().map(|rank| rank.program.optimizer);
        if old.optimizer.description().moments() > 0 {
            let kept = optimizer.map_or(0, |new| new.description().moments());
            lines.extend(describe_moments(settings[0], settings[1], kept, id));
        }
        let Totals { steps, tokens, has_padding, .. } = new.totals;
        let at_most = if has_padding { "at most " } else { "" };
        let own = tokens.saturating_sub(next.tokens);
        let total = inherited.map_or_else(
            || "an unknown number of".to_owned(),
            |inherited| format!("{at_most}{}", count(inherited.saturating_add(own))),
        );
        lines.push(format!(
            "{}, {total} tokens; in this run: {}, {at_most}{} tokens",
            counted(steps, "step"),
            counted(steps.saturating_sub(*step), "step"),
            count(own),
        ));
        lines
    }

    /// The warning that the learning rate jumps at a fork of the plan `new`. The plan itself warns of rates of 0.
    pub(super) fn describe_jump(&self, new: &Plan) -> Option<String> {
        let schedule = schedule_of(new)?;
        let (was, is) = (self.rate(), schedule.rate(self.step));
        let (low, high) = (was.min(is), was.max(is));
        if is == 0.0 || high <= JUMP_FACTOR * low {
            return None;
        }
        let factor = if low > 0.0 { format!(", by a factor of {:.3}", high / low) } else { String::new() };
        let counts_from_fork = schedule.start == self.step;
        let start = if counts_from_fork { "" } else { "`--set schedule.start=fork` counts from the fork, and " };
        Some(format!(
            "the learning rate jumps at the fork from {} to {}{factor}: {start}`--cooldown N` decays from the rate of {}",
            rate(was),
            rate(is),
            self.id
        ))
    }
}

/// The schedule of the plan `new`.
fn schedule_of(new: &Plan) -> Option<&LrSchedule> {
    new.ranks.first().map(|rank| &rank.program.schedule)
}

/// What a fork of the run `id` with the experiment `old`, which changes it to `new`, does with the moments of the checkpoint; `None` if it
/// uses them as that run does. `kept` is the number of moments that the new optimizer has.
fn describe_moments(old: &Experiment, new: &Experiment, kept: usize, id: &str) -> Option<String> {
    let changed = |difference: &SettingDifference| {
        difference.group == SettingGroup::Optimizer
            && difference.key.rsplit('.').next() != Some("lr")
            && difference.b.is_some()
    };
    let mut changes: Vec<SettingDifference> = differences(old, new).into_iter().filter(changed).collect();
    if let Some(optimizer) = changes.iter().position(|difference| is_choice(&difference.key)) {
        changes = vec![changes.swap_remove(optimizer)];
    }
    if changes.is_empty() {
        return None;
    }
    let text = |value: &Option<Value>| value.as_ref().map_or_else(|| "null".to_owned(), setting_text);
    let changes =
        changes.iter().map(|SettingDifference { key, a, b, .. }| format!("{key} is {}, was {}", text(b), text(a)));
    let changes = changes.collect::<Vec<_>>().join("; ");
    let kept = if kept == 0 { "are dropped, because the new optimizer has none" } else { "are kept" };
    Some(format!("{changes}; the optimizer's moments of {id} {kept}"))
}

/// A learning rate as it is shown: `6e-4`.
fn rate(rate: f64) -> String {
    runner_spec::format::scientific(rate)
}
