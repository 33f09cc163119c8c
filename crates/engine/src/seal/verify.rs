//! Verifies a sealed run: every byte against its manifest, what the manifest claims against the record, and steps by training them again.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use runner_compare::stored_plan::resolved_experiment;
use runner_compare::verdict::{NumberDifference, ReproductionVerdict, Verdict};
use runner_files::safetensors_header::SafetensorsHeader;
use runner_files::{remove_abandoned, temporary_dir, temporary_prefix};
use runner_machine::stop::{StopReason, StopSwitch};
use runner_prepare::{Host, MovedData, RunEvent, RunObserver, missing_data};
use runner_record::checkpoint::{self, MODEL};
use runner_record::run_dir::{self, CHECKPOINTS, METRICS, PLAN, RESOLVED, SUMMARY, TRACE};
use runner_record::{CheckpointChoice, RecordError};
use runner_spec::error::{CommandError, Result};
use runner_spec::format::{bytes, count, counted};
use runner_spec::model::layout::ParamLayout;
use runner_weights::OpenedWeights;
use serde::Serialize;

use super::claims::{contradictions, describe_free_text, is_sealed_by_this_program};
use super::create::{WEIGHTS, export_weights, is_own};
use super::manifest::{
    CARD, ChangedFile, FileChange, MANIFEST, RUN, SealManifest, SealedFile, list_files, read_header_of,
};
use crate::evaluated_model::read_weights;
use crate::opened_run::{OpenedRun, open_run};
use crate::reproduce::{ReproduceRequest, Reproduction, reproduce};
use crate::session::SessionOptions;

/// A request to `verify`.
#[derive(Debug, Clone)]
pub struct VerifyRequest {
    /// The sealed run.
    pub folder: PathBuf,
    /// The steps to train again; `None`: those from the sealed state to the weights.
    pub steps: Option<RangeInclusive<u64>>,
    /// True to train nothing.
    pub only_files: bool,
    /// Where the data is.
    pub data: MovedData,
    /// As that of a reproduction.
    pub tolerance: Option<f64>,
    pub options: SessionOptions,
}

/// The result of a verification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SealVerdict {
    /// The steps that were trained again have the bits of the record, and lead to the sealed weights.
    Bitwise,
    /// No loss that was trained again differs by more than the tolerance.
    WithinTolerance,
    /// Every byte matches the manifest, and only that was to be checked.
    Intact,
    /// Every byte matches the manifest, but no step was trained again, or the record lacks one of them.
    Incomplete,
    /// The record is not what its settings and data lead to.
    Diverged,
    /// Every byte matches the manifest, and the files contradict one another.
    Contradictory,
    /// A byte has changed since the run was sealed.
    Changed,
}

/// The sealed weights beside those of a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SealedWeightsComparison {
    pub step: u64,
    /// True if the checkpoint was trained again; false if it is the sealed state.
    pub trained: bool,
    /// True if they have the same bits.
    pub equal: bool,
    /// The first tensor that differs.
    pub tensor: Option<String>,
    /// The norm of the difference, relative to the norm of the weights that were trained again.
    pub relative: f64,
}

/// What was verified, and what was not.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verification {
    pub verdict: SealVerdict,
    pub run: String,
    /// The content hash of the manifest; `None` if it does not match its content.
    pub hash: Option<String>,
    pub files: usize,
    pub bytes: u64,
    pub changed: Vec<ChangedFile>,
    /// Claims that the record does not bear out.
    pub contradictions: Vec<String>,
    /// The run directory of the steps that were trained again, and how they compare.
    pub copy: Option<PathBuf>,
    pub steps: Option<ReproductionVerdict>,
    pub weights: Option<SealedWeightsComparison>,
    pub not_verified: Vec<String>,
}

/// The end of a request to `verify`.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one of it at a time")]
pub enum VerificationEnd {
    /// The same request continues it.
    Interrupted(StopReason),
    Done(Verification),
}

/// Verifies the sealed run that `request` names; `observer` receives its events, and `stop` requests an early stop.
///
/// # Errors
/// If there is no sealed run, the steps or the data are wrong, or training failed.
pub fn verify(
    request: &VerifyRequest,
    host: &Host,
    stop: &StopSwitch,
    observer: &mut dyn RunObserver,
) -> Result<VerificationEnd> {
    let folder =
        std::path::absolute(&request.folder).map_err(CommandError::io(request.folder.display().to_string()))?;
    let (manifest, hash) = SealManifest::read(&folder)?;
    let mut found = Verification {
        verdict: SealVerdict::Changed,
        run: manifest.run.clone(),
        files: manifest.files.len() + 1,
        bytes: manifest.files.iter().map(|file| file.bytes).sum(),
        changed: manifest.changed_files(&folder),
        contradictions: Vec::new(),
        copy: None,
        steps: None,
        weights: None,
        not_verified: Vec::new(),
        hash,
    };
    if found.hash.is_none() {
        let (path, change) = (MANIFEST.to_owned(), FileChange::Changed);
        found.changed.insert(0, ChangedFile { path, change, sealed: None, found: None, tensor: None });
    }
    if !found.changed.is_empty() {
        found.not_verified.push("every step: nothing is trained from a sealed run that has changed".to_owned());
        return Ok(VerificationEnd::Done(found));
    }
    let host = &outside_of(&folder, host);
    found.contradictions = contradictions(&folder, &manifest, host)?;
    if !found.contradictions.is_empty() {
        return Ok(VerificationEnd::Done(found.contradictory()));
    }
    observer.observe(&RunEvent::Note(&format!(
        "verify {}, {}: every byte matches the manifest",
        counted(found.files as u64, "file"),
        bytes(found.bytes)
    )));
    let run = folder.join(RUN);
    if let Some(text) = describe_free_text(&run)? {
        found.claim(&manifest, host, text);
        if !found.contradictions.is_empty() {
            return Ok(VerificationEnd::Done(found.contradictory()));
        }
    }
    let opened = open_run(&folder, &run.display().to_string())?;
    if manifest.state.as_ref().is_some_and(|state| state.step == manifest.weights.step) {
        let weights = compare_weights(&folder, &manifest, &opened)?;
        let is_equal = weights.equal;
        found.weights = Some(weights);
        if !is_equal {
            found
                .contradictions
                .push("the weights are not those of the sealed state, which is of the same step".to_owned());
            return Ok(VerificationEnd::Done(found.contradictory()));
        }
    }
    if request.only_files {
        found.verdict = SealVerdict::Intact;
        found.not_verified.push("every step: none was trained again, as asked".to_owned());
        found.not_verified.push(format!("{NOT_COMPUTED}, in the record and on the card"));
        found
            .not_verified
            .push(format!("the numbers of {RUN}/{PLAN}, such as the number of parameters: nothing was planned"));
        found.describe_unread(&manifest, host, false);
        return Ok(VerificationEnd::Done(found));
    }
    found.verdict = SealVerdict::Incomplete;
    let mut has_export = false;
    let Some(steps) = request.steps.clone().or_else(|| manifest.default_steps()) else {
        found.not_verified.push(format!(
            "every step: the sealed run has no training state before its last step; `--steps 1..{}` trains from the start",
            manifest.steps
        ));
        return Ok(VerificationEnd::Done(found));
    };
    let mut experiment = resolved_experiment(&run)?;
    request.data.place(&run, &mut experiment, host)?;
    if let Some(missing) = missing_data(&run, &experiment) {
        found.not_verified.push(format!("every step: the data is not here: {missing}"));
        return Ok(VerificationEnd::Done(found));
    }
    let reproduction = ReproduceRequest {
        run: run.display().to_string(),
        steps: Some(steps),
        data: request.data.clone(),
        is_verification: true,
        tolerance: request.tolerance,
        only_check: false,
        // The verdict then names the first tensor that differs.
        options: SessionOptions { trace: run.join(TRACE).exists(), ..request.options.clone() },
    };
    let (copy, verdict) = match reproduce(&reproduction, host, stop, observer)? {
        Reproduction::Judged(copy, verdict) => (copy, verdict),
        Reproduction::Interrupted(reason) => return Ok(VerificationEnd::Interrupted(reason)),
        Reproduction::Checked(_) => return Ok(VerificationEnd::Done(found)),
    };
    let step = manifest.weights.step;
    let is_trained = (verdict.from_step + 1..=verdict.to_step).contains(&step);
    if is_trained && checkpoint::saved_steps(&copy.join(CHECKPOINTS))?.contains(&step) {
        let again = open_run(&host.runs, &copy.display().to_string())?;
        let weights = SealedWeightsComparison { trained: true, ..compare_weights(&folder, &manifest, &again)? };
        // Weights with the same bits have the same hash, and so has the state of steps with the same bits.
        let is_bitwise = matches!(verdict.verdict, Verdict::Bitwise | Verdict::BitwiseNumbers);
        let hash = checkpoint::recorded_hash(&copy.join(CHECKPOINTS), step).filter(|_| weights.equal);
        if hash.is_some_and(|hash| manifest.weights.contradicts(&hash, is_bitwise)) {
            let text = format!("{MANIFEST} and the steps that were trained again differ in the hashes of step {step}");
            found.contradictions.push(text);
        }
        if weights.equal {
            has_export = true;
            for difference in differing_exports(&folder, &manifest, &again, host, observer)? {
                found.claim(&manifest, host, difference);
            }
        }
        found.weights = Some(weights);
    }
    found.compare_state(&manifest, &copy, &verdict);
    // Equal bits of every number leave no room for a different result on the test data, or a different last state.
    let is_bitwise = verdict.first_bits.is_none();
    found.compare_tests(&run, &copy, if is_bitwise { 0.0 } else { verdict.tolerance })?;
    if is_bitwise && verdict.weights.as_ref().is_some_and(|weights| !weights.equal) {
        found.contradictions.push(format!("{RUN}/{SUMMARY} has a final hash that these steps do not lead to"));
    }
    found.not_verified.push(format!("{NOT_COMPUTED}, in the record and on the card"));
    let planned = open_run(&host.runs, &copy.display().to_string())?.plan;
    // Equal facts may still come with other warnings.
    let is_same_data =
        opened.plan.data == planned.data && opened.plan.data.overlap_warnings() == planned.data.overlap_warnings();
    for (what, is_equal) in [("totals", opened.plan.totals == planned.totals), ("facts about the data", is_same_data)] {
        if !is_equal {
            let text = format!("the {what} in {RUN}/{PLAN} differ from those planned from {RUN}/{RESOLVED}");
            found.claim(&manifest, host, text);
        }
    }
    if let Some(share) = &verdict.share {
        let NumberDifference { step, what, original, copy, .. } = share;
        let [sealed, trained] =
            [original, copy].map(|share| share.map_or_else(|| "none".to_owned(), |x| x.to_string()));
        found.contradictions.push(format!("{what} of step {} is {trained}, and {sealed} in the record", count(*step)));
    }
    found.judge(&manifest, &verdict);
    found.describe_unread(&manifest, host, has_export);
    (found.copy, found.steps) = (Some(copy), Some(verdict));
    Ok(VerificationEnd::Done(found))
}

/// `host`, with its folder of runs moved next to the sealed run in `folder` if it was inside. A sealed run must not change.
fn outside_of(folder: &Path, host: &Host) -> Host {
    let real = |path: &Path| path.ancestors().find_map(|above| fs::canonicalize(above).ok());
    let runs = std::path::absolute(&host.runs).unwrap_or_else(|_| host.runs.clone());
    let is_inside = real(&runs).zip(real(folder)).is_some_and(|(runs, folder)| runs.starts_with(folder));
    let next = real(folder).filter(|_| is_inside).and_then(|folder| Some(folder.parent()?.join("runs")));
    Host { runs: next.unwrap_or_else(|| host.runs.clone()), ..host.clone() }
}

impl Verification {
    /// Compares the sealed state with the checkpoint of the same step of the run in `copy`, unless training started from the sealed state.
    fn compare_state(&mut self, manifest: &SealManifest, copy: &Path, trained: &ReproductionVerdict) {
        let Some(state) = manifest.state.as_ref().filter(|state| state.step != trained.from_step) else { return };
        let step = count(state.step);
        match checkpoint::recorded_hash(&copy.join(CHECKPOINTS), state.step) {
            Some(again) if again.state == state.state_hash => {}
            // If a number differs in its bits, the state does, too.
            Some(_) if trained.first_bits.is_none() => {
                self.contradictions
                    .push(format!("the sealed state of step {step} differs from the state that training reached"));
            }
            _ => {
                self.not_verified
                    .push(format!("the sealed state of step {step}: these steps were not trained from it"));
            }
        }
    }

    /// Compares the results on the test data.
    fn compare_tests(&mut self, run: &Path, copy: &Path, tolerance: f64) -> Result<()> {
        let [sealed, again] = [run, copy].map(run_dir::read_summary);
        let (sealed, again) = (sealed?.and_then(|summary| summary.test), again?.and_then(|summary| summary.test));
        let Some(sealed) = sealed else {
            if again.is_some() {
                self.contradictions.push(format!("{RUN}/{SUMMARY} lacks the result on the test data"));
            }
            return Ok(());
        };
        let Some(again) = again else {
            self.not_verified
                .push("the test loss: it is measured at the end of a run, and these steps end before it".to_owned());
            return Ok(());
        };
        let is_near = |a: Option<f64>, b: Option<f64>, allowed: f64| match (a, b) {
            (Some(a), Some(b)) => (a - b).abs() <= allowed,
            // Older versions recorded less.
            (a, _) => a.is_none(),
        };
        let allowed = tolerance * sealed.loss;
        let of_error = allowed / (sealed.rows.unwrap_or(1).max(1) as f64).sqrt();
        let is_equal = (sealed.step, sealed.tokens) == (again.step, again.tokens)
            && (sealed.rows.is_none() || sealed.rows == again.rows)
            && is_near(Some(sealed.loss), Some(again.loss), allowed)
            && is_near(Some(sealed.perplexity.ln()), Some(again.perplexity.ln()), allowed)
            && is_near(sealed.bits_per_byte, again.bits_per_byte, tolerance * sealed.bits_per_byte.unwrap_or(0.0))
            && is_near(sealed.standard_error, again.standard_error, of_error);
        if !is_equal {
            let (of_seal, of_copy) = (sealed.loss, again.loss);
            self.contradictions
                .push(format!("{RUN}/{SUMMARY} and the steps that were trained again differ in the result on the test data (loss {of_seal} and {of_copy})"));
        }
        Ok(())
    }

    /// Adds a contradiction, or, if a different version sealed the run, which may have written the same in another way, says that it is not
    /// verified.
    fn claim(&mut self, manifest: &SealManifest, host: &Host, text: String) {
        if is_sealed_by_this_program(manifest, host) {
            self.contradictions.push(text);
        } else {
            self.not_verified.push(format!("{text} (a different version of the program sealed the run)"));
        }
    }

    /// Names the files whose content was not verified.
    fn describe_unread(&mut self, manifest: &SealManifest, host: &Host, has_export: bool) {
        let files = unread_files(manifest, host, has_export);
        if !files.is_empty() {
            self.not_verified.push(format!(
                "what {} say, or the card of them: only their bytes were compared with the manifest",
                files.join(", ")
            ));
        }
    }

    /// This, with the verdict that the files contradict one another. No step is trained from them.
    fn contradictory(mut self) -> Self {
        self.verdict = SealVerdict::Contradictory;
        let why = "nothing is trained from a sealed run whose files contradict one another";
        self.not_verified.push(format!("every step: {why}"));
        self
    }

    /// Sets the verdict, and what was not verified, after `trained` was trained again.
    fn judge(&mut self, manifest: &SealManifest, trained: &ReproductionVerdict) {
        let (from, to, step) = (trained.from_step, trained.to_step, manifest.weights.step);
        if from > 0 {
            self.not_verified.push(format!(
                "steps 1 to {}: the state after step {} was taken from the sealed run as it is",
                count(from),
                count(from)
            ));
        }
        if to < manifest.steps {
            self.not_verified.push(format!("steps {} to {}", count(to + 1), count(manifest.steps)));
        }
        let differ = self.weights.as_ref().is_some_and(|weights| !weights.equal);
        self.verdict = match trained.verdict {
            Verdict::Diverged => SealVerdict::Diverged,
            _ if !self.contradictions.is_empty() => SealVerdict::Contradictory,
            Verdict::Incomplete => SealVerdict::Incomplete,
            // Equal bits of every number leave no room for other weights.
            Verdict::Bitwise | Verdict::BitwiseNumbers if differ => SealVerdict::Diverged,
            Verdict::Bitwise | Verdict::BitwiseNumbers => SealVerdict::Bitwise,
            Verdict::WithinTolerance => SealVerdict::WithinTolerance,
        };
        if self.verdict == SealVerdict::WithinTolerance {
            let why = "they depend on the order of sums, and no tolerance is defined for them";
            self.not_verified.push(format!("gradient norms: {why}"));
        }
        match &self.weights {
            None => self.not_verified.push(format!("the weights, which are those after step {}", count(step))),
            Some(weights) if !weights.trained => self
                .not_verified
                .push("the weights: they are those of the sealed state, and were not trained again".to_owned()),
            Some(weights) if !weights.equal && self.verdict == SealVerdict::WithinTolerance => {
                self.not_verified.push(format!(
                    "the bits of the weights: they differ from those trained again by {:.1e} of their norm, and no tolerance is defined for that",
                    weights.relative
                ));
            }
            Some(_) => {}
        }
    }
}

impl SealManifest {
    /// The steps that are trained again if none are named: from the sealed state to the weights, or to the end. `None` if there is no state
    /// before the last step.
    pub(super) fn default_steps(&self) -> Option<RangeInclusive<u64>> {
        let state = self.state.as_ref()?;
        let last = if state.step < self.weights.step { self.weights.step } else { self.steps };
        (state.step < last).then(|| state.step + 1..=last)
    }
}

/// Recorded facts that cannot be computed again.
const NOT_COMPUTED: &str = "times, speeds, memory, machines, versions, notes, the status and the origin of the run";

/// The files whose content no check but that of their bytes covers, of a sealed run whose exported files were compared if `has_export`.
fn unread_files(seal: &SealManifest, host: &Host, has_export: bool) -> Vec<String> {
    let record = [run_dir::MANIFEST, RESOLVED, PLAN, METRICS, SUMMARY];
    let is_read = |path: &str| match path.strip_prefix(&format!("{RUN}/")) {
        Some(own) => own.starts_with(&format!("{CHECKPOINTS}/")) || record.contains(&own),
        None if path == CARD => is_sealed_by_this_program(seal, host),
        None => has_export,
    };
    seal.files.iter().map(|file| file.path.clone()).filter(|path| !is_read(path)).collect()
}

/// How the exported files in `folder` differ from those that an export of the same weights by the run `again` gives, a sentence each. Equal
/// weights give equal files, the names of their tensors included.
fn differing_exports(
    folder: &Path,
    manifest: &SealManifest,
    again: &OpenedRun,
    host: &Host,
    observer: &mut dyn RunObserver,
) -> Result<Vec<String>> {
    let failed = || "exporting the weights again".to_owned();
    let prefix = temporary_prefix(&host.runs.join("verify"));
    remove_abandoned(&host.runs, &prefix, &is_own);
    let aside = temporary_dir(&host.runs, &prefix).map_err(CommandError::io(failed()))?;
    let lock = File::open(aside.path()).map_err(CommandError::io(failed()))?;
    // Without locks in the file system, nothing is removed.
    let _ = lock.try_lock();
    let to = aside.path().join(WEIGHTS);
    let (is_hugging_face, _) = export_weights(again, manifest.weights.step, &to, host, observer)?;
    let mut differing = Vec::new();
    if is_hugging_face != manifest.weights.is_hugging_face {
        differing.push(format!("{MANIFEST} is wrong about whether `transformers` reads the weights"));
    }
    let exported = list_files(&to);
    for name in &exported {
        let is_equal = folder.join(name).exists()
            && SealedFile::read(folder, name.clone())?.hash == SealedFile::read(&to, name.clone())?.hash;
        if !is_equal {
            differing.push(format!("{name} is not the file that an export of these weights gives"));
        }
    }
    let beside = manifest.files.iter().map(|file| &file.path).filter(|path| !path.starts_with(&format!("{RUN}/")));
    for path in beside.filter(|path| *path != CARD && !exported.contains(path)) {
        differing.push(format!("an export of these weights does not write {path}"));
    }
    Ok(differing)
}

/// Compares the sealed weights in `folder` with those that the run `again` has at the same step. The result does not count them as trained
/// again.
fn compare_weights(folder: &Path, manifest: &SealManifest, again: &OpenedRun) -> Result<SealedWeightsComparison> {
    let (layout, step) = (again.whole_layout()?, manifest.weights.step);
    let sealed = if manifest.weights.is_hugging_face {
        read_weights(&OpenedWeights::open(folder)?, &layout)?
    } else {
        read_plain_weights(&folder.join(MODEL), &layout)?
    };
    let mut trained = vec![0.0_f32; layout.total];
    again.stream_weights(CheckpointChoice::Step(step), &layout, &mut |place, bytes| {
        let numbers = bytes.as_chunks::<4>().0.iter().map(|number| f32::from_le_bytes(*number));
        trained[place as usize..].iter_mut().zip(numbers).for_each(|(slot, number)| *slot = number);
        Ok(())
    })?;
    let differs = |a: &f32, b: &f32| a.to_bits() != b.to_bits();
    let is_different =
        |range: std::ops::Range<usize>| sealed[range.clone()].iter().zip(&trained[range]).any(|(a, b)| differs(a, b));
    let tensor = layout.entries.iter().find(|entry| is_different(entry.range())).map(|entry| entry.spec.name.clone());
    let squares = |sum: f64, x: f64| sum + x * x;
    let difference = sealed.iter().zip(&trained).map(|(a, b)| f64::from(*a) - f64::from(*b)).fold(0.0, squares);
    let norm = trained.iter().map(|x| f64::from(*x)).fold(0.0, squares);
    let relative = if difference == 0.0 { 0.0 } else { (difference / norm.max(f64::MIN_POSITIVE)).sqrt() };
    Ok(SealedWeightsComparison { step, trained: false, equal: tensor.is_none(), tensor, relative })
}

/// The numbers of the file `path`, which has all weights as f32 in the order of `layout`.
fn read_plain_weights(path: &Path, layout: &ParamLayout) -> Result<Vec<f32>> {
    let failed = || format!("reading {}", path.display());
    let mut file = File::open(path).map_err(CommandError::io(failed()))?;
    let size = file.metadata().map_err(CommandError::io(failed()))?.len();
    let header = read_header_of(&mut file, size).map_err(CommandError::io(failed()))?;
    let is_of_layout = |header: SafetensorsHeader| {
        let tensors = header.tensors.iter().map(|(name, info)| (name.as_str(), info.data_offsets[0] / 4));
        let expected = layout.entries.iter().map(|entry| (entry.spec.name.as_str(), entry.range().start as u64));
        size - header.bytes.len() as u64 == 4 * layout.total as u64
            && tensors.eq(expected)
            && header
                .tensors
                .iter()
                .zip(&layout.entries)
                .all(|((_, info), entry)| info.dtype == "F32" && info.shape == entry.spec.shape)
    };
    if !header.is_some_and(is_of_layout) {
        return Err(RecordError::damaged(path, "it does not have the weights of this model").into());
    }
    let mut numbers = vec![0; 4 * layout.total];
    let read: io::Result<()> = file.read_exact(&mut numbers);
    read.map_err(CommandError::io(failed()))?;
    Ok(numbers.as_chunks::<4>().0.iter().map(|number| f32::from_le_bytes(*number)).collect())
}
