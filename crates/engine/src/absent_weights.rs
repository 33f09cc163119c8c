//! `apply` where the weights of `model.init.from` are gone: a run that began with them recorded what they say about the model, and goes on
//! with its checkpoint.

use std::path::{Path, PathBuf};

use runner_config::{Loaded, RecordedWeights};
use runner_spec::diagnostic::ConfigError;
use runner_spec::plan::Plan;
use runner_store::manifest::RunStatus;
use runner_store::run_dir::{self, CHECKPOINTS};
use runner_store::{catalog, checkpoint};

use crate::apply::ApplyRequest;
use crate::error::EngineError;
use crate::opened_run::resolved_experiment;
use crate::prepare::RecordedInputs;

/// The key that names the weights.
const KEY: &str = "model.init.from";

/// Weights that are gone, as a run recorded them.
pub(crate) struct AbsentWeights {
    pub(crate) inputs: RecordedInputs,
    /// The error of a start from these weights.
    error: ConfigError,
}

/// Loads the experiment of `request`, which did not load because of `error`, with the record of a run in `runs`: of the run that it
/// continues, or of the newest run of this name that began with the same weights.
///
/// # Errors
/// `error`, if it is not about weights or there is no such run with a checkpoint.
pub(crate) fn load_from_record(
    request: &ApplyRequest<'_>,
    runs: &Path,
    error: ConfigError,
) -> Result<(Loaded, AbsentWeights), EngineError> {
    if !error.diagnostics.iter().any(|diagnostic| diagnostic.key == KEY) {
        return Err(error.into());
    }
    let continued = request.continue_from.as_ref();
    let candidates: Vec<PathBuf> = match continued {
        Some(other) => vec![catalog::resolve(runs, &other.run)?],
        // A folder of runs that cannot be read has no run to go on with.
        None => catalog::list(runs).into_iter().flatten().rev().map(|run| run.path).collect(),
    };
    let mut found: Option<(&PathBuf, Loaded, RecordedInputs)> = None;
    for path in candidates.iter().filter(|path| has_checkpoint(path)) {
        let Ok(theirs) = resolved_experiment(path) else { continue };
        let Some(recorded) = RecordedWeights::of_experiment(&theirs) else { continue };
        let Ok(loaded) = (request.load)(&[recorded]) else { continue };
        if continued.is_none() && loaded.experiment.name != theirs.name {
            continue;
        }
        let inputs = RecordedInputs::read(path)?;
        match &found {
            Some((other, _, first)) if first.facts.weights != inputs.facts.weights => {
                let id =
                    |path: &Path| path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
                return Err(EngineError::Request(format!(
                    "{KEY}: the weights are gone, and {} and {} began with different ones: `runner resume` with one of these names goes \
                     on with it",
                    id(other),
                    id(path)
                )));
            }
            Some(_) => {}
            None => found = Some((path, loaded, inputs)),
        }
    }
    match found {
        Some((_, loaded, inputs)) => Ok((loaded, AbsentWeights { inputs, error })),
        None => Err(error.into()),
    }
}

impl AbsentWeights {
    /// Checks that the run of `plan` in `runs` has a resume point, so that it does not need the weights.
    ///
    /// # Errors
    /// If it would start from the weights.
    pub(crate) fn check_has_resume_point(
        &self,
        request: &ApplyRequest<'_>,
        runs: &Path,
        plan: &Plan,
    ) -> Result<(), EngineError> {
        let found = run_dir::find_run(runs, plan).run.filter(|_| !request.start_new);
        let goes_on = found.is_some_and(|(path, manifest)| manifest.status == RunStatus::Done || has_checkpoint(&path));
        if goes_on || request.continue_from.is_some() { Ok(()) } else { Err(self.error.clone().into()) }
    }
}

/// True if the run in `path` has a checkpoint.
fn has_checkpoint(path: &Path) -> bool {
    checkpoint::saved_steps(&path.join(CHECKPOINTS)).is_ok_and(|steps| !steps.is_empty())
}
