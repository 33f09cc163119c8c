//! Records a run from its events: metrics, samples, traces and checkpoints.

use std::path::{Path, PathBuf};

use super::checkpoint::{Checkpoints, ChosenCheckpoint, PartRecord, StateHash};
use super::error::StoreError;
use super::lines::{LineFile, cut_after_step};
use super::metrics::MetricLine;
use super::run_dir::{METRICS, SAMPLES, TRACE};
use super::timeline;
use runner_compute::observer::Observer;
use runner_compute::state::TrainState;
use runner_spec::event::{BestValidation, Event, ObserveError, TraceLine};
use runner_spec::format::counted;

/// Writes the record of one run.
#[derive(Debug)]
pub struct Recorder {
    run: PathBuf,
    metrics: LineFile,
    samples: LineFile,
    /// `None` if the run is not traced.
    trace: Option<LineFile>,
    checkpoints: Checkpoints,
    /// Step and validation loss.
    last_evaluation: Option<(u64, f64)>,
    /// Step and hash.
    newest_checkpoint: Option<(u64, StateHash)>,
}

/// A record that is ready for the next step, and the checkpoint to resume from, `None` to start from the beginning.
#[derive(Debug)]
pub struct OpenedRecorder {
    pub recorder: Recorder,
    pub resumed: Option<ChosenCheckpoint>,
    pub warnings: Vec<String>,
}

impl Recorder {
    /// Opens the record in the run directory `run`, whose lock this process holds, after its newest usable checkpoint. `keep` is the number
    /// of checkpoints that stay.
    ///
    /// # Errors
    /// If there are checkpoints but none is usable, or files cannot be written.
    #[cfg(test)]
    pub(crate) fn open(run: &Path, plan_hash: &str, keep: usize) -> Result<OpenedRecorder, StoreError> {
        let checkpoints = Checkpoints::open(&run.join(super::run_dir::CHECKPOINTS), plan_hash, keep)?;
        let resumed = checkpoints.choose()?;
        Self::resume(run, checkpoints, resumed)
    }

    /// Opens the record in the run directory `run` after the checkpoint `resumed`, which ranks read with `checkpoint::load_state`. Cuts metrics
    /// and samples back to it, so that the next lines follow on.
    ///
    /// # Errors
    /// If files cannot be read or written.
    pub fn resume(
        run: &Path,
        checkpoints: Checkpoints,
        resumed: Option<ChosenCheckpoint>,
    ) -> Result<OpenedRecorder, StoreError> {
        checkpoints.check_retained();
        let from = resumed.as_ref().map(|chosen| chosen.step);
        let step = from.unwrap_or(0);
        // Without a checkpoint there are no newer ones to warn of.
        let mut warnings = resumed.as_ref().map_or_else(Vec::new, |chosen| chosen.warnings.clone());
        // A run that has a trace goes on with it, also in sessions without `--trace`.
        let traced = run.join(TRACE);
        if traced.exists() {
            cut_after_step(&traced, from)?;
        }
        let mut dropped = 0;
        for name in [METRICS, SAMPLES] {
            // Without a checkpoint every step is repeated, and an evaluation before the first step too.
            let counts = cut_after_step(&run.join(name), from)?;
            dropped += counts.dropped;
            if name == METRICS && counts.train < step {
                warnings.push(format!("{name} has {} of {step} steps: the others are lost", counts.train));
            }
            if name == METRICS && counts.repeated > 0 {
                warnings.push(format!(
                    "{name} has {} of steps that are already recorded",
                    counted(counts.repeated, "line")
                ));
            }
            if counts.damaged > 0 {
                warnings.push(format!("{name}: {} removed", counted(counts.damaged, "torn or damaged line")));
            }
        }
        if dropped > 0 {
            let text = format!("{dropped} lines after step {step} dropped from the record: those steps are done again");
            warnings.push(text);
        }
        let recorder = Self {
            run: run.to_owned(),
            metrics: LineFile::append(&run.join(METRICS))?,
            samples: LineFile::append(&run.join(SAMPLES))?,
            trace: traced.exists().then(|| LineFile::append(&traced)).transpose()?,
            checkpoints,
            last_evaluation: None,
            newest_checkpoint: resumed.as_ref().map(|chosen| (chosen.step, chosen.hash.clone())),
        };
        Ok(OpenedRecorder { recorder, resumed, warnings })
    }

    /// Traces the run from here on.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn start_trace(&mut self) -> Result<(), StoreError> {
        if self.trace.is_none() {
            self.trace = Some(LineFile::append(&self.run.join(TRACE))?);
        }
        Ok(())
    }

    /// True if the run is traced.
    pub fn is_tracing(&self) -> bool {
        self.trace.is_some()
    }

    /// Step and hash of the newest checkpoint.
    pub fn newest_checkpoint(&self) -> Option<&(u64, StateHash)> {
        self.newest_checkpoint.as_ref()
    }

    /// Removes everything that ranks wrote and that will not be committed. No rank may be writing.
    pub fn abandon_all(&self) {
        self.checkpoints.abandon_all();
    }

    /// Commits a checkpoint of the parts that several ranks reported.
    ///
    /// # Errors
    /// Those of [`Checkpoints::commit`].
    pub fn commit(
        &mut self,
        step: u64,
        tokens: u64,
        best: Option<BestValidation>,
        parts: Vec<PartRecord>,
    ) -> Result<(), StoreError> {
        let val_loss = self.sync_before_checkpoint(step)?;
        let saved = self.checkpoints.commit(step, tokens, best, val_loss, parts)?;
        self.newest_checkpoint = Some((step, saved.hash));
        Ok(())
    }

    /// Makes the record durable, which a checkpoint of `step` relies on. Returns the validation loss at that step.
    fn sync_before_checkpoint(&self, step: u64) -> Result<Option<f64>, StoreError> {
        self.metrics.sync()?;
        self.samples.sync()?;
        self.trace.as_ref().map_or(Ok(()), LineFile::sync)?;
        Ok(self.last_evaluation.filter(|(measured, _)| *measured == step).map(|(_, loss)| loss))
    }

    fn record(&mut self, event: &Event) -> Result<(), StoreError> {
        match event {
            Event::Step(metrics) => self.metrics.write(&MetricLine::from(metrics)),
            Event::Eval(metrics) => {
                self.last_evaluation = metrics.val_loss.map(|loss| (metrics.step, loss));
                self.metrics.write(&MetricLine::from(metrics))
            }
            Event::Sample(sample) => self.samples.write(sample),
            Event::Watched(step) => timeline::write(&self.run, step),
            Event::Start { .. } | Event::Epoch(_) | Event::Saved { .. } | Event::Warning(_) => Ok(()),
        }
    }
}

impl Observer for Recorder {
    fn observe(&mut self, event: &Event) -> Result<(), ObserveError> {
        self.record(event).map_err(|error| ObserveError(Box::new(error)))
    }

    fn checkpoint(&mut self, state: &TrainState) -> Result<(), ObserveError> {
        let save = || -> Result<_, StoreError> {
            let val_loss = self.sync_before_checkpoint(state.step)?;
            self.checkpoints.save(state, val_loss)
        };
        let saved = save().map_err(|error| ObserveError(Box::new(error)))?;
        self.newest_checkpoint = Some((state.step, saved.hash));
        Ok(())
    }

    fn trace(&mut self, lines: &[TraceLine]) -> Result<(), ObserveError> {
        let Some(trace) = &mut self.trace else { return Ok(()) };
        lines.iter().try_for_each(|line| trace.write(line)).map_err(|error| ObserveError(Box::new(error)))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;

    use super::*;
    use crate::checkpoint;
    use crate::checkpoint::{CheckpointChoice, PartSpec, load_state, load_weights};
    use crate::run_dir::CHECKPOINTS;
    use candle_core::{DType, Device};
    use runner_compute::testing::{layout, random_state, values};
    use runner_spec::event::{EvalMetrics, SampleText, StepMetrics};

    fn open(run: &Path) -> OpenedRecorder {
        Recorder::open(run, "abc", 2).unwrap()
    }

    /// A training that is a pure function of the step.
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
                step_ms: 1.0,
                ..StepMetrics::default()
            };
            recorder.observe(&Event::Step(metrics)).unwrap();
            if step.is_multiple_of(2) {
                let eval = EvalMetrics { step, val_loss: Some(loss), ..EvalMetrics::default() };
                recorder.observe(&Event::Eval(eval)).unwrap();
                let sample = SampleText { step, prompt: "p".into(), index: 0, text: format!("at {step}") };
                recorder.observe(&Event::Sample(sample)).unwrap();
            }
            if step.is_multiple_of(4) {
                recorder.checkpoint(&state).unwrap();
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
            let OpenedRecorder { mut recorder, resumed, .. } = open(run);
            let from = resumed.map_or(0, |chosen| {
                let state = load_state(&chosen.path, Some("abc"), &layout(), 2, DType::F32).unwrap();
                assert_eq!(values(&state), values(&random_state(chosen.step, 2)));
                chosen.step
            });
            assert_eq!(from, if killed_at == 3 { 0 } else { (from / 4) * 4 });
            train(&mut recorder, from, killed_at);
            // The kill: a torn line, a checkpoint half written, a rewrite half done.
            fs::OpenOptions::new().append(true).open(run.join(METRICS)).unwrap().write_all(b"{\"kind\":\"tr").unwrap();
            fs::create_dir(run.join(CHECKPOINTS).join(".tmp-step-00000012")).unwrap();
            fs::write(run.join(".tmp-a1B2c3"), "half").unwrap();
        }
        let OpenedRecorder { resumed, .. } = open(run);
        assert_eq!(resumed.unwrap().step, 16);
        for name in [METRICS, SAMPLES] {
            assert_eq!(text(run, name), text(whole.path(), name), "{name}");
        }
        let hash = |dir: &Path| open(dir).recorder.newest_checkpoint().unwrap().clone();
        assert_eq!(hash(run), hash(whole.path()));
    }

    #[test]
    fn a_damaged_checkpoint_cuts_the_record_back_further() {
        let dir = tempfile::tempdir().unwrap();
        train(&mut open(dir.path()).recorder, 0, 9);
        fs::write(dir.path().join(CHECKPOINTS).join("step-00000008/model.safetensors"), "x").unwrap();
        let opened = open(dir.path());
        assert_eq!(opened.resumed.unwrap().step, 4);
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
            recorder.checkpoint(&random_state(step, 2)).unwrap();
        }
        let folder = dir.path().join(CHECKPOINTS);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 3);
        assert_eq!(load_weights(&folder, CheckpointChoice::Best, &layout(), &Device::Cpu).unwrap().1, 2);
    }

    #[test]
    fn a_run_with_several_ranks_is_recorded_alike() {
        let dir = tempfile::tempdir().unwrap();
        let mut recorder = open(dir.path()).recorder;
        let eval = EvalMetrics { step: 4, val_loss: Some(0.25), ..EvalMetrics::default() };
        recorder.observe(&Event::Eval(eval)).unwrap();
        let folder = checkpoint::pending_folder(&dir.path().join(CHECKPOINTS), 4);
        let state = random_state(4, 2);
        let half = state.layout.entries.len() / 2;
        let owned = [(0..half).collect::<Vec<_>>(), (half..state.layout.entries.len()).collect()];
        let parts = owned.iter().enumerate().map(|(index, owned)| {
            checkpoint::part::write(&folder, PartSpec { index, count: 2 }, &state, owned, &|path| {
                fs::File::create_new(path)
            })
            .unwrap()
        });
        recorder.commit(4, state.tokens, state.best, parts.collect()).unwrap();
        let saved = recorder.newest_checkpoint().unwrap().clone();
        drop(recorder);
        let state_file = fs::read_to_string(dir.path().join(CHECKPOINTS).join("step-00000004/state.json")).unwrap();
        assert!(state_file.contains("\"val_loss\": 0.25"), "{state_file}");

        let later = "{\"kind\":\"eval\",\"step\":5}\n";
        fs::OpenOptions::new()
            .append(true)
            .open(dir.path().join(METRICS))
            .unwrap()
            .write_all(later.as_bytes())
            .unwrap();
        let OpenedRecorder { recorder, resumed, warnings } = open(dir.path());
        let chosen = resumed.unwrap();
        assert_eq!((chosen.step, &chosen.hash), (4, &saved.1));
        assert_eq!(recorder.newest_checkpoint(), Some(&saved));
        assert!(warnings.iter().any(|w| w.starts_with("1 lines after step 4 dropped")), "{warnings:?}");
        let back = load_state(&chosen.path, Some("abc"), &layout(), 2, DType::F32).unwrap();
        assert_eq!(values(&back), values(&state));
    }

    #[test]
    fn lost_lines_are_told() {
        let dir = tempfile::tempdir().unwrap();
        train(&mut open(dir.path()).recorder, 0, 4);
        let whole = text(dir.path(), METRICS);
        let without = whole.lines().filter(|line| !line.contains("\"train\",\"step\":2,"));
        let without: String = without.flat_map(|line| [line, "\n"]).collect();
        assert_eq!(without.lines().count() + 1, whole.lines().count());
        fs::write(dir.path().join(METRICS), without).unwrap();
        assert_eq!(open(dir.path()).warnings, ["metrics.jsonl has 3 of 4 steps: the others are lost"]);
    }
}
