//! Loads an experiment: the file is read once, then the layers over it, then everything is checked together.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::check::check;
use crate::explain::{Origin, origins};
use crate::foreign_keys;
use crate::import::foreign_trainer;
use crate::initial_weights::{INIT_FROM_KEY, add_weights};
use crate::layers::{Layer, LayerOrigin, Layers};
use crate::mistakes::Mistakes;
use crate::overridden::{OverriddenSetting, find_overridden};
use crate::overrides::{LoadOptions, add_overrides};
use crate::presets;
use crate::raw::RawExperiment;
use crate::resolve::batch::MICRO_BATCH;
use crate::resolve::resolver::Resolver;
use runner_spec::diagnostic::{ConfigError, Diagnostic, list, nearest, short};
use runner_spec::experiment::{AutoOr, Experiment};
use runner_template::Rendered;
use runner_yaml::source::{Source, is_stream, read};
use runner_yaml::tree::{self, ParsedYaml};

/// An experiment file that was read: its text and, unless it is a template, its YAML. It can be loaded with several options.
#[derive(Debug, Clone)]
pub struct ExperimentFile {
    pub path: PathBuf,
    /// The text of the file.
    pub text: String,
    /// `None` for a template.
    parsed: Option<ParsedYaml>,
}

/// An experiment, and the origins of its values.
#[derive(Debug, Clone)]
pub struct Loaded {
    pub experiment: Experiment,
    /// True if `batch.micro_batch` is `auto`. Until the data and the devices are known, `experiment` has all sequences of a replica as its
    /// micro-batch; `runner_inputs::settle_micro_batch` then makes it as small as the memory needs.
    pub has_auto_micro_batch: bool,
    pub path: PathBuf,
    /// The text of the file; for a template, the rendered text.
    pub text: String,
    /// The rendered template and its files; `None` for a plain file.
    pub template: Option<Rendered>,
    /// The origin of each value, in the order of the keys.
    pub origins: Vec<Origin>,
    /// The `--set` flags that have no effect, because a later one replaces them.
    pub overridden: Vec<OverriddenSetting>,
    /// The warning about what the weights of `model.init.from` do not record.
    pub assumptions: Option<String>,
    /// The environment variables that set keys, and those that a template read.
    pub env_read: Vec<(String, String)>,
    /// The files that the experiment names and that are missing, if the options allow that.
    pub absent_files: Vec<Diagnostic>,
}

impl ExperimentFile {
    /// Reads the file at `path`. Mistakes in its YAML are reported when it is loaded.
    ///
    /// # Errors
    /// A file that is not there, too large, or not text.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Ok(Self::new(read(path, "name an experiment file, such as exp.yaml")?, path))
    }

    /// The file `path` with the content `text`. Relative paths in it start from the folder of `path`.
    #[must_use]
    pub fn new(text: String, path: &Path) -> Self {
        let is_template = runner_template::is_template(path);
        let parsed = (!is_template).then(|| tree::parse(Source::file(path, text.clone())));
        Self { path: path.to_owned(), text, parsed }
    }

    /// True if the file is YAML with the key `key` at its top level.
    #[must_use]
    pub fn has_key(&self, key: &str) -> bool {
        self.parsed.as_ref().and_then(|parsed| parsed.root.as_ref()?.get(key)).is_some()
    }

    /// A mistake at the key `key` of the top level, or in the file as a whole if it has no such key.
    #[must_use]
    pub fn diagnostic(&self, key: &str, message: String, help: String) -> Diagnostic {
        let parsed = self.parsed.as_ref();
        let node = parsed.and_then(|parsed| Some((&parsed.source, parsed.root.as_ref()?.get(key)?)));
        match node {
            Some((source, (_, value))) => source.diagnostic(value.place, key, message, help),
            None => Source::file(&self.path, self.text.clone()).diagnostic_whole(message, help),
        }
    }

    /// The experiment under the layers of `options`.
    ///
    /// # Errors
    /// All mistakes of file, environment and flags.
    pub fn load(&self, options: &LoadOptions<'_>) -> Result<Loaded, ConfigError> {
        let Some(parsed) = &self.parsed else {
            let rendered = runner_template::render(&self.text, &self.path, &options.template)?;
            let mut loaded = lower(&tree::parse(rendered.source(&self.path)), &self.path, options)?;
            loaded.env_read.extend(rendered.env_read.iter().cloned());
            return Ok(Loaded { template: Some(rendered), ..loaded });
        };
        if !options.template.vars.is_empty() {
            return Err(runner_template::not_a_template(&self.path, &options.template).into());
        }
        let loaded = lower(parsed, &self.path, options).map_err(|mistakes| self.mention_import(mistakes, parsed))?;
        Ok(Loaded { text: self.text.clone(), ..loaded })
    }

    /// `mistakes`, or, if the file is the configuration of another trainer, the command that makes an experiment of it.
    fn mention_import(&self, mistakes: ConfigError, parsed: &ParsedYaml) -> ConfigError {
        let Some(trainer) = foreign_trainer(&self.path, parsed.root.as_ref()) else { return mistakes };
        let help = format!("`runner import config {}` converts it to an experiment file", self.path.display());
        let message = format!("this file is not an experiment; it looks like a configuration of {trainer}");
        ConfigError::new(vec![parsed.source.diagnostic_whole(message, help)])
    }
}

/// Reads the experiment file at `path` under the layers of `options`.
///
/// # Errors
/// All mistakes of file, environment and flags.
pub fn load(path: &Path, options: &LoadOptions<'_>) -> Result<Loaded, ConfigError> {
    ExperimentFile::read(path)?.load(options)
}

/// Loads the experiment that this program wrote to `file`. Files that the experiment names may be missing: the code that needs the data reads
/// it later, and reports missing files.
///
/// # Errors
/// All mistakes of the file.
pub fn load_resolved(file: &Path) -> Result<Loaded, ConfigError> {
    let options =
        LoadOptions { allows_absent_files: true, allows_absent_initial_inputs: true, ..LoadOptions::default() };
    load(file, &options)
}

/// Loads `text`, the content of the file `path`, under the layers of `options`.
///
/// # Errors
/// All mistakes of text, environment and flags.
pub fn from_str(text: &str, path: &Path, options: &LoadOptions<'_>) -> Result<Loaded, ConfigError> {
    ExperimentFile::new(text.to_owned(), path).load(options)
}

/// Lowers the YAML of the file `path` to an experiment.
fn lower(parsed: &ParsedYaml, path: &Path, options: &LoadOptions<'_>) -> Result<Loaded, ConfigError> {
    let base = base_folder(path, &parsed.source)?;
    let (mut layers, mut mistakes) = read_layers(parsed, options)?;
    let described = add_weights(&base, options, &mut layers, &mut mistakes);
    let overridden = find_overridden(&layers);
    let is_given = |key: &str| layers.iter().any(|layer| layer.value.pointer(&format!("/model/{key}")).is_some());
    let assumptions = described.as_ref().and_then(|described| described.assumptions(is_given));
    let file = &parsed.source;
    let layers = Layers::merge(layers).map_err(|error| program_bug(file, &error))?;
    let mut value = layers.merged.clone();
    layers.complete(&mut value, &mut mistakes);
    let raw: RawExperiment = match serde_json::from_value(value) {
        Ok(raw) => raw,
        Err(_) if !mistakes.diagnostics.is_empty() => return Err(ConfigError::new(mistakes.diagnostics)),
        Err(error) => return Err(program_bug(file, &error)),
    };
    let has_auto_micro_batch = raw.batch.micro_batch == Some(AutoOr::Auto);
    let notes = BTreeMap::new();
    let mut resolver = Resolver { layers: &layers, options, base, mistakes, notes, weights: described };
    let resolved = resolver.experiment(raw, path);
    let Mistakes { mut diagnostics, absent_files, .. } = resolver.mistakes;
    let experiment = match resolved {
        Some(experiment) if diagnostics.is_empty() => experiment,
        _ if diagnostics.is_empty() => return Err(program_bug(file, &"a section was lost")),
        _ => {
            // Keys may be missing because the weights that would give them are.
            diagnostics.extend(absent_files.into_iter().filter(|file| file.key == INIT_FROM_KEY));
            return Err(ConfigError::new(diagnostics));
        }
    };
    let mut origins = origins(&experiment, &layers, &resolver.notes);
    for origin in origins.iter_mut().filter(|origin| has_auto_micro_batch && origin.key == MICRO_BATCH) {
        "auto".clone_into(&mut origin.value);
    }
    Ok(Loaded {
        experiment,
        has_auto_micro_batch,
        path: path.to_owned(),
        text: file.text.clone(),
        template: None,
        origins,
        overridden,
        assumptions,
        env_read: layers.environment(),
        absent_files,
    })
}

/// Puts the layers of `options` over the YAML of a file, and the preset below it. Returns them with the mistakes in them.
///
/// # Errors
/// If the file has no value: there is nothing to lay the other layers over.
fn read_layers(parsed: &ParsedYaml, options: &LoadOptions<'_>) -> Result<(Vec<Layer>, Mistakes), ConfigError> {
    let source = &parsed.source;
    let mut mistakes = Mistakes::default();
    mistakes.diagnostics.clone_from(&parsed.mistakes);
    let Some(tree) = parsed.root.as_ref().filter(|tree| !tree.is_null()) else {
        if mistakes.diagnostics.is_empty() {
            let help =
                "the shortest experiment:\nmodel: {preset: gpt2-micro}\ndata: {train: {text: {files: [input.txt]}}}";
            mistakes.diagnostics.push(source.diagnostic_whole("the file is empty".into(), help.into()));
        }
        return Err(ConfigError::new(mistakes.diagnostics));
    };
    let value = check(tree, source, &mut mistakes);
    let from = LayerOrigin::Text { source: source.clone(), tree: tree.clone() };
    let mut layers = vec![Layer { from, value }];
    add_overrides(options, &mut layers, &mut mistakes);
    add_preset(&mut layers, &mut mistakes);
    Ok((layers, mistakes))
}

fn program_bug(file: &Source, error: &dyn std::fmt::Display) -> ConfigError {
    let message = format!("this is a bug in runner, not in the file: {error}");
    file.diagnostic_whole(message, "please report it with the file".into()).into()
}

/// Puts the preset that the layers choose below them.
fn add_preset(layers: &mut Vec<Layer>, mistakes: &mut Mistakes) {
    let chosen = layers.iter().rev().find_map(|l| Some((l, l.value.pointer("/model/preset")?)));
    let Some((layer, Value::String(name))) = chosen else { return };
    if let Some(value) = presets::layer(name) {
        let from = LayerOrigin::Named(format!("preset {name}"));
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
    let found = layer.diagnostic("model.preset", format!("unknown preset `{}`", short(name)), help);
    mistakes.diagnostics.extend(found);
    mistakes.poison("model.preset");
}

/// The folder that paths in the file `path` start from, absolute.
fn base_folder(path: &Path, source: &Source) -> Result<PathBuf, ConfigError> {
    let wrong = |message: String| ConfigError::from(source.diagnostic_whole(message, String::new()));
    // A stream is in no folder.
    let path = if is_stream(path) { Path::new("") } else { path };
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = std::path::absolute(folder).map_err(|e| wrong(format!("cannot find the folder of the file: {e}")))?;
    if folder.to_str().is_none() {
        return Err(wrong("the path of the file's folder must be UTF-8, because a run records it".to_owned()));
    }
    Ok(folder)
}
