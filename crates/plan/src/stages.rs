//! The stages of a run: the batch and the model of each, where it ends, and which rows it reads.

use crate::compile::{batch_sizes, row_length};
use crate::error::{PlanError, Result, refuse};
use crate::ranks;
use runner_spec::experiment::{Experiment, MAX_STAGES, Recompute, ScheduleLength, TrainStage};
use runner_spec::format::count;
use runner_spec::model::ModelSpec;
use runner_spec::plan::{Pace, StagePace};
use runner_spec::program::{BatchSpec, BlockRange, DataPosition, RowOrder, RowSequence};

const WARMUP: &str = "batch.warmup";

/// The stages of a run of unknown length.
#[derive(Debug)]
pub(crate) struct Stages {
    earlier: Vec<UnplacedStage>,
    last: Stage,
    /// The position from which rows are counted.
    position: Option<DataPosition>,
    /// Rows of the training data.
    rows: u64,
}

#[derive(Debug)]
struct UnplacedStage {
    /// The key of the stage in the file.
    key: String,
    until: ScheduleLength,
    stage: Stage,
}

#[derive(Debug, Clone)]
pub(crate) struct Stage {
    pub(crate) model: ModelSpec,
    pub(crate) batch: BatchSpec,
    pub(crate) flops_per_step: f64,
}

/// The stages of a run of known length, each with the position of its first row.
#[derive(Debug)]
pub(crate) struct PlacedStages {
    pub(crate) earlier: Vec<PlacedStage>,
    pub(crate) last: Stage,
}

#[derive(Debug)]
pub(crate) struct PlacedStage {
    /// The key of the stage in the file.
    pub(crate) key: String,
    /// The steps of the run when it ends.
    pub(crate) until: u64,
    pub(crate) stage: Stage,
}

impl Stages {
    /// The stages of `experiment`, whose model is `model`, with rows in `order` from `position` on, out of `rows`.
    ///
    /// # Errors
    /// If a stage does not fit the experiment.
    pub(crate) fn new(
        experiment: &Experiment,
        model: &ModelSpec,
        order: RowOrder,
        position: Option<DataPosition>,
        rows: u64,
    ) -> Result<Self> {
        let (given, section) = experiment.earlier_stages();
        if given.len() > MAX_STAGES {
            refuse!(section, "must be at most {MAX_STAGES} stages");
        }
        let mut earlier = Vec::with_capacity(given.len());
        for (index, stage) in given.iter().enumerate() {
            let is_warmup = section == WARMUP;
            let key = if is_warmup { section.to_owned() } else { format!("{section}.{index}") };
            earlier.push(Self::earlier(experiment, model, (order, rows), stage, key)?);
        }
        Ok(Self { earlier, last: Stage::new(experiment, model.clone(), order, 1)?, position, rows })
    }

    fn earlier(
        experiment: &Experiment,
        model: &ModelSpec,
        (order, rows): (RowOrder, u64),
        stage: &TrainStage,
        key: String,
    ) -> Result<UnplacedStage> {
        let (changed, pieces) =
            experiment.at_stage(stage).map_err(|(part, why)| PlanError::value(format!("{key}.{part}"), why))?;
        let in_stage = |error: PlanError| error.in_stage(&key);
        let model = changed.model.spec(model.vocab_size);
        let settled = Stage::new(&changed, model, order, pieces).map_err(in_stage)?;
        let epoch_rows = order.epoch_rows.map_or(rows, |epoch_rows| epoch_rows.min(rows));
        let read = (settled.batch.sequences / pieces) as u64;
        if order.drop_last && read > epoch_rows {
            refuse!(
                key,
                "each step reads {read} rows, but data.drop_last leaves out rows that do not fill a batch, and an epoch has {epoch_rows}"
            );
        }
        Ok(UnplacedStage { key, until: stage.until, stage: settled })
    }

    /// The steps that were done before the position from which rows are counted.
    pub(crate) fn inherited_steps(&self) -> u64 {
        self.position.map_or(0, |position| position.step)
    }

    pub(crate) fn flops_of_last_step(&self) -> f64 {
        self.last.flops_per_step
    }

    /// True if all steps have the same batch and model.
    pub(crate) fn is_single(&self) -> bool {
        self.earlier.is_empty()
    }

    /// The steps after which the earlier stages end, in a run of `steps` steps, whether or not they are in order.
    fn ends(&self, steps: u64) -> Vec<u64> {
        let start = self.position.unwrap_or_default();
        let (mut done, mut tokens) = (start.step, start.tokens);
        let end = |UnplacedStage { until, stage, .. }: &UnplacedStage| {
            let per_step = stage.tokens_per_step();
            let end = match *until {
                ScheduleLength::Tokens(all) => {
                    let own = ScheduleLength::Tokens(all.saturating_sub(tokens));
                    if all > tokens { done.saturating_add(own.steps(steps, per_step)) } else { done }
                }
                other => other.steps(steps, 1),
            };
            tokens = tokens.saturating_add(end.saturating_sub(done).saturating_mul(per_step));
            done = done.max(end);
            end
        };
        self.earlier.iter().map(end).collect()
    }

    /// The stages of a run of `steps` steps, without those that end before the run's own first step, each with the position of its first row.
    ///
    /// # Errors
    /// If a stage does not end after the one before it, or not before the run.
    pub(crate) fn placed(&self, steps: u64) -> Result<PlacedStages> {
        let first = self.position.map_or(0, |position| position.step);
        let mut done = first;
        for (stage, end) in self.earlier.iter().zip(self.ends(steps)) {
            // A fork may begin after the first stages.
            if end <= first && self.position.is_some() {
                continue;
            }
            if stage.key == WARMUP && end <= done {
                let sizes = self.earlier.len();
                refuse!(
                    WARMUP,
                    "a warmup through {sizes} batch sizes needs at least one step for each; end it later, or use a larger increment"
                );
            }
            let rule = match end {
                0 => "after step 0, the start of the run".to_owned(),
                _ if end <= done => format!("after step {}, the end of the stage before", count(done)),
                _ if end >= steps => format!("before step {}, the end of the run", count(steps)),
                _ => {
                    done = end;
                    continue;
                }
            };
            refuse!(format!("{}.until", stage.key), "the stage must end {rule}, got step {}", count(end));
        }
        Ok(self.laid_out(steps))
    }

    /// The stages of a run of `steps` steps, as far as there are steps for them.
    fn laid_out(&self, steps: u64) -> PlacedStages {
        let (mut position, mut done) = (self.position, self.position.map_or(0, |position| position.step));
        let mut earlier = Vec::new();
        for (UnplacedStage { key, stage, .. }, end) in self.earlier.iter().zip(self.ends(steps)) {
            let until = end.min(steps);
            if until <= done {
                continue;
            }
            let stage = stage.at(position);
            position = Some(stage.batch.row_sequence(self.rows).position_after(until));
            done = until;
            earlier.push(PlacedStage { key: key.clone(), until, stage });
        }
        PlacedStages { earlier, last: self.last.at(position) }
    }

    /// The rows that a run of `steps` steps reads.
    pub(crate) fn row_sequence(&self, steps: u64) -> RowSequence {
        self.laid_out(steps).row_sequence(self.rows)
    }

    /// The FLOPs of a run of `steps` steps. Steps before the position count as steps of the last stage with their tokens.
    pub(crate) fn flops(&self, steps: u64) -> f64 {
        let start = self.position.unwrap_or_default();
        let before = start.tokens as f64 / self.last.tokens_per_step().max(1) as f64 * self.last.flops_per_step;
        let pace = self.laid_out(steps).pace();
        before + pace.flops_after(steps) - pace.flops_after(start.step)
    }
}

impl Stage {
    fn new(experiment: &Experiment, model: ModelSpec, order: RowOrder, pieces: usize) -> Result<Self> {
        let (sequences, micro_batch) = batch_sizes(experiment)?;
        let length = row_length(experiment)? / pieces;
        let whole = [BlockRange { start: 0, end: model.block_count() }];
        let tokens = (sequences as u64).saturating_mul(length as u64);
        let flops_per_step = ranks::flops(&model, Recompute::None, &whole, tokens, length).step;
        let mask_padding = experiment.data.layout.masks_padding(model.options.mask);
        let slice = (0, sequences);
        let batch =
            BatchSpec { sequences, slice, stride: 1, micro_batch, length, pieces, mask_padding, order, position: None };
        Ok(Self { model, batch, flops_per_step })
    }

    /// The stage whose first row is at `position`.
    fn at(&self, position: Option<DataPosition>) -> Self {
        Self { batch: BatchSpec { position, ..self.batch.clone() }, ..self.clone() }
    }

    /// `run_steps` refuses a product that does not fit.
    fn tokens_per_step(&self) -> u64 {
        (self.batch.sequences as u64).saturating_mul(self.batch.length as u64)
    }
}

impl PlacedStages {
    /// The rows that the run reads, of training data with `rows` rows.
    pub(crate) fn row_sequence(&self, rows: u64) -> RowSequence {
        let last = self.last.batch.row_sequence(rows);
        let before = |later, placed: &PlacedStage| placed.stage.batch.row_sequence(rows).then(placed.until, later);
        self.earlier.iter().rev().fold(last, before)
    }

    pub(crate) fn pace(&self) -> Pace {
        let of = |PlacedStage { until, stage, .. }: &PlacedStage| StagePace {
            until: *until,
            tokens_per_step: stage.tokens_per_step(),
            flops_per_step: stage.flops_per_step,
            step_seconds: None,
        };
        Pace {
            tokens_per_step: self.last.tokens_per_step(),
            flops_per_step: self.last.flops_per_step,
            earlier_stages: self.earlier.iter().map(of).collect(),
        }
    }
}
