//! Reads what varies: the sections `grid`, `zip` and `random` of a sweep file.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{SweepReader, TakenName, entries};
use crate::spec::{Dimension, Distribution, ExcludeExpression, FileSetting, ListAxis, RandomDraws};
use runner_spec::diagnostic::short;
use runner_spec::format::counted;
use runner_yaml::source::Place;
use runner_yaml::tree::{Entry, Node, Yaml};

/// The largest whole number up to which a float holds every one exactly.
const MAX_EXACT_INTEGER: f64 = (1_u64 << 53) as f64;
/// The largest number of seeds of a setting.
const MAX_SEEDS: u64 = 1000;
/// The key that `seeds` varies.
const SEED_KEY: &str = "seed";
/// `random.seed` unless the file gives one; the same as for experiments.
const DEFAULT_SEED: u64 = 1337;

/// The files that `pattern` matches in `folder`, in the order of their names.
fn matching_files(folder: &Path, pattern: &str) -> Result<Vec<PathBuf>, String> {
    let one = folder.join(pattern);
    if one.is_file() {
        return Ok(vec![one]);
    }
    let whole = format!("{}/{pattern}", glob::Pattern::escape(&folder.to_string_lossy()));
    let paths = runner_files::matching_paths(&whole).map_err(|error| error.msg.to_owned())?;
    let mut paths: Vec<PathBuf> = paths.filter_map(Result::ok).filter(|path| path.is_file()).collect();
    paths.sort();
    Ok(paths)
}

/// The names of files in values of a point: `small` for `models/small.yaml`, or the paths from `folder`, if two of the names are alike.
fn names_of_files(folder: &Path, paths: &[PathBuf]) -> Vec<Value> {
    let stem = |path: &PathBuf| path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let names: Vec<String> = paths.iter().map(stem).collect();
    if names.iter().enumerate().all(|(i, name)| !names[..i].contains(name)) {
        return names.into_iter().map(Value::from).collect();
    }
    paths.iter().map(|path| path.strip_prefix(folder).unwrap_or(path).to_string_lossy().into()).collect()
}

impl SweepReader<'_> {
    /// Reads the sections in the order of the file. `sweep` is the legal part of the file.
    pub(super) fn read_axes(&mut self, sections: &[&Entry], sweep: &Value) -> Vec<Dimension> {
        let mut dimensions = Vec::new();
        for section in sections {
            let values = &sweep[&section.key];
            match section.key.as_str() {
                "grid" => {
                    let lists = self.read_lists(section, values).into_iter();
                    dimensions.extend(lists.map(|(axis, _)| Dimension::Grid(axis)));
                }
                "files" => dimensions.extend(self.read_file_axes(section, values)),
                "zip" => dimensions.extend(self.read_zip(section, values)),
                _ => dimensions.extend(self.read_random(section, values).map(Dimension::Random)),
            }
        }
        dimensions
    }

    /// Reads the key `path`: the number of seeds, which are then 1, 2 and so on, or a list of them.
    pub(super) fn read_seeds(&mut self, entry: &Entry, path: &str, seeds: &Value) -> Option<Dimension> {
        let help = "write their number, such as `seeds: 5`, or list them: `seeds: [1, 2, 3]`";
        if let Some(taken) = self.taken.iter().find(|taken| taken.name == SEED_KEY) {
            let message = format!("`seeds` sets the key `seed`, which already has values under `{}`", taken.section);
            let help = format!("they are on line {}; delete one of the two", taken.line);
            self.error(entry.place, path, message, help);
            return None;
        }
        self.taken.push(TakenName { name: SEED_KEY.to_owned(), section: path.to_owned(), line: entry.place.line });
        let values: Vec<u64> = match (seeds, &entry.value.value) {
            (Value::Number(count), _) => {
                (1..=count.as_u64().filter(|n| (1..=MAX_SEEDS).contains(n)).unwrap_or(0)).collect()
            }
            (Value::Array(list), Yaml::Seq(items)) => {
                for (i, (seed, node)) in list.iter().zip(items.iter()).enumerate() {
                    if seed.as_u64().is_none() {
                        let message = format!("a seed must be a whole number from 0 on, got {}", node.describe());
                        self.error(node.place, path, message, help);
                        return None;
                    }
                    if list[..i].contains(seed) {
                        let message = format!("the values of `{path}` must differ, but this one is listed twice");
                        self.error(node.place, path, message, "delete one of the two");
                        return None;
                    }
                }
                list.iter().filter_map(Value::as_u64).collect()
            }
            _ => Vec::new(),
        };
        if values.is_empty() || values.len() as u64 > MAX_SEEDS {
            let found = entry.value.describe();
            let message = format!("`{path}` must be a number from 1 to {MAX_SEEDS}, or a list of seeds, got {found}");
            self.error(entry.value.place, path, message, help);
            return None;
        }
        for seed in &values {
            let setting = format!("{SEED_KEY}={seed}");
            self.settings.push(FileSetting { normalized: setting.clone(), written: setting, place: entry.value.place });
        }
        let values = values.into_iter().map(Value::from).collect();
        Some(Dimension::Seeds(ListAxis { name: SEED_KEY.to_owned(), values }))
    }

    /// Takes the name of `entry`. Returns false and reports a mistake if it is taken or is not legal.
    pub(super) fn take_name(&mut self, entry: &Entry, section: &str) -> bool {
        let (name, path) = (entry.key.as_str(), format!("{}.{section}.{}", self.section, entry.key));
        if let Some(taken) = self.taken.iter().find(|taken| taken.name == name) {
            let message = format!("`{}` already has values under `{}`", short(name), taken.section);
            let help = format!("they are on line {}; delete one of the two", taken.line);
            self.error(entry.place, &path, message, help);
            return false;
        }
        self.mark_taken(entry, section);
        if let Some(Err((message, help))) = self.name_check.map(|check| check(name)) {
            self.error(entry.place, &path, message, help);
            return false;
        }
        true
    }

    /// The entries of a section, which names at least one thing that varies.
    fn named_entries<'n>(&mut self, section: &'n Entry, path: &str, example: &str) -> &'n [Entry] {
        if matches!(&section.value.value, Yaml::Map(entries) if entries.is_empty()) {
            let help = format!("write `{example}`, or delete it");
            self.error(section.place, path, format!("`{path}` must name something to vary, but it is empty"), help);
        }
        entries(&section.value)
    }

    /// A mapping of names to lists of values, with the place of each name. In a grid the values of a list must differ.
    fn read_lists(&mut self, section: &Entry, lists: &Value) -> Vec<(ListAxis, Place)> {
        let mut axes = Vec::new();
        let path = format!("{}.{}", self.section, section.key);
        for entry in self.named_entries(section, &path, "{lr: [1e-4, 3e-4]}") {
            let is_free = self.take_name(entry, &section.key);
            let name = &entry.key;
            if let [draw] = entries(&entry.value) {
                let draw = format!("{{{}: {{{}: …}}}}", short(name), short(&draw.key));
                self.set_help(
                    entry.place,
                    &format!("draws belong under `random`: `random: {{samples: 20, space: {draw}}}`"),
                );
            }
            let (Some(Value::Array(values)), Yaml::Seq(items)) = (lists.get(name), &entry.value.value) else {
                continue;
            };
            for (i, (value, node)) in values.iter().zip(items.iter()).enumerate() {
                self.add_setting(name, value, node);
                if section.key == "grid" && values[..i].contains(value) {
                    let message = format!("the values of `{path}.{name}` must differ, but this one is listed twice");
                    self.error(node.place, &path, message, "delete one of the two");
                }
            }
            if is_free {
                axes.push((ListAxis { name: name.clone(), values: values.clone() }, entry.place));
            }
        }
        axes
    }

    /// A mapping of key paths to lists of files and patterns of files.
    fn read_file_axes(&mut self, section: &Entry, lists: &Value) -> Vec<Dimension> {
        let folder = self.folder.clone();
        let mut axes = Vec::new();
        for entry in self.named_entries(section, "sweep.files", "{model: [models/*.yaml]}") {
            let is_free = self.take_name(entry, "files");
            let (Some(Value::Array(patterns)), Yaml::Seq(items)) = (lists.get(&entry.key), &entry.value.value) else {
                continue;
            };
            let mut paths: Vec<PathBuf> = Vec::new();
            for (pattern, node) in patterns.iter().filter_map(Value::as_str).zip(items.iter()) {
                let found = matching_files(&folder, pattern);
                let problem = match &found {
                    Err(problem) => Some((format!("`{}` is not a pattern: {problem}", short(pattern)), String::new())),
                    Ok(found) if found.is_empty() && self.needs_files => {
                        let help = format!("paths are relative to the folder of the sweep file, {}", folder.display());
                        Some((format!("there is no file `{}`", short(pattern)), help))
                    }
                    Ok(found) => found.iter().find(|path| paths.contains(path)).map(|path| {
                        let message = format!("{} is listed twice", short(&path.display().to_string()));
                        (message, "delete one of the two".to_owned())
                    }),
                };
                if let Some((message, help)) = problem {
                    self.error(node.place, &format!("sweep.files.{}", entry.key), message, help);
                }
                paths.extend(found.into_iter().flatten());
            }
            if is_free {
                let values = names_of_files(&folder, &paths);
                axes.push(Dimension::Files(ListAxis { name: entry.key.clone(), values }, paths));
            }
        }
        axes
    }

    /// The conditions of `when`: names that vary, each with an expression over the others.
    pub(super) fn read_conditions(&mut self, section: &Entry) -> Vec<(String, ExcludeExpression)> {
        let mut conditions = Vec::new();
        for entry in entries(&section.value) {
            if !self.taken.iter().any(|taken| taken.name == entry.key) {
                let message = format!("`{}` does not vary in this sweep", short(&entry.key));
                let help = "name what varies under `grid`, `files`, `zip` or `random`";
                self.error(entry.place, "sweep.when", message, help);
            } else if entry.key == SEED_KEY {
                let message = "`seeds` cannot have a condition".to_owned();
                self.error(entry.place, "sweep.when", message, "each point is trained with each seed");
            } else if let Yaml::Scalar { text, .. } = &entry.value.value {
                let expression = ExcludeExpression { text: text.to_string(), place: entry.value.place };
                conditions.push((entry.key.clone(), expression));
            }
        }
        conditions
    }

    pub(super) fn read_zip(&mut self, section: &Entry, lists: &Value) -> Option<Dimension> {
        let axes = self.read_lists(section, lists);
        let (first, _) = axes.first()?;
        let length = first.values.len();
        let others: Vec<&(ListAxis, Place)> = axes.iter().filter(|(axis, _)| axis.values.len() != length).collect();
        for (axis, place) in &others {
            let (key, count) = (&section.key, counted(axis.values.len() as u64, "value"));
            let path = format!("{}.{key}", self.section);
            let message = format!("`{path}.{}` has {count}, but `{}` has {length}", axis.name, first.name);
            let help = format!("`{key}` combines the values one by one; give each name the same number of values");
            self.error(*place, &path, message, &help);
        }
        others.is_empty().then(|| Dimension::Zip(axes.into_iter().map(|(axis, _)| axis).collect()))
    }

    fn read_random(&mut self, section: &Entry, random: &Value) -> Option<RandomDraws> {
        self.require(section, "sweep.random", "samples", "the number of points to draw");
        let example = "{lr: {log_uniform: [1e-5, 1e-2]}}";
        self.require(section, "sweep.random", "space", &format!("what to draw, for example `{example}`"));
        let mut space = Vec::new();
        if let Some(section) = entries(&section.value).iter().find(|entry| entry.key == "space") {
            for entry in self.named_entries(section, "sweep.random.space", example) {
                let is_free = self.take_name(entry, "random.space");
                if let Yaml::Seq(_) = entry.value.value {
                    self.set_help(entry.place, "to draw one of a list, write `{choice: […]}`");
                }
                self.add_open_setting(&entry.key, entry.place);
                let distribution = self.read_distribution(entry, &random["space"][&entry.key]);
                space.extend(distribution.filter(|_| is_free).map(|distribution| (entry.key.clone(), distribution)));
            }
        }
        let seed = random["seed"].as_u64().unwrap_or(DEFAULT_SEED);
        Some(RandomDraws { samples: usize::try_from(random["samples"].as_u64()?).ok()?, seed, space })
    }

    /// The distribution of a draw, whose legal part is `draw`.
    fn read_distribution(&mut self, entry: &Entry, draw: &Value) -> Option<Distribution> {
        let (kind, values) = draw.as_object()?.iter().next()?;
        let values = values.as_array()?;
        if kind == "choice" {
            return Some(Distribution::Choice(values.clone()));
        }
        let path = format!("sweep.random.space.{}.{kind}", entry.key);
        let (_, list) = entry.value.get(kind)?;
        let Yaml::Seq(nodes) = &list.value else { return None };
        let is_log = kind.contains("log");
        let is_whole = kind.starts_with("int");
        let mut bound = |i: usize| {
            let (bound, node): (f64, &Node) = (values.get(i)?.as_f64()?, nodes.get(i)?);
            if is_whole && (bound.fract() != 0.0 || bound.abs() > MAX_EXACT_INTEGER) {
                let message =
                    format!("the bounds of `{path}` must be whole numbers up to 2^53, got {}", node.describe());
                self.error(node.place, &path, message, "");
                return None;
            }
            if is_log && bound < if is_whole { 1.0 } else { f64::MIN_POSITIVE } {
                let message = format!("the bounds of `{path}` must be positive, got {bound}");
                self.error(
                    node.place,
                    &path,
                    message,
                    "a logarithm needs positive bounds; a distribution without `log` does not",
                );
                return None;
            }
            Some(bound)
        };
        let (low, high) = (bound(0), bound(1));
        let (low, high) = (low?, high?);
        if low >= high {
            let (problem, help) = if low == high {
                ("are equal", "values that do not vary go under `vars` or `set`")
            } else {
                ("are reversed", "write the lower one first")
            };
            self.error(list.place, &path, format!("the bounds of `{path}` {problem}"), help);
            return None;
        }
        Some(match (is_log, is_whole) {
            (false, false) => Distribution::Uniform(low, high),
            (true, false) => Distribution::LogUniform(low, high),
            (false, true) => Distribution::IntUniform(low as i64, high as i64),
            (true, true) => Distribution::IntLogUniform(low as i64, high as i64),
        })
    }
}
