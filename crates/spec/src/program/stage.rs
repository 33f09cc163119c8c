//! The stages of a program: steps with another batch or other windows than the last ones.

use serde::{Deserialize, Serialize};

use super::{BatchSpec, DataPosition, Instruction, Program, RowSequence};
use crate::model::ModelSpec;

/// The values that replace a program's from the end of the stage before up to step `until`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EarlierStage {
    /// The steps of the run when the stage ends.
    pub until: u64,
    pub batch: BatchSpec,
    /// The model, if its windows differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelSpec>,
    /// See [`Program::step`].
    pub step: Vec<Instruction>,
    pub flops_per_step: f64,
}

impl Program {
    /// Adds `earlier` as the stage that ends at step `until`.
    pub fn push_stage(&mut self, until: u64, earlier: Self) {
        self.earlier.push(EarlierStage {
            until,
            batch: earlier.batch,
            model: Some(earlier.model).filter(|model| *model != self.model),
            step: earlier.step,
            flops_per_step: earlier.flops_per_step,
        });
    }

    /// The index of the stage of `step`, from 0, among [`Self::stages`].
    #[must_use]
    pub fn stage_of_step(&self, step: u64) -> usize {
        self.earlier.iter().take_while(|stage| stage.until <= step).count()
    }

    /// The program of each stage, in order. None of them has earlier stages.
    #[must_use]
    pub fn stages(&self) -> Vec<Self> {
        let last = Self { earlier: Vec::new(), ..self.clone() };
        let stage = |stage: &EarlierStage| Self {
            batch: stage.batch.clone(),
            model: stage.model.as_ref().unwrap_or(&self.model).clone(),
            step: stage.step.clone(),
            flops_per_step: stage.flops_per_step,
            ..last.clone()
        };
        self.earlier.iter().map(stage).chain([last.clone()]).collect()
    }

    /// The steps of the run when each of [`Self::stages`] ends.
    pub fn stage_ends(&self) -> impl Iterator<Item = u64> {
        self.earlier.iter().map(|stage| stage.until).chain([self.steps])
    }

    /// The model as step `step`, from 0, trains it.
    #[must_use]
    pub fn model_at(&self, step: u64) -> &ModelSpec {
        self.earlier.get(self.stage_of_step(step)).and_then(|stage| stage.model.as_ref()).unwrap_or(&self.model)
    }

    /// The batch of `step`, from 0.
    #[must_use]
    pub fn batch_at(&self, step: u64) -> &BatchSpec {
        self.earlier.get(self.stage_of_step(step)).map_or(&self.batch, |stage| &stage.batch)
    }

    /// The instructions of `step`, from 0.
    #[must_use]
    pub fn instructions_at(&self, step: u64) -> &[Instruction] {
        self.earlier.get(self.stage_of_step(step)).map_or(&self.step, |stage| &stage.step)
    }

    /// The position from which the run counts rows.
    #[must_use]
    pub fn first_position(&self) -> Option<DataPosition> {
        self.batch_at(0).position
    }

    /// The rows of the data that each step reads, of training data with `rows` rows.
    #[must_use]
    pub fn row_sequence(&self, rows: u64) -> RowSequence {
        let last = self.batch.row_sequence(rows);
        let earlier = self.earlier.iter().rev();
        earlier.fold(last, |later, stage| stage.batch.row_sequence(rows).then(stage.until, later))
    }
}
