//! The weights that an experiment starts from: their description is the lowest layer of the experiment.

use std::path::Path;

use serde_json::json;

use crate::layers::{Layer, LayerOrigin};
use crate::mistakes::Mistakes;
use crate::overrides::{LoadOptions, ModelFetchError};
use runner_files::is_absent;
use runner_spec::experiment::{HubModel, ModelFolder, Tokenizer, WeightsSource};
use runner_spec::hub_name::is_commit;
use runner_weights as weights;
use runner_weights::DescribedModel;

/// The place of `model.init.from` in a layer.
pub(crate) const INIT_FROM: &str = "/model/init/from";
pub(crate) const INIT_FROM_KEY: &str = "model.init.from";

const PATH_HELP: &str = "`from` names a Hugging Face folder of a supported model, a file of PyTorch with a state dict, or \
                         `hub:NAME` of a model on the Hugging Face hub; paths are relative to the file's folder";
const GONE_HELP: &str =
    "if a run has a checkpoint that started from these weights, `runner resume RUN` resumes it without them";
const REPLACED_PATH_HELP: &str = "the run continues from its checkpoint and does not need these weights; remove the remaining files, or restore all of them";
const HUB_NAME_HELP: &str = "`hub:NAME` or `hub:NAME@REVISION` names a model on the Hugging Face hub; to name a path that starts with `hub:`, write `./hub:…`";
const HUB_HELP: &str = "connect to the hub, or give `from` the folder of the downloaded model";

/// The description of weights that were looked for, and the model of the hub that they are, at its commit; `None` if they are not there, and
/// need not be.
type WeightsSearch = Result<Option<(DescribedModel, Option<HubModel>)>, (String, String)>;

/// A mistake in `model.init.from`: the message and the help. A message of several lines brings its own help.
fn weights_mistake(message: &str, help: &str) -> (String, String) {
    let (first, help) = message.split_once('\n').unwrap_or((message, help));
    (first.to_owned(), help.to_owned())
}

/// Adds the description of the weights of `model.init.from` as the lowest layer of the experiment in the folder `base`, and replaces the
/// revision of a model of the hub by its commit. Returns the description if the model must match it. Weights that are gone are not a mistake
/// if they need not be there.
pub(crate) fn add_weights(
    base: &Path,
    options: &LoadOptions<'_>,
    layers: &mut Vec<Layer>,
    mistakes: &mut Mistakes,
) -> Option<DescribedModel> {
    let (chosen, source) = chosen_source(layers, base)?;
    let search = match &source {
        WeightsSource::Path(path) => find_path(path, options),
        WeightsSource::Hub(model) => find_model(model, options),
    };
    let (message, help) = match search {
        Ok(found) => {
            let (described, model) = found?;
            if let Some(model) = &model {
                layers[chosen].set_text(INIT_FROM, &WeightsSource::Hub(model.clone()));
            }
            let named = |file: &Path| LayerOrigin::Named(file.display().to_string());
            let (from, value) = (named(&described.file), json!({ "model": described.model_section() }));
            layers.insert(0, Layer { from, value });
            let tokenizer = described.tokenizer();
            if let Some(Tokenizer::File(file) | Tokenizer::Gpt2 { vocab: file, .. }) = &tokenizer {
                // A model of the hub names it for any machine.
                let value = json!({ "data": { "tokenizer": model.map(Tokenizer::Hub).or(tokenizer.clone()) } });
                layers.insert(0, Layer { from: named(file), value });
            }
            return (!options.allows_absent_initial_inputs).then_some(described);
        }
        Err(mistake) => mistake,
    };
    let mistake = layers[chosen].diagnostic(INIT_FROM_KEY, message, help);
    // Weights that are there and cannot be read are a mistake, unless a checkpoint may have replaced them.
    let may_be_absent = |path: &Path| options.allows_absent_initial_inputs || is_absent(path);
    if options.allows_absent_files && matches!(&source, WeightsSource::Path(path) if may_be_absent(path)) {
        mistakes.absent_files.extend(mistake);
        return None;
    }
    mistakes.diagnostics.extend(mistake);
    // Keys that the description would have given are not missing.
    mistakes.poison("model");
    None
}

/// The weights to start from, and the layer that names them.
fn chosen_source(layers: &[Layer], base: &Path) -> Option<(usize, WeightsSource)> {
    // A higher layer that draws the weights takes the lower one's choice away.
    let chosen = layers.iter().rposition(|layer| layer.value.pointer("/model/init").is_some())?;
    let text = layers[chosen].value.pointer(INIT_FROM)?.as_str()?.to_owned();
    let base = layers[chosen].folder().unwrap_or(base);
    Some((chosen, WeightsSource::from(text).relative_to(base)))
}

/// Looks for the weights in the file or folder `path`.
fn find_path(path: &Path, options: &LoadOptions<'_>) -> WeightsSearch {
    let error = match weights::describe(path) {
        Ok(described) => return Ok(Some((described, None))),
        Err(error) => error,
    };
    let is_gone = is_absent(path);
    if is_gone && options.allows_absent_initial_inputs {
        return Ok(None);
    }
    let help = if options.allows_absent_initial_inputs { REPLACED_PATH_HELP } else { PATH_HELP };
    let help = if is_gone { format!("{help}\n{GONE_HELP}") } else { help.to_owned() };
    Err(weights_mistake(&error.to_string(), &help))
}

/// Looks for `model` of the hub on this machine and on the hub.
fn find_model(model: &HubModel, options: &LoadOptions<'_>) -> WeightsSearch {
    if let Some(message) = model.problem() {
        return Err(weights_mistake(&message, HUB_NAME_HELP));
    }
    // A checkpoint replaces them, and their commit is known.
    if options.allows_absent_initial_inputs && is_commit(&model.revision) {
        return Ok(None);
    }
    let Some(fetch) = options.fetch_model else {
        if options.allows_absent_files || options.allows_absent_initial_inputs {
            return Ok(None);
        }
        let message = "this command does not download models of the hub".to_owned();
        return Err(weights_mistake(&message, HUB_HELP));
    };
    let fetched = fetch(model).map_err(|ModelFetchError { message, is_refused }| {
        weights_mistake(&message, if is_refused { HUB_NAME_HELP } else { HUB_HELP })
    });
    let ModelFolder { path, commit } = fetched?;
    let described = weights::describe(&path).map_err(|error| weights_mistake(&error.to_string(), HUB_HELP))?;
    Ok(Some((described, Some(HubModel { revision: commit, ..model.clone() }))))
}
