//! The names on the hub in an experiment: their files on this machine, and their commits.

use super::{Host, with_progress};
use crate::error::EngineError;
use crate::observer::RunObserver;
use runner_data::Progress;
use runner_data::hub::{self, LoweredData, ModelFolder};
use runner_spec::experiment::{Data, Experiment, HellaSwag, Layout, Source, Tokenizer};

/// Replaces names on the hub in `data`, in the `test` source and in the `choice` set by files of this machine. Returns them with the commits,
/// `None` if nothing names the hub.
///
/// # Errors
/// If the hub refuses, or cannot be reached.
pub fn lower_hub(
    data: &Data,
    test: Option<&Source>,
    choice: Option<&HellaSwag>,
    host: &Host,
    observer: &mut dyn RunObserver,
) -> Result<Option<LoweredData>, EngineError> {
    if !hub::is_needed(data, test, choice) {
        return Ok(None);
    }
    let settings = hub::Settings::new(&|name| host.environment.get(name).cloned())?;
    let folder = host.cache.join("hub");
    let lowered = with_progress(observer, |report| {
        hub::lower(data, test, choice, &settings, &folder, &|part| report(Progress::Downloading(part)))
    });
    Ok(Some(lowered?))
}

/// The folder of the model `name` of the hub at `revision`, downloaded where it is not in the cache.
///
/// # Errors
/// If the hub refuses, or cannot be reached, or the model has no weights that can be read.
pub fn fetch_model_folder(
    name: &str,
    revision: &str,
    host: &Host,
    observer: &mut dyn RunObserver,
) -> Result<ModelFolder, EngineError> {
    let settings = hub::Settings::new(&|name| host.environment.get(name).cloned())?;
    let folder = host.cache.join("hub");
    let fetched = with_progress(observer, |report| {
        hub::fetch_model_folder(name, revision, &settings, &folder, &|part| report(Progress::Downloading(part)))
    });
    Ok(fetched?)
}

/// `tokenizer` as files of this machine.
///
/// # Errors
/// If it is on the hub, and the hub refuses or cannot be reached.
pub fn local_tokenizer(
    tokenizer: Tokenizer,
    host: &Host,
    observer: &mut dyn RunObserver,
) -> Result<Tokenizer, EngineError> {
    let data = data_without_text(tokenizer);
    let lowered = lower_hub(&data, None, None, host, observer)?;
    Ok(lowered.map_or(data, |lowered| lowered.local).tokenizer)
}

/// The multiple-choice `set` as a file of this machine.
///
/// # Errors
/// If it is on the hub, and the hub refuses or cannot be reached.
pub fn local_choice(set: HellaSwag, host: &Host, observer: &mut dyn RunObserver) -> Result<HellaSwag, EngineError> {
    let lowered = lower_hub(&data_without_text(Tokenizer::Bytes {}), None, Some(&set), host, observer)?;
    Ok(lowered.and_then(|lowered| lowered.choice).map_or(set, |(local, _)| local))
}

fn data_without_text(tokenizer: Tokenizer) -> Data {
    let train = Source::Tokens { files: Vec::new() };
    let layout = Layout::Packed { length: 1 };
    Data { tokenizer, train, validation: None, layout, shuffle: false, drop_last: false }
}

/// Replaces what `experiment` names of the hub by the commits that it means now, so that the run reads the same files again.
///
/// # Errors
/// If the hub refuses, or cannot be reached.
pub fn pin_hub_commits(
    experiment: &mut Experiment,
    host: &Host,
    observer: &mut dyn RunObserver,
) -> Result<(), EngineError> {
    let (test, choice) = (experiment.eval.test.as_ref(), experiment.eval.hellaswag.as_ref());
    if let Some(lowered) = lower_hub(&experiment.data, test, choice, host, observer)? {
        experiment.data = lowered.pinned;
        if let Some((_, pinned)) = lowered.choice {
            experiment.eval.hellaswag = Some(pinned);
        }
        if let Some((_, pinned)) = lowered.test {
            experiment.eval.test = Some(pinned);
        }
    }
    Ok(())
}
