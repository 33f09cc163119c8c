//! Records a run from its events: metrics, samples, traces and checkpoints.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::checkpoint::{Checkpoints, ChosenCheckpoint, PartRecord, StateHash};
use super::error::RecordError;
use super::lines::{LineFile, cut_after_step};
use super::metrics::MetricLine;
use super::run_dir::{METRICS, ROWS, SAMPLES, TRACE};
use super::timeline;
use runner_spec::event::{BestValidation, Event, TraceLine};
use runner_spec::format::counted;

/// Writes the record of one run.
#[derive(Debug)]
pub struct Recorder {
    run: PathBuf,
    metrics: LineFile,
    samples: LineFile,
    rows: LineFile,
    /// `None` if the run is not traced.
    trace: Option<LineFile>,
    checkpoints: Checkpoints,
    /// The validation losses by step that were measured since the newest checkpoint.
    evaluations: BTreeMap<u64, f64>,
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
    /// Opens the record in the run directory `run` after the checkpoint `resumed`, which ranks read with `checkpoint::stream_state`. Cuts metrics,
    /// samples and rows back to it, so that the next lines follow on.
    ///
    /// # Errors
    /// If files cannot be read or written.
    pub fn resume(
        run: &Path,
        checkpoints: Checkpoints,
        resumed: Option<ChosenCheckpoint>,
    ) -> Result<OpenedRecorder, RecordError> {
        checkpoints.check_retained();
        let from = resumed.as_ref().map(|chosen| chosen.step);
        let step = from.unwrap_or(0);
        // Without a checkpoint there are no newer ones to warn of.
        let mut warnings = resumed.as_ref().map_or_else(Vec::new, |chosen| chosen.warnings.clone());
        // A run that has a trace continues it, also in sessions without `--trace`.
        let traced = run.join(TRACE);
        if traced.exists() {
            cut_after_step(&traced, from)?;
        }
        let mut dropped = 0;
        for name in [METRICS, SAMPLES, ROWS] {
            // Without a checkpoint every step is repeated, and an evaluation before the first step too.
            let counts = cut_after_step(&run.join(name), from)?;
            dropped += counts.dropped;
            if name == METRICS && counts.train < step {
                warnings.push(format!("{name} has only {} of {step} steps; the others are lost", counts.train));
            }
            if counts.damaged > 0 {
                warnings.push(format!("{name}: {} removed", counted(counts.damaged, "torn or damaged line")));
            }
        }
        if dropped > 0 {
            let lines = counted(dropped, "line");
            let text = format!("dropped {lines} of the record: what was done after step {step} is done again");
            warnings.push(text);
        }
        let recorder = Self {
            run: run.to_owned(),
            metrics: LineFile::append(&run.join(METRICS))?,
            samples: LineFile::append(&run.join(SAMPLES))?,
            rows: LineFile::append(&run.join(ROWS))?,
            trace: traced.exists().then(|| LineFile::append(&traced)).transpose()?,
            checkpoints,
            evaluations: BTreeMap::new(),
            newest_checkpoint: resumed.as_ref().map(|chosen| (chosen.step, chosen.hash.clone())),
        };
        Ok(OpenedRecorder { recorder, resumed, warnings })
    }

    /// Traces the run from here on.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn start_trace(&mut self) -> Result<(), RecordError> {
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

    /// Commits a checkpoint of the parts that ranks reported.
    ///
    /// # Errors
    /// Those of [`Checkpoints::commit`].
    pub fn commit(
        &mut self,
        step: u64,
        tokens: u64,
        best: Option<BestValidation>,
        parts: Vec<PartRecord>,
    ) -> Result<(), RecordError> {
        // A checkpoint relies on the record of its steps.
        self.metrics.sync()?;
        self.samples.sync()?;
        self.rows.sync()?;
        self.trace.as_ref().map_or(Ok(()), LineFile::sync)?;
        let val_loss = self.evaluations.get(&step).copied();
        let saved = self.checkpoints.commit(step, tokens, best, val_loss, parts)?;
        self.evaluations = self.evaluations.split_off(&(step + 1));
        self.newest_checkpoint = Some((step, saved.hash));
        Ok(())
    }

    /// Records `event`.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn record(&mut self, event: &Event) -> Result<(), RecordError> {
        match event {
            Event::Step(metrics) => self.metrics.write(&MetricLine::from(metrics)),
            Event::Eval(metrics) => {
                self.evaluations.extend(metrics.val_loss().map(|loss| (metrics.step, loss)));
                self.metrics.write(&MetricLine::from(metrics))
            }
            Event::Rows(rows) => self.rows.write(rows),
            Event::Sample(sample) => self.samples.write(sample),
            Event::Watched(step) => timeline::write(&self.run, step),
            Event::Start { .. } | Event::Saved { .. } | Event::Warning(_) => Ok(()),
        }
    }

    /// Adds `lines` to the trace, if the run is traced.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn trace(&mut self, lines: &[TraceLine]) -> Result<(), RecordError> {
        self.trace.as_mut().map_or(Ok(()), |trace| lines.iter().try_for_each(|line| trace.write(line)))
    }
}
