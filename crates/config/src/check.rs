//! Checks a tree against the schema: reports each mistake of one layer with its place.

use std::path::Path;

use serde_json::{Map, Number, Value, json};

use crate::foreign_keys;
use crate::mistakes::Mistakes;
use crate::presets;
use crate::shape::{Bounds, KeyShape, Keys, Shape, join, key_shapes, parse_slot, root, texts, variants};
use runner_spec::diagnostic::{Diagnostic, list, nearest, short};
use runner_spec::format::counted;
use runner_yaml::source::{Place, Source};
use runner_yaml::tree::{Node, Yaml};
use runner_yaml::{MAX_DEPTH, scalar};

/// Checks a whole layer. Returns its legal part, as JSON with the file's keys.
pub(crate) fn check(tree: &Node, source: &Source, mistakes: &mut Mistakes) -> Value {
    let root = root();
    let mut checker = Checker { source, mistakes, root, needs_values: true };
    checker.check_node(tree, tree.place, root, "").unwrap_or_else(|| json!({}))
}

/// Checks the `tree` of another kind of file, whose mappings have the shape `root`. Returns its legal part, as JSON, and its mistakes.
pub fn check_against(root: KeyShape, tree: &Node, source: &Source) -> (Value, Vec<Diagnostic>) {
    let mut mistakes = Mistakes::default();
    let mut checker = Checker { source, mistakes: &mut mistakes, root, needs_values: true };
    let value = checker.check_node(tree, tree.place, root, "");
    (value.unwrap_or_default(), mistakes.diagnostics)
}

/// Checks that `path` names a key of an experiment. The key needs no value.
///
/// # Errors
/// The first mistake.
pub fn check_key_path(path: &str) -> Result<(), Diagnostic> {
    let (place, source) = (Place { line: 1, column: 1, length: 1 }, Source::file(Path::new(""), String::new()));
    let keys: Vec<&str> = path.split('.').take(MAX_DEPTH).collect();
    let tree = keys.into_iter().rev().fold(Node::null(place), |node, key| Node::wrap(key.to_owned(), place, node));
    let mut mistakes = Mistakes::default();
    let mut checker = Checker { source: &source, mistakes: &mut mistakes, root: root(), needs_values: false };
    checker.check_node(&tree, place, root(), "");
    mistakes.diagnostics.into_iter().next().map_or(Ok(()), Err)
}

/// What checks a tree, and the mistakes that it has found.
pub(crate) struct Checker<'s> {
    source: &'s Source,
    pub(crate) mistakes: &'s mut Mistakes,
    /// The shape of the whole file.
    pub(crate) root: KeyShape,
    /// True if a choice that is named needs a value.
    needs_values: bool,
}

impl Checker<'_> {
    /// Reports a mistake in `path`. Returns `None`, which stands for a value that is not legal.
    pub(crate) fn error(
        &mut self,
        place: Place,
        path: &str,
        message: String,
        help: impl Into<String>,
    ) -> Option<Value> {
        if !self.mistakes.is_full() {
            self.mistakes.diagnostics.push(self.source.diagnostic(place, path, message, help.into()));
            self.mistakes.poison(path);
        }
        None
    }

    /// Checks `node`, the value of `path`, whose key is at the place `key`. Returns its legal part as JSON; `None` if it has none.
    fn check_node(&mut self, node: &Node, key: Place, slot: KeyShape, path: &str) -> Option<Value> {
        if node.is_null() && !path.is_empty() {
            return Some(Value::Null);
        }
        if let (Some(short), Yaml::Scalar { text, .. }) = (slot.short, &node.value)
            && let Some(inner) = slot.inner(short)
            && (matches!(inner.shape, Shape::Text) || scalar::number(text).is_some_and(|n| n.integer.is_some()))
        {
            return self.check_node(node, key, inner, path).map(|value| json!({ short: value }));
        }
        match slot.shape {
            Shape::Keys(keys) => self.check_keys(node, key, keys, path),
            Shape::Variants(_)
                if slot.has_default && matches!(&node.value, Yaml::Map(entries) if entries.is_empty()) =>
            {
                Some(json!({}))
            }
            Shape::Variants(of) => self.check_variants(node, key, &variants(of), slot.short, path),
            Shape::Words(words) => self.check_word(node, key, &texts(words), path),
            Shape::List { items, min, max } => self.check_list(node, key, parse_slot(items), (min, max), path),
            Shape::ItemOrList { item, list } => {
                let shape = parse_slot(if matches!(node.value, Yaml::Seq(_)) { list } else { item });
                self.check_node(node, key, KeyShape { description: slot.description, ..shape }, path)
            }
            Shape::WordOr { words, other } => self.check_word_or(node, key, &texts(words), parse_slot(other), path),
            Shape::Entries(values) => self.check_entries(node, key, parse_slot(values), path),
            Shape::Any => self.check_any(node, path),
            Shape::Number(bounds) => self.check_number(node, key, bounds, false, slot, path),
            Shape::Integer(bounds) => self.check_number(node, key, bounds, true, slot, path),
            Shape::Text => match &node.value {
                Yaml::Scalar { text, .. } => Some(Value::String(text.to_string())),
                _ => self.mismatch(node, key, "text", path, ""),
            },
            Shape::Bool => {
                let word = if let Yaml::Scalar { text, plain: true } = &node.value { &**text } else { "" };
                match scalar::boolean(word) {
                    Some(truth) => Some(Value::Bool(truth)),
                    None => self.mismatch(node, key, "`true` or `false`", path, &one_line(slot.description)),
                }
            }
        }
    }

    fn mismatch(&mut self, node: &Node, key: Place, wanted: &str, path: &str, help: &str) -> Option<Value> {
        let (name, place) = if path.is_empty() {
            ("an experiment".to_owned(), node.place)
        } else {
            (format!("`{}`", short(path)), if matches!(node.value, Yaml::Scalar { .. }) { node.place } else { key })
        };
        self.error(place, path, format!("{name} must be {wanted}, got {}", node.describe()), help)
    }

    fn check_keys(&mut self, node: &Node, key: Place, keys: Keys, path: &str) -> Option<Value> {
        let Yaml::Map(entries) = &node.value else {
            let names = keys.names();
            if let (true, Yaml::Scalar { .. }, Some(each)) =
                (keys.is_each(), &node.value, names.first().and_then(|name| keys.get(name)))
            {
                let value = self.check_node(node, key, KeyShape { description: "", ..each }, path)?;
                return Some(names.iter().map(|name| ((*name).to_owned(), value.clone())).collect());
            }
            let help = match &node.value {
                Yaml::Scalar { text, .. } if path == "model" && presets::family(text).is_some() => {
                    format!("write `model: {{preset: {text}}}`")
                }
                _ if names.is_empty() => "write `{}`".to_owned(),
                other => {
                    let meant = if let Yaml::Scalar { text, .. } = other { meant_form(keys, path, text) } else { None };
                    let meant = meant.map_or_else(String::new, |form| format!("write `{form}`; "));
                    format!("{meant}its keys are {}", list(&names, "and"))
                }
            };
            let wanted = match keys.short() {
                _ if keys.is_each() => "a number or a mapping of keys to values",
                Some("steps") => "a number of steps or a mapping of keys to values",
                _ => "a mapping of keys to values",
            };
            return self.mismatch(node, key, wanted, path, &help);
        };
        let mut out = Map::new();
        for entry in entries.iter() {
            let at = join(path, &short(&entry.key));
            match keys.get(&entry.key) {
                Some(slot) => {
                    if let Some(value) = self.check_node(&entry.value, entry.place, slot, &at) {
                        out.insert(entry.key.clone(), value);
                    }
                }
                None => self.unknown_key(entry, keys, path, &at),
            }
        }
        let exclusive = keys.exclusive();
        let mut given = entries.iter().filter(|e| exclusive.contains(&e.key.as_str()) && !e.value.is_null());
        if let Some(first) = given.next() {
            for second in given.filter(|e| e.key != first.key) {
                let message = format!("`{path}` has both `{}` and `{}`", first.key, second.key);
                self.error(
                    second.place,
                    &join(path, &second.key),
                    message,
                    format!("give only one of {}", list(&exclusive, "and")),
                );
                self.mistakes.poison(path);
            }
        }
        Some(Value::Object(out))
    }

    /// A mapping with any keys.
    fn check_entries(&mut self, node: &Node, key: Place, values: KeyShape, path: &str) -> Option<Value> {
        let Yaml::Map(entries) = &node.value else {
            return self.mismatch(node, key, "a mapping of keys to values", path, "write `{name: value}`");
        };
        let mut out = Map::new();
        for entry in entries.iter() {
            let value = self.check_node(&entry.value, entry.place, values, &join(path, &short(&entry.key)));
            out.extend(value.map(|value| (entry.key.clone(), value)));
        }
        Some(Value::Object(out))
    }

    /// Any value whose numbers are finite.
    fn check_any(&mut self, node: &Node, path: &str) -> Option<Value> {
        node.to_json(&mut |number| {
            let message = format!("a value of `{}` must be finite, got {}", short(path), number.describe());
            self.error(number.place, path, message, "quote it to make it text");
        })
    }

    fn check_variants(
        &mut self,
        node: &Node,
        key: Place,
        of: &[(&'static str, KeyShape)],
        alone: Option<&str>,
        path: &str,
    ) -> Option<Value> {
        let names: Vec<&str> = of.iter().map(|(name, _)| *name).collect();
        let choose = format!("choose one of {}", list(&names, "and"));
        let wanted = match alone {
            Some(name) => format!("a whole number of {name} or a choice written as a mapping"),
            None => "a choice written as a mapping".to_owned(),
        };
        let entries = match &node.value {
            Yaml::Map(entries) => entries,
            Yaml::Scalar { text, .. } => {
                let last = path.rsplit('.').next().unwrap_or(path);
                let chosen = of.iter().find(|(name, _)| **name == **text).or_else(|| {
                    let near = nearest(text, names.iter().copied())?;
                    of.iter().find(|(name, _)| *name == near)
                });
                let help = match chosen {
                    Some((name, slot)) => format!("write `{last}: {{{name}: {}}}`", example(*slot)),
                    None => choose,
                };
                return self.mismatch(node, key, &wanted, path, &help);
            }
            Yaml::Seq(_) => return self.mismatch(node, key, &wanted, path, &choose),
        };
        let (first, second) = match &entries[..] {
            [] => return self.error(key, path, format!("`{path}` is empty"), choose),
            [one] => (one, None),
            [first, second, ..] => (first, Some(second)),
        };
        let found = of.iter().find(|(name, _)| *name == first.key);
        if let Some(second) = second {
            // A slip such as `adamw: …` beside `lr: …` is one of indentation.
            let help = match found {
                Some((name, KeyShape { shape: Shape::Keys(keys), .. })) if keys.get(&second.key).is_some() => {
                    format!("`{}` is a key of `{name}`; indent it below", second.key)
                }
                _ => choose,
            };
            let message =
                format!("`{path}` must be one choice, got `{}` and `{}`", short(&first.key), short(&second.key));
            return self.error(second.place, path, message, help);
        }
        let Some((name, slot)) = found else {
            let help = match nearest(&first.key, names.iter().copied()) {
                _ if let Some(nested) = self.nested_help(first, |wanted| names.contains(&wanted), path) => nested,
                Some(near) => format!("did you mean `{near}`?"),
                None => choose,
            };
            self.error(
                first.place,
                &join(path, &short(&first.key)),
                format!("unknown choice `{}` in `{path}`", short(&first.key)),
                help,
            );
            self.mistakes.poison(path);
            return None;
        };
        let at = join(path, name);
        let value = match self.check_node(&first.value, first.place, *slot, &at)? {
            // `bytes:` with nothing after it stands for `bytes: {}`.
            Value::Null if matches!(slot.shape, Shape::Keys(_)) => json!({}),
            Value::Null if self.needs_values => return self.error(first.place, &at, format!("`{at}` is empty"), ""),
            value => value,
        };
        Some(json!({ *name: value }))
    }

    fn check_word(&mut self, node: &Node, key: Place, words: &[&str], path: &str) -> Option<Value> {
        let Yaml::Scalar { text, .. } = &node.value else {
            return self.mismatch(node, key, &list(words, "or"), path, "");
        };
        if words.contains(&&**text) {
            return Some(Value::String(text.to_string()));
        }
        let help = match (foreign_keys::counterpart_of_value(path, text), nearest(text, words.iter().copied())) {
            (Some(answer), _) => answer.to_owned(),
            (None, Some(near)) => format!("did you mean `{near}`?"),
            (None, None) => format!("it can be {}", list(words, "or")),
        };
        self.error(node.place, path, format!("`{path}` cannot be `{}`", short(text)), help)
    }

    /// One of `words`, or else a number or a list.
    fn check_word_or(&mut self, node: &Node, key: Place, words: &[&str], other: KeyShape, path: &str) -> Option<Value> {
        let text = match &node.value {
            Yaml::Seq(_) => return self.check_node(node, key, other, path),
            Yaml::Scalar { text, .. } => Some(text),
            Yaml::Map(_) if matches!(other.shape, Shape::Variants(_)) => {
                return self.check_node(node, key, other, path);
            }
            Yaml::Map(_) => None,
        };
        if text.is_some_and(|text| words.contains(&&**text) || nearest(text, words.iter().copied()).is_some()) {
            return self.check_word(node, key, words, path);
        }
        let Shape::List { items, .. } = other.shape else {
            if text.is_some_and(|text| scalar::number(text).is_some()) {
                return self.check_node(node, key, other, path);
            }
            return self.mismatch(node, key, &format!("{} or a number", list(words, "or")), path, "");
        };
        let item = parse_slot(items);
        let help = format!("write a list, such as `[first, second]`; each item is {}", one_line(item.description));
        self.mismatch(node, key, &format!("{} or a list", list(words, "or")), path, &help)
    }

    fn check_list(
        &mut self,
        node: &Node,
        key: Place,
        item: KeyShape,
        (min, max): (usize, usize),
        path: &str,
    ) -> Option<Value> {
        let Yaml::Seq(items) = &node.value else {
            let help = match &node.value {
                Yaml::Scalar { text, .. } if min > 1 && min == max => {
                    format!("write {min} values, such as `[{}{}]`", short(text), ", …".repeat(min - 1))
                }
                Yaml::Scalar { text, .. } => format!("write `[{}]`", short(text)),
                _ => "write `[first, second]`".to_owned(),
            };
            return self.mismatch(node, key, "a list", path, &help);
        };
        if items.len() < min || items.len() > max {
            let wanted = match items.len() {
                _ if min == max => counted(min as u64, "value"),
                given if given > max => format!("at most {}", counted(max as u64, "value")),
                _ => format!("at least {}", counted(min as u64, "value")),
            };
            return self.error(key, path, format!("`{path}` must have {wanted}, got {}", items.len()), "");
        }
        let mut out = Vec::with_capacity(items.len());
        for (i, child) in items.iter().enumerate() {
            let at = join(path, &i.to_string());
            match self.check_node(child, child.place, item, &at) {
                Some(Value::Null) if !matches!(item.shape, Shape::Any) => {
                    self.error(child.place, &at, format!("an item of `{path}` is empty"), "delete it, or quote it");
                }
                Some(value) => out.push(value),
                None => {}
            }
        }
        (out.len() == items.len()).then_some(Value::Array(out))
    }

    fn check_number(
        &mut self,
        node: &Node,
        key: Place,
        bounds: Bounds,
        whole: bool,
        slot: KeyShape,
        path: &str,
    ) -> Option<Value> {
        let about = one_line(slot.description);
        let wanted = if whole { "a whole number" } else { "a number" };
        let Yaml::Scalar { text, plain } = &node.value else {
            return self.mismatch(node, key, wanted, path, &about);
        };
        let Some(number) = scalar::number(text) else {
            return self.mismatch(node, key, wanted, path, &about);
        };
        if !plain {
            return self.mismatch(node, key, wanted, path, "delete the quotes");
        }
        let shown = short(text);
        if number.float.is_nan() || (number.float.is_infinite() && text.contains('n')) {
            return self.error(node.place, path, format!("`{path}` must be finite, got {shown}"), about);
        }
        if whole && number.integer.is_none() && number.float.abs() < 1e18 {
            let below = number.float.floor();
            let help = format!("the nearest whole numbers are {below} and {}", below + 1.0);
            return self.error(node.place, path, format!("`{path}` must be a whole number, got {shown}"), help);
        }
        if let Some(violation) = bounds.violation(number.float) {
            return self.error(node.place, path, format!("`{path}` {violation}, got {shown}"), about);
        }
        let json = match (whole, number.integer) {
            (true, integer) => integer.and_then(|i| u64::try_from(i).ok()).map(Number::from),
            (false, _) => Number::from_f64(number.float),
        };
        match json {
            Some(n) => Some(Value::Number(n)),
            None => self.error(node.place, path, format!("`{path}` is too large: {shown}"), "it must fit into 64 bits"),
        }
    }
}

/// A description, which may be broken into lines.
pub fn one_line(text: &str) -> String {
    text.replace('\n', " ")
}

/// The mapping that `text` probably stands for as the value of the section `path`, whose keys are `keys`: a number is that of the section's unit,
/// and a word a choice in it.
fn meant_form(keys: Keys, path: &str, text: &str) -> Option<String> {
    /// What a number alone stands for, in the sections that have it.
    const UNITS: [&str; 3] = ["sequences", "steps", "every"];
    let last = path.rsplit('.').next().unwrap_or(path);
    if path == "data" && !text.is_empty() {
        return Some(format!("data: {{train: {{text: {{files: [{}]}}}}}}", short(text)));
    }
    if scalar::number(text).is_some() {
        let unit = UNITS.into_iter().find(|unit| keys.get(unit).is_some())?;
        return Some(format!("{last}: {{{unit}: {text}}}"));
    }
    let section =
        KeyShape { shape: Shape::Keys(keys), nullable: false, has_default: false, short: None, description: "" };
    let forms = key_shapes(section).into_iter().filter_map(|(key, slot)| match slot.shape {
        Shape::Words(words) if texts(words).contains(&text) => Some((key, text.to_owned())),
        _ if key.rsplit('.').next() == Some(text) => Some((key, example(slot))),
        _ => None,
    });
    let (key, value) = forms.min_by_key(|(key, _)| key.matches('.').count())?;
    Some(key.rsplit('.').fold(value, |inner, key| format!("{{{key}: {inner}}}"))).map(|form| format!("{last}: {form}"))
}

/// An example of what follows the name of a choice.
fn example(slot: KeyShape) -> String {
    match slot.shape {
        Shape::Keys(keys) => {
            let inner: Vec<String> = keys.required().iter().map(|name| format!("{name}: …")).collect();
            format!("{{{}}}", inner.join(", "))
        }
        _ => "…".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_yaml::tree::parse;

    #[test]
    fn a_list_of_the_wrong_length_is_reported_with_the_limit() {
        let schema = json!({"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "integer"}});
        let slot = parse_slot(Box::leak(Box::new(schema)));
        let message = |text: &str| {
            let parsed = parse(Source::file(Path::new("e.yaml"), text.to_owned()));
            let (tree, mut mistakes) = (parsed.root.unwrap(), Mistakes::default());
            Checker { source: &parsed.source, mistakes: &mut mistakes, root: slot, needs_values: true }
                .check_node(&tree, tree.place, slot, "sizes");
            mistakes.diagnostics.first().map(|d| d.message.clone())
        };
        assert_eq!(message("[1, 2]"), None);
        assert_eq!(message("[1, 2, 3]").unwrap(), "`sizes` must have at most 2 values, got 3");
        assert_eq!(message("[]").unwrap(), "`sizes` must have at least 1 value, got 0");
    }
}
