//! The names on the hub in an experiment: their files on this machine, and their commits.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use crate::host::Host;
use crate::observer::{RunObserver, with_progress};
use runner_config::{ModelFetchError, ModelFetchFailure};
use runner_data::hub::{self, LoweredData};
use runner_data::{Progress, TextTokenizer, claim_cache};
use runner_files::parent_folder;
use runner_spec::error::{CommandError, Result};

use runner_spec::experiment::{
    Data, Eval, Experiment, HubModel, ModelFolder, Source, Task, Tokenizer, WeightInit, WeightsSource,
};

/// Replaces names on the hub in `data`, in the `test` source and in `tasks` by files of this machine. Returns them with the commits,
/// `None` if nothing names the hub.
///
/// # Errors
/// If the hub refuses, or cannot be reached.
pub fn lower_hub(
    data: &Data,
    test: Option<&Source>,
    tasks: &[(String, Task)],
    host: &Host,
    observer: &mut dyn RunObserver,
) -> Result<Option<LoweredData>> {
    if !hub::is_needed(data, test, tasks) {
        return Ok(None);
    }
    let (settings, folder) = hub_settings(host)?;
    let lowered = with_progress(observer, |report| {
        hub::lower(data, test, tasks, &settings, &folder, &|part| report(Progress::Downloading(part)))
    });
    Ok(Some(lowered?))
}

/// [`lower_hub`] for the data of `experiment`. If a run `recorded` the tokenizer, `data.tokenizer` stays as it is, and the hub is not asked.
///
/// # Errors
/// Those of [`lower_hub`].
pub(crate) fn lower_hub_of_run(
    experiment: &Experiment,
    recorded: Option<&TextTokenizer>,
    host: &Host,
    observer: &mut dyn RunObserver,
) -> Result<Option<LoweredData>> {
    let (test, tasks) = (experiment.eval.test.as_ref(), owned_tasks(&experiment.eval));
    let mut data = experiment.data.clone();
    if recorded.is_some() {
        data.tokenizer = Tokenizer::Bytes {};
    }
    let mut lowered = lower_hub(&data, test, &tasks, host, observer)?;
    if let Some(LoweredData { local, pinned, .. }) = lowered.as_mut().filter(|_| recorded.is_some()) {
        local.tokenizer.clone_from(&experiment.data.tokenizer);
        pinned.tokenizer.clone_from(&experiment.data.tokenizer);
    }
    Ok(lowered)
}

/// The settings of the hub, and the folder for its lists of files.
fn hub_settings(host: &Host) -> Result<(hub::Settings, PathBuf)> {
    let settings = hub::Settings::new(&|name| host.environment.get(name).cloned())?;
    Ok((settings, claim_cache(host.cache()?)?.join("hub")))
}

/// The folder of `model`, downloaded where it is not in the cache.
///
/// # Errors
/// If the hub refuses, or cannot be reached, or the model has no weights that can be read.
pub fn fetch_model_folder(model: &HubModel, host: &Host, observer: &mut dyn RunObserver) -> Result<ModelFolder> {
    let (settings, folder) = hub_settings(host)?;
    let HubModel { name, revision } = model;
    let fetched = with_progress(observer, |report| {
        hub::fetch_model_folder(name, revision, &settings, &folder, &|part| report(Progress::Downloading(part)))
    });
    Ok(fetched?)
}

/// The folder from which `experiment` started, with the files beside its weights; `None` if it drew them, or they are a file alone. A model
/// of the hub is looked for in the cache alone.
///
/// # Errors
/// If the settings of the hub are wrong.
pub fn starting_folder(experiment: &Experiment, host: &Host) -> Result<Option<PathBuf>> {
    match &experiment.model.init {
        Some(WeightInit::From(WeightsSource::Path(path))) if path.is_file() => {
            let folder = parent_folder(path).to_owned();
            Ok(Some(folder).filter(|folder| folder.join("config.json").is_file()))
        }
        Some(WeightInit::From(WeightsSource::Path(path))) => Ok(Some(path.clone())),
        Some(WeightInit::From(WeightsSource::Hub(HubModel { name, revision }))) => {
            let (settings, _) = hub_settings(host)?;
            Ok(Some(hub::cached_model_folder(name, revision, &settings)))
        }
        _ => Ok(None),
    }
}

/// The function by which `runner_config` finds the models of the hub that experiments start from; `observer` receives the progress of
/// downloads. It looks for a model once, even if many experiments name it.
pub fn model_fetcher<'a>(
    host: &'a Host,
    observer: &'a mut dyn RunObserver,
) -> impl Fn(&HubModel) -> Result<ModelFolder, ModelFetchError> + Sync + 'a {
    let shared = Mutex::new((observer, BTreeMap::new()));
    move |model| {
        let (observer, fetched) = &mut *shared.lock().unwrap_or_else(PoisonError::into_inner);
        let fetch = || fetch_model_folder(model, host, *observer).map_err(|error| model_fetch_error(&error));
        fetched.entry(model.clone()).or_insert_with(fetch).clone()
    }
}

/// `error` of [`fetch_model_folder`] as `runner_config` takes it.
pub fn model_fetch_error(error: &CommandError) -> ModelFetchError {
    let failure = match error.cause::<hub::HubError>() {
        Some(error) if error.is_unreachable() => ModelFetchFailure::Unreachable,
        Some(hub::HubError::Request(_)) => ModelFetchFailure::Refused,
        _ => ModelFetchFailure::Other,
    };
    ModelFetchError { message: error.to_string(), failure }
}

/// `tokenizer` as files of this machine.
///
/// # Errors
/// If it is on the hub, and the hub refuses or cannot be reached.
pub fn local_tokenizer(tokenizer: Tokenizer, host: &Host, observer: &mut dyn RunObserver) -> Result<Tokenizer> {
    let data = data_without_text(tokenizer);
    let lowered = lower_hub(&data, None, &[], host, observer)?;
    Ok(lowered.map_or(data, |lowered| lowered.local).tokenizer)
}

/// The tasks of `eval`, by their names.
pub(crate) fn owned_tasks(eval: &Eval) -> Vec<(String, Task)> {
    eval.tasks().map(|(name, task)| (name.to_owned(), task.clone())).collect()
}

/// `tasks`, those on the hub as files of this machine.
///
/// # Errors
/// If it is on the hub, and the hub refuses or cannot be reached.
pub fn local_tasks(
    tasks: Vec<(String, Task)>,
    host: &Host,
    observer: &mut dyn RunObserver,
) -> Result<Vec<(String, Task)>> {
    let lowered = lower_hub(&data_without_text(Tokenizer::Bytes {}), None, &tasks, host, observer)?;
    Ok(lowered.map_or(tasks.clone(), |lowered| with_local_files(tasks, &lowered)))
}

/// `tasks`, those that were found on the hub with their files on this machine.
pub(crate) fn with_local_files(tasks: Vec<(String, Task)>, lowered: &LoweredData) -> Vec<(String, Task)> {
    let local = |name: &str| lowered.tasks.get(name).map(|(local, _)| local.clone());
    tasks.into_iter().map(|(name, task)| (name.clone(), local(&name).unwrap_or(task))).collect()
}

fn data_without_text(tokenizer: Tokenizer) -> Data {
    Data::of_text(tokenizer, Source::Tokens { files: Vec::new(), dtype: None })
}

/// Replaces data that `experiment` names of the hub by the commits that it means now, so that the run reads the same files again. A tokenizer
/// that a run `recorded` is at its commit.
///
/// # Errors
/// If the hub refuses, or cannot be reached.
pub fn pin_hub_commits(
    experiment: &mut Experiment,
    recorded: Option<&TextTokenizer>,
    host: &Host,
    observer: &mut dyn RunObserver,
) -> Result<()> {
    if let Some(lowered) = lower_hub_of_run(experiment, recorded, host, observer)? {
        experiment.data = lowered.pinned;
        for (name, task) in experiment.eval.tasks_mut() {
            if let Some((_, pinned)) = lowered.tasks.get(name) {
                *task = pinned.clone();
            }
        }
        if let Some((_, pinned)) = lowered.test {
            experiment.eval.test = Some(pinned);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_data::hub::HubError;

    #[test]
    fn a_hub_is_unreachable_if_it_was_not_asked_or_did_not_answer() {
        let text = || "text".to_owned();
        for (error, failure) in [
            (HubError::Offline(text()), ModelFetchFailure::Unreachable),
            (HubError::Unreachable(text()), ModelFetchFailure::Unreachable),
            (HubError::Request(text()), ModelFetchFailure::Refused),
            (HubError::Other(text()), ModelFetchFailure::Other),
        ] {
            assert_eq!(model_fetch_error(&error.into()), ModelFetchError { message: text(), failure });
        }
    }
}
