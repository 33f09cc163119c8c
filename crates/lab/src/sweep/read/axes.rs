//! Reads what varies: the sections `grid`, `zip` and `random` of a sweep file.

use super::super::random::{Distribution, RandomDraws};
use super::super::spec::{Dimension, ListAxis, MAX_POINTS};
use super::axis_name::NameCheck;
use super::reader::{LocatedNode, SweepReader};
use runner_spec::diagnostic::short;
use runner_template::source::Place;
use runner_template::tree::Yaml;

/// The distributions of `random.space`, in the order of the documentation.
pub(super) const DISTRIBUTIONS: [&str; 5] = ["uniform", "log_uniform", "int_uniform", "int_log_uniform", "choice"];
pub(super) const RANDOM_KEYS: [&str; 3] = ["samples", "seed", "space"];
/// The largest whole number up to which a float holds every one exactly.
const MAX_EXACT_INTEGER: i128 = 1 << 53;
/// `random.seed` unless the file gives one; the same as for experiments.
const DEFAULT_SEED: u64 = 1337;
const ABOUT_LOGARITHMS: &str = "a logarithm needs positive bounds";

/// The names that have values already.
pub(super) struct TakenNames {
    /// Each name with its section and its place.
    pub names: Vec<(String, String, Place)>,
    /// Checks a name, where it is known what the names mean.
    pub check: Option<NameCheck>,
}

impl TakenNames {
    /// Takes the name `name` at `at`. Returns false and reports a mistake if it is taken or is not legal.
    fn take(&mut self, reader: &mut SweepReader<'_>, name: &str, at: &LocatedNode<'_>, section: &str) -> bool {
        let section = section.trim_start_matches("sweep.");
        if let Some((_, first, place)) = self.names.iter().find(|(taken, ..)| taken == name) {
            let message = format!("`{}` has values under `{first}` already", short(name));
            reader.error_at_key(at, message, format!("it stands on line {}; delete one of the two", place.line));
            return false;
        }
        self.names.push((name.to_owned(), section.to_owned(), at.key));
        if let Some(Err((message, help))) = self.check.map(|check| check(name)) {
            reader.error_at_key(at, message, help);
            return false;
        }
        true
    }
}

/// Reads the sections in the order of the file.
pub(super) fn read_axes(
    reader: &mut SweepReader<'_>,
    sections: &[&(&str, LocatedNode<'_>)],
    taken: &mut TakenNames,
) -> Vec<Dimension> {
    let mut dimensions = Vec::new();
    for (section, at) in sections {
        match *section {
            "grid" => dimensions
                .extend(read_lists(reader, at, taken, true).into_iter().map(|(axis, _)| Dimension::Grid(axis))),
            "zip" => dimensions.extend(read_zip(reader, at, taken)),
            _ => dimensions.extend(read_random(reader, at, taken).map(Dimension::Random)),
        }
    }
    dimensions
}

/// The entries of a section, which names at least one thing that varies.
fn named_entries<'n>(
    reader: &mut SweepReader<'_>,
    at: &LocatedNode<'n>,
    example: &str,
) -> Vec<(&'n str, LocatedNode<'n>)> {
    let help = format!("write `{example}`");
    let Some(entries) = reader.entries(at, &help) else { return Vec::new() };
    if entries.is_empty() {
        reader.error_at_key(at, format!("`{}` names nothing that varies", at.path), format!("{help}, or delete it"));
    }
    entries
}

/// A mapping of names to lists of values, with the place of each name. In a grid the values of a list must differ.
fn read_lists(
    reader: &mut SweepReader<'_>,
    at: &LocatedNode<'_>,
    taken: &mut TakenNames,
    is_grid: bool,
) -> Vec<(ListAxis, Place)> {
    let mut axes = Vec::new();
    for (name, list) in named_entries(reader, at, "{lr: [1e-4, 3e-4]}") {
        let is_free = taken.take(reader, name, &list, &at.path);
        let help = match &list.node.value {
            Yaml::Map(inner) if inner.iter().any(|e| DISTRIBUTIONS.contains(&e.key.as_str())) => {
                format!("draws belong under `random`: `random: {{samples: 20, space: {{{}: …}}}}`", short(name))
            }
            Yaml::Scalar { text, .. } => format!("write `[{}]`", short(text)),
            _ => "write `[first, second]`".to_owned(),
        };
        let Some(items) = reader.items(&list, &help) else { continue };
        let Some(values) = reader.values(&list, items) else { continue };
        for (i, (value, node)) in values.iter().zip(items).enumerate() {
            if is_grid && values[..i].contains(value) {
                let message = format!("the values of `{}` are different, and this one stands there twice", list.path);
                reader.error(node.place, &list.path, message, "delete one of the two");
            }
        }
        if is_free {
            axes.push((ListAxis { name: name.to_owned(), values }, list.key));
        }
    }
    axes
}

fn read_zip(reader: &mut SweepReader<'_>, at: &LocatedNode<'_>, taken: &mut TakenNames) -> Option<Dimension> {
    let axes = read_lists(reader, at, taken, false);
    let (first, _) = axes.first()?;
    let length = first.values.len();
    let others: Vec<&(ListAxis, Place)> = axes.iter().filter(|(axis, _)| axis.values.len() != length).collect();
    for (axis, place) in &others {
        let count = count_values(axis.values.len());
        let message = format!("`{}.{}` has {count}, and `{}` has {length}", at.path, axis.name, first.name);
        reader.error(*place, &at.path, message, "what is zipped goes together, value by value: give each as many");
    }
    others.is_empty().then(|| Dimension::Zip(axes.into_iter().map(|(axis, _)| axis).collect()))
}

fn count_values(n: usize) -> String {
    if n == 1 { "1 value".to_owned() } else { format!("{n} values") }
}

fn read_random(reader: &mut SweepReader<'_>, at: &LocatedNode<'_>, taken: &mut TakenNames) -> Option<RandomDraws> {
    let given = reader.keys(at, &RANDOM_KEYS)?;
    let (mut samples, mut seed, mut space) = (None, Some(i128::from(DEFAULT_SEED)), Vec::new());
    let about_samples = "how many points are drawn";
    for (key, at) in &given {
        match *key {
            "samples" => samples = reader.integer(at, (1, MAX_POINTS as i128), about_samples),
            "seed" => seed = reader.integer(at, (0, i128::from(u64::MAX)), "the same seed draws the same points"),
            _ => space = read_space(reader, at, taken),
        }
    }
    let about_space = "what is drawn, as `{lr: {log_uniform: [1e-5, 1e-2]}}`";
    for (key, help) in [("samples", about_samples), ("space", about_space)] {
        if !given.iter().any(|(name, _)| *name == key) {
            reader.error_at_key(at, format!("`{}.{key}` is missing", at.path), help);
        }
    }
    Some(RandomDraws { samples: samples? as usize, seed: u64::try_from(seed?).ok()?, space })
}

fn read_space(
    reader: &mut SweepReader<'_>,
    at: &LocatedNode<'_>,
    taken: &mut TakenNames,
) -> Vec<(String, Distribution)> {
    let mut space = Vec::new();
    for (name, drawn) in named_entries(reader, at, "{lr: {log_uniform: [1e-5, 1e-2]}}") {
        let is_free = taken.take(reader, name, &drawn, &at.path);
        let distribution = read_distribution(reader, &drawn);
        space.extend(distribution.filter(|_| is_free).map(|distribution| (name.to_owned(), distribution)));
    }
    space
}

fn read_distribution(reader: &mut SweepReader<'_>, at: &LocatedNode<'_>) -> Option<Distribution> {
    if let Yaml::Seq(_) = at.node.value {
        reader.mismatch(at, "a choice written as a mapping", "to draw one of a list, write `{choice: […]}`");
        return None;
    }
    let (kind, at) = reader.choice(at, &DISTRIBUTIONS, "{log_uniform: [1e-5, 1e-2]}")?;
    if kind == "choice" {
        let items = reader.items(&at, "write `[first, second]`")?;
        return reader.values(&at, items).map(Distribution::Choice);
    }
    let help = "write the two bounds: `[low, high]`";
    let items = reader.items(&at, help)?;
    let [low, high] = items else {
        let message = format!("`{}` needs two bounds, and has {}", at.path, count_values(items.len()));
        reader.error_at_value(&at, message, help);
        return None;
    };
    let (low, high) = (at.item(low), at.item(high));
    let is_log = kind.contains("log");
    if kind.starts_with("int") {
        let (least, about) = if is_log { (1, ABOUT_LOGARITHMS) } else { (-MAX_EXACT_INTEGER, "") };
        let mut bound = |at: &LocatedNode<'_>| reader.integer(at, (least, MAX_EXACT_INTEGER), about);
        let (low, high) = (bound(&low), bound(&high));
        let (low, high) = (low? as i64, high? as i64);
        return are_ordered(reader, &at, &low, &high).then_some(if is_log {
            Distribution::IntLogUniform(low, high)
        } else {
            Distribution::IntUniform(low, high)
        });
    }
    let bounds = [&low, &high].map(|at| (at, reader.number(at)));
    if let Some((bound, Some(value))) = bounds.iter().find(|(_, x)| is_log && x.is_some_and(|x| x <= 0.0)) {
        let message = format!("`{}` needs positive bounds, and has {value}", at.path);
        reader.error_at_value(bound, message, format!("{ABOUT_LOGARITHMS}; `uniform` does not"));
        return None;
    }
    let (low, high) = (bounds[0].1?, bounds[1].1?);
    are_ordered(reader, &at, &low, &high).then_some(if is_log {
        Distribution::LogUniform(low, high)
    } else {
        Distribution::Uniform(low, high)
    })
}

/// True if `low` is below `high`; reports a mistake otherwise.
fn are_ordered<T: PartialOrd>(reader: &mut SweepReader<'_>, at: &LocatedNode<'_>, low: &T, high: &T) -> bool {
    if low < high {
        return true;
    }
    let (problem, help) = if low == high {
        ("are equal", "what does not vary goes under `vars` or `set`")
    } else {
        ("are reversed", "write the lower one first")
    };
    reader.error_at_value(at, format!("the bounds of `{}` {problem}", at.path), help);
    false
}
