//! Loads an experiment: the file is read once, then the layers over it, then everything is checked together.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::check::check;
use crate::explain::{Origin, origins};
use crate::files::{EXTENDS, LayerFile, ReadFile, ReadFiles};
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
use runner_yaml::source::{Source, read};
use runner_yaml::tree::{self, Entry, ParsedYaml, Yaml};

/// An experiment file that was read: its text and, unless it is a template, its YAML. It can be loaded with several options.
#[derive(Debug, Clone)]
pub struct ExperimentFile {
    pub path: PathBuf,
    /// The text of the file.
    pub text: String,
    /// The file, and those that it extends. `None` for a template.
    files: Option<Result<ReadFiles, ConfigError>>,
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
    /// The other files of the experiment, the lowest layer first: those that it extends, and those that flags name.
    pub other_files: Vec<ReadFile>,
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
        let files = (!is_template).then(|| read_files(tree::parse(Source::file(path, text.clone())), path));
        Self { path: path.to_owned(), text, files }
    }

    /// The files of the experiment without those of flags, the highest layer first; none for a template.
    fn layers(&self) -> impl Iterator<Item = &ReadFile> {
        self.files.iter().flatten().flat_map(|files| files.all.iter().rev())
    }

    /// The entry of `key` at the top level, of this file or the highest that it extends, with the file's text. `None` for a template.
    #[must_use]
    pub fn entry(&self, key: &str) -> Option<(&Source, Entry)> {
        self.layers().find_map(|file| Some((&file.source, entry_of(file, key)?)))
    }

    /// True if the key `key` of the top level has a value in this file or one that it extends.
    #[must_use]
    pub fn has_key(&self, key: &str) -> bool {
        self.entry(key).is_some_and(|(_, entry)| !entry.value.is_null())
    }

    /// A mistake at the key `key` of the top level, or in the file as a whole if it has no such key.
    #[must_use]
    pub fn diagnostic(&self, key: &str, message: String, help: String) -> Diagnostic {
        match self.entry(key) {
            Some((source, entry)) => source.diagnostic(entry.value.place, key, message, help),
            None => Source::file(&self.path, self.text.clone()).diagnostic_whole(message, help),
        }
    }

    /// The experiment under the layers of `options`.
    ///
    /// # Errors
    /// All mistakes of file, environment and flags.
    pub fn load(&self, options: &LoadOptions<'_>) -> Result<Loaded, ConfigError> {
        let Some(files) = &self.files else {
            let rendered = runner_template::render(&self.text, &self.path, &options.template)?;
            let files = read_files(tree::parse(rendered.source(&self.path)), &self.path)?;
            let mut loaded = lower(files, &self.path, options)?;
            loaded.env_read.extend(rendered.env_read.iter().cloned());
            return Ok(Loaded { template: Some(rendered), ..loaded });
        };
        if !options.template.vars.is_empty() {
            return Err(runner_template::not_a_template(&self.path, &options.template).into());
        }
        let files = files.clone()?;
        let loaded = lower(files, &self.path, options).map_err(|mistakes| self.mention_import(mistakes))?;
        Ok(Loaded { text: self.text.clone(), ..loaded })
    }

    /// `mistakes`, or, if the file is the configuration of another trainer, the command that makes an experiment of it.
    fn mention_import(&self, mistakes: ConfigError) -> ConfigError {
        let Some(file) = self.layers().next() else { return mistakes };
        let Some(trainer) = foreign_trainer(&self.path, file.tree.as_ref()) else { return mistakes };
        let help = format!("`runner import config {}` converts it to an experiment file", self.path.display());
        let message = format!("this file is not an experiment; it looks like a configuration of {trainer}");
        ConfigError::new(vec![file.source.diagnostic_whole(message, help)])
    }
}

/// The file at `path` with the content `parsed`, and the files that it extends.
fn read_files(parsed: ParsedYaml, path: &Path) -> Result<ReadFiles, ConfigError> {
    let mut files = ReadFiles::default();
    files.add(parsed, LayerFile { key: String::new(), path: path.to_owned() })?;
    Ok(files)
}

/// The entry of `key` at the top level of `file`.
fn entry_of(file: &ReadFile, key: &str) -> Option<Entry> {
    match &file.tree.as_ref()?.value {
        Yaml::Map(entries) => entries.iter().find(|entry| entry.key == key).cloned(),
        _ => None,
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

/// Lowers the YAML of `files`, of which the last is the experiment at `path`, to an experiment.
fn lower(mut files: ReadFiles, path: &Path, options: &LoadOptions<'_>) -> Result<Loaded, ConfigError> {
    let own = files.all.len() - 1;
    for file in &options.files {
        files.add_flag(file)?;
    }
    let base = files.all[own].folder.clone();
    let (mut layers, mut mistakes) = read_layers(&files, own, options)?;
    let described = add_weights(&base, options, &mut layers, &mut mistakes);
    let overridden = find_overridden(&layers);
    let is_given = |key: &str| layers.iter().any(|layer| layer.value.pointer(&format!("/model/{key}")).is_some());
    let assumptions = described.as_ref().and_then(|described| described.assumptions(is_given));
    let file = &files.all[own].source;
    let named = layers.iter().take_while(|layer| matches!(layer.from, LayerOrigin::Named(_))).count();
    let below = files.all[..own].iter().filter(|file| file.tree.is_some()).count();
    let layers = Layers::merge(layers, named + below).map_err(|error| program_bug(file, &error))?;
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
        other_files: [&files.all[..own], &files.all[own + 1..]].concat(),
        origins,
        overridden,
        assumptions,
        env_read: layers.environment(),
        absent_files,
    })
}

/// The layers of `files`, of which `own` is the experiment, with those of `options` over them and the preset below them, and the mistakes in
/// them.
///
/// # Errors
/// If the experiment is empty: there is nothing to lay the other layers over.
fn read_layers(
    files: &ReadFiles,
    own: usize,
    options: &LoadOptions<'_>,
) -> Result<(Vec<Layer>, Mistakes), ConfigError> {
    let mut mistakes = Mistakes::default();
    mistakes.diagnostics.clone_from(&files.mistakes);
    if files.all[own].tree.is_none() {
        if mistakes.diagnostics.is_empty() {
            let help =
                "the shortest experiment:\nmodel: {preset: gpt2-micro}\ndata: {train: {text: {files: [input.txt]}}}";
            mistakes.diagnostics.push(files.all[own].source.diagnostic_whole("the file is empty".into(), help.into()));
        }
        return Err(ConfigError::new(mistakes.diagnostics));
    }
    if mistakes.diagnostics.iter().any(|mistake| mistake.key == EXTENDS) {
        // Keys may be missing because a file is.
        mistakes.poison("");
    }
    let mut layers = Vec::new();
    for (i, ReadFile { file, source, tree, folder, .. }) in files.all.iter().enumerate() {
        let Some(tree) = tree else { continue };
        // A name is that of one experiment.
        let tree = if i < own && file.key.is_empty() { tree.without("name") } else { tree.clone() };
        let value = check(&tree, source, &mut mistakes);
        let from = LayerOrigin::Text { source: source.clone(), tree, folder: Some(folder.clone()) };
        layers.push(Layer { from, value });
    }
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
