//! The generated JSON Schema, read back as the handful of shapes that it is made of.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::schema::schema_ref;
use runner_spec::format::count;

/// `path.key`.
pub fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// The legal content of a place in the experiment file.
#[derive(Debug, Clone, Copy)]
pub enum Shape {
    /// Named keys.
    Keys(Keys),
    /// One key, which chooses.
    Variants(&'static [Value]),
    /// One of these words.
    Words(&'static [Value]),
    List {
        items: &'static Value,
        min: usize,
        max: usize,
    },
    /// What `item` describes, or the list that `list` describes.
    ItemOrList {
        item: &'static Value,
        list: &'static Value,
    },
    /// One of these words, or what `other` describes.
    WordOr {
        words: &'static [Value],
        other: &'static Value,
    },
    /// Any keys, whose values have the shape that this schema describes.
    Entries(&'static Value),
    /// Any value.
    Any,
    Number(Bounds),
    Integer(Bounds),
    Text,
    Bool,
}

/// A mapping with named keys.
#[derive(Debug, Clone, Copy)]
pub struct Keys(&'static Value);

/// Legal range of a number: its schema.
#[derive(Debug, Clone, Copy)]
pub struct Bounds(&'static Value);

/// A shape, and whether `null` is a separate value there.
#[derive(Debug, Clone, Copy)]
pub struct KeyShape {
    pub shape: Shape,
    pub nullable: bool,
    /// True if an empty mapping stands for the default choice. Mappings with named keys need no mark: each key has its default.
    pub has_default: bool,
    /// The key or the choice that a text or a number alone stands for.
    pub short: Option<&'static str>,
    /// The description that an editor shows.
    pub description: &'static str,
}

/// The shape of the whole file.
pub fn root() -> KeyShape {
    parse_slot(schema_ref())
}

/// The shape that `schema` describes.
pub fn parse_slot(schema: &'static Value) -> KeyShape {
    let slot = parse_without_description(schema);
    KeyShape {
        description: schema["description"].as_str().unwrap_or(slot.description),
        has_default: slot.has_default || schema["x-has-default"] == true,
        ..slot
    }
}

fn parse_without_description(schema: &'static Value) -> KeyShape {
    if let Some(reference) = schema["$ref"].as_str() {
        let target = reference.trim_start_matches('#');
        return parse_slot(schema_ref().pointer(target).unwrap_or(&Value::Null));
    }
    if let Some([one]) = schema["allOf"].as_array().map(Vec::as_slice) {
        return parse_slot(one);
    }
    match schema["anyOf"].as_array().map(Vec::as_slice) {
        Some([inner, null]) if null["type"] == "null" => return KeyShape { nullable: true, ..parse_slot(inner) },
        Some([word, other]) if let Some(words) = word["enum"].as_array() => {
            return plain(Shape::WordOr { words, other });
        }
        Some([_, mapping]) if mapping["x-short"].is_string() || mapping["x-each"] == true => {
            return parse_slot(mapping);
        }
        Some([item, list]) if list["type"] == "array" => return plain(Shape::ItemOrList { item, list }),
        _ => {}
    }
    if schema.is_null() {
        return KeyShape { nullable: true, ..plain(Shape::Any) };
    }
    let (kind, nullable) = match &schema["type"] {
        Value::Array(kinds) => (kinds.first().and_then(Value::as_str), kinds.iter().any(|k| k == "null")),
        kind => (kind.as_str(), false),
    };
    let shape = match (schema["oneOf"].as_array(), schema["enum"].as_array(), kind) {
        (Some(variants), _, _) => Shape::Variants(variants),
        (_, Some(words), _) => Shape::Words(words),
        (_, _, Some("array")) => Shape::List {
            items: &schema["items"],
            min: schema["minItems"].as_u64().unwrap_or(0) as usize,
            max: schema["maxItems"].as_u64().map_or(usize::MAX, |n| n as usize),
        },
        (_, _, Some("number")) => Shape::Number(Bounds(schema)),
        (_, _, Some("integer")) => Shape::Integer(Bounds(schema)),
        (_, _, Some("boolean")) => Shape::Bool,
        (_, _, Some("object")) if schema["properties"].is_null() && schema["additionalProperties"] != false => {
            Shape::Entries(&schema["additionalProperties"])
        }
        (_, _, Some("object")) => Shape::Keys(Keys(schema)),
        _ => Shape::Text,
    };
    KeyShape { nullable, short: schema["x-short"].as_str(), ..plain(shape) }
}

fn plain(shape: Shape) -> KeyShape {
    KeyShape { shape, nullable: false, has_default: false, short: None, description: "" }
}

impl KeyShape {
    /// The content of a key, or of a choice.
    pub fn inner(&self, name: &str) -> Option<KeyShape> {
        match self.shape {
            Shape::Keys(keys) => keys.get(name),
            Shape::Variants(of) => variants(of).into_iter().find(|(choice, _)| *choice == name).map(|(_, inner)| inner),
            _ => None,
        }
    }
}

impl Keys {
    pub fn get(&self, key: &str) -> Option<KeyShape> {
        self.0["properties"].get(key).map(parse_slot)
    }

    pub fn names(&self) -> Vec<&'static str> {
        self.0["properties"].as_object().into_iter().flat_map(Map::keys).map(String::as_str).collect()
    }

    pub fn required(&self) -> Vec<&'static str> {
        self.texts("required")
    }

    /// Keys of which one layer gives at most one, and of which a higher layer's replaces a lower layer's.
    pub fn exclusive(&self) -> Vec<&'static str> {
        self.texts("x-exclusive")
    }

    fn texts(self, list: &str) -> Vec<&'static str> {
        self.0[list].as_array().map(|list| texts(list)).unwrap_or_default()
    }

    /// True if a value alone stands for a mapping that gives it to each key. The keys have the same shape.
    pub fn is_each(&self) -> bool {
        self.0["x-each"] == true
    }

    /// The key that a text alone stands for.
    pub fn short(&self) -> Option<&'static str> {
        self.0["x-short"].as_str()
    }
}

/// The texts in a list of the schema.
pub(crate) fn texts(list: &'static [Value]) -> Vec<&'static str> {
    list.iter().filter_map(Value::as_str).collect()
}

/// The names to choose from, and what each holds.
pub fn variants(of: &'static [Value]) -> Vec<(&'static str, KeyShape)> {
    of.iter()
        .filter_map(|v| v["properties"].as_object()?.iter().next())
        .map(|(name, schema)| (name.as_str(), parse_slot(schema)))
        .collect()
}

impl Bounds {
    /// The reason why `x` is illegal, such as `must be at least 1`.
    pub fn violation(&self, x: f64) -> Option<String> {
        type IsViolated = fn(f64, f64) -> bool;
        let rules: [(&str, IsViolated, &str); 4] = [
            ("minimum", |x, limit| x < limit, "at least"),
            ("exclusiveMinimum", |x, limit| x <= limit, "greater than"),
            ("maximum", |x, limit| x > limit, "at most"),
            ("exclusiveMaximum", |x, limit| x >= limit, "less than"),
        ];
        rules.into_iter().find_map(|(key, is_violated, relation)| {
            let limit = self.0[key].as_f64().filter(|&limit| is_violated(x, limit))?;
            Some(format!("must be {relation} {}", grouped(limit)))
        })
    }
}

/// A limit as people write it: `10_000`, `1e12`. Limits are not negative.
fn grouped(limit: f64) -> String {
    match limit {
        _ if limit.fract() != 0.0 || limit >= 1e9 => format!("{limit:e}").replace("e0", ""),
        ..10_000.0 => limit.to_string(),
        _ => count(limit as u64).replace(',', "_"),
    }
}

/// The path of each key and each choice of a file of the shape `root`, with its shape.
pub fn key_shapes(root: KeyShape) -> Vec<(String, KeyShape)> {
    fn visit(slot: KeyShape, path: &str, out: &mut Vec<(String, KeyShape)>) {
        let inner = match slot.shape {
            // Such keys are seldom meant: a value alone gives all of them.
            Shape::Keys(keys) if keys.is_each() => Vec::new(),
            Shape::Keys(keys) => keys.names().into_iter().filter_map(|name| Some((name, keys.get(name)?))).collect(),
            Shape::Variants(of) => variants(of),
            _ => Vec::new(),
        };
        for (name, slot) in inner {
            let path = join(path, name);
            out.push((path.clone(), slot));
            visit(slot, &path, out);
        }
    }
    let mut out = Vec::new();
    visit(root, "", &mut out);
    out
}

/// Each key of a file of the shape `root`, and the sections that have it.
pub fn sections_by_key(root: KeyShape) -> HashMap<String, Vec<String>> {
    let mut out: HashMap<String, Vec<String>> = HashMap::new();
    for (path, _) in key_shapes(root) {
        if let Some((section, key)) = path.rsplit_once('.') {
            out.entry(key.to_owned()).or_default().push(section.to_owned());
        }
    }
    out
}
