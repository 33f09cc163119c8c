//! Reads a sweep file, and reports every mistake with its line and column.
//!
//! The file is checked against its JSON Schema first, as experiments are. What a schema cannot express is checked here.

mod axes;
mod axis_name;
pub(crate) mod group;
mod ladder;
mod schema;

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::Value;

use self::axis_name::{NameCheck, check_key_path, check_variable_name};
use self::group::{makes_group, read_group};
use crate::points::{exclude, expand};
use crate::spec::{AshaSettings, ExcludeExpression, FileSetting, MeasurementChoice, MilestoneUnit, SweepSpec};
use runner_config::ExperimentFile;
use runner_config::check::check_against;
use runner_config::resolve::name_problem;
use runner_config::shape::parse_slot;
use runner_spec::diagnostic::{ConfigError, Diagnostic, MAX_DIAGNOSTICS, nearest, short};
use runner_spec::measure::Measure;
use runner_template::expression::expression_environment;
use runner_template::yaml_text;
use runner_yaml::source::{Place, Source, read};
use runner_yaml::tree::{self, Entry, Node, ParsedYaml, Yaml};

const SHORTEST: &str =
    "the shortest sweep:\nsweep:\n  base: experiment.yaml\n  grid: {optimizer.adamw.lr: [3e-4, 1e-3]}";

/// Reads the sweep file at `path`. If its base is missing and nothing else is wrong, the spec records that: only a new sweep needs the base.
///
/// # Errors
/// All mistakes of the file.
pub fn load(path: &Path) -> Result<SweepSpec, ConfigError> {
    from_file(&ExperimentFile::new(read(path, "name a sweep file, such as sweep.yaml")?, path))
}

/// Reads `file`, which is that of a sweep or an experiment with `seeds`, as [`load`] reads it.
///
/// # Errors
/// All mistakes of the file.
pub fn from_file(file: &ExperimentFile) -> Result<SweepSpec, ConfigError> {
    if makes_group(file) { read_group(file) } else { read_text(&file.text, &file.path, true) }
}

/// Reads the text of a sweep file. Relative paths in it start from the folder of `path`. The files that it names need not exist.
///
/// # Errors
/// All mistakes of the text.
pub fn from_str(text: &str, path: &Path) -> Result<SweepSpec, ConfigError> {
    read_text(text, path, false)
}

/// Reads the text of a sweep file. One that `is_new` needs its base.
fn read_text(text: &str, path: &Path, is_new: bool) -> Result<SweepSpec, ConfigError> {
    let ParsedYaml { source, root: tree, mistakes: diagnostics } = tree::parse(Source::file(path, text.to_owned()));
    let mut reader = SweepReader { needs_files: is_new, ..SweepReader::new(&source, diagnostics) };
    let spec = if let Some(tree) = tree.filter(|tree| !tree.is_null()) {
        reader.read_file(&tree, text, path, is_new)
    } else {
        if reader.diagnostics.is_empty() {
            reader.diagnostics.push(source.diagnostic_whole("the file is empty".into(), SHORTEST.into()));
        }
        None
    };
    match spec {
        Some(spec) if reader.diagnostics.is_empty() => Ok(SweepSpec { missing_base: reader.missing_base, ..spec }),
        _ => {
            reader.diagnostics.extend(reader.missing_base.map(|missing| *missing));
            Err(ConfigError::new(reader.diagnostics))
        }
    }
}

/// `node` of `source` as JSON.
fn json_of(node: &Node, source: &Source) -> Value {
    check_against(parse_slot(&Value::Null), node, source).0
}

/// The content of a sweep file as JSON, whether or not it is a legal sweep; `None` if it is not YAML.
pub(crate) fn parse_value(text: &str) -> Option<Value> {
    let parsed = tree::parse(Source::file(Path::new(""), text.to_owned()));
    Some(json_of(&parsed.root?, &parsed.source))
}

/// Reads a sweep file, and collects its mistakes. Messages name a key by its path from the top, such as `sweep.parallel`.
struct SweepReader<'s> {
    source: &'s Source,
    /// The folder of the file, which paths in it start from.
    folder: PathBuf,
    /// True if the files of `files` must exist, as those of a new sweep must.
    needs_files: bool,
    /// The key of the section: `sweep` or `ladder`.
    section: &'static str,
    diagnostics: Vec<Diagnostic>,
    missing_base: Option<Box<Diagnostic>>,
    /// The names that have values already.
    taken: Vec<TakenName>,
    /// Checks a name that varies, if it is known what the names mean.
    name_check: Option<NameCheck>,
    settings: Vec<FileSetting>,
}

/// A name that has values, and where.
struct TakenName {
    name: String,
    section: String,
    line: usize,
}

/// The entries of the section `at` that have a value.
fn given(at: &Entry) -> impl Iterator<Item = &Entry> {
    entries(&at.value).iter().filter(|entry| !entry.value.is_null())
}

/// The entry `key` of the section `at`, if it has a value.
fn get<'n>(at: &'n Entry, key: &str) -> Option<&'n Entry> {
    given(at).find(|entry| entry.key == key)
}

/// The entries of a mapping; none if the value is not a mapping.
fn entries(node: &Node) -> &[Entry] {
    match &node.value {
        Yaml::Map(entries) => entries,
        _ => &[],
    }
}

/// A value of the checked file, if it is given and legal.
fn value<T: DeserializeOwned>(sweep: &Value, pointer: &str) -> Option<T> {
    serde_json::from_value(sweep.pointer(pointer)?.clone()).ok()
}

/// The measures by which the points of every sweep may be compared; scores of tasks come on top.
fn objective_measures() -> impl Iterator<Item = Measure> {
    Measure::all_fixed().filter(Measure::is_comparable)
}

impl<'s> SweepReader<'s> {
    /// The measure that `value`, that of the key `entry`, names; `None` if it names none, which is reported.
    fn read_metric(&mut self, entry: &Entry, value: &Value) -> Option<Measure> {
        let name = value.as_str()?;
        if let Some(measure) = Measure::of_key(name).filter(Measure::is_comparable) {
            return Some(measure);
        }
        let known: Vec<String> = objective_measures().map(|measure| measure.key().into_owned()).collect();
        let message = format!("`sweep.objective.metric` is not something that runs are compared by: {}", short(name));
        let help = nearest(name, known.iter().map(String::as_str)).map_or_else(
            || format!("use {}, or a score of a task, such as hellaswag_acc", known.join(", ")),
            |near| format!("did you mean `{near}`?"),
        );
        self.error(entry.value.place, "sweep.objective.metric", message, &help);
        None
    }

    /// A reader of `source`, in whose YAML these mistakes were found.
    fn new(source: &'s Source, diagnostics: Vec<Diagnostic>) -> Self {
        let folder = Path::new(&source.label).parent().filter(|folder| *folder != Path::new(""));
        Self {
            source,
            folder: folder.unwrap_or(Path::new(".")).to_owned(),
            needs_files: false,
            section: "sweep",
            diagnostics,
            missing_base: None,
            taken: Vec::new(),
            name_check: None,
            settings: Vec::new(),
        }
    }
}

impl SweepReader<'_> {
    fn error(&mut self, place: Place, path: &str, message: String, help: impl Into<String>) {
        if self.diagnostics.len() < MAX_DIAGNOSTICS {
            self.diagnostics.push(self.source.diagnostic(place, path, message, help.into()));
        }
    }

    /// Replaces the help of the mistakes at `place`.
    fn set_help(&mut self, place: Place, help: &str) {
        let is_there = |mistake: &&mut Diagnostic| (mistake.line, mistake.column) == (place.line, place.column);
        self.diagnostics.iter_mut().filter(is_there).for_each(|mistake| help.clone_into(&mut mistake.help));
    }

    /// Reports the key `key` if the section `entry` lacks it.
    fn require(&mut self, entry: &Entry, path: &str, key: &str, help: &str) {
        let is_given = entry.value.get(key).is_some_and(|(_, node)| !node.is_null());
        if !is_given && matches!(entry.value.value, Yaml::Map(_)) {
            self.error(entry.place, path, format!("`{path}.{key}` is missing"), help);
        }
    }

    fn read_file(&mut self, tree: &Node, text: &str, path: &Path, is_new: bool) -> Option<SweepSpec> {
        if !matches!(tree.value, Yaml::Map(_)) {
            self.error(tree.place, "", "a sweep file is a mapping with the key `sweep`".into(), SHORTEST);
            return None;
        }
        let (file, mistakes) = check_against(parse_slot(schema::schema()), tree, self.source);
        self.diagnostics.extend(mistakes);
        for key in ["model", "data"] {
            if let Some((place, _)) = tree.get(key) {
                self.set_help(
                    place,
                    "that is an experiment; a sweep names it: `sweep: {base: experiment.yaml, grid: …}`",
                );
            }
        }
        let given = |key: &str| entries(tree).iter().find(|entry| entry.key == key && !entry.value.is_null());
        let at = match (given("sweep"), given("ladder")) {
            (Some(sweep), ladder) => {
                if let Some(ladder) = ladder {
                    let message = "a file has either `sweep` or `ladder`, got both".into();
                    self.error(ladder.place, "", message, "delete one of the two");
                }
                sweep
            }
            (None, Some(ladder)) => {
                self.section = "ladder";
                ladder
            }
            (None, None) => {
                if self.diagnostics.is_empty() {
                    self.error(Place { length: 1, ..tree.place }, "sweep", "`sweep` is missing".into(), SHORTEST);
                }
                return None;
            }
        };
        let section = file.get(self.section).filter(|value| value.is_object())?;
        let mut spec = SweepSpec::new(path, text, self.section);
        match self.section {
            "ladder" => self.read_ladder(at, section, is_new, &mut spec),
            _ => self.read_sweep(at, section, is_new, &mut spec),
        }
        self.read_common(at, section, &mut spec);
        Some(spec)
    }

    /// Reads the keys that sweeps and ladders share, after those that vary. `section` is the legal part of the section `at`.
    fn read_common(&mut self, at: &Entry, section: &Value, spec: &mut SweepSpec) {
        spec.budget = get(at, "budget").and_then(|entry| self.read_budget(entry, &section["budget"]));
        let objective = get(at, "objective").map(|entry| entries(&entry.value)).unwrap_or_default();
        let metric = objective.iter().find(|entry| entry.key == "metric");
        if let Some(metric) = metric.and_then(|entry| self.read_metric(entry, &section["objective"]["metric"])) {
            (spec.objective.metric, spec.names_metric) = (metric, true);
        }
        spec.objective.at = value(section, "/objective/at").unwrap_or(MeasurementChoice::Last);
        spec.objective.smallest_difference = value(section, "/objective/smallest_difference");
        spec.parallel = value(section, "/parallel").unwrap_or(1);
        spec.retries = value(section, "/retries").unwrap_or(0);
        spec.settings = std::mem::take(&mut self.settings);
        // The name is also that of the sweep's folder.
        let (Some(entry), Some(name)) = (get(at, "name"), value::<String>(section, "/name")) else { return };
        let Some(problem) = name_problem(&name) else {
            spec.name = name;
            return;
        };
        let help = "the sweep's folder gets this name: use up to 100 letters, digits, `.`, `_` and `-`, and do not start \
             with `.` or `-`";
        let path = format!("{}.name", self.section);
        self.error(entry.value.place, &path, format!("`{path}` {problem}"), help);
    }

    /// Reads the keys that only sweeps have. `sweep` is the legal part of the section `at`.
    fn read_sweep(&mut self, at: &Entry, sweep: &Value, is_new: bool, spec: &mut SweepSpec) {
        let mut bases = given(at).filter(|entry| ["template", "base"].contains(&entry.key.as_str()));
        let chosen = bases.next();
        if let (Some(first), Some(second)) = (chosen, bases.next()) {
            let help = "use `template` to vary a template's variables, or `base` to vary keys of an experiment";
            self.error(second.place, "sweep", format!("`sweep` has both `{}` and `{}`", first.key, second.key), help);
        }
        if chosen.is_none() {
            let help = "use `template: file.yaml.j2` to vary a template's variables, or `base: file.yaml` to vary \
                keys of an experiment";
            self.error(at.place, "sweep", "`sweep` has neither `template` nor `base`".into(), help);
        }
        let is_template = chosen.map(|entry| entry.key == "template");
        spec.base = chosen.and_then(|entry| self.read_base(entry, sweep, &spec.path, is_new)).unwrap_or_default();
        self.name_check =
            is_template.map(|is_template| if is_template { check_variable_name as NameCheck } else { check_key_path });
        if let Some(entry) = get(at, "vars") {
            if is_template == Some(false) {
                let help = "an experiment has no variables; give its keys under `set`";
                self.error(entry.place, "sweep.vars", "`vars` needs `template`, but the sweep has `base`".into(), help);
            } else {
                for (entry, value) in self.read_pairs(entry, sweep, check_variable_name) {
                    self.mark_taken(entry, "vars");
                    spec.vars.insert(entry.key.clone(), value);
                }
            }
        }
        // With a template, these keys are not the variables that vary.
        spec.set = self.read_set(at, sweep, is_template == Some(false));
        let names_before = self.taken.len();
        let sections: Vec<&Entry> =
            given(at).filter(|entry| ["grid", "files", "zip", "random"].contains(&entry.key.as_str())).collect();
        spec.axes = self.read_axes(&sections, sweep);
        let seeds = get(at, "seeds");
        spec.axes.extend(seeds.and_then(|entry| self.read_seeds(entry, "sweep.seeds", &sweep["seeds"])));
        match sections.first().copied().or(seeds) {
            None => {
                let help = "add `grid: {lr: [1e-4, 3e-4]}`, or `files`, `zip`, `random` or `seeds`";
                self.error(at.place, "sweep", "nothing varies in this sweep".into(), help);
            }
            Some(section) => {
                if let Err(error) = expand::count(&spec.axes) {
                    let help = "use fewer values, or draw some of them: `random: {samples: 20, space: …}`";
                    self.error(section.place, "sweep", error.text, help);
                }
            }
        }
        spec.early_stop = get(at, "early_stop").and_then(|entry| self.read_early_stop(entry, sweep));
        spec.exclude = get(at, "exclude").map(read_exclude).unwrap_or_default();
        spec.conditions = get(at, "when").map(|entry| self.read_conditions(entry)).unwrap_or_default();
        if let (Some(files), Some(true)) = (get(at, "files"), is_template) {
            let help = "a template has variables: vary the name of a file, and include it";
            self.error(files.place, "sweep.files", "`files` needs `base`, but the sweep has `template`".into(), help);
        }
        let varying = self.taken[names_before..].iter().map(|taken| taken.name.clone());
        let names: Vec<String> = varying.chain(spec.vars.keys().cloned()).collect();
        // All names are known if all sections are mappings.
        let are_names_known = sections.iter().all(|section| matches!(section.value.value, Yaml::Map(_)));
        let environment = expression_environment();
        let conditions = spec.conditions.iter().map(|(_, condition)| (condition, "sweep.when"));
        for (expression, path) in spec.exclude.iter().map(|exclude| (exclude, "sweep.exclude")).chain(conditions) {
            let names = Some(&*names).filter(|_| are_names_known);
            if let Err((message, help)) = exclude::compile(&environment, names, expression) {
                self.error(expression.place, path, message, help);
            }
        }
    }

    fn read_early_stop(&mut self, entry: &Entry, sweep: &Value) -> Option<AshaSettings> {
        if !matches!(entry.value.value, Yaml::Map(_)) {
            self.set_help(entry.value.place, "write `early_stop: {asha: {min_steps: …}}`");
        }
        let asha = entries(&entry.value).iter().find(|entry| entry.key == "asha")?;
        let is_given = |unit: MilestoneUnit| asha.value.get(unit.key()).is_some_and(|(_, node)| !node.is_null());
        if !MilestoneUnit::ALL.into_iter().any(is_given) && matches!(asha.value.value, Yaml::Map(_)) {
            let path = "sweep.early_stop.asha";
            let message = format!("`{path}` needs one of min_steps, min_tokens and min_flops");
            self.error(asha.place, path, message, "every point is trained for so much before it is judged");
        }
        MilestoneUnit::ALL.into_iter().find_map(|unit| {
            let first = value(sweep, &format!("/early_stop/asha/{}", unit.key()))?;
            let reduction = value(sweep, "/early_stop/asha/reduction").unwrap_or(3);
            Some(AshaSettings { unit, first, reduction })
        })
    }

    /// Reads the settings of all points. Their names are taken if they `are_names` of what may vary.
    fn read_set(&mut self, at: &Entry, section: &Value, are_names: bool) -> Vec<String> {
        let pairs = get(at, "set").map(|entry| self.read_pairs(entry, section, check_key_path)).unwrap_or_default();
        let mut settings = Vec::new();
        for (entry, value) in pairs {
            settings.push(self.add_setting(&entry.key, &value, &entry.value));
            if are_names {
                self.mark_taken(entry, "set");
            }
        }
        settings
    }

    /// The entries of the mapping `section` that are legal, with their values.
    fn read_pairs<'n>(&mut self, section: &'n Entry, sweep: &Value, check: NameCheck) -> Vec<(&'n Entry, Value)> {
        let mut pairs = Vec::new();
        for entry in entries(&section.value) {
            match check(&entry.key) {
                Err((message, help)) => {
                    self.error(entry.place, &format!("{}.{}.{}", self.section, section.key, entry.key), message, help);
                }
                Ok(()) => pairs.extend(sweep[&section.key].get(&entry.key).map(|value| (entry, value.clone()))),
            }
        }
        pairs
    }

    fn mark_taken(&mut self, entry: &Entry, section: &str) {
        let taken = TakenName { name: entry.key.clone(), section: section.to_owned(), line: entry.place.line };
        self.taken.push(taken);
    }

    /// Keeps the place of a setting of `key` whose values the file does not list.
    fn add_open_setting(&mut self, key: &str, place: Place) {
        let setting = format!("{key}=");
        self.settings.push(FileSetting { normalized: setting.clone(), written: setting, place });
    }

    /// Keeps the place of a setting, and returns the setting.
    fn add_setting(&mut self, key: &str, value: &Value, node: &Node) -> String {
        let normalized = format!("{key}={}", yaml_text(value));
        let written = match &node.value {
            Yaml::Scalar { text, plain: true } => format!("{key}={text}"),
            _ => normalized.clone(),
        };
        self.settings.push(FileSetting { normalized: normalized.clone(), written, place: node.place });
        normalized
    }

    fn read_base(&mut self, entry: &Entry, sweep: &Value, path: &Path, is_new: bool) -> Option<PathBuf> {
        let file = sweep[&entry.key].as_str()?;
        let key = format!("{}.{}", self.section, entry.key);
        let is_template = runner_template::is_template(Path::new(file));
        let problem = match (is_template, entry.key == "template") {
            (false, true) => Some((
                format!("the name of a template must end in `.j2`, got `{}`", short(file)),
                "to vary keys of an experiment, write `base`",
            )),
            (true, false) => Some((
                format!("`{}` is a template", short(file)),
                "write `template`; the sweep then varies its variables",
            )),
            _ => None,
        };
        if let Some((message, help)) = problem {
            self.error(entry.value.place, &key, message, help);
            return None;
        }
        let file = path.parent().unwrap_or(Path::new("")).join(file);
        if is_new && !file.exists() {
            let message = format!("there is no file {}", file.display());
            let help = "paths are relative to the folder of the sweep file".to_owned();
            self.missing_base = Some(Box::new(self.source.diagnostic(entry.value.place, &key, message, help)));
        }
        Some(file)
    }
}

fn read_exclude(entry: &Entry) -> Vec<ExcludeExpression> {
    let Yaml::Seq(items) = &entry.value.value else { return Vec::new() };
    let expression = |node: &Node| match &node.value {
        Yaml::Scalar { text, .. } => Some(ExcludeExpression { text: text.to_string(), place: node.place }),
        _ => None,
    };
    items.iter().filter_map(expression).collect()
}

#[cfg(test)]
mod tests;
