//! Reads an experiment: the file, then the layers over it, then everything checked together.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::check::check;
use super::explain::{Origin, origins};
use super::foreign_keys;
use super::import::foreign_trainer;
use super::initial_weights::add_weights;
use super::layers::{Layer, LayerOrigin, Layers};
use super::mistakes::Mistakes;
use super::overridden::{OverriddenSetting, find_overridden};
use super::overrides::{LoadOptions, add_overrides};
use super::presets;
use super::raw::RawExperiment;
use super::resolver::Resolver;
use runner_spec::diagnostic::{ConfigError, list, nearest, short};
use runner_spec::experiment::{Data, Experiment};
use runner_template::Rendered;
use runner_yaml::source::{MAX_BYTES, Source, is_stream, read, too_large};
use runner_yaml::tree;

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
    /// The `--set` flags that have no effect, because a later one replaces them.
    pub overridden: Vec<OverriddenSetting>,
    /// The environment variables that had effect.
    pub env_read: Vec<(String, String)>,
}

/// Reads the experiment file at `path` under the layers of `options`.
///
/// # Errors
/// All mistakes of file, environment and flags.
pub fn load(path: &Path, options: &LoadOptions<'_>) -> Result<Loaded, ConfigError> {
    let text = read(path, "name an experiment file, such as exp.yaml")?;
    if !runner_template::is_template(path) {
        check_has_no_variables(path, options)?;
        return from_str(&text, path, options).map_err(|mistakes| mention_import(mistakes, &text, path));
    }
    let rendered = runner_template::render(&text, path, &options.template)?;
    let mut loaded = lower(rendered.source(path), path, options)?;
    loaded.env_read.extend(rendered.env_read.iter().cloned());
    loaded.template = Some(rendered);
    Ok(loaded)
}

/// # Errors
/// If there are variables of a template: the file in `path` is none.
fn check_has_no_variables(path: &Path, options: &LoadOptions<'_>) -> Result<(), ConfigError> {
    if options.template.vars.is_empty() {
        return Ok(());
    }
    Err(runner_template::not_a_template(path, &options.template).into())
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
pub fn from_str(text: &str, path: &Path, options: &LoadOptions<'_>) -> Result<Loaded, ConfigError> {
    lower(plain_source(text, path)?, path, options).map(|loaded| Loaded { text: text.to_owned(), ..loaded })
}

/// # Errors
/// If `text` is too large for an experiment.
fn plain_source(text: &str, path: &Path) -> Result<Source, ConfigError> {
    let source = Source::file(path, text.to_owned());
    if text.len() as u64 > MAX_BYTES {
        return Err(too_large(&source, text.len() as u64).into());
    }
    Ok(source)
}

/// Reads the text that the experiment in `path` trains on: its training source, and the part that is held out. The other values of the
/// section are defaults. Neither the model nor its weights are needed, and files may be missing.
///
/// # Errors
/// Mistakes in these keys; keys and values anywhere that are not legal.
pub fn load_text_source(path: &Path, options: &LoadOptions<'_>) -> Result<Data, ConfigError> {
    let text = read(path, "name an experiment file, such as exp.yaml")?;
    if runner_template::is_template(path) {
        let rendered = runner_template::render(&text, path, &options.template)?;
        return lower_text_source(rendered.source(path), path, options);
    }
    check_has_no_variables(path, options)?;
    lower_text_source(plain_source(&text, path)?, path, options)
        .map_err(|mistakes| mention_import(mistakes, &text, path))
}

fn lower_text_source(source: Source, path: &Path, options: &LoadOptions<'_>) -> Result<Data, ConfigError> {
    let (base, whole) = (base_folder(path, &source)?, source.clone());
    let (layers, mistakes) = read_layers(source, options)?;
    let (layers, raw, mistakes) = merge(layers, mistakes, &whole)?;
    let mut resolver = Resolver {
        layers: &layers,
        base,
        mistakes,
        notes: BTreeMap::new(),
        warnings: Vec::new(),
        allows_absent_files: true,
        allows_absent_initial_inputs: true,
        fork_step: None,
        weights: None,
    };
    let data = resolver.text_source(raw.data.unwrap_or_default());
    let diagnostics = resolver.mistakes.diagnostics;
    match data {
        Some(data) if diagnostics.is_empty() => Ok(data),
        _ if diagnostics.is_empty() => Err(program_bug(&whole, &"a source was lost")),
        _ => Err(ConfigError::new(diagnostics)),
    }
}

/// Lowers the text of the file to an experiment.
fn lower(source: Source, path: &Path, options: &LoadOptions<'_>) -> Result<Loaded, ConfigError> {
    let (base, whole) = (base_folder(path, &source)?, source.clone());
    let (mut layers, mut mistakes) = read_layers(source, options)?;
    let described = add_weights(&base, options, &mut layers, &mut mistakes);
    let overridden = find_overridden(&layers);
    let (layers, raw, mistakes) = merge(layers, mistakes, &whole)?;
    let mut resolver = Resolver {
        layers: &layers,
        base,
        mistakes,
        notes: BTreeMap::new(),
        warnings: Vec::new(),
        allows_absent_files: options.allows_absent_files,
        allows_absent_initial_inputs: options.allows_absent_initial_inputs,
        fork_step: options.fork_step,
        weights: described,
    };
    let experiment = resolver.experiment(raw, path);
    let Resolver { mistakes: Mistakes { diagnostics, .. }, notes, warnings, .. } = resolver;
    match experiment {
        Some(experiment) if diagnostics.is_empty() => {
            let origins = origins(&experiment, &layers, &notes);
            let env_read = layers.environment();
            Ok(Loaded {
                experiment,
                path: path.to_owned(),
                text: whole.text,
                template: None,
                origins,
                warnings,
                overridden,
                env_read,
            })
        }
        _ if diagnostics.is_empty() => Err(program_bug(&whole, &"a section was lost")),
        _ => Err(ConfigError::new(diagnostics)),
    }
}

/// Reads the file `source`, the layers over it and the preset below it. Returns them with the mistakes in them.
///
/// # Errors
/// If the file has no value: there is nothing to lay the other layers over.
pub(crate) fn read_layers(source: Source, options: &LoadOptions<'_>) -> Result<(Vec<Layer>, Mistakes), ConfigError> {
    let mut mistakes = Mistakes::default();
    let (tree, found) = tree::parse(&source);
    mistakes.diagnostics.extend(found);
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
    Ok((layers, mistakes))
}

/// Merges `layers`, whose file is `whole`, to the experiment as written.
fn merge(
    layers: Vec<Layer>,
    mut mistakes: Mistakes,
    whole: &Source,
) -> Result<(Layers, RawExperiment, Mistakes), ConfigError> {
    let layers = Layers::merge(layers).map_err(|error| program_bug(whole, &error))?;
    let mut value = layers.value();
    layers.complete(&mut value, &mut mistakes);
    match serde_json::from_value(value) {
        Ok(raw) => Ok((layers, raw, mistakes)),
        Err(_) if !mistakes.diagnostics.is_empty() => Err(ConfigError::new(mistakes.diagnostics)),
        Err(error) => Err(program_bug(whole, &error)),
    }
}

fn program_bug(file: &Source, error: &dyn std::fmt::Display) -> ConfigError {
    let message = format!("this is a bug of the program, not of the file: {error}");
    file.diagnostic_whole(message, "please report it with the file".into()).into()
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

/// The folder that paths in the file `path` start from, absolute.
fn base_folder(path: &Path, source: &Source) -> Result<PathBuf, ConfigError> {
    let wrong = |message: String| ConfigError::from(source.diagnostic_whole(message, String::new()));
    // A stream is in no folder.
    let path = if is_stream(path) { Path::new("") } else { path };
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = std::path::absolute(folder).map_err(|e| wrong(format!("the folder of the file is not known: {e}")))?;
    if folder.to_str().is_none() {
        return Err(wrong("the name of the file's folder is not UTF-8, and the record of a run is".to_owned()));
    }
    Ok(folder)
}
