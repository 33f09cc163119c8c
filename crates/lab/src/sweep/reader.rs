//! Values of a sweep file, each held against what may stand in its place. What the keys mean is `read`'s.

use serde_json::{Map, Number, Value};

use runner_config::check::describe;
use runner_spec::diagnostic::{Diagnostic, MAX_DIAGNOSTICS, list, nearest, short};
use runner_template::scalar;
use runner_template::source::{Place, Source};
use runner_template::tree::{Entry, Node, Yaml};

/// Reads nodes and collects what is wrong with them. A key's name in messages is its path from the top, as `sweep.parallel`.
pub(super) struct SweepReader<'s> {
    pub source: &'s Source,
    pub diagnostics: Vec<Diagnostic>,
}

/// A value with the place of its key and its path.
#[derive(Clone, Copy)]
pub(super) struct LocatedNode<'n> {
    pub node: &'n Node,
    pub key: Place,
    pub path: &'n str,
}

impl SweepReader<'_> {
    pub(super) fn error(&mut self, place: Place, path: &str, message: String, help: impl Into<String>) {
        if self.diagnostics.len() < MAX_DIAGNOSTICS {
            self.diagnostics.push(self.source.diagnostic(place, path, message, help.into()));
        }
    }

    /// Reports that something else stands here than `wanted`.
    pub(super) fn mismatch(&mut self, at: LocatedNode<'_>, wanted: &str, help: impl Into<String>) {
        let place = if matches!(at.node.value, Yaml::Scalar { .. }) { at.node.place } else { at.key };
        let message = format!("`{}` is {wanted}, not {}", short(at.path), describe(at.node));
        self.error(place, at.path, message, help);
    }

    /// The entries of a mapping with any keys.
    pub(super) fn entries<'n>(&mut self, at: LocatedNode<'n>, help: &str) -> Option<&'n [Entry]> {
        if let Yaml::Map(entries) = &at.node.value {
            return Some(entries);
        }
        self.mismatch(at, "a mapping of keys to values", help);
        None
    }

    /// The entries of a mapping whose keys are among `names`; the others are reported. A key without a value is not given.
    pub(super) fn keys<'n>(&mut self, at: LocatedNode<'n>, names: &[&str]) -> Option<Vec<&'n Entry>> {
        let entries = self.entries(at, &format!("its keys are {}", list(names, "and")))?;
        let mut out = Vec::new();
        for entry in entries {
            if names.contains(&entry.key.as_str()) {
                if !entry.value.is_null() {
                    out.push(entry);
                }
                continue;
            }
            let help = match nearest(&entry.key, names.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("the keys here are {}", list(names, "and")),
            };
            let message = format!("unknown key `{}` in `{}`", short(&entry.key), short(at.path));
            self.error(entry.place, at.path, message, help);
        }
        Some(out)
    }

    /// The one entry of a mapping that chooses among `names`; `example` is what could follow.
    pub(super) fn choice<'n>(&mut self, at: LocatedNode<'n>, names: &[&str], example: &str) -> Option<&'n Entry> {
        let help = match names {
            [_] => format!("write `{example}`"),
            _ => format!("choose one of {}, as in `{example}`", list(names, "and")),
        };
        let Yaml::Map(entries) = &at.node.value else {
            self.mismatch(at, "a choice written as a mapping", help);
            return None;
        };
        if let Some(second) = entries.get(1) {
            let message = format!("`{}` is one choice, and has {} keys", short(at.path), entries.len());
            self.error(second.place, at.path, message, help);
            return None;
        }
        let Some(entry) = entries.first() else {
            self.error(at.key, at.path, format!("`{}` names nothing", short(at.path)), help);
            return None;
        };
        if !names.contains(&entry.key.as_str()) {
            let help =
                nearest(&entry.key, names.iter().copied()).map_or(help, |near| format!("did you mean `{near}`?"));
            let message = format!("`{}` has no `{}`", short(at.path), short(&entry.key));
            self.error(entry.place, at.path, message, help);
            return None;
        }
        Some(entry)
    }

    /// The items of a list with at least one.
    pub(super) fn items<'n>(&mut self, at: LocatedNode<'n>, help: &str) -> Option<&'n [Node]> {
        match &at.node.value {
            Yaml::Seq(items) if items.is_empty() => {
                let message = format!("`{}` is an empty list", short(at.path));
                self.error(at.node.place, at.path, message, "give at least one value, or delete it");
                None
            }
            Yaml::Seq(items) => Some(items),
            _ => {
                self.mismatch(at, "a list", help);
                None
            }
        }
    }

    pub(super) fn number(&mut self, at: LocatedNode<'_>) -> Option<f64> {
        self.scalar_number(at, "a number").map(|n| n.float)
    }

    /// A whole number from `min` to `max`.
    pub(super) fn integer(&mut self, at: LocatedNode<'_>, (min, max): (i128, i128), about: &str) -> Option<i128> {
        let number = self.scalar_number(at, "a whole number")?;
        let name = short(at.path);
        let Some(integer) = number.integer else {
            let message = format!("`{name}` is a whole number, not {}", describe(at.node));
            self.error(at.node.place, at.path, message, about);
            return None;
        };
        if integer < min || integer > max {
            let limit = if integer < min { format!("at least {min}") } else { format!("at most {max}") };
            self.error(at.node.place, at.path, format!("`{name}` must be {limit}, and is {integer}"), about);
            return None;
        }
        Some(integer)
    }

    fn scalar_number(&mut self, at: LocatedNode<'_>, wanted: &str) -> Option<scalar::Number> {
        let number = match &at.node.value {
            Yaml::Scalar { text, plain } => scalar::number(text).map(|n| (n, *plain)),
            _ => None,
        };
        match number {
            None => self.mismatch(at, wanted, ""),
            Some((_, false)) => self.mismatch(at, wanted, "delete the quotes"),
            Some((number, true)) if !number.float.is_finite() => {
                let message = format!("`{}` must be finite, and is {}", short(at.path), describe(at.node));
                self.error(at.node.place, at.path, message, "");
            }
            Some((number, true)) => return Some(number),
        }
        None
    }

    /// One of `all`, by its name.
    pub(super) fn word<T: Copy>(&mut self, at: LocatedNode<'_>, all: &[T], name: fn(T) -> &'static str) -> Option<T> {
        let names: Vec<&str> = all.iter().map(|&t| name(t)).collect();
        let Yaml::Scalar { text, .. } = &at.node.value else {
            self.mismatch(at, &list(&names, "or"), "");
            return None;
        };
        if let Some(&found) = all.iter().find(|&&t| name(t) == &**text) {
            return Some(found);
        }
        let help = match nearest(text, names.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("it can be {}", list(&names, "or")),
        };
        self.error(at.node.place, at.path, format!("`{}` cannot be `{}`", short(at.path), short(text)), help);
        None
    }

    pub(super) fn text(&mut self, at: LocatedNode<'_>, help: &str) -> Option<String> {
        match &at.node.value {
            Yaml::Scalar { text, .. } if !text.is_empty() => Some(text.to_string()),
            _ => {
                self.mismatch(at, "text", help);
                None
            }
        }
    }

    /// Any value, as JSON. A number is whole if it is spelled without a point; one that is not finite is a mistake.
    pub(super) fn value(&mut self, at: LocatedNode<'_>) -> Option<Value> {
        match &at.node.value {
            Yaml::Seq(items) => {
                let read: Vec<Option<Value>> =
                    items.iter().map(|node| self.value(LocatedNode { node, ..at })).collect();
                read.into_iter().collect()
            }
            Yaml::Map(entries) => {
                let read: Vec<Option<(String, Value)>> = entries
                    .iter()
                    .map(|e| Some((e.key.clone(), self.value(LocatedNode { node: &e.value, ..at })?)))
                    .collect();
                read.into_iter().collect::<Option<Map<_, _>>>().map(Value::Object)
            }
            Yaml::Scalar { text, plain: false } => Some(Value::String(text.to_string())),
            Yaml::Scalar { text, plain: true } if scalar::is_null(text) => Some(Value::Null),
            Yaml::Scalar { text, plain: true } => {
                let Some(number) = scalar::number(text) else {
                    return Some(scalar::boolean(text).map_or_else(|| Value::String(text.to_string()), Value::Bool));
                };
                let whole = number.integer.filter(|_| !text.contains('.'));
                let json = whole.and_then(|i| {
                    i64::try_from(i).map(Number::from).or_else(|_| u64::try_from(i).map(Number::from)).ok()
                });
                let json = json.or_else(|| Number::from_f64(number.float)).map(Value::Number);
                if json.is_none() {
                    let message =
                        format!("a value of `{}` must be finite, and is {}", short(at.path), describe(at.node));
                    self.error(at.node.place, at.path, message, "quote it if it is meant as text");
                }
                json
            }
        }
    }
}
