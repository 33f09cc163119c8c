//! Reads a sweep file, and reports every mistake with its line and column.

mod axes;
mod axis_name;
mod reader;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use self::axes::{TakenNames, read_axes};
use self::axis_name::{NameCheck, check_key_path, check_variable_name};
use self::reader::{LocatedNode, SweepReader};
use super::spec::{
    AshaSettings, ExcludeExpression, Goal, MeasurementChoice, Objective, ObjectiveMetric, SweepBase, SweepSpec,
};
use super::value_text::yaml_text;
use super::{exclude, expand};
use runner_config::resolve::{legal_in_name, name_problem};
use runner_spec::diagnostic::ConfigError;
use runner_spec::diagnostic::{nearest, short};
use runner_template::source::read;
use runner_template::source::{Place, Source};
use runner_template::tree;
use runner_template::tree::{Node, Yaml};

/// The keys of a sweep, in the order of the documentation.
const KEYS: [&str; 13] = [
    "name",
    "template",
    "base",
    "vars",
    "set",
    "grid",
    "zip",
    "random",
    "exclude",
    "objective",
    "early_stop",
    "parallel",
    "retries",
];
const OBJECTIVE_KEYS: [&str; 3] = ["metric", "goal", "at"];
const ASHA_KEYS: [&str; 2] = ["min_steps", "reduction"];
const SHORTEST: &str =
    "the shortest sweep:\nsweep:\n  base: experiment.yaml\n  grid: {optimizer.adamw.lr: [3e-4, 1e-3]}";

/// Reads the sweep file at `path`.
///
/// # Errors
/// All mistakes of the file.
pub fn load(path: &Path) -> Result<SweepSpec, ConfigError> {
    let whole = |message: &str| {
        let source = Source::file(path, String::new());
        let help = "name a sweep file, such as sweep.yaml";
        Err(ConfigError::new(vec![source.diagnostic_whole(message.to_owned(), help.into())]))
    };
    if path.is_dir() {
        return whole("this is a folder");
    }
    if std::fs::metadata(path).is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
        return whole("there is no such file");
    }
    let text = read(path).map_err(|d| ConfigError::new(vec![*d]))?;
    from_str(&text, path)
}

/// Reads the text of a sweep file. Relative paths in it start from the folder of `path`.
///
/// # Errors
/// All mistakes of the text.
pub fn from_str(text: &str, path: &Path) -> Result<SweepSpec, ConfigError> {
    let source = source_of(text, path);
    let (tree, diagnostics) = tree::parse(&source);
    let mut reader = SweepReader { source: &source, diagnostics };
    let mut spec = None;
    match tree.filter(|tree| !tree.is_null()) {
        Some(tree) => {
            spec = read_top_level(&mut reader, &tree).and_then(|at| read_sweep(&mut reader, &at, text, path));
        }
        None if reader.diagnostics.is_empty() => {
            reader.diagnostics.push(source.diagnostic_whole("the file is empty".into(), SHORTEST.into()));
        }
        None => {}
    }
    match spec {
        Some(spec) if reader.diagnostics.is_empty() => Ok(spec),
        _ => Err(ConfigError::new(reader.diagnostics)),
    }
}

/// The content of a sweep file as JSON, whether or not it is a legal sweep; `None` if it is not YAML.
pub(super) fn parse_value(text: &str) -> Option<Value> {
    let source = source_of(text, Path::new(""));
    let (tree, diagnostics) = tree::parse(&source);
    let node = tree?;
    let at = LocatedNode { node: &node, key: node.place, path: String::new() };
    SweepReader { source: &source, diagnostics }.value(&at)
}

fn source_of(text: &str, path: &Path) -> Source {
    Source::file(path, text.strip_prefix('\u{FEFF}').unwrap_or(text).to_owned())
}

/// The value of the key `sweep`.
fn read_top_level<'n>(reader: &mut SweepReader<'_>, tree: &'n Node) -> Option<LocatedNode<'n>> {
    let Yaml::Map(entries) = &tree.value else {
        reader.error(tree.place, "", "a sweep file is a mapping with the key `sweep`".into(), SHORTEST);
        return None;
    };
    let mut sweep = None;
    for entry in entries.iter() {
        let at = LocatedNode { node: &entry.value, key: entry.place, path: entry.key.clone() };
        match entry.key.as_str() {
            "sweep" => sweep = Some(at),
            "version" => {
                reader.integer(&at, (1, 1), "version of this format; there is one: 1");
            }
            key => {
                let help = if KEYS.contains(&key) {
                    format!("`{key}` belongs under `sweep`; indent it below")
                } else if ["model", "data"].contains(&key) {
                    "that is an experiment; a sweep names it: `sweep: {base: experiment.yaml, grid: …}`".to_owned()
                } else if let Some(near) = nearest(key, ["sweep", "version"]) {
                    format!("did you mean `{near}`?")
                } else {
                    "the keys here are `sweep` and `version`".to_owned()
                };
                reader.error_at_key(&at, format!("unknown key `{}` at the top level", short(key)), help);
            }
        }
    }
    if sweep.is_none() && reader.diagnostics.is_empty() {
        reader.error(Place { length: 1, ..tree.place }, "sweep", "`sweep` is missing".into(), SHORTEST);
    }
    sweep
}

fn read_sweep(reader: &mut SweepReader<'_>, at: &LocatedNode<'_>, text: &str, path: &Path) -> Option<SweepSpec> {
    let given = reader.keys(at, &KEYS)?;
    let get = |key: &str| given.iter().find(|(name, _)| *name == key).map(|(_, at)| at);
    let mut bases = given.iter().filter(|(key, _)| ["template", "base"].contains(key));
    let chosen = bases.next();
    if let (Some((first, _)), Some((second, at))) = (chosen, bases.next()) {
        let help = "give `template` to vary a template's variables, or `base` to vary keys of an experiment";
        reader.error_at_key(at, format!("`sweep` has both `{first}` and `{second}`"), help);
    }
    if chosen.is_none() {
        let help = "give `template: file.yaml.j2` to vary a template's variables, or `base: file.yaml` to vary keys of an experiment";
        reader.error_at_key(at, "`sweep` has neither `template` nor `base`".into(), help);
    }
    let is_template = chosen.map(|(key, _)| *key == "template");
    let base = chosen.and_then(|(key, at)| read_base(reader, at, path, *key == "template"));
    let name_check: Option<NameCheck> =
        is_template.map(|is_template| if is_template { check_variable_name as NameCheck } else { check_key_path });
    let mut taken = TakenNames { names: Vec::new(), check: name_check };
    let mut vars = Map::new();
    if let Some(at) = get("vars") {
        if is_template == Some(false) {
            let help = "an experiment has no variables; give its keys under `set`";
            reader.error_at_key(at, "`vars` goes with `template`, and there is `base`".into(), help);
        } else {
            for (name, place, value) in read_pairs(reader, at, check_variable_name) {
                taken.names.push((name.clone(), "vars".to_owned(), place));
                vars.insert(name, value);
            }
        }
    }
    let mut set = Vec::new();
    for (key, place, value) in get("set").map(|at| read_pairs(reader, at, check_key_path)).unwrap_or_default() {
        set.push(format!("{key}={}", yaml_text(&value)));
        // With a template, these keys are not the variables that vary.
        if is_template == Some(false) {
            taken.names.push((key, "set".to_owned(), place));
        }
    }
    let mistakes_before = reader.diagnostics.len();
    let sections: Vec<&(&str, LocatedNode<'_>)> =
        given.iter().filter(|(key, _)| ["grid", "zip", "random"].contains(key)).collect();
    let axes = read_axes(reader, &sections, &mut taken);
    match sections.first() {
        None => {
            let help = "add `grid: {lr: [1e-4, 3e-4]}`, or `zip`, or `random`";
            reader.error_at_key(at, "nothing varies in this sweep".into(), help);
        }
        Some((_, at)) if reader.diagnostics.len() == mistakes_before => {
            if let Err(message) = expand::count(&axes) {
                let help = "take fewer values, or draw some of them: `random: {samples: 20, space: …}`";
                reader.error_at_key(at, message, help);
            }
        }
        Some(_) => {}
    }
    let are_axes_known = reader.diagnostics.len() == mistakes_before;
    let parallel = get("parallel").and_then(|at| reader.integer(at, (1, 1024), "how many runs are trained at once"));
    let retries = get("retries").and_then(|at| reader.integer(at, (0, 100), "how often a failed point is tried again"));
    let spec = SweepSpec {
        name: get("name").and_then(|at| read_name(reader, at)).unwrap_or_else(|| name_of_file(path)),
        base: base.unwrap_or_else(|| match is_template {
            Some(true) => SweepBase::Template(PathBuf::new()),
            _ => SweepBase::Experiment(PathBuf::new()),
        }),
        vars,
        set,
        axes,
        exclude: get("exclude").map(|at| read_exclude(reader, at)).unwrap_or_default(),
        objective: read_objective(reader, get("objective")),
        early_stop: get("early_stop").and_then(|at| read_early_stop(reader, at)),
        parallel: parallel.map_or(1, |n| n as usize),
        retries: retries.map_or(0, |n| n as u32),
        text: text.to_owned(),
        path: path.to_owned(),
    };
    // Expressions can be checked only if all names are known.
    if are_axes_known {
        let environment = exclude::environment();
        for exclude in &spec.exclude {
            if let Err((message, help)) = exclude::compile(&environment, &spec, exclude) {
                let place = Place { line: exclude.line, column: exclude.column, length: exclude.length };
                reader.error(place, "sweep.exclude", message, help);
            }
        }
    }
    Some(spec)
}

/// The entries of a mapping from names to any values.
fn read_pairs(reader: &mut SweepReader<'_>, at: &LocatedNode<'_>, check: NameCheck) -> Vec<(String, Place, Value)> {
    let mut pairs = Vec::new();
    for (name, at) in reader.entries(at, "write `{name: value}`").unwrap_or_default() {
        match check(name) {
            Err((message, help)) => reader.error_at_key(&at, message, help),
            Ok(()) => pairs.extend(reader.value(&at).map(|value| (name.to_owned(), at.key, value))),
        }
    }
    pairs
}

/// The name of the sweep, which is also that of its folder.
fn read_name(reader: &mut SweepReader<'_>, at: &LocatedNode<'_>) -> Option<String> {
    let name = reader.text(at, "")?;
    let Some(problem) = name_problem(&name) else { return Some(name) };
    let help =
        "it names the sweep's folder: up to 100 letters, digits, `.`, `_` and `-`, not beginning with `.` or `-`";
    reader.error_at_value(at, format!("`{}` {problem}", at.path), help);
    None
}

fn name_of_file(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let name: String = stem.chars().map(|c| if legal_in_name(c) { c } else { '-' }).take(100).collect();
    let name = name.trim_start_matches(['.', '-']);
    if name.is_empty() { "sweep".to_owned() } else { name.to_owned() }
}

fn read_base(
    reader: &mut SweepReader<'_>,
    at: &LocatedNode<'_>,
    path: &Path,
    wants_template: bool,
) -> Option<SweepBase> {
    let file = reader.text(at, "name a file")?;
    let is_template = Path::new(&file).extension().is_some_and(|e| e == "j2");
    if is_template != wants_template {
        let (message, help) = if wants_template {
            (
                format!("`{}` is no template: its name does not end with `.j2`", short(&file)),
                "to vary keys of an experiment, write `base`",
            )
        } else {
            (format!("`{}` is a template", short(&file)), "write `template`; then what varies are its variables")
        };
        reader.error_at_value(at, message, help);
        return None;
    }
    let file = path.parent().unwrap_or(Path::new("")).join(file);
    Some(if is_template { SweepBase::Template(file) } else { SweepBase::Experiment(file) })
}

fn read_exclude(reader: &mut SweepReader<'_>, at: &LocatedNode<'_>) -> Vec<ExcludeExpression> {
    if matches!(&at.node.value, Yaml::Seq(items) if items.is_empty()) {
        return Vec::new();
    }
    let items = reader.items(at, "write `[\"layers == 4 and lr > 5e-4\"]`").unwrap_or_default();
    let mut expressions = Vec::new();
    for (i, node) in items.iter().enumerate() {
        let at = LocatedNode { node, key: node.place, path: format!("{}.{i}", at.path) };
        let help = "an expression in quotes, as `\"layers == 4 and lr > 5e-4\"`";
        let Place { line, column, length } = node.place;
        expressions.extend(reader.text(&at, help).map(|text| ExcludeExpression { text, line, column, length }));
    }
    expressions
}

fn read_objective(reader: &mut SweepReader<'_>, at: Option<&LocatedNode<'_>>) -> Objective {
    let (mut metric, mut goal, mut measurement) = (None, None, None);
    for (key, at) in at.and_then(|at| reader.keys(at, &OBJECTIVE_KEYS)).unwrap_or_default() {
        match key {
            "metric" => metric = reader.word(&at, &ObjectiveMetric::ALL, ObjectiveMetric::name),
            "goal" => goal = reader.word(&at, &Goal::ALL, Goal::name),
            _ => measurement = reader.word(&at, &MeasurementChoice::ALL, MeasurementChoice::name),
        }
    }
    let metric = metric.unwrap_or(ObjectiveMetric::ValLoss);
    Objective {
        metric,
        goal: goal.unwrap_or_else(|| metric.goal()),
        at: measurement.unwrap_or(MeasurementChoice::Last),
    }
}

fn read_early_stop(reader: &mut SweepReader<'_>, at: &LocatedNode<'_>) -> Option<AshaSettings> {
    let (_, at) = reader.choice(at, &["asha"], "{asha: {min_steps: 100, reduction: 3}}")?;
    let about_min_steps = "every point is trained so many steps before it is judged";
    let about_reduction = "one of so many goes on, and is judged again after so many times the steps";
    let given = reader.keys(&at, &ASHA_KEYS)?;
    let (mut min_steps, mut reduction) = (None, Some(3));
    for (key, at) in &given {
        match *key {
            "min_steps" => min_steps = reader.integer(at, (1, 1 << 53), about_min_steps),
            _ => reduction = reader.integer(at, (2, 1 << 20), about_reduction),
        }
    }
    if !given.iter().any(|(key, _)| *key == "min_steps") {
        reader.error_at_key(&at, format!("`{}.min_steps` is missing", at.path), about_min_steps);
    }
    Some(AshaSettings { min_steps: min_steps? as u64, reduction: reduction? as u64 })
}

#[cfg(test)]
mod tests;
