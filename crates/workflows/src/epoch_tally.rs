//! The losses of the current epoch, from which the line at its end is made. They are read from the record when a session begins, so a
//! resumed run reports the same numbers as an uninterrupted one.

use std::path::Path;

use runner_record::RecordError;
use runner_record::metrics::{MetricLine, TrainLine, for_each_metric};
use runner_spec::event::{EpochMetrics, StepMetrics};

/// A run reports at most about this many ends of epochs: shorter epochs are reported together.
const MAX_REPORTS: u64 = 100;

/// Sums over the steps since the last end of an epoch that was reported.
#[derive(Debug, Clone, Default)]
pub(crate) struct EpochTally {
    /// The least number of steps from one report to the next.
    min_steps: u64,
    /// Epochs of the whole run.
    total_epochs: f64,
    /// The steps after which reading started again at the first row of the training data.
    restarts: Vec<u64>,
    /// Completed passes over the training rows.
    position: f64,
    /// The passes that were reported, or cannot be.
    reported: u64,
    steps: u64,
    /// The summed loss of all tokens.
    loss: f64,
    tokens: u64,
    seconds: f64,
    /// True if a step of the epoch is unknown: its loss was not finite, which the record does not
    /// have.
    is_incomplete: bool,
}

impl EpochTally {
    /// The tally of a run of `steps` steps and `epochs` passes that has recorded the steps in the file `metrics`. After each of the steps
    /// `restarts`, reading started again at the first row of the training data.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(crate) fn read(metrics: &Path, steps: u64, epochs: f64, restarts: Vec<u64>) -> Result<Self, RecordError> {
        let min_steps = steps.div_ceil(MAX_REPORTS);
        let mut tally = Self { min_steps, total_epochs: epochs, restarts, ..Self::default() };
        for_each_metric(metrics, &mut |line| match line {
            MetricLine::Train(TrainLine { step, epoch: Some(epoch), loss, tokens, step_ms, .. }) => {
                // The record has no loss that is not finite.
                let loss = loss.unwrap_or(f64::NAN);
                let step_ms = step_ms.unwrap_or(0.0);
                let _ = tally.add(&StepMetrics { step, epoch, loss, tokens, step_ms, ..StepMetrics::default() });
            }
            MetricLine::Train(_) => tally.is_incomplete = true,
            MetricLine::Eval(_) => {}
        })?;
        Ok(tally)
    }

    /// Counts a step. Returns the report about the epoch that it ended, if one is due.
    pub(crate) fn add(&mut self, step: &StepMetrics) -> Option<EpochMetrics> {
        if self.restarts.contains(&step.step.saturating_sub(1)) {
            *self = self.restarted(0.0, 0);
        }
        let before = self.position.floor();
        self.position = step.epoch;
        self.steps += 1;
        self.is_incomplete |= !step.loss.is_finite();
        self.loss += step.loss * step.tokens as f64;
        self.tokens += step.tokens;
        self.seconds += step.step_ms / 1e3;
        let epoch = step.epoch.floor();
        if epoch <= before || (self.steps < self.min_steps && !self.is_last_end(step)) {
            return None;
        }
        let done = self.restarted(step.epoch, epoch as u64);
        let tally = std::mem::replace(self, done);
        (!tally.is_incomplete).then(|| EpochMetrics {
            first: tally.reported + 1,
            epoch: epoch as u64,
            step: step.step,
            loss: tally.loss / tally.tokens.max(1) as f64,
            tokens: tally.tokens,
            seconds: tally.seconds,
        })
    }

    /// A tally of the same run without steps, at a position of the data up to which `reported` passes were reported.
    fn restarted(&self, position: f64, reported: u64) -> Self {
        let Self { min_steps, total_epochs, ref restarts, .. } = *self;
        Self { min_steps, total_epochs, restarts: restarts.clone(), position, reported, ..Self::default() }
    }

    /// True if the run has no step that ends a later epoch than `step`.
    fn is_last_end(&self, step: &StepMetrics) -> bool {
        step.epoch.floor() + 1.0 > self.total_epochs
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Steps of 8 tokens and 500 ms, `per_epoch` of which are an epoch.
    fn step(step: u64, per_epoch: f64) -> StepMetrics {
        let (epoch, loss) = (step as f64 / per_epoch, 4.0 / step as f64);
        StepMetrics { step, epoch, loss, tokens: 8 * step, step_ms: 500.0, ..StepMetrics::default() }
    }

    /// The reports of a run whose process is killed after `killed_at` steps.
    fn reports(steps: u64, per_epoch: f64, killed_at: u64) -> Vec<EpochMetrics> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let (mut lines, mut reports) = (String::new(), Vec::new());
        let epochs = steps as f64 / per_epoch;
        let mut tally = EpochTally::read(&path, steps, epochs, Vec::new()).unwrap();
        for n in 1..=steps {
            let metrics = step(n, per_epoch);
            lines += &(serde_json::to_string(&MetricLine::from(&metrics)).unwrap() + "\n");
            reports.extend(tally.add(&metrics));
            if n == killed_at {
                fs::write(&path, &lines).unwrap();
                tally = EpochTally::read(&path, steps, epochs, Vec::new()).unwrap();
            }
        }
        reports
    }

    #[test]
    fn an_epoch_is_reported_with_the_step_that_ends_it() {
        let reports = reports(5, 2.5, 0);
        let ends: Vec<_> = reports.iter().map(|r| (r.first, r.epoch, r.step, r.tokens, r.seconds)).collect();
        assert_eq!(ends, [(1, 1, 3, 48, 1.5), (2, 2, 5, 72, 1.0)]);
        // Each step has the summed loss 32.
        assert_eq!((reports[0].loss, reports[1].loss), (3.0 * 32.0 / 48.0, 2.0 * 32.0 / 72.0));
    }

    #[test]
    fn a_resumed_run_reports_the_same() {
        for killed_at in 1..=12 {
            assert_eq!(reports(12, 4.0, killed_at), reports(12, 4.0, 0), "{killed_at}");
        }
    }

    #[test]
    fn short_epochs_are_reported_together() {
        let reports = reports(1000, 1.0, 555);
        let ends: Vec<_> = reports.iter().map(|r| (r.first, r.epoch)).collect();
        assert_eq!((ends.len(), ends[0], ends[99]), (100, (1, 10), (991, 1000)));
    }

    #[test]
    fn the_last_short_epochs_are_reported() {
        let last = |steps, per_epoch, killed_at| {
            let reports = reports(steps, per_epoch, killed_at);
            assert!(reports.len() <= 101, "{}", reports.len());
            reports.last().map(|r| (r.first, r.epoch, r.step))
        };
        for killed_at in [0, 995, 999] {
            assert_eq!(last(1000, 8.0, killed_at), Some((125, 125, 1000)), "{killed_at}");
            // The last epoch ends before the run does.
            assert_eq!(last(1003, 8.0, killed_at), Some((125, 125, 1000)), "{killed_at}");
        }
        assert_eq!(last(1003, 3.0, 0), Some((333, 334, 1002)));
    }

    #[test]
    fn an_epoch_with_a_loss_that_is_not_finite_is_not_reported() {
        let mut tally = EpochTally { total_epochs: 2.0, ..EpochTally::default() };
        let losses = [1.0, f64::NAN, 1.0, 1.0];
        let metrics = |n: u64| StepMetrics { loss: losses[n as usize - 1], ..step(n, 2.0) };
        let reports: Vec<u64> = (1..=4).filter_map(|n| tally.add(&metrics(n))).map(|report| report.epoch).collect();
        assert_eq!(reports, [2]);
        // The same after a resume.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let lines = [1, 2, 3].map(|n| serde_json::to_string(&MetricLine::from(&metrics(n))).unwrap() + "\n");
        fs::write(&path, lines.concat()).unwrap();
        let report = EpochTally::read(&path, 4, 2.0, Vec::new()).unwrap().add(&metrics(4)).unwrap();
        assert_eq!((report.first, report.epoch, report.seconds), (2, 2, 1.0));
    }

    #[test]
    fn an_epoch_with_unknown_steps_is_not_reported() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        fs::write(&path, "{\"kind\":\"train\",\"step\":1,\"loss\":1.0,\"tokens\":8}\n").unwrap();
        let mut tally = EpochTally::read(&path, 4, 2.0, Vec::new()).unwrap();
        let reports: Vec<u64> = (2..=4).filter_map(|n| tally.add(&step(n, 2.0))).map(|report| report.epoch).collect();
        assert_eq!(reports, [2]);
    }

    /// A fork whose data differs: what other runs read of the old data is part of no epoch of the new data. Its first step may read as far as
    /// the steps before it.
    #[test]
    fn reading_that_starts_again_starts_a_new_first_epoch() {
        let reports = |epochs: &[f64], restarts: &[u64]| {
            let mut tally = EpochTally { total_epochs: 1.0, restarts: restarts.to_vec(), ..EpochTally::default() };
            let steps = (1..).zip(epochs).map(|(n, epoch)| StepMetrics { epoch: *epoch, ..step(n, 2.0) });
            let ended = steps.filter_map(|step| tally.add(&step));
            ended.map(|report| (report.first, report.epoch, report.step, report.tokens)).collect::<Vec<_>>()
        };
        assert_eq!(reports(&[0.75, 1.5, 0.5, 1.0], &[2]), [(1, 1, 2, 24), (1, 1, 4, 56)]);
        assert_eq!(reports(&[0.25, 0.5, 0.5, 1.0], &[2]), [(1, 1, 4, 56)]);
        assert_eq!(reports(&[0.25, 0.75, 0.75, 1.5], &[1, 2]), [(1, 1, 4, 56)]);
        // A few more rows in an epoch after a change of the batch are the same epoch.
        assert_eq!(reports(&[0.4, 0.8, 0.79, 1.0], &[]), [(1, 1, 4, 80)]);
    }
}
