//! The folder of a run is opened to work on it, found done and checked, or created.

use std::path::{Path, PathBuf};

use runner_config::{Loaded, ReadFile};
use runner_inputs::{Host, RunObserver, has_private_text};
use runner_record::manifest::{Manifest, MergedFile, RunStatus, TemplateUse};
use runner_record::run_dir::{BeginningCheckpoint, CHECKPOINTS, RunDir, RunFiles};
use runner_record::{RecordError, checkpoint, time};
use runner_spec::error::{CommandError, Result};

use crate::recorded_summary::{report_nothing_to_do, warn_of_damaged_metrics};
use crate::session::{RunSession, SessionOptions};

/// The run that a command asks for.
#[expect(clippy::large_enum_variant, reason = "there is one of it at a time")]
pub(crate) enum FoundRun {
    /// It is not done, and this process holds it.
    Unfinished(RunDir),
    /// There is nothing to do in this folder.
    Done(PathBuf),
}

impl SessionOptions {
    /// The name by which other commands find the run in `path`: its id where they would look for it, else its folder.
    pub(crate) fn name_of(&self, path: &Path, host: &Host) -> String {
        let real = |path: &Path| path.canonicalize().ok();
        let is_in_runs = real(path).is_some_and(|path| path.parent() == real(&host.runs).as_deref());
        let id = path.file_name().filter(|_| is_in_runs && !self.has_other_runs_folder).map(PathBuf::from);
        id.unwrap_or_else(|| path.to_owned()).display().to_string()
    }
}

/// Opens the run in `path`, which other commands call `name`, or reports to `observer` that it is up to date.
pub(crate) fn open_unless_done(
    path: PathBuf,
    name: &str,
    manifest: &Manifest,
    observer: &mut dyn RunObserver,
) -> Result<FoundRun> {
    // The status is read before the lock is taken: nothing is written for a finished run, not even a lock.
    if manifest.status != RunStatus::Done {
        let run = RunDir::open(&path)?;
        // Another process may have finished it meanwhile.
        if run.manifest().status != RunStatus::Done {
            return Ok(FoundRun::Unfinished(run));
        }
    }
    Ok(FoundRun::Done(find_done(path, name, manifest, observer)?))
}

/// Checks and reports that the run in `path`, which other commands call `name`, is done.
///
/// # Errors
/// If its newest checkpoint is damaged.
pub(crate) fn find_done(
    path: PathBuf,
    name: &str,
    manifest: &Manifest,
    observer: &mut dyn RunObserver,
) -> Result<PathBuf> {
    check_newest_checkpoint(&path, name)?;
    let damage = warn_of_damaged_metrics(&path, manifest, observer)?;
    report_nothing_to_do(&path, name, damage, observer);
    Ok(path)
}

/// # Errors
/// If the newest checkpoint of the finished run in `path`, which other commands call `name`, is damaged. Every byte of it is read.
fn check_newest_checkpoint(path: &Path, name: &str) -> Result<()> {
    let Some(damage) = checkpoint::find_damage_of_newest(&path.join(CHECKPOINTS))? else { return Ok(()) };
    Err(CommandError::failure(format!(
        "{name} is done, but its newest checkpoint is damaged: {damage}; restore it from a copy, or train the same \
         weights again in a different folder with `runner reproduce {name}`"
    )))
}

/// The record of a file that an experiment was merged from.
fn merged_file(ReadFile { file, is_above, .. }: &ReadFile) -> MergedFile {
    MergedFile { file: file.path.clone(), key: file.key.clone(), is_above: *is_above }
}

/// The texts of the files that an experiment was merged from, each under its path; `None` if there are none.
fn merged_texts(files: &[ReadFile]) -> Option<String> {
    let text = |read: &ReadFile| format!("# {}\n{}\n", read.file.path.display(), read.text.trim_end());
    (!files.is_empty()).then(|| files.iter().map(text).collect::<Vec<_>>().join("---\n"))
}

/// Creates the run of `loaded` that `session` is to work on. `identify` says in the manifest what kind of run it is; `beginning` is the
/// checkpoint that it begins with.
///
/// # Errors
/// If its folder cannot be written, or the checkpoint cannot be used.
pub(crate) fn create_run(
    session: &RunSession<'_>,
    loaded: &Loaded,
    identify: impl FnOnce(&mut Manifest),
    beginning: Option<&BeginningCheckpoint<'_>>,
) -> Result<RunDir, RecordError> {
    let (host, plan, overrides) = (session.host, &session.ready.plan, session.options.overrides.clone());
    let (template, file) = (loaded.template.as_ref(), &loaded.path);
    let mut manifest = Manifest::new(plan, file.clone(), overrides, time::now());
    manifest.environment.clone_from(&host.recorded_environment);
    manifest.template = template.map(|t| TemplateUse { file: file.clone(), vars: t.vars.clone() });
    manifest.files = loaded.other_files.iter().map(merged_file).collect();
    identify(&mut manifest);
    let resolved = runner_config::to_yaml(&loaded.experiment);
    let merged = merged_texts(&loaded.other_files);
    let files = RunFiles {
        experiment: &loaded.text,
        resolved: &resolved,
        template: template.and_then(|t| t.files.first()).map(|file| file.text.as_str()),
        merged: merged.as_deref(),
        is_private: has_private_text(loaded),
        plan,
        manifest,
    };
    RunDir::create(&host.runs, files, beginning)
}
