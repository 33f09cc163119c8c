//! Reads a sweep file, with every mistake at its line and column. What varies is `read_axes`'.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::key_path::{key_problem, variable_problem};
use super::overlay::flow;
use super::reader::{LocatedNode, SweepReader};
use super::spec::{
    AshaSettings, ExcludeExpression, Goal, MeasurementChoice, Objective, ObjectiveMetric, SweepBase, SweepSpec,
};
use super::{exclude, expand, read_axes};
use runner_config::resolve::{legal_in_name, name_problem};
use runner_spec::diagnostic::ConfigError;
use runner_spec::diagnostic::{nearest, short};
use runner_template::source::read;
use runner_template::source::{Place, Source};
use runner_template::tree;
use runner_template::tree::{Entry, Node, Yaml};

/// Keys of a sweep, in the order of the documentation.
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
    let nothing = Source::file(path, String::new());
    let whole = |message: &str| {
        ConfigError::new(vec![
            nothing.diagnostic_whole(message.to_owned(), "name a sweep file, such as sweep.yaml".into()),
        ])
    };
    if path.is_dir() {
        return Err(whole("this is a folder"));
    }
    if std::fs::metadata(path).is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
        return Err(whole("there is no such file"));
    }
    let text = read(path).map_err(|d| ConfigError::new(vec![*d]))?;
    from_str(&text, path)
}

/// As `load`, for a text that is already there; relative paths in it start from the folder of `path`.
///
/// # Errors
/// As `load`.
pub fn from_str(text: &str, path: &Path) -> Result<SweepSpec, ConfigError> {
    let source = Source::file(path, text.strip_prefix('\u{FEFF}').unwrap_or(text).to_owned());
    let (tree, diagnostics) = tree::parse(&source);
    let mut reader = SweepReader { source: &source, diagnostics };
    let mut spec = None;
    match tree {
        Some(tree) if !tree.is_null() => {
            if let Some((node, key)) = top(&mut reader, &tree) {
                spec = sweep(&mut reader, LocatedNode { node, key, path: "sweep" }, text, path);
            }
        }
        _ if reader.diagnostics.is_empty() => {
            reader.diagnostics.push(source.diagnostic_whole("the file is empty".into(), SHORTEST.into()));
        }
        _ => {}
    }
    match spec {
        Some(spec) if reader.diagnostics.is_empty() => Ok(spec),
        _ => Err(ConfigError::new(reader.diagnostics)),
    }
}

/// The value of `sweep`, and where the key stands.
fn top<'n>(reader: &mut SweepReader<'_>, tree: &'n Node) -> Option<(&'n Node, Place)> {
    let Yaml::Map(entries) = &tree.value else {
        reader.error(tree.place, "", "a sweep file is a mapping with the key `sweep`".into(), SHORTEST);
        return None;
    };
    let mut found = None;
    for entry in entries.iter() {
        match entry.key.as_str() {
            "sweep" => found = Some((&entry.value, entry.place)),
            "version" => {
                let held = LocatedNode { node: &entry.value, key: entry.place, path: "version" };
                reader.integer(held, (1, 1), "version of this format; there is one: 1");
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
                reader.error(entry.place, key, format!("unknown key `{}` at the top level", short(key)), help);
            }
        }
    }
    if found.is_none() && reader.diagnostics.is_empty() {
        reader.error(Place { length: 1, ..tree.place }, "sweep", "`sweep` is missing".into(), SHORTEST);
    }
    found
}

/// What was read so far; what has a mistake is as if it was not given.
struct Parts<'n> {
    name: Option<String>,
    base: Option<SweepBase>,
    vars: Option<&'n Entry>,
    set: Option<&'n Entry>,
    axes: Vec<(&'n Entry, &'static str)>,
    spec: SweepSpec,
}

fn sweep(reader: &mut SweepReader<'_>, at: LocatedNode<'_>, text: &str, path: &Path) -> Option<SweepSpec> {
    let entries = reader.keys(at, &KEYS)?;
    let objective = Objective { metric: ObjectiveMetric::ValLoss, goal: Goal::Minimize, at: MeasurementChoice::Last };
    let spec = SweepSpec {
        name: String::new(),
        base: SweepBase::Experiment(PathBuf::new()),
        vars: Map::new(),
        set: Vec::new(),
        axes: Vec::new(),
        exclude: Vec::new(),
        objective,
        early_stop: None,
        parallel: 1,
        retries: 0,
        text: text.to_owned(),
        path: path.to_owned(),
    };
    let mut parts = Parts { name: None, base: None, vars: None, set: None, axes: Vec::new(), spec };
    let mut chosen: Option<&Entry> = None;
    for entry in entries {
        let here = format!("sweep.{}", entry.key);
        let held = LocatedNode { node: &entry.value, key: entry.place, path: &here };
        match entry.key.as_str() {
            "name" => parts.name = name(reader, held),
            "template" | "base" => match chosen {
                None => {
                    chosen = Some(entry);
                    parts.base = base(reader, held, path, entry.key == "template");
                }
                Some(first) => {
                    let message = format!("`sweep` has both `{}` and `{}`", first.key, entry.key);
                    let help =
                        "give `template` to vary a template's variables, or `base` to vary keys of an experiment";
                    reader.error(entry.place, &here, message, help);
                }
            },
            "vars" => parts.vars = Some(entry),
            "set" => parts.set = Some(entry),
            "grid" => parts.axes.push((entry, "grid")),
            "zip" => parts.axes.push((entry, "zip")),
            "random" => parts.axes.push((entry, "random")),
            "exclude" => parts.spec.exclude = excludes(reader, held),
            "objective" => parts.spec.objective = self::objective(reader, held),
            "early_stop" => parts.spec.early_stop = early_stop(reader, held),
            "parallel" => {
                let read = reader.integer(held, (1, 1024), "how many runs are trained at once");
                parts.spec.parallel = read.map_or(1, |n| n as usize);
            }
            "retries" => {
                let read = reader.integer(held, (0, 100), "how often a failed point is tried again");
                parts.spec.retries = read.map_or(0, |n| n as u32);
            }
            _ => {}
        }
    }
    if chosen.is_none() {
        let help = "give `template: file.yaml.j2` to vary a template's variables, or `base: file.yaml` to vary keys of an experiment";
        reader.error(at.key, "sweep.base", "`sweep` has neither `template` nor `base`".into(), help);
    }
    Some(finish(reader, at, parts, chosen.map(|entry| entry.key == "template")))
}

/// What needs to know whether there is a template, and what needs to know what varies.
fn finish(reader: &mut SweepReader<'_>, at: LocatedNode<'_>, parts: Parts<'_>, template: Option<bool>) -> SweepSpec {
    let Parts { name, base, vars, set, axes, mut spec } = parts;
    let mut fixed: Vec<(String, &str, Place)> = Vec::new();
    if let Some(entry) = vars {
        let held = LocatedNode { node: &entry.value, key: entry.place, path: "sweep.vars" };
        if template == Some(false) {
            let help = "an experiment has no variables; give its keys under `set`";
            reader.error(entry.place, held.path, "`vars` goes with `template`, and there is `base`".into(), help);
        } else {
            for (name, place, value) in pairs(reader, held, variable_problem) {
                fixed.push((name.clone(), "vars", place));
                spec.vars.insert(name, value);
            }
        }
    }
    if let Some(entry) = set {
        let held = LocatedNode { node: &entry.value, key: entry.place, path: "sweep.set" };
        for (key, place, value) in pairs(reader, held, key_problem) {
            spec.set.push(format!("{key}={}", flow(&value)));
            // The keys of a template's result are another matter than its variables.
            if template == Some(false) {
                fixed.push((key, "set", place));
            }
        }
    }
    let before = reader.diagnostics.len();
    let check = match template {
        Some(true) => Some(variable_problem as fn(&str) -> Option<(String, String)>),
        Some(false) => Some(key_problem as fn(&str) -> Option<(String, String)>),
        None => None,
    };
    spec.axes = read_axes::axes(reader, &axes, &fixed, check);
    if axes.is_empty() {
        let help = "add `grid: {lr: [1e-4, 3e-4]}`, or `zip`, or `random`";
        reader.error(at.key, "sweep.grid", "nothing varies in this sweep".into(), help);
    } else if reader.diagnostics.len() == before
        && let Err(message) = expand::count(&spec.axes)
    {
        let help = "take fewer values, or draw some of them: `random: {samples: 20, space: …}`";
        reader.error(axes[0].0.place, "sweep", message, help);
    }
    spec.name = name.unwrap_or_else(|| name_of(&spec.path));
    if let Some(base) = base {
        spec.base = base;
    } else if template == Some(true) {
        spec.base = SweepBase::Template(PathBuf::new());
    }
    // Names are known only if all of them could be read.
    if reader.diagnostics.len() == before {
        let environment = exclude::environment();
        for exclude in &spec.exclude {
            if let Err((message, help)) = exclude::compile(&environment, &spec, exclude) {
                let place = Place { line: exclude.line, column: exclude.column, length: exclude.length };
                reader.error(place, "sweep.exclude", message, help);
            }
        }
    }
    spec
}

type Problem = fn(&str) -> Option<(String, String)>;

/// The entries of a mapping of names to any values.
fn pairs(reader: &mut SweepReader<'_>, at: LocatedNode<'_>, problem: Problem) -> Vec<(String, Place, Value)> {
    let mut out = Vec::new();
    for entry in reader.entries(at, "write `{name: value}`").unwrap_or_default() {
        let path = format!("{}.{}", at.path, entry.key);
        if let Some((message, help)) = problem(&entry.key) {
            reader.error(entry.place, &path, message, help);
        } else if let Some(value) = reader.value(LocatedNode { node: &entry.value, key: entry.place, path: &path }) {
            out.push((entry.key.clone(), entry.place, value));
        }
    }
    out
}

/// The sweep's folder is called by it.
fn name(reader: &mut SweepReader<'_>, at: LocatedNode<'_>) -> Option<String> {
    let name = reader.text(at, "")?;
    let Some(problem) = name_problem(&name) else { return Some(name) };
    let help =
        "it names the sweep's folder: up to 100 letters, digits, `.`, `_` and `-`, not beginning with `.` or `-`";
    reader.error(at.node.place, at.path, format!("`{}` {problem}", at.path), help);
    None
}

fn name_of(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let name: String = stem.chars().map(|c| if legal_in_name(c) { c } else { '-' }).take(100).collect();
    let name = name.trim_start_matches(['.', '-']);
    if name.is_empty() { "sweep".to_owned() } else { name.to_owned() }
}

fn base(reader: &mut SweepReader<'_>, at: LocatedNode<'_>, path: &Path, template: bool) -> Option<SweepBase> {
    let file = reader.text(at, "name a file")?;
    let is_template = Path::new(&file).extension().is_some_and(|e| e == "j2");
    if is_template != template {
        let (message, help) = if template {
            (
                format!("`{}` is no template: its name does not end with `.j2`", short(&file)),
                "to vary keys of an experiment, write `base`",
            )
        } else {
            (format!("`{}` is a template", short(&file)), "write `template`; then what varies are its variables")
        };
        reader.error(at.node.place, at.path, message, help);
        return None;
    }
    let file = path.parent().unwrap_or(Path::new("")).join(file);
    Some(if template { SweepBase::Template(file) } else { SweepBase::Experiment(file) })
}

fn excludes(reader: &mut SweepReader<'_>, at: LocatedNode<'_>) -> Vec<ExcludeExpression> {
    let mut out = Vec::new();
    if matches!(&at.node.value, Yaml::Seq(items) if items.is_empty()) {
        return out;
    }
    for (i, node) in reader.items(at, "write `[\"layers == 4 and lr > 5e-4\"]`").unwrap_or_default().iter().enumerate()
    {
        let path = format!("{}.{i}", at.path);
        let held = LocatedNode { node, key: node.place, path: &path };
        if let Some(text) = reader.text(held, "an expression in quotes, as `\"layers == 4 and lr > 5e-4\"`") {
            let Place { line, column, length } = node.place;
            out.push(ExcludeExpression { text, line, column, length });
        }
    }
    out
}

fn objective(reader: &mut SweepReader<'_>, at: LocatedNode<'_>) -> Objective {
    let (mut metric, mut goal, mut which) = (None, None, None);
    for entry in reader.keys(at, &OBJECTIVE_KEYS).unwrap_or_default() {
        let path = format!("{}.{}", at.path, entry.key);
        let held = LocatedNode { node: &entry.value, key: entry.place, path: &path };
        match entry.key.as_str() {
            "metric" => metric = reader.word(held, &ObjectiveMetric::ALL, ObjectiveMetric::name),
            "goal" => goal = reader.word(held, &Goal::ALL, Goal::name),
            _ => which = reader.word(held, &MeasurementChoice::ALL, MeasurementChoice::name),
        }
    }
    let metric = metric.unwrap_or(ObjectiveMetric::ValLoss);
    Objective { metric, goal: goal.unwrap_or_else(|| metric.goal()), at: which.unwrap_or(MeasurementChoice::Last) }
}

fn early_stop(reader: &mut SweepReader<'_>, at: LocatedNode<'_>) -> Option<AshaSettings> {
    let entry = reader.choice(at, &["asha"], "{asha: {min_steps: 100, reduction: 3}}")?;
    let path = format!("{}.asha", at.path);
    let at = LocatedNode { node: &entry.value, key: entry.place, path: &path };
    let (mut min_steps, mut reduction) = (None, Some(3));
    let entries = reader.keys(at, &ASHA_KEYS)?;
    let given = entries.iter().any(|e| e.key == "min_steps");
    for entry in entries {
        let path = format!("{}.{}", at.path, entry.key);
        let held = LocatedNode { node: &entry.value, key: entry.place, path: &path };
        if entry.key == "min_steps" {
            min_steps = reader.integer(held, (1, 1 << 53), "every point is trained so many steps before it is judged");
        } else {
            reduction = reader.integer(
                held,
                (2, 1 << 20),
                "one of so many goes on, and is judged again after so many times the steps",
            );
        }
    }
    if !given {
        let help = "every point is trained so many steps before it is judged";
        reader.error(at.key, &format!("{path}.min_steps"), format!("`{path}.min_steps` is missing"), help);
    }
    Some(AshaSettings { min_steps: min_steps? as u64, reduction: reduction? as u64 })
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
