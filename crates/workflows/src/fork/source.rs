//! The checkpoint that a fork begins with: its place in the training data and in the schedule of the forked run, and what they mean for
//! the new run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use runner_compare::stored_plan;
use runner_record::checkpoint;
use runner_record::run_dir::CHECKPOINTS;
use runner_spec::data::DataFacts;
use runner_spec::experiment::{Data, Experiment};
use runner_spec::format::{count, counted, scientific};
use runner_spec::plan::{Plan, Totals};
use runner_spec::program::{DataPosition, LrSchedule, Program, RowOrder};

use runner_spec::error::{CommandError, Result};

/// A change of the learning rate at a fork by more than this factor gets a warning.
const JUMP_FACTOR: f64 = 1.5;

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

    /// The position of a fork with the settings `experiment`, whose data has the `facts`. It reads the rows after those that the checkpoint
    /// has read, if their order is the same. If not, it starts at the first row.
    pub(super) fn position_of_fork(&self, experiment: &Experiment, facts: &DataFacts) -> ForkPosition {
        let Some(program) = self.program() else { return ForkPosition { position: None, reordered_by: Vec::new() } };
        let data = &experiment.data;
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
            let data = Data { position: *position, ..data.clone() };
            // What cannot be planned is reported when it is planned.
            let rows = runner_plan::planned_rows(&Experiment { data, ..experiment.clone() }, facts);
            rows.is_ok_and(|rows| rows.position_after(self.step) == self.position)
        };
        let known = [None, program.first_position()].into_iter().find(is_same);
        ForkPosition { position: known.unwrap_or(Some(self.position)), reordered_by }
    }

    /// What a fork of the plan `new` begins with and adds, a line for each. Tokens are those that the loss counts, as in the record.
    pub(super) fn describe_fork(&self, new: &Plan, position: &ForkPosition) -> Vec<String> {
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
        if let Some(program) = new.ranks.first().map(|rank| &rank.program) {
            let facts = [old, program].map(|program| {
                let (batch, model) = (program.batch_at(*step), program.model_at(*step));
                let windows: Vec<String> =
                    model.options.windows().into_iter().map(|window| window.to_string()).collect();
                [batch.sequences.to_string(), batch.length.to_string(), windows.join(", ")]
            });
            let [was, is] = &facts;
            let stage = program.earlier.get(program.stage_of_step(*step));
            let until = stage.map_or_else(String::new, |stage| format!(" to step {}", count(stage.until)));
            let names = [
                ("batch.sequences is", "was"),
                ("the length of rows is", "was"),
                ("the windows of attention are", "were"),
            ];
            for ((name, were), (was, is)) in names.into_iter().zip(was.iter().zip(is)) {
                if was != is {
                    let [was, is] = [was, is].map(|value| if value.is_empty() { "none" } else { value });
                    lines.push(format!("{name} {is}{until}, {were} {was}"));
                }
            }
        }
        lines.push(format!(
            "the learning rate of step {} is {}; that of {id} is {}",
            count(step + 1),
            scientific(schedule.map_or(0.0, |schedule| schedule.rate(*step))),
            scientific(self.rate())
        ));
        if let Some(program) = new.ranks.first().map(|rank| &rank.program) {
            let (was, is) = (old.lr_scales(), program.lr_scales());
            let names: BTreeSet<&String> = was.keys().chain(is.keys()).collect();
            lines.extend(names.into_iter().filter_map(|name| {
                // A group that one of the two does not have has the rate of all.
                let rate =
                    |scales: &BTreeMap<String, f64>, rate: f64| scales.get(name).map_or(rate, |scale| scale * rate);
                let is = rate(&is, schedule.map_or(0.0, |schedule| schedule.rate(*step)));
                let was = rate(&was, self.rate());
                (is != was).then(|| {
                    let [is, was] = [is, was].map(scientific);
                    format!("the learning rate of {name} is {is}, and was {was} in {id}")
                })
            }));
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
        let start = if schedule.start == self.step { "" } else { "; `--set schedule.start=fork` counts from the fork" };
        Some(format!(
            "the learning rate jumps at the fork from {} to {}{factor}{start}",
            scientific(was),
            scientific(is)
        ))
    }
}

/// The schedule of the plan `new`.
fn schedule_of(new: &Plan) -> Option<&LrSchedule> {
    new.ranks.first().map(|rank| &rank.program.schedule)
}
