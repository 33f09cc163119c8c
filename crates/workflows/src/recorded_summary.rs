//! The summary of a run on which no process works: it is read, or made from the run's other files.

use std::path::Path;

use runner_compare::stored_plan;
use runner_inputs::{RunEvent, RunObserver};
use runner_record::manifest::{Manifest, RunStatus};
use runner_record::run_dir::{self, CHECKPOINTS, METRICS, RunDir, SUMMARY};
use runner_record::summary::Summary;
use runner_record::{RecordError, checkpoint};
use runner_spec::forecast::ForecastBasis;
use runner_spec::plan::Plan;

/// The summary of the run in `path`. One that cannot be read counts as missing, and `observer` receives a warning.
pub(crate) fn read_summary_or_warn(path: &Path, observer: &mut dyn RunObserver) -> Option<Summary> {
    run_dir::read_summary(path).unwrap_or_else(|unreadable| {
        observer.observe(&RunEvent::Warning(&format!("skipped: {unreadable}")));
        None
    })
}

/// Reports to `observer` that the run in `path`, which other commands call `name`, has nothing left to do, and that it is up to date unless
/// `is_damaged`.
pub(crate) fn report_nothing_to_do(path: &Path, name: &str, is_damaged: bool, observer: &mut dyn RunObserver) {
    let (summary, up_to_date) = (read_summary_or_warn(path, observer), !is_damaged);
    let summary = summary.as_ref();
    observer.observe(&RunEvent::End { run: path, name, summary, up_to_date, failed: false, interrupted: false });
}

/// Writes the summary of the finished run in `path` again, if it is missing or damaged, as far as other files have its numbers.
pub(crate) fn restore_summary(path: &Path, manifest: &Manifest, observer: &mut dyn RunObserver) {
    let problem = match run_dir::read_summary(path) {
        Ok(Some(_)) => return,
        Ok(None) => format!("{} is missing", path.join(SUMMARY).display()),
        Err(unreadable) => unreadable.to_string(),
    };
    let restored = || {
        // The metrics may be damaged as well.
        let summary = Summary { metrics: None, ..summary_of_files(path, manifest, manifest.status)? };
        RunDir::open(path)?.write_json(SUMMARY, &summary)
    };
    let result = match restored() {
        Ok(()) => {
            "written again from the metrics and the newest checkpoint, without peak memory and test result".to_owned()
        }
        Err(error) => format!("it could not be written again: {error}"),
    };
    observer.observe(&RunEvent::Warning(&format!("{problem}; {result}")));
}

/// The summary of the run in `path`, on which no process works, as far as other files have its numbers.
pub(crate) fn summary_of_files(path: &Path, manifest: &Manifest, status: RunStatus) -> Result<Summary, RecordError> {
    let (folder, metrics) = (path.join(CHECKPOINTS), path.join(METRICS));
    let newest = checkpoint::saved_steps(&folder)?.last().copied();
    let saved = newest.and_then(|step| checkpoint::recorded_position(&folder, step));
    let hash = newest.and_then(|step| checkpoint::recorded_hash(&folder, step));
    let (final_hash, weights_hash) = hash.map(|hash| (hash.state, hash.weights)).unzip();
    let continued_from = manifest.continued_from.as_ref();
    let plan = stored_plan::as_written(path);
    Ok(Summary {
        id: manifest.id.clone(),
        status,
        steps_total: manifest.steps,
        predicted_step_ms: plan.as_ref().and_then(|plan| Some(plan.forecast.as_ref()?.step_seconds * 1e3)),
        is_prediction_disturbed: plan.as_ref().is_some_and(is_prediction_disturbed),
        planned_memory_bytes: plan.as_ref().map_or(0, planned_memory),
        final_hash,
        weights_hash,
        ..Summary::from_metrics(&metrics, continued_from, manifest.newest_layout_began(), saved.as_ref())?
    })
}

/// True if the forecast of `plan` comes from a calibration while other programs computed.
pub(crate) fn is_prediction_disturbed(plan: &Plan) -> bool {
    plan.forecast.as_ref().is_some_and(|forecast| forecast.basis == ForecastBasis::Disturbed)
}

/// The planned memory of all ranks.
pub(crate) fn planned_memory(plan: &Plan) -> u64 {
    plan.ranks.iter().map(|rank| rank.memory.total()).fold(0, u64::saturating_add)
}
