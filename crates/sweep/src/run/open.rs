//! Finds, starts or resumes the sweep of a sweep file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::progress::SweepProgress;
use crate::record::sweep_dir;
use crate::record::sweep_dir::SweepDir;
use crate::record::{SourceHash, SweepRecord};
use crate::{SweepSpec, changed_keys, expand};
use runner_config::LoadOptions;
use runner_record::catalog::{SWEEP_FILE, SWEEPS};
use runner_record::{RecordError, RunLock};

use super::plan_points::{PlannedSweep, load_points, plan_points};
use super::point_sources::is_unchanged;
use super::request::SweepRequest;
use runner_inputs::{Host, IgnoreEvents, RunEvent, RunObserver};
use runner_spec::error::{CommandError, Result};

/// The sweep of a request.
#[derive(Debug)]
pub enum OpenedSweep {
    /// A dry run: the sweep that would be run.
    Planned(Box<SweepRecord>),
    /// Nothing is left to do.
    Finished {
        record: Box<SweepRecord>,
        progress: SweepProgress,
        changed_inputs: Vec<String>,
    },
    Created(SweepDir),
    Resumed {
        sweep: SweepDir,
        /// The files and the environment variables that the points were made from and that have changed since. None if the request names
        /// the sweep instead of its file.
        changed_inputs: Vec<String>,
    },
}

/// Finds the sweep of `request` in the folder of runs of `host`, or plans and creates it.
///
/// # Errors
/// All mistakes of all points; a sweep that was started with a different version of the file and is not finished, or that another process
/// runs; a folder that cannot be written.
pub fn open_sweep(request: &SweepRequest<'_>, host: &Host, observer: &mut dyn RunObserver) -> Result<OpenedSweep> {
    let spec = request.spec;
    if let Some(path) = &request.started {
        let record = sweep_dir::read_record(path)?;
        check_same_flags(request, &record)?;
        return resume(request, host, path, record, observer);
    }
    if let Some((path, record)) = find_resumable(request, host, observer)? {
        return resume(request, host, &path, record, observer);
    }
    if request.slurm.is_some() {
        runner_batch_jobs::check_folder(&sweep_dir::absolute_path(&host.runs))?;
        if !request.dry_run {
            runner_batch_jobs::slurm::check_commands()?;
        }
    }
    let PlannedSweep { record, experiments, is_private } = plan_points(request, host, observer)?;
    if request.dry_run {
        return Ok(OpenedSweep::Planned(Box::new(record)));
    }
    // Two calls at once must not both find nothing.
    let turn = RunLock::take_name(&host.runs.join(SWEEPS), &spec.name)?;
    if let Some((path, record)) = find_resumable(request, host, &mut IgnoreEvents)? {
        drop(turn);
        return resume(request, host, &path, record, observer);
    }
    Ok(OpenedSweep::Created(SweepDir::create(&host.runs, record, &spec.copy, &experiments, is_private)?))
}

/// Checks the sweep `spec` without reading data, and returns the number of its points.
///
/// # Errors
/// All mistakes of all points.
pub fn check_sweep(
    spec: &SweepSpec,
    options: &LoadOptions<'_>,
    host: &Host,
    observer: &mut dyn RunObserver,
) -> Result<usize> {
    let expanded = expand(spec)?;
    load_points(spec, &expanded.points, options, &host.pool()?, host, observer).map(|loaded| loaded.len())
}

/// Checks that the request has no `--set` flags, or those with which the sweep of `record` was started.
///
/// # Errors
/// If it has others.
fn check_same_flags(request: &SweepRequest<'_>, record: &SweepRecord) -> Result<()> {
    let sets = &request.options.sets;
    if sets.is_empty() || *sets == record.overrides {
        return Ok(());
    }
    Err(CommandError::request(format!(
        "the points of sweep {} are fixed: it was started with the --set flags {:?}, not {sets:?}; leave out the flags to resume it",
        record.id, record.overrides
    )))
}

/// The sweep of the request's file that can be resumed; `None` if a new one starts.
///
/// # Errors
/// If the sweep was started with a different version of the file, and is not finished.
fn find_resumable(
    request: &SweepRequest<'_>,
    host: &Host,
    observer: &mut dyn RunObserver,
) -> Result<Option<(PathBuf, SweepRecord)>> {
    let spec = request.spec;
    if request.start_new {
        return Ok(None);
    }
    let Some((path, record)) = sweep_dir::newest_of_file(&host.runs, &spec.name, &spec.path)? else { return Ok(None) };
    let copy = sweep_dir::read_copy(&path).map_err(|error| explain_damaged_copy(&error, &spec.path, &record.id))?;
    let mut changes = changed_keys(&copy.text, &spec.copy);
    if record.overrides != request.options.sets {
        changes.push(format!("the --set flags changed from {:?} to {:?}", record.overrides, request.options.sets));
    }
    // A group's file is its base, and a changed experiment is another group.
    let is_group = sweep_dir::absolute_path(&spec.base) == sweep_dir::absolute_path(&spec.path);
    if is_group && record.sources.iter().any(|source| !is_unchanged(source)) {
        let text = format!("{} changed since {} started; starting a new group", spec.path.display(), record.id);
        observer.observe(&RunEvent::Note(&text));
        return Ok(None);
    }
    if changes.is_empty() {
        return Ok(Some((path, record)));
    }
    let (id, changes) = (&record.id, changes.join("; "));
    if request.dry_run {
        let text = format!("{id} was started from a different version of this file: {changes}");
        observer.observe(&RunEvent::Warning(&text));
        return Ok(None);
    }
    if SweepProgress::read(&host.runs, &record).is_finished(&record) {
        let text = format!("sweep    {id} is done, and this file has changed since: {changes}; starting a new sweep");
        observer.observe(&RunEvent::Note(&text));
        return Ok(None);
    }
    Err(CommandError::request(format!(
        "sweep {id} is not finished, but {} has changed since it started: {changes}; to resume it, restore the file \
         from {}; to start a new sweep, which does not repeat runs that are done, use `--new`",
        spec.path.display(),
        path.join(SWEEP_FILE).display()
    )))
}

/// The refusal to resume the sweep `id` of the sweep file `file` without its copy of that file.
#[must_use]
pub fn explain_damaged_copy(error: &RecordError, file: &Path, id: &str) -> CommandError {
    CommandError::request(format!(
        "cannot resume sweep {id}, because its copy of the sweep file cannot be used: {error}; if {} has not \
         changed since the sweep started, copy it there; otherwise use `--new` to start a new sweep, which does not \
         repeat runs that are done",
        file.display()
    ))
}

/// Opens the sweep in `path`, or finds it finished.
fn resume(
    request: &SweepRequest<'_>,
    host: &Host,
    path: &Path,
    record: SweepRecord,
    observer: &mut dyn RunObserver,
) -> Result<OpenedSweep> {
    let changed = record.sources.iter().filter(|source| !is_unchanged(source));
    let (changed, missing): (Vec<&SourceHash>, Vec<&SourceHash>) = changed.partition(|source| source.path.exists());
    let stay = format!("since {} started; its points stay as they were", record.id);
    let [changed, missing] = [changed, missing]
        .map(|sources| sources.iter().map(|source| source.path.display().to_string()).collect::<Vec<String>>());
    let mut variables = changed_variables(&record.environment, &request.options.env, &host.environment);
    variables.retain(|name| !request.own_variables.contains(&name.as_str()));
    let new = if request.started.is_none() { " (use `--new` to start a new sweep)" } else { "" };
    for (names, what, advice) in
        [(&changed, "changed", new), (&missing, "disappeared", ""), (&variables, "changed", new)]
    {
        if !names.is_empty() {
            observer.observe(&RunEvent::Warning(&format!("{} {what} {stay}{advice}", names.join(", "))));
        }
    }
    let changed_inputs = if request.started.is_none() { [changed, variables].concat() } else { Vec::new() };
    let record = Box::new(record);
    if request.dry_run {
        return Ok(OpenedSweep::Planned(record));
    }
    let progress = SweepProgress::read(&host.runs, &record);
    if progress.is_finished(&record) {
        return Ok(OpenedSweep::Finished { record, progress, changed_inputs });
    }
    let opened = SweepDir::open(path).map_err(|error| match error {
        RecordError::Locked { id, holder } => CommandError::request(format!(
            "another process{holder} is running sweep {id}; `runner sweep status {id}` shows its progress"
        )),
        other => other.into(),
    })?;
    Ok(OpenedSweep::Resumed { sweep: opened, changed_inputs })
}

/// The names of variables that changed: of those in `recorded`, and of those in `set` that set keys of experiments now.
fn changed_variables(
    recorded: &BTreeMap<String, String>,
    set: &[(String, String)],
    now: &BTreeMap<String, String>,
) -> Vec<String> {
    let changed = recorded.iter().filter(|(name, value)| now.get(*name) != Some(value)).map(|(name, _)| name);
    let new = set.iter().filter(|(name, value)| !recorded.contains_key(name) && runner_config::sets_key(name, value));
    changed.chain(new.map(|(name, _)| name)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_changed_are_found() {
        let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let recorded = BTreeMap::from([variable("RUNNER_A", "1"), variable("RUNNER_B", "2")]);
        // RUNNER_OS is from GitHub Actions.
        let set = [variable("RUNNER_B", "2"), variable("RUNNER_SEED", "3"), variable("RUNNER_OS", "Linux")];
        let now: BTreeMap<String, String> = set.iter().cloned().collect();
        assert_eq!(changed_variables(&recorded, &set, &now), ["RUNNER_A", "RUNNER_SEED"]);
    }
}
