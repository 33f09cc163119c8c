//! Seals a run: copies what its verification needs to a new folder, which appears whole or not at all.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use runner_files::{
    TEMPORARY_PREFIX, TempDir, create_dir_all, foreign_path, is_temporary_name, open_regular, parent_folder,
    remove_abandoned, sync_dir, temporary_dir, temporary_prefix, write_atomic,
};
use runner_inputs::{Host, RunObserver};
use runner_machine::doctor::is_computing_variable;
use runner_record::checkpoint::{self, dir_name};
use runner_record::files::{file_name, write_sealed_json};
use runner_record::manifest::Manifest;
use runner_record::own_files::foreign_path_in_run;
use runner_record::record_check::find_damage_of_metrics;
use runner_record::run_dir::{self, CHECKPOINTS, RESOLVED, SUMMARY};
use runner_record::{CheckpointChoice, RecordError, RunLock, run_dir::MANIFEST as RUN_MANIFEST};
use runner_spec::error::{CommandError, Result};
use runner_weights::WeightsError;
use serde::Serialize;

use super::claims::{Finding, check_files};
use super::contents::{COPIED, is_written, last_step};
use super::manifest::{MANIFEST, README, RUN, SealManifest, SealedFile, list_files};
use super::readme::readme;
use crate::exported_weights::HfOptions;
use crate::opened_run::{OpenedRun, open_run};

/// The folder into which weights are written, before they are moved out of it.
pub(super) const WEIGHTS: &str = "weights";

/// A request to `seal`.
#[derive(Debug, Clone)]
pub struct SealRequest {
    /// The run: a folder, an id, or the unique prefix of an id.
    pub run: String,
    /// The folder to make.
    pub to: PathBuf,
    /// The weights.
    pub weights: CheckpointChoice,
    /// True to leave out the training state.
    pub without_state: bool,
}

/// A sealed run that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SealedRun {
    pub path: PathBuf,
    pub run: String,
    pub files: usize,
    pub bytes: u64,
    /// The step of the weights.
    pub step: u64,
    /// The step of the training state, and its size.
    pub state_step: Option<u64>,
    pub state_bytes: Option<u64>,
    /// The steps that can be trained again from it.
    pub steps: Option<[u64; 2]>,
    /// The content hash of the manifest, which determines every byte.
    pub hash: String,
    pub notes: Vec<String>,
}

/// Makes the folder that `request` describes.
///
/// # Errors
/// If there is no such run or checkpoint, the run trains, is private or damaged, or the folder exists or cannot be written.
pub fn seal(request: &SealRequest, host: &Host, observer: &mut dyn RunObserver) -> Result<SealedRun> {
    let to = std::path::absolute(&request.to).map_err(CommandError::io(request.to.display().to_string()))?;
    check_free(&to)?;
    let opened = open_run(&host.runs, &request.run)?;
    let manifest = run_dir::read_manifest(&opened.path)?;
    check_can_be_sealed(&opened, &manifest)?;
    let checkpoints = opened.path.join(CHECKPOINTS);
    let step = checkpoint::chosen_step(&checkpoints, request.weights)?;
    let parent = parent_folder(&to);
    create_dir_all(parent).map_err(CommandError::io(format!("creating {}", parent.display())))?;
    let failed = || format!("writing {}", to.display());
    let (aside, _lock) = folder_aside(parent, &to).map_err(CommandError::io(failed()))?;
    let state = if request.without_state { None } else { Some(state_to_seal(&checkpoints, &manifest, step)?) };
    let mut notes = copy_run(&opened, &manifest, step, state, aside.path(), host, observer)
        .map_err(|error| error.context(failed()))?;
    let all = list_files(aside.path());
    let files = all.into_iter().map(|path| SealedFile::read(aside.path(), path)).collect::<Result<Vec<_>>>()?;
    let mut sealed = SealManifest::new(manifest.id.clone(), step, files, host);
    let text = readme(aside.path(), &sealed)?;
    write_atomic(&aside.path().join(README), text.as_bytes()).map_err(CommandError::io(failed()))?;
    sealed.files.push(SealedFile::read(aside.path(), README.to_owned())?);
    sealed.files.sort_by(|a, b| a.path.cmp(&b.path));
    write_sealed_json(&aside.path().join(MANIFEST), &sealed)?;
    sync_folders(aside.path()).map_err(CommandError::io(failed()))?;
    let (_, hash) = SealManifest::read(aside.path())?;
    let steps = last_step(aside.path())?;
    // What a verification would refuse is not sealed.
    for finding in check_files(aside.path(), &sealed)? {
        match finding {
            Finding::Unusual(text) | Finding::NotVerified(text) => notes.push(text),
            Finding::Wrong(text) => {
                return Err(CommandError::failure(format!("{} cannot be sealed: {text}", manifest.id)));
            }
        }
    }
    check_free(&to)?;
    fs::rename(aside.path(), &to).map_err(CommandError::io(failed()))?;
    sync_dir(parent).map_err(CommandError::io(failed()))?;
    let state = sealed.state();
    let window = state.filter(|(step, _)| *step < steps).map(|(step, _)| [step + 1, steps]);
    if window.is_none() {
        notes.push(format!(
            "without a training state before step {steps}, a verification trains from the start of the run, or compares bytes alone"
        ));
    }
    Ok(SealedRun {
        path: to.clone(),
        run: manifest.id,
        files: sealed.files.len() + 1,
        bytes: sealed.files.iter().map(|file| file.bytes).sum(),
        step,
        state_step: state.map(|(step, _)| step),
        state_bytes: state.map(|(_, bytes)| bytes),
        steps: window,
        hash: hash.ok_or_else(|| CommandError::failure(format!("{}: the manifest cannot be read", to.display())))?,
        notes,
    })
}

/// A temporary folder in `parent` from which the folder `to` is made, and its lock. Removes those that killed processes left behind.
pub(super) fn folder_aside(parent: &Path, to: &Path) -> io::Result<(TempDir, File)> {
    let prefix = temporary_prefix(to);
    remove_abandoned(parent, &prefix, &is_own);
    let aside = temporary_dir(parent, &prefix)?;
    let lock = File::open(aside.path())?;
    // Without locks in the file system, nothing is removed.
    let _ = lock.try_lock();
    Ok((aside, lock))
}

/// # Errors
/// If there is something at `to`.
fn check_free(to: &Path) -> Result<()> {
    if to.symlink_metadata().is_err() {
        return Ok(());
    }
    Err(CommandError::request(format!("{} exists; name a new folder, since a sealed run never changes", to.display())))
}

/// # Errors
/// If the run trains, may hold secrets, or its record is damaged.
fn check_can_be_sealed(opened: &OpenedRun, manifest: &Manifest) -> Result<()> {
    let (path, id) = (&opened.path, &manifest.id);
    if RunLock::is_held(path) {
        return Err(CommandError::request(format!("a process works on {id}; seal it once it is done or stopped")));
    }
    if run_dir::has_private_settings(path) {
        let file = path.join(RESOLVED);
        return Err(CommandError::request(format!(
            "{id} is private: its settings may hold values of `env()`, and a sealed run is made to be passed on; if {} has no secrets, make \
             it readable with `chmod go+r`",
            file.display()
        )));
    }
    let summary = run_dir::read_summary(path)?;
    let Some(damage) = find_damage_of_metrics(path, manifest, summary.as_ref())? else { return Ok(()) };
    Err(CommandError::failure(format!("{id} cannot be sealed, because its record is damaged: {damage}")))
}

/// The step of the checkpoint to seal beside the weights of `step`: the newest before it, so that the steps up to the weights can be trained
/// again; that of the weights if there is none.
fn state_to_seal(checkpoints: &Path, manifest: &Manifest, step: u64) -> Result<u64> {
    let saved = checkpoint::saved_steps(checkpoints)?;
    let before = saved.iter().rfind(|saved| (manifest.inherited_steps()..step).contains(saved));
    Ok(before.copied().unwrap_or(step))
}

/// Writes the record, the state and the weights to `to`. Returns notes about the weights.
fn copy_run(
    opened: &OpenedRun,
    manifest: &Manifest,
    step: u64,
    state: Option<u64>,
    to: &Path,
    host: &Host,
    observer: &mut dyn RunObserver,
) -> Result<Vec<String>> {
    let run = to.join(RUN);
    fs::create_dir(&run).map_err(CommandError::io("creating a folder"))?;
    // A run that was killed may have the summary of the session before.
    let has_summary = run_dir::read_summary(&opened.path)?.is_some_and(|summary| summary.is_current(manifest.status));
    for name in COPIED.into_iter().filter(|name| *name != SUMMARY || has_summary) {
        let from = opened.path.join(name);
        if from.symlink_metadata().is_ok() {
            copy(&from, &run.join(name))?;
        }
    }
    write_sealed_json(&run.join(RUN_MANIFEST), &published(manifest.clone()))?;
    if let Some(state) = state {
        let checkpoints = run.join(CHECKPOINTS);
        fs::create_dir(&checkpoints).map_err(CommandError::io("creating a folder"))?;
        let (from, to) = (opened.path.join(CHECKPOINTS).join(dir_name(state)), checkpoints.join(dir_name(state)));
        fs::create_dir(&to).map_err(CommandError::io("creating a folder"))?;
        for name in list_files(&from) {
            copy(&from.join(&name), &to.join(&name))?;
        }
        if let Some(damage) = checkpoint::find_damage_of_newest(&checkpoints)? {
            return Err(damage.into());
        }
    }
    // An export locks its folder, as this process does the one around it.
    let weights = to.join(WEIGHTS);
    let written = export_weights(opened, step, &weights, host, observer)?;
    for name in list_files(&weights) {
        fs::rename(weights.join(&name), to.join(&name)).map_err(CommandError::io("moving the weights"))?;
    }
    fs::remove_dir(&weights).map_err(CommandError::io("moving the weights"))?;
    Ok(written)
}

/// Writes the weights of the checkpoint of `step` to `to`: as `transformers` reads them, or, where it has no such model, as checkpoints have
/// them. Returns notes.
pub(super) fn export_weights(
    opened: &OpenedRun,
    step: u64,
    to: &Path,
    host: &Host,
    observer: &mut dyn RunObserver,
) -> Result<Vec<String>> {
    let which = CheckpointChoice::Step(step);
    match opened.export_hf(which, HfOptions::default(), to, false, host, observer) {
        Ok(written) => Ok(written.notes),
        Err(error) if matches!(error.cause(), Some(WeightsError::Request(_))) => {
            checkpoint::export_weights(&opened.path.join(CHECKPOINTS), which, &opened.whole_layout()?, to)?;
            Ok(vec![format!("the weights are as checkpoints have them: {error}")])
        }
        Err(error) => Err(error),
    }
}

/// `manifest` without the author's paths, and without variables that change no number.
fn published(mut manifest: Manifest) -> Manifest {
    manifest.experiment_file = file_name(&manifest.experiment_file).into();
    if let Some(template) = &mut manifest.template {
        template.file = file_name(&template.file).into();
    }
    for merged in &mut manifest.files {
        merged.file = file_name(&merged.file).into();
    }
    manifest.is_sealed = true;
    manifest.environment.retain(|name, _| is_computing_variable(name));
    let inherited = manifest.continued_from.iter_mut().flat_map(|from| &mut from.sessions);
    for session in manifest.sessions.iter_mut().chain(inherited) {
        session.environment.retain(|name, _| is_computing_variable(name));
    }
    manifest
}

/// Copies the file `from` to the new file `to`, and makes its content durable.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let put = || -> io::Result<()> {
        let mut out = File::create_new(to)?;
        io::copy(&mut open_regular(from)?, &mut out)?;
        out.sync_all()
    };
    put().map_err(|error| RecordError::io("copying", from)(error).into())
}

/// Makes the entries of `folder` and of the folders below it durable.
fn sync_folders(folder: &Path) -> io::Result<()> {
    for child in runner_files::children(folder) {
        if runner_files::is_real_folder(&child) {
            sync_folders(&child)?;
        }
    }
    sync_dir(folder)
}

/// True if `path` is an unfinished sealed run, with nothing in it but what the program writes.
pub(super) fn is_own(path: &Path) -> bool {
    let is_written = |name: &str| name == RUN || is_written(name) || is_temporary_name(name.as_ref(), TEMPORARY_PREFIX);
    // An export writes to a temporary folder first.
    let prefix = temporary_prefix(Path::new(WEIGHTS));
    let is_of_weights = |folder: &str| folder == WEIGHTS || is_temporary_name(folder.as_ref(), &prefix);
    let foreign = foreign_path(path, &|names, _| match names {
        [RUN, ..] => true,
        [name] => is_written(name) || is_of_weights(name),
        [folder, name] => is_of_weights(folder) && is_written(name),
        _ => false,
    });
    matches!(foreign, Ok(None)) && matches!(foreign_path_in_run(&path.join(RUN)), Ok(None))
}
