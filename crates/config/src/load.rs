//! Reads an experiment: the file, then the layers over it, then everything checked together.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::check::{Checked, check};
use super::explain::{Origin, origins};
use super::layers::{From, Layer, Layers};
use super::overrides;
use super::presets;
use super::raw::RawExperiment;
use super::resolve::Resolver;
use runner_spec::diagnostic::{ConfigError, Diagnostic, list, nearest, short};
use runner_spec::experiment::Experiment;
use runner_template::source::{MAX_BYTES, Source, read, too_large};
use runner_template::tree;
use runner_template::{Inputs, Rendered};
use runner_weights as weights;
use runner_weights::DescribedModel;

/// The layers above the file, and the inputs of templates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// `key.path=value`, the value in YAML; later ones win.
    pub sets: Vec<String>,
    /// Variables whose names begin with `RUNNER_`; `__` separates keys, as in `RUNNER_TRAIN__STEPS=10`.
    pub env: Vec<(String, String)>,
    /// Files that are named need not be there: for plans that read no data.
    pub absent_files: bool,
    /// Variables of a template, the values as YAML has them.
    pub vars: serde_json::Map<String, Value>,
    /// Those of `vars` that the template must use.
    pub named_vars: Vec<String>,
    /// The environment variables that a template's `env()` may find, if the template lists them.
    pub template_env: BTreeMap<String, String>,
    /// The second folder of a template's includes. Default: `templates` in the current folder, then beside the
    /// template's own folder.
    pub templates: Option<PathBuf>,
}

impl LoadOptions {
    /// The inputs of a template under these options.
    #[must_use]
    pub fn template_inputs(&self) -> Inputs {
        Inputs {
            vars: self.vars.clone(),
            named: self.named_vars.clone(),
            environment: self.template_env.clone(),
            folder: self.templates.clone(),
        }
    }
}

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
    /// The environment variables that had effect.
    pub env_read: Vec<(String, String)>,
}

/// Reads the experiment file at `path` under the layers of `options`.
///
/// # Errors
/// All mistakes of file, environment and flags.
pub fn load(path: &Path, options: &LoadOptions) -> Result<Loaded, ConfigError> {
    let text = read(path).map_err(|d| ConfigError::new(vec![*d]))?;
    if !runner_template::is_template(path) {
        if !options.vars.is_empty() {
            return Err(ConfigError::new(vec![runner_template::not_a_template(path, &options.template_inputs())]));
        }
        return from_str(&text, path, options);
    }
    let rendered = runner_template::render(&text, path, &options.template_inputs())?;
    let mut loaded = lower(rendered.source(path), path, options)?;
    loaded.env_read.extend(rendered.env_read.iter().cloned());
    loaded.template = Some(rendered);
    Ok(loaded)
}

/// Reads the experiment `text`, which is not a template. Its relative paths start from the folder of `path`.
///
/// # Errors
/// All mistakes of text, environment and flags.
pub fn from_str(text: &str, path: &Path, options: &LoadOptions) -> Result<Loaded, ConfigError> {
    let source = Source::file(path, text.strip_prefix('\u{FEFF}').unwrap_or(text).to_owned());
    if text.len() as u64 > MAX_BYTES {
        return Err(ConfigError::new(vec![too_large(&source, text.len() as u64)]));
    }
    lower(source, path, options).map(|loaded| Loaded { text: text.to_owned(), ..loaded })
}

/// Lowers the text of the file to an experiment.
fn lower(source: Source, path: &Path, options: &LoadOptions) -> Result<Loaded, ConfigError> {
    let base = base(path).map_err(|message| ConfigError::new(vec![source.diagnostic_whole(message, String::new())]))?;
    let whole = source.clone();
    let (mut diagnostics, mut poisoned) = (Vec::new(), Vec::new());
    let mut layers: Vec<Layer> = Vec::new();
    let (tree, found) = tree::parse(&source);
    diagnostics.extend(found);
    match tree {
        Some(tree) if !tree.is_null() => {
            let Checked { value, diagnostics: found, poisoned: bad } = check(&tree, &source);
            diagnostics.extend(found);
            poisoned.extend(bad);
            layers.push(Layer { from: From::Text { source, tree }, value });
        }
        _ if diagnostics.is_empty() => {
            let help =
                "the shortest experiment:\nmodel: {preset: gpt2-micro}\ndata: {train: {text: {files: [input.txt]}}}";
            diagnostics.push(source.diagnostic_whole("the file is empty".into(), help.into()));
        }
        _ => {}
    }
    // Without a file there is nothing to lay the rest over.
    if layers.is_empty() {
        return Err(ConfigError::new(diagnostics));
    }
    overrides::layers(options, &mut layers, &mut diagnostics, &mut poisoned);
    add_preset(&mut layers, &mut diagnostics, &mut poisoned);
    let weights = add_weights(&base, options, &mut layers, &mut diagnostics, &mut poisoned);

    let internal = |e: &dyn std::fmt::Display| {
        let message = format!("this is a bug of the program, not of the file: {e}");
        ConfigError::new(vec![whole.diagnostic_whole(message, "please report it with the file".into())])
    };
    let layers = Layers::merge(layers).map_err(|e| internal(&e))?;
    let mut value = layers.value();
    let mut missing = Vec::new();
    layers.complete(&mut value, &mut poisoned, &mut missing);
    diagnostics.extend(missing);
    let raw: RawExperiment = match serde_json::from_value(value) {
        Ok(raw) => raw,
        Err(_) if !diagnostics.is_empty() => return Err(ConfigError::new(diagnostics)),
        Err(e) => return Err(internal(&e)),
    };
    let mut resolver = Resolver {
        layers: &layers,
        base,
        diagnostics: Vec::new(),
        poisoned,
        notes: BTreeMap::new(),
        absent_files: options.absent_files,
        weights,
    };
    let experiment = resolver.experiment(raw, path);
    let Resolver { diagnostics: found, notes, .. } = resolver;
    diagnostics.extend(found);
    match experiment {
        Some(experiment) if diagnostics.is_empty() => {
            let origins = origins(&experiment, &layers, &notes);
            let env_read = layers.environment();
            let text = whole.text;
            Ok(Loaded { experiment, path: path.to_owned(), text, template: None, origins, env_read })
        }
        _ if diagnostics.is_empty() => Err(internal(&"a section was lost")),
        _ => Err(ConfigError::new(diagnostics)),
    }
}

/// Puts the preset that the layers choose below them.
fn add_preset(layers: &mut Vec<Layer>, diagnostics: &mut Vec<Diagnostic>, poisoned: &mut Vec<String>) {
    let chosen = layers.iter().rev().find_map(|l| Some((l, l.value.pointer("/model/preset")?)));
    let Some((layer, Value::String(name))) = chosen else { return };
    if let Some(value) = presets::layer(name) {
        let from = From::Preset(name.clone());
        layers.insert(0, Layer { from, value });
        return;
    }
    if let From::Text { source, tree } = &layer.from {
        let node = tree.get("model").and_then(|(_, model)| model.get("preset"));
        let place = node.map_or(tree.place, |(_, value)| value.place);
        let names = presets::names();
        let mut help = format!("the presets are {}", list(&names, "and"));
        if let Some(near) = nearest(name, names.iter().copied()) {
            help = format!("did you mean `{near}`?\n{help}");
        }
        let message = format!("there is no preset `{}`", short(name));
        diagnostics.push(source.diagnostic(place, "model.preset", message, help));
    }
    poisoned.push("model.preset".to_owned());
}

/// Adds the description of the weights of `model.init.from` as the lowest layer. If files need not be there, weights that are
/// gone or have changed are not a mistake.
fn add_weights(
    base: &Path,
    options: &LoadOptions,
    layers: &mut Vec<Layer>,
    diagnostics: &mut Vec<Diagnostic>,
    poisoned: &mut Vec<String>,
) -> Option<DescribedModel> {
    // A higher layer that draws the weights takes the lower one's choice away.
    let chosen = layers.iter().rev().find_map(|l| Some((l, l.value.pointer("/model/init")?)));
    let (layer, path) = chosen.and_then(|(l, init)| Some((l, init.get("from")?.as_str()?)))?;
    match weights::describe(&base.join(path)) {
        Ok(described) => {
            let from = From::Weights(described.file.display().to_string());
            layers.insert(0, Layer { from, value: serde_json::json!({ "model": described.model_section() }) });
            (!options.absent_files).then_some(described)
        }
        Err(_) if options.absent_files => None,
        Err(error) => {
            if let From::Text { source, tree } = &layer.from {
                let find = |node, key| tree::Node::get(node, key).map(|(_, value)| value);
                let node = find(tree, "model").and_then(|m| find(m, "init")).and_then(|i| find(i, "from"));
                let place = node.map_or(tree.place, |value| value.place);
                let (message, more) = match error.to_string().split_once('\n') {
                    Some((first, rest)) => (first.to_owned(), rest.to_owned()),
                    None => (error.to_string(), String::new()),
                };
                let help = "`from` names a Hugging Face folder of GPT-2 or Llama weights, or a model file of llm.c; paths are \
                            relative to the file's folder";
                let help = if more.is_empty() { help.to_owned() } else { more };
                diagnostics.push(source.diagnostic(place, "model.init.from", message, help));
            }
            // Keys that the description would have given are not missing.
            poisoned.push("model".to_owned());
            None
        }
    }
}

/// The folder that paths start from, absolute.
fn base(path: &Path) -> Result<PathBuf, String> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = std::path::absolute(folder).map_err(|e| format!("the folder of the file is not known: {e}"))?;
    if folder.to_str().is_none() {
        return Err("the name of the file's folder is not UTF-8, and the record of a run is".to_owned());
    }
    Ok(folder)
}
