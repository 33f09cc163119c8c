//! The weights that an experiment starts from: their description is the lowest layer of the experiment.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::explain::to_yaml;
use super::layers::{Layer, LayerOrigin};
use super::mistakes::Mistakes;
use super::overrides::{LoadOptions, ModelFetchError, ModelFetchFailure};
use super::resolve::name_of_layers;
use runner_files::is_absent;
use runner_spec::experiment::{Experiment, HubModel, ModelFolder, Tokenizer, WeightInit, WeightsSource};
use runner_spec::hub_name::is_commit;
use runner_weights as weights;
use runner_weights::DescribedModel;

/// The place of `model.init.from` in a layer.
pub(crate) const INIT_FROM: &str = "/model/init/from";

const PATH_HELP: &str = "`from` names a Hugging Face folder of GPT-2 or Llama weights, a model file of llm.c, or `hub:NAME` of a model on \
                         the Hugging Face hub; paths are relative to the file's folder";
const REPLACED_PATH_HELP: &str =
    "a checkpoint replaces these weights: restore their files, or remove what is left of them";
const HUB_NAME_HELP: &str = "`hub:NAME` or `hub:NAME@REVISION` names a model on the Hugging Face hub; a path that begins like this is written `./hub:…`";
const HUB_HELP: &str = "connect to the hub, or give `from` the folder of the downloaded model";
const FOLDER_HELP: &str = "give `from` the folder of the downloaded model";

/// The description of the weights that a run started from, as its record has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedWeights {
    /// The weights at their commit, if they are of the hub.
    source: WeightsSource,
    /// The weights as the run's file named them; `None` if the record does not tell.
    written: Option<WeightsSource>,
    /// The name that an experiment must have to take this description; `None`: any name.
    name: Option<String>,
    /// The sections `model` and `data` of the file, with the keys that the weights' folder gives.
    layer: Value,
}

impl RecordedWeights {
    /// The weights of `experiment`, as a run recorded it, for experiments called `name`, or for all. The run's file named them as
    /// `written`. Returns `None` if the run draws its weights.
    #[must_use]
    pub fn of_experiment(
        experiment: &Experiment,
        written: Option<WeightsSource>,
        name: Option<String>,
    ) -> Option<Self> {
        let Some(WeightInit::From(source)) = &experiment.model.init else { return None };
        let document: Value = runner_yaml::document::from_str(&to_yaml(experiment)).ok()?;
        let (mut model, tokenizer) = (document.get("model")?.clone(), document.pointer("/data/tokenizer")?.clone());
        model.as_object_mut()?.retain(|key, value| key != "init" && !value.is_null());
        let layer = json!({"model": model, "data": {"tokenizer": tokenizer}});
        Some(Self { source: source.clone(), written, name, layer })
    }

    /// True if `source` names these weights: as the record does, or, for a model of the hub, as the run's file did.
    fn matches_source(&self, source: &WeightsSource) -> bool {
        let is_on_hub = matches!(self.source, WeightsSource::Hub(_));
        self.source == *source || is_on_hub && self.written.as_ref() == Some(source)
    }

    /// True if this description is for experiments called `name`.
    fn matches_name(&self, name: &str) -> bool {
        self.name.as_ref().is_none_or(|own| own == name)
    }
}

/// The result of looking for weights.
enum WeightsSearch {
    Described(FoundWeights),
    /// They are not there, and need not be.
    NotNeeded,
    /// They are not there; the record of a run can replace them.
    Gone(WeightsMistake),
    Wrong(WeightsMistake),
}

/// A mistake in `model.init.from`.
struct WeightsMistake {
    message: String,
    help: &'static str,
}

/// Weights on this machine.
struct FoundWeights {
    path: PathBuf,
    /// The model of the hub that they are, at its commit.
    model: Option<HubModel>,
    described: DescribedModel,
}

impl FoundWeights {
    /// The tokenizer beside the weights and the file that it is read from; a model of the hub names it for any machine.
    fn tokenizer(&self) -> Option<(PathBuf, Tokenizer)> {
        let tokenizer = weights::tokenizer_in(&self.path)?;
        let file = match &tokenizer {
            Tokenizer::File(file) | Tokenizer::Gpt2 { vocab: file, .. } => file.clone(),
            _ => self.path.clone(),
        };
        Some((file, self.model.clone().map_or(tokenizer, Tokenizer::Hub)))
    }
}

/// The weights whose description was added to the layers.
#[derive(Default)]
pub(crate) struct AddedWeights<'o> {
    /// The description, if the model must match it.
    pub(crate) described: Option<DescribedModel>,
    /// The record that takes the place of weights that are gone.
    pub(crate) recorded: Option<&'o RecordedWeights>,
}

/// Adds the description of the weights of `model.init.from` as the lowest layer of the experiment in `path`, and replaces the revision of a
/// model of the hub by its commit. `base` is the folder of `path`. Weights that are gone are not a mistake if they need not be there, or if
/// a record replaces them.
pub(crate) fn add_weights<'o>(
    path: &Path,
    base: &Path,
    options: &'o LoadOptions<'_>,
    layers: &mut Vec<Layer>,
    mistakes: &mut Mistakes,
) -> AddedWeights<'o> {
    let Some((chosen, source)) = chosen_source(layers, base) else { return AddedWeights::default() };
    let search = match &source {
        WeightsSource::Path(path) => find_path(path, options),
        WeightsSource::Hub(model) => find_model(model, options),
    };
    let mistake = match search {
        WeightsSearch::Described(found) => {
            let tokenizer = found.tokenizer();
            let FoundWeights { model, described, .. } = found;
            if let Some(model) = model {
                layers[chosen].set_text(INIT_FROM, &WeightsSource::Hub(model));
            }
            let from = LayerOrigin::Weights(described.file.display().to_string());
            layers.insert(0, Layer { from, value: json!({ "model": described.model_section() }) });
            if let Some((file, tokenizer)) = tokenizer {
                let from = LayerOrigin::Weights(file.display().to_string());
                layers.insert(0, Layer { from, value: json!({ "data": { "tokenizer": tokenizer } }) });
            }
            let described = (!allows_absent(options)).then_some(described);
            return AddedWeights { described, recorded: None };
        }
        WeightsSearch::NotNeeded => return AddedWeights::default(),
        WeightsSearch::Gone(mistake) => {
            let name = name_of_layers(layers, path);
            let mut recorded = options.recorded_weights.iter();
            let recorded = recorded.find(|recorded| recorded.matches_source(&source) && recorded.matches_name(&name));
            if let Some(RecordedWeights { source, layer, .. }) = recorded {
                layers[chosen].set_text(INIT_FROM, source);
                let from = LayerOrigin::Weights(format!("the record of a run that began with {source}"));
                layers.insert(0, Layer { from, value: layer.clone() });
                return AddedWeights { described: None, recorded };
            }
            mistake
        }
        WeightsSearch::Wrong(mistake) => mistake,
    };
    let (message, help) = mistake.message.split_once('\n').unwrap_or((&mistake.message, mistake.help));
    let found = layers[chosen].diagnostic("model.init.from", message.to_owned(), help.to_owned());
    mistakes.diagnostics.extend(found);
    // Keys that the description would have given are not missing.
    mistakes.poison("model");
    AddedWeights::default()
}

/// The weights to start from, and the layer that names them.
fn chosen_source(layers: &[Layer], base: &Path) -> Option<(usize, WeightsSource)> {
    // A higher layer that draws the weights takes the lower one's choice away.
    let chosen = layers.iter().rposition(|layer| layer.value.pointer("/model/init").is_some())?;
    let text = layers[chosen].value.pointer(INIT_FROM)?.as_str()?.to_owned();
    Some((chosen, WeightsSource::from(text).relative_to(base)))
}

fn allows_absent(options: &LoadOptions<'_>) -> bool {
    options.allows_absent_files || options.allows_absent_initial_inputs
}

/// Looks for the weights in the file or folder `path`.
fn find_path(path: &Path, options: &LoadOptions<'_>) -> WeightsSearch {
    let error = match weights::describe(path) {
        Ok(described) => {
            return WeightsSearch::Described(FoundWeights { path: path.to_owned(), model: None, described });
        }
        Err(error) => error,
    };
    let is_gone = is_absent(path);
    // Weights that are there and cannot be read are a mistake, unless no file need be there.
    if options.allows_absent_files || is_gone && options.allows_absent_initial_inputs {
        return WeightsSearch::NotNeeded;
    }
    let help = if options.allows_absent_initial_inputs { REPLACED_PATH_HELP } else { PATH_HELP };
    let mistake = WeightsMistake { message: error.to_string(), help };
    if is_gone { WeightsSearch::Gone(mistake) } else { WeightsSearch::Wrong(mistake) }
}

/// Looks for `model` of the hub on this machine and on the hub. It is gone if it is not in the cache, and the hub cannot be reached or does
/// not give the commit that is named.
fn find_model(model: &HubModel, options: &LoadOptions<'_>) -> WeightsSearch {
    if let Some(message) = model.problem() {
        return WeightsSearch::Wrong(WeightsMistake { message, help: HUB_NAME_HELP });
    }
    // A checkpoint replaces them, and their commit is known.
    if options.allows_absent_initial_inputs && is_commit(&model.revision) {
        return WeightsSearch::NotNeeded;
    }
    let Some(fetch) = options.fetch_model else {
        if allows_absent(options) {
            return WeightsSearch::NotNeeded;
        }
        let message = "this command does not download models of the hub".to_owned();
        return WeightsSearch::Wrong(WeightsMistake { message, help: FOLDER_HELP });
    };
    let ModelFolder { path, commit } = match fetch(model) {
        Ok(folder) => folder,
        Err(ModelFetchError { message, failure }) => {
            let help = if failure == ModelFetchFailure::Refused { HUB_NAME_HELP } else { HUB_HELP };
            let mistake = WeightsMistake { message, help };
            // A branch or tag that the hub does not know may be a mistake; a commit is what a record names.
            let is_gone = failure == ModelFetchFailure::Unreachable || is_commit(&model.revision);
            return if is_gone { WeightsSearch::Gone(mistake) } else { WeightsSearch::Wrong(mistake) };
        }
    };
    match weights::describe(&path) {
        Ok(described) => {
            let model = Some(HubModel { revision: commit, ..model.clone() });
            WeightsSearch::Described(FoundWeights { path, model, described })
        }
        Err(error) => WeightsSearch::Wrong(WeightsMistake { message: error.to_string(), help: HUB_HELP }),
    }
}
