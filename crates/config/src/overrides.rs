//! The layers above the file: `RUNNER_…` variables and `--set key.path=value`, each a small YAML text.

use std::collections::HashMap;

use crate::check::check;
use crate::files::{EXTENDS, LayerFile};
use crate::layers::{Layer, LayerOrigin};
use crate::mistakes::Mistakes;
use crate::shape::join;
use crate::shape::{Shape, root, sections_by_key};
use runner_spec::diagnostic::{list, nearest, short};
use runner_spec::experiment::{HubModel, ModelFolder};
use runner_template::Inputs;
use runner_yaml::MAX_DEPTH;
use runner_yaml::source::{Place, Source, SourceKind};
use runner_yaml::tree::{Node, ParsedYaml, parse};

const PREFIX: &str = "RUNNER_";

/// Finds a model of the hub on this machine, and downloads it if necessary; or says why there is none.
pub type ModelFetcher<'a> = dyn Fn(&HubModel) -> Result<ModelFolder, ModelFetchError> + Sync + 'a;

/// The error of a [`ModelFetcher`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFetchError {
    pub message: String,
    /// True if the hub does not have the model, or refuses to give it. If not, the name and the revision may be right.
    pub is_refused: bool,
}

/// The layers above the file, and the inputs of templates.
#[derive(Clone, Default)]
pub struct LoadOptions<'a> {
    /// Files over the experiment, the lowest first.
    pub files: Vec<LayerFile>,
    /// `key.path=value`, the value in YAML; later ones win.
    pub sets: Vec<String>,
    /// The section `parallel` that the flag `--parallel` gives, in YAML. It wins over `sets`.
    pub parallel: Option<String>,
    /// Variables whose names begin with `RUNNER_`; `__` separates keys, as in `RUNNER_TRAIN__STEPS=10`.
    pub env: Vec<(String, String)>,
    /// True if files that the experiment names may be missing; [`Loaded::absent_files`](crate::Loaded) lists those that are.
    pub allows_absent_files: bool,
    /// True if the weights of `model.init.from` and the files of `data.tokenizer` may be missing: a checkpoint and a record replace them.
    pub allows_absent_initial_inputs: bool,
    /// The step at which a fork begins, which `schedule.start: fork` stands for. `None`: the run is not a fork.
    pub fork_step: Option<u64>,
    /// Finds the weights of `model.init.from` if they are a model of the hub. `None`: a model of the hub is an error, unless weights may be
    /// missing.
    pub fetch_model: Option<&'a ModelFetcher<'a>>,
    /// The variables, environment and folders of a template.
    pub template: Inputs,
}

/// Adds a layer for each variable, in the order of their names, and then one for each `--set`.
pub(crate) fn add_overrides(options: &LoadOptions<'_>, layers: &mut Vec<Layer>, mistakes: &mut Mistakes) {
    let mut variables: Vec<&(String, String)> = options.env.iter().collect();
    variables.sort();
    let mut add = |source: Source, keys: &[String], given: usize, mistakes: &mut Mistakes| match parse_layer(
        source, keys, given, mistakes,
    ) {
        Some(layer) => layers.push(layer),
        None if keys[0].is_empty() => {}
        None => mistakes.poison(keys.join(".")),
    };
    let (sections, homes) = (sections(), sections_by_key(root()));
    for (name, value) in variables {
        let Some(rest) = name.strip_prefix(PREFIX) else { continue };
        // A variable without a value counts as unset.
        if value.trim().is_empty() || (is_github_actions(options) && name == "RUNNER_NAME") {
            continue;
        }
        let keys: Vec<String> = rest.split("__").map(str::to_lowercase).collect();
        if let Some(meant) = variable_meant(&keys, &homes) {
            let source = Source::environment(name, value);
            let place = Place { line: 1, column: 1, length: name.chars().count() };
            let help = format!("did you mean `{meant}`? `__` separates keys");
            mistakes.diagnostics.push(source.diagnostic(place, "", format!("`{name}` does not match any key"), help));
            continue;
        }
        if is_for_a_key(&keys, &sections) {
            add(Source::environment(name, value), &keys, name.chars().count(), mistakes);
        }
    }
    for text in &options.sets {
        let at = text.find('=').unwrap_or(text.len());
        let keys: Vec<String> = text[..at].split('.').map(|key| key.trim().to_owned()).collect();
        add(Source::flag("--set", text, (at + 1).min(text.len())), &keys, text[..at].chars().count(), mistakes);
    }
    if let Some(section) = &options.parallel {
        add(Source::flag("--parallel", section, 0), &["parallel".to_owned()], 0, mistakes);
    }
}

/// True if a variable whose name has these parts is a layer. Other programs use the prefix too (GitHub Actions sets RUNNER_OS). A name that
/// is close to a key counts as a slip.
fn is_for_a_key(keys: &[String], sections: &[&str]) -> bool {
    sections.contains(&keys[0].as_str()) || keys.len() > 1 || nearest(&keys[0], sections.iter().copied()).is_some()
}

/// True if the variable `name` sets a key of experiments while it has `value`.
pub fn sets_key(name: &str, value: &str) -> bool {
    let keys = name.strip_prefix(PREFIX).map(|rest| rest.split("__").map(str::to_lowercase).collect::<Vec<_>>());
    !value.trim().is_empty() && keys.is_some_and(|keys| is_for_a_key(&keys, &sections()))
}

/// The correct name of a variable that has `_` where `__` separates keys: `RUNNER_TRAIN__STEPS` for `RUNNER_TRAIN_STEPS`. The
/// last key alone is enough after its section: `RUNNER_OPTIMIZER__ADAMW__LR` for `RUNNER_OPTIMIZER_LR`.
fn variable_meant(keys: &[String], homes: &HashMap<String, Vec<String>>) -> Option<String> {
    let [given] = keys else { return None };
    let paths = || homes.iter().flat_map(|(key, homes)| homes.iter().map(move |home| (home, key.as_str())));
    let is_whole = |(home, key): &(&String, &str)| join(home, key).replace('.', "_") == *given;
    let is_last = |(home, key): &(&String, &str)| {
        let section = home.split('.').next().unwrap_or(home);
        given.strip_prefix(section).and_then(|rest| rest.strip_prefix('_')) == Some(*key)
    };
    let whole = paths().find(is_whole);
    // If several sections have the key, the first in the schema is chosen.
    let (home, key) = whole.or_else(|| paths().find(is_last))?;
    Some(PREFIX.to_owned() + &join(home, key).to_uppercase().replace('.', "__"))
}

/// The keys at the top level.
fn sections() -> Vec<&'static str> {
    match root().shape {
        Shape::Keys(keys) => keys.names(),
        _ => Vec::new(),
    }
}

/// GitHub Actions calls its machine `RUNNER_NAME`, which would rename every experiment.
fn is_github_actions(options: &LoadOptions<'_>) -> bool {
    ["RUNNER_OS", "RUNNER_TOOL_CACHE"].iter().all(|name| options.env.iter().any(|(n, _)| n == name))
}

/// The layer that gives `keys` the value in `source`, whose name has `given` characters; `None` if it gives no value.
fn parse_layer(source: Source, keys: &[String], given: usize, mistakes: &mut Mistakes) -> Option<Layer> {
    let name = Place { line: 1, column: 1, length: given.max(1) };
    let path = short(&keys.join("."));
    let (message, help) = if source.skip == source.text.len() && !source.text.ends_with('=') {
        let (key, value) = source.text.split_once(':').unwrap_or((&source.text, "VALUE"));
        let (key, value) = (short(key.trim()), short(value.trim()));
        let settable: Vec<&str> = sections().into_iter().filter(|section| *section != EXTENDS).collect();
        let help = format!("write `--set {key}={value}`; the sections are {}", list(&settable, "and"));
        (format!("`{}` has no value", short(&source.text)), help)
    } else if keys[0] == EXTENDS {
        let help = "name a second file: `runner apply exp.yaml other.yaml`, or the file of a key: `--set-file model=small.yaml`";
        (format!("`{EXTENDS}` belongs in a file"), help.to_owned())
    } else if keys.iter().any(String::is_empty) || keys.len() > MAX_DEPTH / 2 {
        (format!("`{path}` is not a key"), "write keys as in `train.steps=100`".to_owned())
    } else if source.kind == SourceKind::Set && source.yaml().trim().is_empty() {
        let help = format!("write `--set {path}=null` to remove the value, or `--set '{path}=\"\"'` for an empty text");
        (format!("`{path}=` has no value after `=`"), help)
    } else {
        let ParsedYaml { source, root, mistakes: found } = parse(source);
        if !found.is_empty() {
            mistakes.diagnostics.extend(found);
            return None;
        }
        let value = root.unwrap_or_else(|| Node::null(Place { line: 1, column: given + 1, length: 1 }));
        let tree = keys.iter().rev().fold(value, |node, key| Node::wrap(key.clone(), name, node));
        let value = check(&tree, &source, mistakes);
        return Some(Layer { from: LayerOrigin::Text { source, tree, folder: None }, value });
    };
    mistakes.diagnostics.push(source.diagnostic(name, "", message, help));
    None
}
