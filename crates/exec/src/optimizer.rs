//! The optimizer step: the clip scale that the gradient norm gives, and the learning rate of the step.

use candle_core::Result;

use super::trainer::Trainer;
use runner_compute::optim;
use runner_spec::program::LrSchedule;

#[derive(Debug)]
pub(super) struct Optimizer<'a> {
    schedule: &'a LrSchedule,
    clip_scale: f64,
}

impl<'a> Optimizer<'a> {
    pub(super) fn new(schedule: &'a LrSchedule) -> Self {
        Self { schedule, clip_scale: 1.0 }
    }

    /// The next update scales gradients of norm `grad_norm` down to `max_norm`.
    pub(super) fn clip(&mut self, grad_norm: f64, max_norm: Option<f64>) {
        self.clip_scale = optim::clip_scale(grad_norm, max_norm);
    }

    /// The learning rate of `step`, which counts from 0.
    pub(super) fn learning_rate(&self, step: u64) -> f64 {
        optim::lr_at(self.schedule, step)
    }

    /// Updates the weights with the clipped gradients.
    ///
    /// # Errors
    /// None on a CPU.
    pub(super) fn step(&mut self, trainer: &mut Trainer) -> Result<()> {
        let clip_scale = std::mem::replace(&mut self.clip_scale, 1.0);
        trainer.update(self.learning_rate(trainer.state.step), clip_scale)
    }
}
