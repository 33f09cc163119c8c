//! Stages of the training: a batch, a row length and windows that change at given steps.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Experiment, Layout, ParallelMode, ScheduleLength};
use crate::format::division;
use crate::model::ModelOptions;
use crate::serde_defaults::is_default;

/// The most stages before the last one: a program lists the instructions of each.
pub const MAX_STAGES: usize = 256;

/// The steps up to `until` that follow the previous stage. What a stage does not give is as in the rest of the file, which also describes the
/// steps after the last stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TrainStage {
    /// The end of the stage, counted from the start of the run.
    pub until: ScheduleLength,
    /// Sequences per optimizer step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if, range(min = 1, max = 1_000_000_000))]
    pub sequences: Option<usize>,
    /// Sequences per forward pass. Default: `batch.micro_batch`, but at most the sequences of a replica; in mode `pipeline`, sequences /
    /// replicas / microbatches, rounded up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if, range(min = 1, max = 1_000_000_000))]
    pub micro_batch: Option<usize>,
    /// Tokens per sequence, a divisor of the length in `data.layout`: each row of the data is cut into sequences of this length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if, range(min = 1, max = 16_777_216))]
    pub length: Option<usize>,
    /// The windows of attention: one for each different window of the model, in the order of their sizes.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schemars(!skip_serializing_if, inner(range(min = 1, max = 16_777_216)))]
    pub windows: Vec<u32>,
}

impl Default for TrainStage {
    /// A stage that changes nothing.
    fn default() -> Self {
        Self { until: ScheduleLength::Steps(1), sequences: None, micro_batch: None, length: None, windows: Vec::new() }
    }
}

/// A batch that grows at the start of the training. Shorthand for stages of `from`, `from` + `increment`, … sequences, which last equally long.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchWarmup {
    /// Sequences of the first step.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub from: usize,
    /// Sequences that each stage adds. `sequences` - `from` must be a multiple of it. Default: `from`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if, range(min = 1, max = 1_000_000_000))]
    pub increment: Option<usize>,
    /// The step from which on the batch has `sequences`.
    pub until: ScheduleLength,
}

impl BatchWarmup {
    /// The sequences that each stage adds.
    #[must_use]
    pub fn added(self) -> usize {
        self.increment.unwrap_or(self.from).max(1)
    }

    /// The stages of the warmup to batches of `sequences`.
    fn stages(self, sequences: usize) -> Vec<TrainStage> {
        let sizes = (self.from..sequences).step_by(self.added());
        let count = sizes.len();
        // More than that are refused, however many they are.
        let sizes = sizes.take(MAX_STAGES + 1);
        let stage = |(index, sequences)| {
            let part = |whole: u64| (u128::from(whole) * (index as u128 + 1) / count as u128) as u64;
            let until = match self.until {
                ScheduleLength::Steps(steps) => ScheduleLength::Steps(part(steps)),
                ScheduleLength::Tokens(tokens) => ScheduleLength::Tokens(part(tokens)),
                ScheduleLength::Share(share) => ScheduleLength::Share(share * (index + 1) as f64 / count as f64),
            };
            TrainStage { until, sequences: Some(sequences), ..TrainStage::default() }
        };
        sizes.enumerate().map(stage).collect()
    }
}

impl Experiment {
    /// The stages before the last one, and the key that gives them.
    #[must_use]
    pub fn earlier_stages(&self) -> (Vec<TrainStage>, &'static str) {
        match self.batch.warmup {
            Some(warmup) if self.train.stages.is_empty() => (warmup.stages(self.batch.sequences), "batch.warmup"),
            _ => (self.train.stages.clone(), "train.stages"),
        }
    }

    /// The experiment as `stage` changes it, apart from the length of rows, and the number of sequences into which it cuts a row.
    ///
    /// # Errors
    /// The key of the stage that does not fit the experiment, and why.
    pub fn at_stage(&self, stage: &TrainStage) -> Result<(Self, usize), (&'static str, String)> {
        let mut changed = self.clone();
        changed.batch.warmup = None;
        changed.train.stages = Vec::new();
        let sequences = stage.sequences.unwrap_or(self.batch.sequences);
        changed.batch.sequences = sequences;
        let is_single = self.parallel.mode == ParallelMode::Single;
        let replicas = if is_single { 1 } else { self.parallel.replicas.max(1) };
        if !sequences.is_multiple_of(replicas) {
            let sizes = division(sequences, replicas);
            return Err(("sequences", format!("must be a multiple of `parallel.replicas`: {sizes}")));
        }
        let each = sequences / replicas;
        let pipeline = self.parallel.pipeline.as_ref().filter(|_| self.parallel.mode == ParallelMode::Pipeline);
        let default = || pipeline.map_or(self.batch.micro_batch.min(each), |p| each.div_ceil(p.microbatches.max(1)));
        changed.batch.micro_batch = stage.micro_batch.unwrap_or_else(default);
        if changed.batch.micro_batch > each {
            let found = changed.batch.micro_batch;
            return Err(("micro_batch", format!("must be at most the sequences of a replica, {each}, got {found}")));
        }
        let changed_rows = [("sequences", stage.sequences), ("length", stage.length)];
        let changed_rows = changed_rows.iter().find(|(_, given)| given.is_some()).map(|(key, _)| *key);
        match (&self.data.layout, changed_rows) {
            (Layout::Columns { .. }, Some(key)) => {
                return Err((key, "cannot be used with columns, which are the sequences of a batch".to_owned()));
            }
            (Layout::Padded { .. }, _) if stage.length.is_some() => {
                return Err(("length", "cannot be used with padded rows, which hold one document each".to_owned()));
            }
            _ => {}
        }
        let whole = self.data.layout.length();
        let length = stage.length.unwrap_or(whole);
        if length == 0 || !whole.is_multiple_of(length) {
            return Err(("length", format!("must divide the length of the layout, {whole}, got {length}")));
        }
        let pieces = whole / length;
        if !sequences.is_multiple_of(pieces) {
            let why = format!(
                "does not fit: a row of {whole} tokens is cut into {pieces} sequences of {length}, and the {sequences} sequences of a step must be whole rows, \
                 a multiple of {pieces}"
            );
            return Err(("length", why));
        }
        if !stage.windows.is_empty() {
            let windows = self.model.options.windows();
            if windows.len() != stage.windows.len() {
                let has = match windows.as_slice() {
                    [] => "no window".to_owned(),
                    [one] => format!("one window, {one}"),
                    more => format!(
                        "{} windows, {}",
                        more.len(),
                        more.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
                    ),
                };
                return Err((
                    "windows",
                    format!("must have one for each window of the model, which has {has}; got {}", stage.windows.len()),
                ));
            }
            let replaced = |window: &mut u32| {
                if let Some(index) = windows.iter().position(|known| known == window) {
                    *window = stage.windows[index];
                }
            };
            changed.model.options.windows_mut().for_each(replaced);
        }
        Ok((changed, pieces))
    }
}

impl ModelOptions {
    /// The different windows of the layers, ascending.
    #[must_use]
    pub fn windows(&self) -> Vec<u32> {
        let mut windows: Vec<u32> =
            self.window.into_iter().chain(self.pattern.iter().filter_map(|layer| layer.window)).collect();
        windows.sort_unstable();
        windows.dedup();
        windows
    }

    fn windows_mut(&mut self) -> impl Iterator<Item = &mut u32> {
        self.window.iter_mut().chain(self.pattern.iter_mut().filter_map(|layer| layer.window.as_mut()))
    }
}
