//! What varies: the sections `grid`, `zip` and `random` of a sweep file.

use super::random::{Distribution, RandomDraws};
use super::reader::{LocatedNode, SweepReader};
use super::spec::{Dimension, ListAxis, MAX_POINTS};
use runner_spec::diagnostic::short;
use runner_template::source::Place;
use runner_template::tree::{Entry, Yaml};

/// How `random.space` draws, in the order of the documentation.
pub(super) const DRAWS: [&str; 5] = ["uniform", "log_uniform", "int_uniform", "int_log_uniform", "choice"];
pub(super) const RANDOM_KEYS: [&str; 3] = ["samples", "seed", "space"];
/// Whole numbers that a float holds exactly, too.
const EXACT: i128 = 1 << 53;
/// `random.seed` where the file gives none, as for experiments.
const SEED: u64 = 1337;

/// Says what is wrong with a name, and what to do about it.
type Check = fn(&str) -> Option<(String, String)>;

/// Names that are taken.
struct Taken<'f> {
    names: Vec<(String, String, Place)>,
    fixed: &'f [(String, &'f str, Place)],
    check: Option<Check>,
}

/// Reads the sections in the order of the file. `fixed`: names that have a value already, and the section that gives it.
pub(super) fn axes(
    reader: &mut SweepReader<'_>,
    sections: &[(&Entry, &'static str)],
    fixed: &[(String, &str, Place)],
    check: Option<Check>,
) -> Vec<Dimension> {
    let mut taken = Taken { names: Vec::new(), fixed, check };
    let mut out = Vec::new();
    for &(entry, section) in sections {
        let path = format!("sweep.{section}");
        let at = LocatedNode { node: &entry.value, key: entry.place, path: &path };
        match section {
            "grid" => out.extend(lists(reader, at, &mut taken).into_iter().map(|(axis, _)| Dimension::Grid(axis))),
            "zip" => out.extend(zip(reader, at, &mut taken)),
            _ => out.extend(random(reader, at, &mut taken).map(Dimension::Random)),
        }
    }
    out
}

/// Reports a name that cannot be one, or is taken; whether it is fine.
fn name(reader: &mut SweepReader<'_>, entry: &Entry, section: &str, taken: &mut Taken<'_>) -> bool {
    let path = format!("{section}.{}", entry.key);
    let before = taken.names.iter().map(|(name, section, place)| (name, section.as_str(), place));
    let fixed = taken.fixed.iter().map(|(name, section, place)| (name, *section, place));
    let first = before.chain(fixed).find(|(name, ..)| **name == entry.key);
    if let Some((_, first, place)) = first {
        let first = first.trim_start_matches("sweep.");
        let message = format!("`{}` has values under `{first}` already", short(&entry.key));
        let help = format!("it stands on line {}; delete one of the two", place.line);
        reader.error(entry.place, &path, message, help);
        return false;
    }
    taken.names.push((entry.key.clone(), section.to_owned(), entry.place));
    if let Some((message, help)) = taken.check.and_then(|check| check(&entry.key)) {
        reader.error(entry.place, &path, message, help);
        return false;
    }
    true
}

/// The entries of a section that names at least one thing.
fn named<'n>(reader: &mut SweepReader<'_>, at: LocatedNode<'n>, example: &str) -> &'n [Entry] {
    let entries = reader.entries(at, &format!("write `{example}`")).unwrap_or_default();
    if matches!(&at.node.value, Yaml::Map(entries) if entries.is_empty()) {
        reader.error(
            at.key,
            at.path,
            format!("`{}` names nothing that varies", at.path),
            format!("write `{example}`, or delete it"),
        );
    }
    entries
}

/// A mapping of names to lists of values.
fn lists(reader: &mut SweepReader<'_>, at: LocatedNode<'_>, taken: &mut Taken<'_>) -> Vec<(ListAxis, Place)> {
    let grid = at.path == "sweep.grid";
    let mut out = Vec::new();
    for entry in named(reader, at, "{lr: [1e-4, 3e-4]}") {
        let path = format!("{}.{}", at.path, entry.key);
        let fine = name(reader, entry, at.path, taken);
        let held = LocatedNode { node: &entry.value, key: entry.place, path: &path };
        let help = match &entry.value.value {
            Yaml::Map(inner) if inner.iter().any(|e| DRAWS.contains(&e.key.as_str())) => {
                format!("draws belong under `random`: `random: {{samples: 20, space: {{{}: …}}}}`", short(&entry.key))
            }
            Yaml::Scalar { text, .. } => format!("write `[{}]`", short(text)),
            _ => "write `[first, second]`".to_owned(),
        };
        let Some(items) = reader.items(held, &help) else { continue };
        let read: Vec<_> = items.iter().map(|node| reader.value(LocatedNode { node, ..held })).collect();
        let Some(values) = read.into_iter().collect::<Option<Vec<_>>>() else { continue };
        for (i, (value, node)) in values.iter().zip(items).enumerate() {
            if grid && values[..i].contains(value) {
                let message = format!("the values of `{path}` are different, and this one stands there twice");
                reader.error(node.place, &path, message, "delete one of the two");
            }
        }
        if fine {
            out.push((ListAxis { name: entry.key.clone(), values }, entry.place));
        }
    }
    out
}

fn zip(reader: &mut SweepReader<'_>, at: LocatedNode<'_>, taken: &mut Taken<'_>) -> Option<Dimension> {
    let axes = lists(reader, at, taken);
    let (first, _) = axes.first()?;
    let (len, of) = (first.values.len(), first.name.clone());
    let mut fine = true;
    for (axis, place) in &axes {
        if axis.values.len() != len {
            fine = false;
            let message =
                format!("`{}.{}` has {}, and `{of}` has {len}", at.path, axis.name, values(axis.values.len()));
            reader.error(*place, at.path, message, "what is zipped goes together, value by value: give each as many");
        }
    }
    fine.then(|| Dimension::Zip(axes.into_iter().map(|(axis, _)| axis).collect()))
}

fn values(n: usize) -> String {
    if n == 1 { "1 value".to_owned() } else { format!("{n} values") }
}

fn random(reader: &mut SweepReader<'_>, at: LocatedNode<'_>, taken: &mut Taken<'_>) -> Option<RandomDraws> {
    let entries = reader.keys(at, &RANDOM_KEYS)?;
    let (mut samples, mut seed, mut space) = (None, Some(i128::from(SEED)), Vec::new());
    for entry in &entries {
        let path = format!("{}.{}", at.path, entry.key);
        let held = LocatedNode { node: &entry.value, key: entry.place, path: &path };
        match entry.key.as_str() {
            "samples" => samples = reader.integer(held, (1, MAX_POINTS as i128), "how many points are drawn"),
            "seed" => seed = reader.integer(held, (0, i128::from(u64::MAX)), "the same seed draws the same points"),
            _ => space = self::space(reader, held, taken),
        }
    }
    for (key, help) in
        [("samples", "how many points are drawn"), ("space", "what is drawn, as `{lr: {log_uniform: [1e-5, 1e-2]}}`")]
    {
        if !entries.iter().any(|e| e.key == key) {
            reader.error(at.key, at.path, format!("`{}.{key}` is missing", at.path), help);
        }
    }
    Some(RandomDraws { samples: samples? as usize, seed: u64::try_from(seed?).ok()?, space })
}

fn space(reader: &mut SweepReader<'_>, at: LocatedNode<'_>, taken: &mut Taken<'_>) -> Vec<(String, Distribution)> {
    let mut out = Vec::new();
    for entry in named(reader, at, "{lr: {log_uniform: [1e-5, 1e-2]}}") {
        let path = format!("{}.{}", at.path, entry.key);
        let fine = name(reader, entry, at.path, taken);
        let draw = draw(reader, LocatedNode { node: &entry.value, key: entry.place, path: &path });
        if let (true, Some(draw)) = (fine, draw) {
            out.push((entry.key.clone(), draw));
        }
    }
    out
}

fn draw(reader: &mut SweepReader<'_>, at: LocatedNode<'_>) -> Option<Distribution> {
    if let Yaml::Seq(_) = at.node.value {
        reader.mismatch(at, "a choice written as a mapping", "to draw one of a list, write `{choice: […]}`");
        return None;
    }
    let entry = reader.choice(at, &DRAWS, "{log_uniform: [1e-5, 1e-2]}")?;
    let path = format!("{}.{}", at.path, entry.key);
    let at = LocatedNode { node: &entry.value, key: entry.place, path: &path };
    let help = if entry.key == "choice" { "write `[first, second]`" } else { "write the two bounds: `[low, high]`" };
    let items = reader.items(at, help)?;
    if entry.key == "choice" {
        let read: Vec<_> = items.iter().map(|node| reader.value(LocatedNode { node, ..at })).collect();
        return read.into_iter().collect::<Option<_>>().map(Distribution::Choice);
    }
    let [low, high] = items else {
        reader.error(at.node.place, &path, format!("`{path}` needs two bounds, and has {}", values(items.len())), help);
        return None;
    };
    let (low, high) = (LocatedNode { node: low, ..at }, LocatedNode { node: high, ..at });
    let log = entry.key.contains("log");
    if entry.key.starts_with("int") {
        let least = if log { 1 } else { -EXACT };
        let about = if log { "a logarithm needs positive bounds" } else { "" };
        let (a, b) = (reader.integer(low, (least, EXACT), about), reader.integer(high, (least, EXACT), about));
        let (a, b) = (a? as i64, b? as i64);
        return ordered(reader, at, a < b, a == b).then_some(if log {
            Distribution::IntLogUniform(a, b)
        } else {
            Distribution::IntUniform(a, b)
        });
    }
    let (a, b) = (reader.number(low), reader.number(high));
    if let (true, Some((bad, value))) =
        (log, [(low, a), (high, b)].into_iter().find(|(_, x)| x.is_some_and(|x| x <= 0.0)))
    {
        let message = format!("`{path}` needs positive bounds, and has {}", value.unwrap_or_default());
        reader.error(bad.node.place, &path, message, "a logarithm needs positive bounds; `uniform` does not");
        return None;
    }
    let (a, b) = (a?, b?);
    ordered(reader, at, a < b, a == b).then_some(if log {
        Distribution::LogUniform(a, b)
    } else {
        Distribution::Uniform(a, b)
    })
}

/// Reports bounds that are not in order; whether they are.
fn ordered(reader: &mut SweepReader<'_>, at: LocatedNode<'_>, fine: bool, equal: bool) -> bool {
    if !fine {
        let (what, help) = if equal {
            ("are equal", "what does not vary goes under `vars` or `set`")
        } else {
            ("are reversed", "write the lower one first")
        };
        reader.error(at.node.place, at.path, format!("the bounds of `{}` {what}", at.path), help);
    }
    fine
}
