//! The forecasts of a ladder's law, and the checks that support them: rungs that are predicted from smaller ones.

use runner_spec::philox::Philox;
use runner_stats::{Interval, LawFit, Prediction, ScalingLaw};

use super::{
    HeldOutRung, LadderPrediction, LadderResults, LadderRun, LadderTarget, LeftOutRung, Scale, fit, mean_loss, range,
    rungs, slope, support,
};

/// The share of the range of the rungs' losses above which a predicted interval is too wide to be a strong check.
const MAX_SHARE_OF_RANGE: f64 = 0.5;
/// The FLOPs of the run that is predicted if no target is given, as a multiple of the largest rung's.
const DEFAULT_EXTRAPOLATION: f64 = 10.0;

impl LadderResults {
    /// A run of ten times the FLOPs of the largest rung.
    pub(super) fn default_target(&self, scales: &[Scale]) -> Result<LadderTarget, String> {
        let largest = self.runs.last().ok_or("there are no results")?;
        let factor = DEFAULT_EXTRAPOLATION.powf(1.0 / scales.len() as f64);
        Ok(LadderTarget(scales.iter().map(|scale| (*scale, factor * scale.of(largest))).collect()))
    }

    /// Predictions of the rung with the most FLOPs from those without the largest one, two, ...: as many as leave enough rungs for the law, with
    /// the reason why there are no more.
    pub(super) fn checks(&self, scales: &[Scale]) -> (Vec<HeldOutRung>, String) {
        let (mut checks, mut others) = (Vec::new(), self.runs.clone());
        loop {
            let Some(largest) = others.last().map(LadderRun::rung) else {
                return (checks, "there are no results".into());
            };
            others.retain(|run| run.rung() != largest);
            match self.hold_out(scales, &others) {
                Ok(check) => checks.push(check),
                Err(reason) => return (checks, reason),
            }
        }
    }

    /// Predicts the rung with the most FLOPs from the runs `others`.
    pub(super) fn hold_out(&self, scales: &[Scale], others: &[LadderRun]) -> Result<HeldOutRung, String> {
        let largest = self.runs.last().ok_or("there are no results")?;
        let held_out: Vec<LadderRun> = self.runs.iter().filter(|run| run.rung() == largest.rung()).copied().collect();
        let below = others.last().map_or(f64::NAN, |run| run.flops);
        let fitted = fit(others, scales, "ladder without its largest rungs")
            .map_err(|error| format!("the largest rung is not held out: without it, {error}"))?;
        let scale: Vec<f64> = scales.iter().map(|scale| scale.of(largest)).collect();
        let stream = Philox::new(0, "measurement of the largest rung");
        let predicted = fitted.predict_measurement(&scale, held_out.len(), stream);
        let measured = mean_loss(&held_out);
        let (low, high) = self.losses();
        Ok(HeldOutRung {
            flops: largest.flops,
            parameters: largest.parameters,
            tokens: largest.tokens,
            extrapolation: largest.flops / below,
            rungs_left: rungs(others).len(),
            runs: held_out.len(),
            measured,
            predicted,
            is_in_interval: predicted.interval.contains(measured),
            range_of_losses: high - low,
            is_strong: 2.0 * predicted.interval.half_width() <= MAX_SHARE_OF_RANGE * (high - low),
        })
    }

    pub(super) fn predict(
        &self,
        target: &LadderTarget,
        scales: &[Scale],
        fitted: &LawFit,
        unsupported: Option<&String>,
        checks: &[HeldOutRung],
    ) -> Result<LadderPrediction, String> {
        let LadderTarget(given) = target;
        let [mut parameters, mut tokens, flops] = self.run_at(target);
        let mut optimum = None;
        let at = match (scales, given.as_slice()) {
            ([_, _], [(Scale::Flops, _)]) => {
                let best = self.optimal_parameters(&fitted.law, flops);
                // There is none if a term is 0.
                if best.is_normal() {
                    (parameters, tokens) = (best, flops / (self.flops_per_pair() * best));
                    let interval = fitted.interval_of(|law| self.optimal_parameters(law, flops));
                    optimum = Some(Prediction { value: best, interval });
                }
                vec![parameters, tokens]
            }
            ([_, _], _) => {
                let both: Option<Vec<f64>> = scales.iter().map(|scale| target.value_of(*scale)).collect();
                let both = both.filter(|both| both.len() == given.len());
                let rule = "this ladder fits L(N, D), so a target gives both, `--target parameters=X,tokens=X`, or flops=X, whose best size is \
                            then taken";
                both.ok_or(rule)?
            }
            // Along the ladder, each scale determines the others.
            (_, [(scale, _)]) if self.range_of(*scale) >= scale.least_span() => vec![flops],
            (_, [(scale, _)]) => {
                return Err(format!(
                    "{} of the rungs hardly differ, so they determine no run; give flops as the target",
                    scale.name()
                ));
            }
            _ => {
                return Err("this ladder varies parameters and tokens together, so a target gives one of flops, parameters and tokens".to_owned());
            }
        };
        let extrapolation = flops / self.runs.last().map_or(f64::NAN, |run| run.flops);
        let reach = self.reach(scales, [parameters, tokens, flops]);
        let target = given.iter().map(|(scale, value)| (scale.name(), *value)).collect();
        let not_supported = unsupported.cloned().or_else(|| support::unsupported_reach(reach, checks));
        let without = if not_supported.is_none() { self.without_each_rung(scales, &at) } else { Vec::new() };
        let late = if not_supported.is_none() { self.without_smallest(scales, &at) } else { Vec::new() };
        let supported = |found: Prediction| not_supported.is_none().then(|| include(found, &late));
        let loss = supported(fitted.predict(&at));
        let stream = Philox::new(0, "measurement of a forecast's run");
        let measurement = supported(fitted.predict_measurement(&at, 1, stream)).map(|found| found.interval);
        let optimum = optimum.filter(|_| loss.is_some());
        Ok(LadderPrediction {
            target,
            loss,
            measurement,
            optimum,
            drift: None,
            not_supported,
            without,
            epochs: self.epochs(tokens),
            parameters,
            tokens,
            flops,
            extrapolation,
        })
    }

    /// The FLOPs of a run for each parameter and token: the geometric mean of the rungs.
    fn flops_per_pair(&self) -> f64 {
        let logs = self.runs.iter().map(|run| (run.flops / (run.parameters * run.tokens)).ln());
        (logs.sum::<f64>() / self.runs.len() as f64).exp()
    }

    /// The N of the lowest loss E + A·N^-a + B·D^-b with `flops` = k·N·D: ((a·A / b·B) · (flops / k)^b)^(1 / (a + b)) (Hoffmann et al. 2022,
    /// equation 4).
    fn optimal_parameters(&self, law: &ScalingLaw, flops: f64) -> f64 {
        let [of_size, of_tokens] = law.terms.as_slice() else { return f64::NAN };
        let (a, b) = (of_size.exponent, of_tokens.exponent);
        let share = (a * of_size.coefficient / (b * of_tokens.coefficient)).ln();
        ((share + b * (flops / self.flops_per_pair()).ln()) / (a + b)).exp()
    }

    /// The factor from the smallest to the largest rung.
    pub(super) fn range_of(&self, scale: Scale) -> f64 {
        let (low, high) = range(self.runs.iter().map(|run| scale.of(run)));
        high / low
    }

    /// How far a run lies outside of the rungs, as a factor of FLOPs; 1 within them. A factor in parameters or tokens counts twice, because FLOPs
    /// grow with both.
    fn reach(&self, scales: &[Scale], [parameters, tokens, flops]: [f64; 3]) -> f64 {
        let outside = |scale: Scale, value: f64| {
            let (low, high) = range(self.runs.iter().map(|run| scale.of(run)));
            (value / high).max(low / value).max(1.0)
        };
        let size = outside(Scale::Parameters, parameters).max(outside(Scale::Tokens, tokens));
        outside(Scale::Flops, flops).max(if scales.len() == 2 { size * size } else { 1.0 })
    }

    /// The loss at `scale` that the law of the other rungs gives, for each rung; nothing if there are too few.
    fn without_each_rung(&self, scales: &[Scale], scale: &[f64]) -> Vec<LeftOutRung> {
        let all = rungs(&self.runs);
        let without = |rung: &Vec<LadderRun>| {
            let others: Vec<LadderRun> = self.runs.iter().filter(|run| run.rung() != rung[0].rung()).copied().collect();
            let law = fit(&others, scales, "ladder without a rung").ok()?;
            Some(LeftOutRung { parameters: rung[0].parameters, tokens: rung[0].tokens, loss: law.law.loss(scale) })
        };
        all.iter().filter_map(without).collect()
    }

    /// The loss at `scale` by the law of the rungs without the smallest one, two, ...
    fn without_smallest(&self, scales: &[Scale], scale: &[f64]) -> Vec<f64> {
        let all = rungs(&self.runs);
        let law = |first: usize| {
            let others: Vec<LadderRun> = all[first..].iter().flatten().copied().collect();
            Some(fit(&others, scales, "ladder without its smallest rungs").ok()?.law.loss(scale))
        };
        (1..all.len()).map_while(law).collect()
    }

    /// Parameters, tokens and FLOPs of a run with the scales of `target`: the largest rung, grown as the rungs grow. FLOPs that are not given
    /// are proportional to parameters times tokens.
    fn run_at(&self, target: &LadderTarget) -> [f64; 3] {
        let Some(largest) = self.runs.last() else { return [f64::NAN; 3] };
        let grown = |scale: Scale| {
            let (from, value) = target.0.first().copied().unwrap_or((scale, scale.of(largest)));
            let pairs: Vec<[f64; 2]> = self.runs.iter().map(|run| [from.of(run).ln(), scale.of(run).ln()]).collect();
            scale.of(largest) * (value / from.of(largest)).powf(slope(&pairs))
        };
        let [parameters, tokens] =
            [Scale::Parameters, Scale::Tokens].map(|scale| target.value_of(scale).unwrap_or_else(|| grown(scale)));
        let proportional = largest.flops * (parameters / largest.parameters) * (tokens / largest.tokens);
        [parameters, tokens, target.value_of(Scale::Flops).unwrap_or(proportional)]
    }
}

/// `predicted` with an interval that contains the forecasts `late`, which leave out the smallest rungs. Rungs that are too small for the law move
/// the forecast by more than the seeds show.
fn include(predicted: Prediction, late: &[f64]) -> Prediction {
    let Interval { low, high } = predicted.interval;
    let losses = || late.iter().copied();
    let interval = Interval { low: losses().fold(low, f64::min), high: losses().fold(high, f64::max) };
    Prediction { interval, ..predicted }
}
