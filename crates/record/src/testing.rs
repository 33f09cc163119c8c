//! Checkpoints for tests of other crates.

#![allow(clippy::unwrap_used, reason = "fixtures of tests")]

use crate::checkpoint::{Checkpoints, NumberType, StateReader};
use runner_spec::model::layout::ParamLayout;
use runner_spec::model::parameters;
use runner_spec::plan::Plan;

/// Saves a checkpoint of `step` for the model of `plan`, with one moment, whose numbers depend on the step. `offset` is added to its first weight.
pub fn save_checkpoint(checkpoints: &Checkpoints, plan: &Plan, step: u64, offset: f32, val_loss: Option<f64>) {
    let layout = ParamLayout::new(parameters(&plan.ranks[0].program.model));
    let number = |index: usize| ((index as u64 + 31 * step) % 1009) as f32 / 1009.0;
    let mut numbers: Vec<f32> = (0..2 * layout.total).map(number).collect();
    numbers[0] += offset;
    let state = StateReader {
        step,
        tokens: 96 * step,
        best: None,
        layout: &layout,
        moments: 1,
        number_type: NumberType::F32,
        read: Box::new(|section, range, sink| {
            let section = &numbers[section * layout.total..][range];
            sink(&section.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>())
        }),
    };
    checkpoints.save(&state, val_loss).unwrap();
}
