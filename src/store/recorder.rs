//! Consumes a run's events and writes them down: metrics, samples, checkpoints.

use std::path::Path;
use std::sync::Arc;

use candle_core::Device;

use super::checkpoint::{Checkpoints, Resumed, StateHash};
use super::error::StoreError;
use super::lines::{LineFile, keep_through};
use super::metrics::MetricLine;
use super::run_dir::{CHECKPOINTS, METRICS, SAMPLES};
use crate::exec::{Event, ObserveError, Observer};
use crate::model::ParamLayout;

/// Writes one run's record.
#[derive(Debug)]
pub struct Recorder {
    metrics: LineFile,
    samples: LineFile,
    checkpoints: Checkpoints,
    /// Step and validation loss of the last evaluation.
    measured: Option<(u64, f64)>,
    saved: Option<(u64, StateHash)>,
}

/// A record that is ready to be gone on with.
#[derive(Debug)]
pub struct Opened {
    pub recorder: Recorder,
    /// The state to go on from; `None`: from the start.
    pub resumed: Option<Resumed>,
    pub warnings: Vec<String>,
}

impl Recorder {
    /// Opens the record in the run directory `run`, which this process holds: finds the newest good checkpoint, and cuts
    /// metrics and samples back to it, so that what is written next follows on. `keep` is the number of checkpoints.
    ///
    /// # Errors
    /// If no checkpoint can be used although there are some, or files cannot be written.
    pub fn open(
        run: &Path,
        plan_hash: &str,
        keep: usize,
        layout: &Arc<ParamLayout>,
        moments: usize,
        device: &Device,
    ) -> Result<Opened, StoreError> {
        let checkpoints = Checkpoints::open(&run.join(CHECKPOINTS), plan_hash, keep)?;
        let mut resumed = checkpoints.latest(layout, moments, device)?;
        let mut warnings = resumed.as_mut().map(|r| std::mem::take(&mut r.warnings)).unwrap_or_default();
        let step = resumed.as_ref().map_or(0, |r| r.state.step);
        let mut dropped = 0;
        for name in [METRICS, SAMPLES] {
            // Without a checkpoint all of it is done again, an evaluation before the first step too.
            let kept = keep_through(&run.join(name), resumed.as_ref().map(|r| r.state.step))?;
            dropped += kept.dropped;
            if name == METRICS && kept.train < step {
                warnings.push(format!("{name} has {} of {step} steps: the others are lost", kept.train));
            }
            if kept.damaged > 0 {
                warnings.push(format!("{name}: {} torn or damaged lines removed", kept.damaged));
            }
        }
        if dropped > 0 {
            warnings
                .push(format!("{dropped} lines after step {step} dropped from the record: those steps are done again"));
        }
        let recorder = Self {
            metrics: LineFile::append(&run.join(METRICS))?,
            samples: LineFile::append(&run.join(SAMPLES))?,
            checkpoints,
            measured: None,
            saved: resumed.as_ref().map(|r| (step, r.hash.clone())),
        };
        Ok(Opened { recorder, resumed, warnings })
    }

    /// Step and hash of the newest checkpoint.
    #[must_use]
    pub fn saved(&self) -> Option<&(u64, StateHash)> {
        self.saved.as_ref()
    }

    fn record(&mut self, event: &Event<'_>) -> Result<(), StoreError> {
        match event {
            Event::Step(metrics) => self.metrics.write(&MetricLine::from(metrics)),
            Event::Eval(metrics) => {
                self.measured = metrics.val_loss.map(|loss| (metrics.step, loss));
                self.metrics.write(&MetricLine::from(metrics))
            }
            Event::Sample(sample) => self.samples.write(sample),
            Event::Checkpoint { state } => {
                // What a checkpoint rests on is on the disk before it is.
                self.metrics.sync()?;
                self.samples.sync()?;
                let val_loss = self.measured.filter(|(step, _)| *step == state.step).map(|(_, loss)| loss);
                let saved = self.checkpoints.save(state, val_loss)?;
                self.saved = Some((state.step, saved.hash));
                Ok(())
            }
            Event::Start { .. } | Event::Warning(_) => Ok(()),
        }
    }
}

impl Observer for Recorder {
    fn observe(&mut self, event: &Event<'_>) -> Result<(), ObserveError> {
        self.record(event).map_err(|error| ObserveError(Box::new(error)))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;

    use super::*;
    use crate::exec::{EvalMetrics, SampleText, StepMetrics, TrainState};
    use crate::store::checkpoint::{Which, load_weights};
    use crate::store::testing::{layout, random_state, values};

    fn open(run: &Path) -> Opened {
        Recorder::open(run, "abc", 2, &layout(), 2, &Device::Cpu).unwrap()
    }

    /// The training: a pure function of the step, as the real one is of state and step.
    fn train(recorder: &mut Recorder, from: u64, through: u64) -> TrainState {
        let mut state = random_state(from, 2);
        for step in from + 1..=through {
            state = random_state(step, 2);
            let loss = 5.0 / step as f64;
            let metrics = StepMetrics {
                step,
                loss,
                lr: 1e-3 / step as f64,
                grad_norm: loss / 3.0,
                tokens: 96,
                tokens_per_second: 1.0,
                mfu: None,
                step_ms: 1.0,
                data_ms: 0.0,
                forward_ms: 0.0,
                backward_ms: 0.0,
                optimizer_ms: 0.0,
            };
            recorder.observe(&Event::Step(metrics)).unwrap();
            if step.is_multiple_of(2) {
                let eval = EvalMetrics { step, val_loss: Some(loss), ..EvalMetrics::default() };
                recorder.observe(&Event::Eval(eval)).unwrap();
                let sample = SampleText { step, prompt: "p".into(), index: 0, text: format!("at {step}") };
                recorder.observe(&Event::Sample(sample)).unwrap();
            }
            if step.is_multiple_of(4) {
                recorder.observe(&Event::Checkpoint { state: &state }).unwrap();
            }
        }
        state
    }

    fn text(run: &Path, name: &str) -> String {
        fs::read_to_string(run.join(name)).unwrap()
    }

    #[test]
    fn a_killed_and_resumed_record_equals_an_uninterrupted_one() {
        let (whole, broken) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        train(&mut open(whole.path()).recorder, 0, 16);
        let run = broken.path();
        for killed_at in [3, 4, 7, 11, 16] {
            let Opened { mut recorder, resumed, .. } = open(run);
            let from = resumed.map_or(0, |r| {
                assert_eq!(values(&r.state), values(&random_state(r.state.step, 2)));
                r.state.step
            });
            assert_eq!(from, if killed_at == 3 { 0 } else { (from / 4) * 4 });
            train(&mut recorder, from, killed_at);
            // The kill: a torn line, a checkpoint half written, a rewrite half done.
            fs::OpenOptions::new().append(true).open(run.join(METRICS)).unwrap().write_all(b"{\"kind\":\"tr").unwrap();
            fs::create_dir(run.join(CHECKPOINTS).join(".tmp-step-00000012")).unwrap();
            fs::write(run.join(".tmp-metrics.jsonl"), "half").unwrap();
        }
        let Opened { resumed, .. } = open(run);
        assert_eq!(resumed.unwrap().state.step, 16);
        for name in [METRICS, SAMPLES] {
            assert_eq!(text(run, name), text(whole.path(), name), "{name}");
        }
        let hash = |dir: &Path| open(dir).recorder.saved().unwrap().clone();
        assert_eq!(hash(run), hash(whole.path()));
    }

    #[test]
    fn a_damaged_checkpoint_cuts_the_record_back_further() {
        let dir = tempfile::tempdir().unwrap();
        train(&mut open(dir.path()).recorder, 0, 9);
        fs::write(dir.path().join(CHECKPOINTS).join("step-00000008/model.safetensors"), "x").unwrap();
        let opened = open(dir.path());
        assert_eq!(opened.resumed.unwrap().state.step, 4);
        assert_eq!(text(dir.path(), METRICS).lines().count(), 4 + 2);
        assert_eq!(text(dir.path(), SAMPLES).lines().count(), 2);
        assert!(opened.warnings.iter().any(|w| w.contains("falling back to step-00000004")), "{:?}", opened.warnings);
        assert!(opened.warnings.iter().any(|w| w.contains("done again")), "{:?}", opened.warnings);
    }

    #[test]
    fn the_best_by_validation_loss_stays() {
        let dir = tempfile::tempdir().unwrap();
        let mut recorder = open(dir.path()).recorder;
        for (step, loss) in [(1, 2.0), (2, 1.0), (3, 3.0), (4, 4.0), (5, 5.0)] {
            let eval = EvalMetrics { step, val_loss: Some(loss), ..EvalMetrics::default() };
            recorder.observe(&Event::Eval(eval)).unwrap();
            recorder.observe(&Event::Checkpoint { state: &random_state(step, 2) }).unwrap();
        }
        let folder = dir.path().join(CHECKPOINTS);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 3);
        assert_eq!(load_weights(&folder, Which::Best, &layout(), &Device::Cpu).unwrap().1, 2);
    }

    #[test]
    fn lost_lines_are_told() {
        let dir = tempfile::tempdir().unwrap();
        train(&mut open(dir.path()).recorder, 0, 4);
        fs::write(dir.path().join(METRICS), "").unwrap();
        assert!(open(dir.path()).warnings.iter().any(|w| w.contains("the others are lost")));
    }
}
