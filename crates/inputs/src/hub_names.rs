//! The names on the hub in an experiment: their files on this machine, and their commits.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use crate::host::Host;
use crate::observer::{RunObserver, with_progress};
use runner_config::ModelFetchError;
use runner_data::hub::{self, DataSources, LoweredData};
use runner_data::{Progress, TextTokenizer, claim_cache};
use runner_files::parent_folder;
use runner_spec::error::{CommandError, Result};

use runner_spec::experiment::{
    Data, Experiment, HubModel, ModelFolder, Source, Task, Tokenizer, WeightInit, WeightsSource,
};

/// Replaces names on the hub in `sources` by files of this machine, and by commits.
///
/// # Errors
/// If the hub refuses, or cannot be reached.
pub fn lower_hub(sources: DataSources, host: &Host, observer: &mut dyn RunObserver) -> Result<LoweredData> {
    if !sources.names_hub() {
        return Ok(LoweredData { local: sources.clone(), pinned: sources });
    }
    let settings = hub_settings(host)?;
    let lowered =
        with_progress(observer, |report| hub::lower(&sources, &settings, &|part| report(Progress::Downloading(part))));
    Ok(lowered?)
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
) -> Result<LoweredData> {
    let Experiment { data, eval, .. } = experiment;
    let tasks = eval.tasks().map(|(name, task)| (name.to_owned(), task.clone())).collect();
    let mut sources = DataSources { data: data.clone(), test: eval.test.clone(), tasks };
    if recorded.is_some() {
        sources.data.tokenizer = Tokenizer::Bytes {};
    }
    let mut lowered = lower_hub(sources, host, observer)?;
    if recorded.is_some() {
        lowered.local.data.tokenizer.clone_from(&data.tokenizer);
        lowered.pinned.data.tokenizer.clone_from(&data.tokenizer);
    }
    Ok(lowered)
}

/// The settings of the hub.
fn hub_settings(host: &Host) -> Result<hub::Settings> {
    let memos = claim_cache(host.cache()?)?.join("hub");
    Ok(hub::Settings::new(&|name| host.environment.get(name).cloned(), memos)?)
}

/// The folder of `model`, downloaded where it is not in the cache.
///
/// # Errors
/// If the hub refuses, or cannot be reached, or the model has no weights that can be read.
pub fn fetch_model_folder(model: &HubModel, host: &Host, observer: &mut dyn RunObserver) -> Result<ModelFolder> {
    let settings = hub_settings(host)?;
    let HubModel { name, revision } = model;
    let fetched = with_progress(observer, |report| {
        hub::fetch_model_folder(name, revision, &settings, &|part| report(Progress::Downloading(part)))
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
            Ok(Some(hub::cached_model_folder(name, revision, &hub_settings(host)?)))
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
    let is_refused = matches!(error.cause(), Some(hub::HubError::Request(_)));
    ModelFetchError { message: error.to_string(), is_refused }
}

/// `tokenizer` as files of this machine.
///
/// # Errors
/// If it is on the hub, and the hub refuses or cannot be reached.
pub fn local_tokenizer(tokenizer: Tokenizer, host: &Host, observer: &mut dyn RunObserver) -> Result<Tokenizer> {
    Ok(lower_hub(data_without_text(tokenizer).into(), host, observer)?.local.data.tokenizer)
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
    let sources = DataSources { data: data_without_text(Tokenizer::Bytes {}), test: None, tasks };
    Ok(lower_hub(sources, host, observer)?.local.tasks)
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
    let DataSources { data, test, tasks } = lower_hub_of_run(experiment, recorded, host, observer)?.pinned;
    (experiment.data, experiment.eval.test) = (data, test);
    for ((_, task), (_, pinned)) in experiment.eval.tasks_mut().zip(tasks) {
        *task = pinned;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_data::hub::HubError;

    #[test]
    fn a_hub_has_refused_only_if_it_answered() {
        let text = || "text".to_owned();
        for (error, is_refused) in [
            (HubError::Offline(text()), false),
            (HubError::Unreachable(text()), false),
            (HubError::Request(text()), true),
            (HubError::Other(text()), false),
        ] {
            assert_eq!(model_fetch_error(&error.into()), ModelFetchError { message: text(), is_refused });
        }
    }
}
