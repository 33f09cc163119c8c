//! Reads an experiment: the file, then the layers over it, then everything checked together.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::check::check;
use super::explain::{Origin, origins};
use super::foreign_keys;
use super::import::foreign_trainer;
use super::layers::{Layer, LayerOrigin, Layers};
use super::mistakes::Mistakes;
use super::overrides::{LoadOptions, add_overrides};
use super::presets;
use super::raw::RawExperiment;
use super::resolver::Resolver;
use runner_spec::diagnostic::{ConfigError, list, nearest, short};
use runner_spec::experiment::{Experiment, Tokenizer};
use runner_template::Rendered;
use runner_template::source::{MAX_BYTES, Source, is_stream, read, too_large};
use runner_template::tree;
use runner_weights as weights;
use runner_weights::DescribedModel;

/// An experiment, and the origins of its values.
#[derive(Debug, Clone)]
pub struct Loaded {
    pub experiment: Experiment,
    pub path: PathBuf,
    /// The text of the file; for a template, the rendered text.
    pub text: String,
    /// The rendered template and its files; `None` for a plain file.
    pub template: Option<Rendered>,
    /// The origin of each value, in the order of the keys.
    pub origins: Vec<Origin>,
    /// Warnings of settings that are legal, but probably mistakes.
    pub warnings: Vec<String>,
    /// The environment variables that had effect.
    pub env_read: Vec<(String, String)>,
}

/// Reads the experiment file at `path` under the layers of `options`.
///
/// # Errors
/// All mistakes of file, environment and flags.
pub fn load(path: &Path, options: &LoadOptions) -> Result<Loaded, ConfigError> {
    let text = read(path, "name an experiment file, such as exp.yaml")?;
    if !runner_template::is_template(path) {
        if !options.template.vars.is_empty() {
            return Err(runner_template::not_a_template(path, &options.template).into());
        }
        return from_str(&text, path, options).map_err(|mistakes| mention_import(mistakes, &text, path));
    }
    let rendered = runner_template::render(&text, path, &options.template)?;
    let mut loaded = lower(rendered.source(path), path, options)?;
    loaded.env_read.extend(rendered.env_read.iter().cloned());
    loaded.template = Some(rendered);
    Ok(loaded)
}

/// `mistakes`, or, if the file is the configuration of another trainer, the command that makes an experiment of it.
fn mention_import(mistakes: ConfigError, text: &str, path: &Path) -> ConfigError {
    let Some(trainer) = foreign_trainer(text, path) else { return mistakes };
    let help = format!("`runner import config {}` makes an experiment file of it", path.display());
    let message = format!("this is no experiment, but looks like a configuration of {trainer}");
    ConfigError::new(vec![Source::file(path, String::new()).diagnostic_whole(message, help)])
}

/// Reads the experiment `text`, which is not a template. Its relative paths start from the folder of `path`.
///
/// # Errors
/// All mistakes of text, environment and flags.
pub fn from_str(text: &str, path: &Path, options: &LoadOptions) -> Result<Loaded, ConfigError> {
    let source = Source::file(path, text.to_owned());
    if text.len() as u64 > MAX_BYTES {
        return Err(too_large(&source, text.len() as u64).into());
    }
    lower(source, path, options).map(|loaded| Loaded { text: text.to_owned(), ..loaded })
}

/// Lowers the text of the file to an experiment.
fn lower(source: Source, path: &Path, options: &LoadOptions) -> Result<Loaded, ConfigError> {
    let base = base_folder(path).map_err(|message| source.diagnostic_whole(message, String::new()))?;
    let whole = source.clone();
    let mut mistakes = Mistakes::default();
    let (tree, found) = tree::parse(&source);
    mistakes.diagnostics.extend(found);
    // Without a file there is nothing to lay the other layers over.
    let Some(tree) = tree.filter(|tree| !tree.is_null()) else {
        if mistakes.diagnostics.is_empty() {
            let help =
                "the shortest experiment:\nmodel: {preset: gpt2-micro}\ndata: {train: {text: {files: [input.txt]}}}";
            mistakes.diagnostics.push(source.diagnostic_whole("the file is empty".into(), help.into()));
        }
        return Err(ConfigError::new(mistakes.diagnostics));
    };
    let value = check(&tree, &source, &mut mistakes);
    let mut layers = vec![Layer { from: LayerOrigin::Text { source, tree }, value }];
    add_overrides(options, &mut layers, &mut mistakes);
    add_preset(&mut layers, &mut mistakes);
    let weights = add_weights(&base, options, &mut layers, &mut mistakes);

    let internal = |e: &dyn std::fmt::Display| {
        let message = format!("this is a bug of the program, not of the file: {e}");
        ConfigError::from(whole.diagnostic_whole(message, "please report it with the file".into()))
    };
    let layers = Layers::merge(layers).map_err(|error| internal(&error))?;
    let mut value = layers.value();
    layers.complete(&mut value, &mut mistakes);
    let raw: RawExperiment = match serde_json::from_value(value) {
        Ok(raw) => raw,
        Err(_) if !mistakes.diagnostics.is_empty() => return Err(ConfigError::new(mistakes.diagnostics)),
        Err(e) => return Err(internal(&e)),
    };
    let allows_absent_files = options.allows_absent_files;
    let mut resolver = Resolver {
        layers: &layers,
        base,
        mistakes,
        notes: BTreeMap::new(),
        warnings: Vec::new(),
        allows_absent_files,
        allows_absent_initial_inputs: options.allows_absent_initial_inputs || !options.recorded_weights.is_empty(),
        weights,
    };
    let experiment = resolver.experiment(raw, path);
    let Resolver { mistakes: Mistakes { diagnostics, .. }, notes, warnings, .. } = resolver;
    match experiment {
        Some(experiment) if diagnostics.is_empty() => {
            let origins = origins(&experiment, &layers, &notes);
            let env_read = layers.environment();
            let text = whole.text;
            Ok(Loaded { experiment, path: path.to_owned(), text, template: None, origins, warnings, env_read })
        }
        _ if diagnostics.is_empty() => Err(internal(&"a section was lost")),
        _ => Err(ConfigError::new(diagnostics)),
    }
}

/// Puts the preset that the layers choose below them.
fn add_preset(layers: &mut Vec<Layer>, mistakes: &mut Mistakes) {
    let chosen = layers.iter().rev().find_map(|l| Some((l, l.value.pointer("/model/preset")?)));
    let Some((layer, Value::String(name))) = chosen else { return };
    if let Some(value) = presets::layer(name) {
        let from = LayerOrigin::Preset(name.clone());
        layers.insert(0, Layer { from, value });
        return;
    }
    let names = presets::names();
    let mut help = format!("the presets are {}", list(&names, "and"));
    if let Some(note) = foreign_keys::counterpart_of_value("model.preset", name) {
        note.clone_into(&mut help);
    } else if let Some(near) = nearest(name, names.iter().copied()) {
        help = format!("did you mean `{near}`?\n{help}");
    }
    let found = layer.diagnostic("model.preset", format!("there is no preset `{}`", short(name)), help);
    mistakes.diagnostics.extend(found);
    mistakes.poison("model.preset");
}

/// Adds the description of the weights of `model.init.from` as the lowest layer. If files need not be there, weights that are
/// gone or have changed are not a mistake.
fn add_weights(
    base: &Path,
    options: &LoadOptions,
    layers: &mut Vec<Layer>,
    mistakes: &mut Mistakes,
) -> Option<DescribedModel> {
    // A higher layer that draws the weights takes the lower one's choice away.
    let chosen = layers.iter().rev().find_map(|l| Some((l, l.value.pointer("/model/init")?)));
    let (layer, path) = chosen.and_then(|(l, init)| Some((l, init.get("from")?.as_str()?)))?;
    let folder = base.join(path);
    let allows_absent = options.allows_absent_files || options.allows_absent_initial_inputs;
    let recorded = options.recorded_weights.iter().find(|recorded| recorded.path == folder).map(|recorded| {
        let from = LayerOrigin::Weights(format!("the record of a run that began with {}", folder.display()));
        Layer { from, value: recorded.layer.clone() }
    });
    match weights::describe(&folder) {
        Ok(described) => {
            let from = LayerOrigin::Weights(described.file.display().to_string());
            layers.insert(0, Layer { from, value: serde_json::json!({ "model": described.model_section() }) });
            if let Some(tokenizer) = weights::tokenizer_in(&folder) {
                let file = match &tokenizer {
                    Tokenizer::File(file) | Tokenizer::Gpt2 { vocab: file, .. } => file,
                    _ => &folder,
                };
                let from = LayerOrigin::Weights(file.display().to_string());
                layers.insert(0, Layer { from, value: serde_json::json!({ "data": { "tokenizer": tokenizer } }) });
            }
            (!allows_absent).then_some(described)
        }
        Err(_) if allows_absent => None,
        Err(_) if recorded.is_some() && !folder.exists() => {
            layers.splice(0..0, recorded);
            None
        }
        Err(error) => {
            let text = error.to_string();
            let help = "`from` names a Hugging Face folder of GPT-2 or Llama weights, or a model file of llm.c; paths are \
                        relative to the file's folder";
            let (message, help) = text.split_once('\n').unwrap_or((&text, help));
            mistakes.diagnostics.extend(layer.diagnostic("model.init.from", message.to_owned(), help.to_owned()));
            // Keys that the description would have given are not missing.
            mistakes.poison("model");
            None
        }
    }
}

/// The folder that paths start from, absolute.
fn base_folder(path: &Path) -> Result<PathBuf, String> {
    // A stream is in no folder.
    let path = if is_stream(path) { Path::new("") } else { path };
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = std::path::absolute(folder).map_err(|e| format!("the folder of the file is not known: {e}"))?;
    if folder.to_str().is_none() {
        return Err("the name of the file's folder is not UTF-8, and the record of a run is".to_owned());
    }
    Ok(folder)
}
