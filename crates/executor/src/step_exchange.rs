//! The two messages that all ranks exchange about a step: one before its forward passes, one after its backward passes.

use std::time::Duration;

use super::error::ExecError;
use super::rank_context::RankContext;

/// The facts on which all ranks agree at the beginning of a step.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct StepAgreement {
    /// Valid tokens of the global batch.
    pub tokens: u64,
    /// True if any rank was asked to stop when the step began. All ranks then stop after this step.
    pub stop_requested: bool,
}

impl StepAgreement {
    /// Combines what this rank knows with what the other ranks know. Only the first stage of each replica counts tokens.
    ///
    /// # Errors
    /// Those of the communication.
    pub(super) fn reach(context: RankContext<'_>, own_tokens: u64, stop_requested: bool) -> Result<Self, ExecError> {
        let tokens = if context.stage == 0 { own_tokens } else { 0 };
        // An f64 holds every count up to 2^53.
        let all = context.gather_numbers(&[tokens as f64, f64::from(u8::from(stop_requested))])?;
        Ok(Self {
            tokens: all.iter().map(|row| row[0] as u64).sum(),
            stop_requested: all.iter().any(|row| row[1] != 0.0),
        })
    }
}

/// Sums over all ranks when the gradients of a step are complete.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct StepTotals {
    /// Summed negative log-likelihood of the global batch.
    pub loss: f64,
    /// Global L2 norm of the gradients before clipping.
    pub grad_norm: f64,
    /// Mean over ranks of the seconds spent in communication.
    pub communication: f64,
}

impl StepTotals {
    /// `squares` is the sum of squares of the gradients that this rank counts.
    ///
    /// # Errors
    /// Those of the communication.
    pub(super) fn gather(
        context: RankContext<'_>,
        squares: f64,
        loss: f64,
        communication: Duration,
    ) -> Result<Self, ExecError> {
        let all = context.gather_numbers(&[squares, loss, communication.as_secs_f64()])?;
        let sum = |column: usize| all.iter().map(|row| row[column]).sum::<f64>();
        Ok(Self { loss: sum(1), grad_norm: sum(0).sqrt(), communication: sum(2) / all.len() as f64 })
    }
}
