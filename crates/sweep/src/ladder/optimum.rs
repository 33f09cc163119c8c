//! The size with the lowest loss, of a ladder whose rungs all cost the same FLOPs (Hoffmann et al. 2022, approach 2).

use runner_spec::format::count;
use runner_spec::philox::Philox;
use runner_stats::{ParabolaFit, ScaledLoss, rungs_needed};

use super::{LadderResults, LadderRun, SizeOptimum, rungs, support, tuning};

impl LadderResults {
    /// The FLOPs of the rungs, if these are enough sizes that cost the same.
    pub(super) fn shared_flops(&self) -> Option<f64> {
        self.budget.filter(|_| rungs(&self.runs).len() >= rungs_needed(1))
    }

    /// The vertex of a parabola of ln L over ln N.
    ///
    /// # Errors
    /// If the losses do not show the best size.
    pub(super) fn optimum(&self, flops: f64) -> Result<SizeOptimum, String> {
        let none = |reason: String| format!("the losses do not show the best size for {flops:.3e} FLOPs: {reason}");
        if let Some(reason) = support::describe_diverged(self.diverged) {
            return Err(none(reason));
        }
        let scaled = |run: &LadderRun| ScaledLoss { scale: vec![run.parameters], loss: run.loss };
        let scaled: Vec<ScaledLoss> = self.runs.iter().map(scaled).collect();
        let fit = ParabolaFit::new(&scaled, None, Philox::new(0, "best size"))
            .ok_or("a parabola over the size needs three sizes and positive losses")?;
        let tuned = tuning::tuned_rungs(&self.runs, &self.tuned, (fit.noise, fit.freedom));
        if let Some(reason) = tuning::describe_off(&tuned) {
            return Err(none(reason));
        }
        let size = |x: f64| format!("{} parameters", count(x as u64));
        let parameters = fit.vertex().map_err(|reason| none(tuning::describe_no_vertex(reason, "size", size)))?;
        let tokens = self.tokens_of_size(parameters.value);
        Ok(SizeOptimum {
            metric: self.metric.clone(),
            flops,
            parameters,
            tokens,
            epochs: self.epochs(tokens),
            loss: fit.best_in_range()[1],
            runs: self.runs.len(),
            rungs: rungs(&self.runs).len(),
            missing: self.missing,
            degrees_of_freedom: fit.freedom,
            noise: fit.noise,
            lack_of_fit: fit.has_lack_of_fit,
            measured_on: self.measured_on,
            tuning: tuned.into_iter().map(|(rung, _)| rung).collect(),
        })
    }

    /// The tokens of a size between two rungs, on a logarithmic scale.
    fn tokens_of_size(&self, parameters: f64) -> f64 {
        let mut rungs: Vec<LadderRun> = rungs(&self.runs).into_iter().map(|rung| rung[0]).collect();
        rungs.sort_by(|a, b| a.parameters.total_cmp(&b.parameters));
        let pair = rungs.windows(2).find(|pair| pair[1].parameters >= parameters);
        let Some([below, above]) = pair else { return f64::NAN };
        let share = (parameters / below.parameters).ln() / (above.parameters / below.parameters).ln();
        below.tokens * (above.tokens / below.tokens).powf(share)
    }
}
