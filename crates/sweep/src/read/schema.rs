//! The schema of sweep files in the form that experiments are checked with.

use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::spec::SCHEMA;

/// The schema, with the definitions in the place of references to them, and with choices as alternatives.
#[expect(clippy::expect_used, reason = "sweep.schema.json is part of the program, and tests read it")]
pub(super) fn schema() -> &'static Value {
    static LOWERED: LazyLock<Value> = LazyLock::new(|| {
        let schema: Value = serde_json::from_str(SCHEMA).expect("sweep.schema.json is JSON");
        lower(&schema, &schema)
    });
    &LOWERED
}

fn lower(schema: &Value, root: &Value) -> Value {
    let Value::Object(map) = schema else { return schema.clone() };
    let mut out = map.clone();
    if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
        let definition = root.pointer(reference.trim_start_matches('#')).and_then(Value::as_object);
        for (key, value) in definition.into_iter().flatten() {
            out.entry(key).or_insert_with(|| value.clone());
        }
        out.remove("$ref");
    }
    // These only exclude combinations of keys, or list types that a value may have, which the reader checks.
    if out.remove("oneOf").is_some() && !out.contains_key("type") {
        return Value::Null;
    }
    out.remove("anyOf");
    for (key, value) in &mut out {
        match (key.as_str(), &mut *value) {
            ("properties", Value::Object(properties)) => {
                properties.values_mut().for_each(|property| *property = lower(property, root));
            }
            ("items" | "additionalProperties", value) => *value = lower(value, root),
            _ => {}
        }
    }
    let is_choice = match &out.get("properties") {
        Some(Value::Object(properties)) if properties.len() == 1 => out.contains_key("required"),
        _ => out.get("maxProperties") == Some(&json!(1)),
    };
    if is_choice {
        let names = out.remove("properties");
        let choices = names.iter().filter_map(Value::as_object).flatten();
        let choices: Vec<Value> = choices.map(|(name, inner)| json!({"properties": {name: inner}})).collect();
        out.insert("oneOf".to_owned(), Value::Array(choices));
    }
    Value::Object(out)
}
