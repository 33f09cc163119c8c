//! Verifies a sealed run: every byte against its manifest, what the manifest claims against the record, and steps by training them again.

use std::collections::BTreeMap;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use runner_compare::stored_plan::resolved_experiment;
use runner_compare::verdict::{NumberDifference, ReproductionVerdict, Verdict};
use runner_files::create_dir_all;
use runner_inputs::{Host, MovedData, RunEvent, RunObserver, missing_data};
use runner_record::checkpoint;
use runner_record::manifest::SessionLayout;
use runner_record::run_dir::{
    self, CHECKPOINTS, DATA, EXPERIMENT, MERGED_FILES, METRICS, PLAN, RESOLVED, ROWS, SAMPLES, SUMMARY, TEMPLATE,
    TOKENIZER, TRACE,
};
use runner_spec::error::{CommandError, Result};
use runner_spec::experiment::Experiment;
use runner_spec::format::{bytes, count, counted, quoted_line};
use runner_threads::stop::{StopReason, StopSwitch};
use serde::Serialize;

use super::claims::{Finding, check_files, compare_records};
use super::contents::last_step;
use super::create::{WEIGHTS, export_weights, folder_aside};
use super::manifest::{
    ChangedFile, FileChange, MANIFEST, README, RUN, SealManifest, SealedFile, TensorHash, list_files,
};
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
#[expect(clippy::too_many_lines, reason = "the steps of a verification, any of which may end it")]
pub fn verify(
    request: &VerifyRequest,
    host: &Host,
    stop: &StopSwitch,
    observer: &mut dyn RunObserver,
) -> Result<VerificationEnd> {
    let folder =
        std::path::absolute(&request.folder).map_err(CommandError::io(request.folder.display().to_string()))?;
    let (manifest, hash) = SealManifest::read(&folder)?;
    let (changed, contradictions) = manifest.changed_files(&folder);
    let mut found = Verification {
        verdict: SealVerdict::Changed,
        run: manifest.run.clone(),
        files: manifest.files.len() + 1,
        bytes: manifest.files.iter().map(|file| file.bytes).sum(),
        changed,
        contradictions,
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
    let run = folder.join(RUN);
    let is_own = manifest.is_of_this_program(host) && is_record_of_this_program(&run, host)?;
    for finding in check_files(&folder, &manifest)? {
        found.add(finding, is_own);
    }
    if !found.contradictions.is_empty() {
        return Ok(VerificationEnd::Done(found.contradictory()));
    }
    observer.observe(&RunEvent::Note(&format!(
        "verify {}, {}: every byte matches the manifest",
        counted(found.files as u64, "file"),
        bytes(found.bytes)
    )));
    let last_step = last_step(&folder)?;
    let opened = open_run(&folder, &run.display().to_string())?;
    if manifest.state().is_some_and(|(step, _)| step == manifest.weights_step) {
        let (weights, _) = compare_export(&manifest, &opened, host, observer)?;
        if !found.weights.insert(weights).equal {
            let text = "the weights are not those of the sealed state, which is of the same step";
            found.contradictions.push(text.to_owned());
            return Ok(VerificationEnd::Done(found.contradictory()));
        }
    }
    if request.only_files {
        found.verdict = SealVerdict::Intact;
        return Ok(VerificationEnd::Done(found.untrained("none was trained again, as asked", &manifest, is_own)));
    }
    found.verdict = SealVerdict::Incomplete;
    let mut has_export = false;
    let Some(steps) = request.steps.clone().or_else(|| manifest.default_steps(last_step)) else {
        let why = format!(
            "the sealed run has no training state before its last step; `--steps 1..{last_step}` trains from the start"
        );
        return Ok(VerificationEnd::Done(found.untrained(&why, &manifest, is_own)));
    };
    let mut experiment = resolved_experiment(&run)?;
    request.data.place(&run, &mut experiment)?;
    if let Some(missing) = missing_data(&run, &experiment) {
        let why = format!("the data is not here: {missing}");
        return Ok(VerificationEnd::Done(found.untrained(&why, &manifest, is_own)));
    }
    let reproduction = ReproduceRequest {
        run: run.display().to_string(),
        steps: Some(steps),
        data: request.data.clone(),
        is_verification: true,
        tolerance: request.tolerance,
        // The verdict then names the first tensor that differs.
        options: SessionOptions { trace: run.join(TRACE).exists(), ..request.options.clone() },
    };
    let (copy, verdict, began) = match reproduce(&reproduction, host, stop, observer)? {
        Reproduction::Judged { path, verdict, began } => (path, verdict, began),
        Reproduction::Interrupted(reason) => return Ok(VerificationEnd::Interrupted(reason)),
    };
    let step = manifest.weights_step;
    let is_trained = (verdict.from_step + 1..=verdict.to_step).contains(&step);
    if is_trained && checkpoint::saved_steps(&copy.join(CHECKPOINTS))?.contains(&step) {
        let again = open_run(&host.runs, &copy.display().to_string())?;
        let (weights, differing) = compare_export(&manifest, &again, host, observer)?;
        let weights = SealedWeightsComparison { trained: true, ..weights };
        if weights.equal {
            has_export = true;
            for path in differing {
                let text = format!("{path} is not the file that an export of these weights gives");
                found.add(Finding::Unusual(text), is_own);
            }
        }
        found.weights = Some(weights);
    }
    if began > verdict.from_step {
        // Whoever sent the sealed run may have sent this folder, too.
        found.not_verified.push(format!(
            "steps {} to {}: this call found them in {}, and did not train them",
            count(verdict.from_step + 1),
            count(began),
            quoted_line(&copy.to_string_lossy())
        ));
    }
    found.compare_state(&manifest, &run, &copy, &verdict)?;
    for finding in compare_records(&run, &copy, &verdict)? {
        found.add(finding, is_own);
    }
    found.not_verified.push(NOT_COMPUTED.to_owned());
    if let Some(share) = &verdict.share {
        let NumberDifference { step, what, original, copy, .. } = share;
        let [sealed, trained] =
            [original, copy].map(|share| share.map_or_else(|| "none".to_owned(), |x| x.to_string()));
        found.contradictions.push(format!("{what} of step {} is {trained}, and {sealed} in the record", count(*step)));
    }
    if verdict.verdict == Verdict::WithinTolerance && verdict.drift.is_empty() && has_one_layout(&run, &experiment)? {
        let why = "and nothing has changed since the run that could explain it";
        found.contradictions.push(format!("numbers differ in their bits, {why}"));
    }
    found.judge(&manifest, last_step, &verdict);
    found.describe_unread(&UNREAD, &manifest, is_own, has_export);
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
    fn compare_state(
        &mut self,
        manifest: &SealManifest,
        run: &Path,
        copy: &Path,
        trained: &ReproductionVerdict,
    ) -> Result<()> {
        let Some((step, _)) = manifest.state().filter(|(step, _)| *step != trained.from_step) else { return Ok(()) };
        let [run, copy] = [run, copy].map(|run| run.join(CHECKPOINTS));
        if checkpoint::recorded_hash(&copy, step).is_none() || trained.first_bits.is_some() {
            let why = "no state with these bits was trained again";
            self.not_verified.push(format!("the sealed state of step {}: {why}", count(step)));
        } else if let Some(tensor) = checkpoint::first_difference(&run, &copy, step)? {
            // If a number differs in its bits, the state does, too.
            self.contradictions.push(format!(
                "the sealed state of step {} differs from the state that training reached, first in {}",
                count(step),
                quoted_line(&tensor)
            ));
        } else if checkpoint::recorded_position(&run, step) != checkpoint::recorded_position(&copy, step) {
            let what = "the tokens, the position in the data or the validation losses";
            self.contradictions.push(format!(
                "the sealed state of step {} differs from the state that training reached in {what}",
                count(step)
            ));
        }
        Ok(())
    }

    /// Adds what a check of the files found. `is_own` is true if this build of the program wrote them.
    fn add(&mut self, finding: Finding, is_own: bool) {
        match finding {
            Finding::Wrong(text) => self.contradictions.push(text),
            Finding::Unusual(text) if is_own => self.contradictions.push(text),
            Finding::Unusual(text) => {
                self.not_verified.push(format!("{text} (a different build of the program wrote this run)"));
            }
            Finding::NotVerified(text) => self.not_verified.push(text),
        }
    }

    /// This, of which no step is trained, with the reason.
    fn untrained(mut self, why: &str, manifest: &SealManifest, is_own: bool) -> Self {
        self.not_verified.push(format!("every step: {why}"));
        self.not_verified.push(NOT_COMPUTED.to_owned());
        let more = [PLAN, DATA, SAMPLES, ROWS, TOKENIZER, METRICS, SUMMARY, RESOLVED, run_dir::MANIFEST];
        self.describe_unread(&[&UNREAD[..], &more].concat(), manifest, is_own, false);
        self
    }

    /// Names the files of which only the bytes were compared: the files with the names `unread` in the record, and the exported files unless
    /// they were compared.
    fn describe_unread(&mut self, unread: &[&str], manifest: &SealManifest, is_own: bool, has_export: bool) {
        let is_unread = |path: &&str| match path.strip_prefix(&format!("{RUN}/")) {
            Some(own) => unread.contains(&own),
            None if *path == README => !is_own,
            None => !has_export,
        };
        let files: Vec<&str> = manifest.files.iter().map(|file| file.path.as_str()).filter(is_unread).collect();
        if !files.is_empty() {
            let text = format!("what is in {}: only the bytes were compared with the manifest", files.join(", "));
            self.not_verified.push(text);
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
    fn judge(&mut self, manifest: &SealManifest, last_step: u64, trained: &ReproductionVerdict) {
        let (from, to, step) = (trained.from_step, trained.to_step, manifest.weights_step);
        if from > 0 {
            self.not_verified.push(format!(
                "steps 1 to {} and earlier measurements: the state after step {} was taken from the sealed run as it is",
                count(from),
                count(from)
            ));
        }
        if to < last_step {
            self.not_verified.push(format!("steps {} to {}", count(to + 1), count(last_step)));
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
            Some(weights) if !weights.trained => {
                let why = "they are those of the sealed state, and were not trained again";
                self.not_verified.push(format!("the weights: {why}"));
            }
            Some(weights) if !weights.equal && self.verdict == SealVerdict::WithinTolerance => {
                let why = "they differ from those trained again, and no tolerance is defined for that";
                self.not_verified.push(format!("the bits of the weights: {why}"));
            }
            Some(_) => {}
        }
    }
}

impl SealManifest {
    /// The steps that are trained again if none are named: from the sealed state to the weights, or to the end. `None` if there is no state
    /// before the last step.
    pub(super) fn default_steps(&self, last_step: u64) -> Option<RangeInclusive<u64>> {
        let (step, _) = self.state()?;
        let last = if step < self.weights_step { self.weights_step } else { last_step };
        (step < last).then(|| step + 1..=last)
    }
}

/// Recorded facts that cannot be computed again.
const NOT_COMPUTED: &str = "times, speeds, memory, machines, versions, paths; layouts, flags, variables, templates and errors of sessions; settings that change no number; the status of the run, the number at the end of its id, its sweep, its origin and what it inherited";

/// Files of the record whose whole content no check compares.
const UNREAD: [&str; 4] = [TRACE, EXPERIMENT, TEMPLATE, MERGED_FILES];

/// True if all sessions of the run in `run` added numbers in the order of `experiment`.
fn has_one_layout(run: &Path, experiment: &Experiment) -> Result<bool> {
    let sums = SessionLayout::of(experiment).describe_sums();
    let sessions = run_dir::read_manifest(run)?.described_sessions();
    Ok(sessions.iter().all(|session| session.layout.as_ref().is_some_and(|layout| layout.describe_sums() == sums)))
}

/// True if this build of the program wrote the record of the run in `run`.
fn is_record_of_this_program(run: &Path, host: &Host) -> Result<bool> {
    let sessions = run_dir::read_manifest(run)?.described_sessions();
    Ok(sessions.iter().all(|session| {
        let source_hash = session.platform.as_ref().and_then(|platform| platform.source_hash.as_ref());
        session.version == env!("CARGO_PKG_VERSION") && source_hash == host.build.source_hash.as_ref()
    }))
}

/// Compares the sealed weights with those that the run `again` has at the same step, by the hashes of the tensors in an export. The result does not
/// count them as trained again. The second value names the exported files that differ in any byte, or that only one export has: equal weights
/// give equal files, the names of their tensors included.
fn compare_export(
    manifest: &SealManifest,
    again: &OpenedRun,
    host: &Host,
    observer: &mut dyn RunObserver,
) -> Result<(SealedWeightsComparison, Vec<String>)> {
    let failed = || "exporting the weights again".to_owned();
    create_dir_all(&host.runs).map_err(CommandError::io(failed()))?;
    let (aside, _lock) = folder_aside(&host.runs, &host.runs.join("verify")).map_err(CommandError::io(failed()))?;
    let to = aside.path().join(WEIGHTS);
    export_weights(again, manifest.weights_step, &to, host, observer)?;
    let exported = list_files(&to).into_iter().map(|path| SealedFile::read(&to, path));
    let exported = exported.collect::<Result<Vec<SealedFile>>>()?;
    let is_exported = |file: &&SealedFile| file.path != README && !file.path.starts_with(&format!("{RUN}/"));
    let sealed: Vec<&SealedFile> = manifest.files.iter().filter(is_exported).collect();
    let mut hashes: BTreeMap<&str, &str> =
        sealed.iter().flat_map(|file| &file.tensors).map(|tensor| (&*tensor.name, &*tensor.hash)).collect();
    let mut tensors = exported.iter().flat_map(|file| &file.tensors);
    let differs = |tensor: &&TensorHash| hashes.remove(&*tensor.name) != Some(&*tensor.hash);
    let first = tensors.find(differs).map(|tensor| tensor.name.clone());
    let tensor = first.or_else(|| hashes.keys().next().map(|added| (*added).to_owned()));
    let mut differing: BTreeMap<&str, &str> = exported.iter().map(|file| (&*file.path, &*file.hash)).collect();
    for file in sealed {
        match differing.get(&*file.path) {
            Some(hash) if *hash == file.hash => drop(differing.remove(&*file.path)),
            _ => drop(differing.insert(&file.path, "")),
        }
    }
    let weights =
        SealedWeightsComparison { step: manifest.weights_step, trained: false, equal: tensor.is_none(), tensor };
    Ok((weights, differing.into_keys().map(str::to_owned).collect()))
}
