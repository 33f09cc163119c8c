//! Reads the values of a sweep file, and reports those that do not have the wanted form.

use serde_json::{Map, Number, Value};

use runner_config::check::describe;
use runner_spec::diagnostic::{Diagnostic, MAX_DIAGNOSTICS, list, nearest, short};
use runner_template::scalar;
use runner_template::source::{Place, Source};
use runner_template::tree::{Entry, Node, Yaml};

/// Reads nodes and collects their mistakes. Messages name a key by its path from the top, such as `sweep.parallel`.
pub(super) struct SweepReader<'s> {
    pub source: &'s Source,
    pub diagnostics: Vec<Diagnostic>,
}

/// A value with the place of its key and its path.
#[derive(Clone)]
pub(super) struct LocatedNode<'n> {
    pub node: &'n Node,
    pub key: Place,
    pub path: String,
}

impl<'n> LocatedNode<'n> {
    fn entry(&self, entry: &'n Entry) -> (&'n str, Self) {
        let path = format!("{}.{}", self.path, entry.key);
        (&entry.key, Self { node: &entry.value, key: entry.place, path })
    }

    /// The item `node` of this list, which messages call by the name of the list.
    pub(super) fn item(&self, node: &'n Node) -> Self {
        Self { node, ..self.clone() }
    }
}

impl SweepReader<'_> {
    pub(super) fn error(&mut self, place: Place, path: &str, message: String, help: impl Into<String>) {
        if self.diagnostics.len() < MAX_DIAGNOSTICS {
            self.diagnostics.push(self.source.diagnostic(place, path, message, help.into()));
        }
    }

    pub(super) fn error_at_key(&mut self, at: &LocatedNode<'_>, message: String, help: impl Into<String>) {
        self.error(at.key, &at.path, message, help);
    }

    pub(super) fn error_at_value(&mut self, at: &LocatedNode<'_>, message: String, help: impl Into<String>) {
        self.error(at.node.place, &at.path, message, help);
    }

    /// Reports that the value is not `wanted`.
    pub(super) fn mismatch(&mut self, at: &LocatedNode<'_>, wanted: &str, help: impl Into<String>) {
        let place = if matches!(at.node.value, Yaml::Scalar { .. }) { at.node.place } else { at.key };
        let message = format!("`{}` is {wanted}, not {}", short(&at.path), describe(at.node));
        self.error(place, &at.path, message, help);
    }

    /// The entries of a mapping with any keys.
    pub(super) fn entries<'n>(&mut self, at: &LocatedNode<'n>, help: &str) -> Option<Vec<(&'n str, LocatedNode<'n>)>> {
        let Yaml::Map(entries) = &at.node.value else {
            self.mismatch(at, "a mapping of keys to values", help);
            return None;
        };
        Some(entries.iter().map(|entry| at.entry(entry)).collect())
    }

    /// The entries of a mapping whose keys are among `names`; other keys are reported. A key without a value counts as not given.
    pub(super) fn keys<'n>(&mut self, at: &LocatedNode<'n>, names: &[&str]) -> Option<Vec<(&'n str, LocatedNode<'n>)>> {
        let mut entries = self.entries(at, &format!("its keys are {}", list(names, "and")))?;
        for (key, entry) in entries.iter().filter(|(key, _)| !names.contains(key)) {
            let help = match nearest(key, names.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("the keys here are {}", list(names, "and")),
            };
            self.error(entry.key, &at.path, format!("unknown key `{}` in `{}`", short(key), short(&at.path)), help);
        }
        entries.retain(|(key, entry)| names.contains(key) && !entry.node.is_null());
        Some(entries)
    }

    /// The only entry of a mapping, which chooses among `names`; `example` shows what can follow.
    pub(super) fn choice<'n>(
        &mut self,
        at: &LocatedNode<'n>,
        names: &[&str],
        example: &str,
    ) -> Option<(&'n str, LocatedNode<'n>)> {
        let help = match names {
            [_] => format!("write `{example}`"),
            _ => format!("choose one of {}, as in `{example}`", list(names, "and")),
        };
        let Yaml::Map(entries) = &at.node.value else {
            self.mismatch(at, "a choice written as a mapping", help);
            return None;
        };
        let path = short(&at.path);
        match &entries[..] {
            [] => self.error_at_key(at, format!("`{path}` names nothing"), help),
            [entry] if names.contains(&entry.key.as_str()) => return Some(at.entry(entry)),
            [entry] => {
                let near = nearest(&entry.key, names.iter().copied());
                let help = near.map_or(help, |near| format!("did you mean `{near}`?"));
                self.error(entry.place, &at.path, format!("`{path}` has no `{}`", short(&entry.key)), help);
            }
            [_, second, ..] => {
                let message = format!("`{path}` is one choice, and has {} keys", entries.len());
                self.error(second.place, &at.path, message, help);
            }
        }
        None
    }

    /// The items of a list with at least one.
    pub(super) fn items<'n>(&mut self, at: &LocatedNode<'n>, help: &str) -> Option<&'n [Node]> {
        match &at.node.value {
            Yaml::Seq(items) if items.is_empty() => {
                let message = format!("`{}` is an empty list", short(&at.path));
                self.error_at_value(at, message, "give at least one value, or delete it");
                None
            }
            Yaml::Seq(items) => Some(items),
            _ => {
                self.mismatch(at, "a list", help);
                None
            }
        }
    }

    pub(super) fn number(&mut self, at: &LocatedNode<'_>) -> Option<f64> {
        self.scalar_number(at, "a number").map(|n| n.float)
    }

    /// A whole number from `min` to `max`.
    pub(super) fn integer(&mut self, at: &LocatedNode<'_>, (min, max): (i128, i128), about: &str) -> Option<i128> {
        let number = self.scalar_number(at, "a whole number")?;
        let name = short(&at.path);
        let Some(integer) = number.integer else {
            let message = format!("`{name}` is a whole number, not {}", describe(at.node));
            self.error_at_value(at, message, about);
            return None;
        };
        if integer < min || integer > max {
            let limit = if integer < min { format!("at least {min}") } else { format!("at most {max}") };
            self.error_at_value(at, format!("`{name}` must be {limit}, and is {integer}"), about);
            return None;
        }
        Some(integer)
    }

    fn scalar_number(&mut self, at: &LocatedNode<'_>, wanted: &str) -> Option<scalar::Number> {
        let number = match &at.node.value {
            Yaml::Scalar { text, plain } => scalar::number(text).map(|n| (n, *plain)),
            _ => None,
        };
        match number {
            None => self.mismatch(at, wanted, ""),
            Some((_, false)) => self.mismatch(at, wanted, "delete the quotes"),
            Some((number, true)) if !number.float.is_finite() => {
                let message = format!("`{}` must be finite, and is {}", short(&at.path), describe(at.node));
                self.error_at_value(at, message, "");
            }
            Some((number, true)) => return Some(number),
        }
        None
    }

    /// One of `all`, by its name.
    pub(super) fn word<T: Copy>(&mut self, at: &LocatedNode<'_>, all: &[T], name: fn(T) -> &'static str) -> Option<T> {
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
        self.error_at_value(at, format!("`{}` cannot be `{}`", short(&at.path), short(text)), help);
        None
    }

    pub(super) fn text(&mut self, at: &LocatedNode<'_>, help: &str) -> Option<String> {
        match &at.node.value {
            Yaml::Scalar { text, .. } if !text.is_empty() => Some(text.to_string()),
            _ => {
                self.mismatch(at, "text", help);
                None
            }
        }
    }

    /// Any value, as JSON. A number is whole if it is spelled without a point. A number that is not finite is a mistake.
    pub(super) fn value(&mut self, at: &LocatedNode<'_>) -> Option<Value> {
        match &at.node.value {
            Yaml::Seq(items) => self.values(at, items).map(Value::Array),
            Yaml::Map(entries) => {
                let read: Vec<Option<(String, Value)>> =
                    entries.iter().map(|e| Some((e.key.clone(), self.value(&at.item(&e.value))?))).collect();
                read.into_iter().collect::<Option<Map<_, _>>>().map(Value::Object)
            }
            Yaml::Scalar { text, plain: false } => Some(Value::String(text.to_string())),
            Yaml::Scalar { text, plain: true } if scalar::is_null(text) => Some(Value::Null),
            Yaml::Scalar { text, plain: true } => {
                let Some(number) = scalar::number(text) else {
                    return Some(scalar::boolean(text).map_or_else(|| Value::String(text.to_string()), Value::Bool));
                };
                let whole = number.integer.filter(|_| !text.contains('.')).and_then(Number::from_i128);
                let json = whole.or_else(|| Number::from_f64(number.float)).map(Value::Number);
                if json.is_none() {
                    let message =
                        format!("a value of `{}` must be finite, and is {}", short(&at.path), describe(at.node));
                    self.error_at_value(at, message, "quote it if it is meant as text");
                }
                json
            }
        }
    }

    /// The items of a list as JSON; `None` if one of them has a mistake.
    pub(super) fn values(&mut self, at: &LocatedNode<'_>, items: &[Node]) -> Option<Vec<Value>> {
        let read: Vec<Option<Value>> = items.iter().map(|node| self.value(&at.item(node))).collect();
        read.into_iter().collect()
    }
}
