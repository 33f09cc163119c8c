//! The JSON Schema of the experiment file, generated from the raw types.

use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::raw::RawExperiment;

/// The text of `schemas/experiment.schema.json`.
#[must_use]
pub fn schema_text() -> String {
    format!("{:#}\n", schema_ref())
}

/// JSON Schema of the experiment file (draft 7, which editors' YAML support understands best).
pub(crate) fn schema_ref() -> &'static Value {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let generator = schemars::generate::SchemaSettings::draft07().into_generator();
        let mut schema = generator.into_root_schema_for::<RawExperiment>().to_value();
        let definitions = schema["definitions"].clone();
        remove_section_defaults(&mut schema, &definitions);
        allow_empty_choices(&mut schema);
        schema
    })
}

/// Lets an empty mapping be a value of each choice that has a default.
fn allow_empty_choices(schema: &mut Value) {
    if schema["x-has-default"] == true
        && let Some(choices) = schema["oneOf"].as_array_mut()
    {
        choices.push(json!({"type": "object", "maxProperties": 0, "description": "The default."}));
    }
    match schema {
        Value::Object(map) => map.values_mut().for_each(allow_empty_choices),
        Value::Array(items) => items.iter_mut().for_each(allow_empty_choices),
        _ => {}
    }
}

/// Removes the defaults of whole sections, because their keys have separate defaults.
fn remove_section_defaults(schema: &mut Value, definitions: &Value) {
    let is_section = |choice: &Value| {
        let name = choice["$ref"].as_str().and_then(|reference| reference.rsplit('/').next());
        name.is_some_and(|name| definitions[name]["enum"].is_null())
    };
    let has_section = schema["anyOf"].as_array().is_some_and(|choices| choices.iter().any(is_section));
    match schema {
        Value::Object(map) => {
            if has_section || map.get("default").is_some_and(Value::is_object) {
                map.remove("default");
            }
            map.values_mut().for_each(|inner| remove_section_defaults(inner, definitions));
        }
        Value::Array(items) => items.iter_mut().for_each(|inner| remove_section_defaults(inner, definitions)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_committed_schema_is_current() {
        let path =
            std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("schemas/experiment.schema.json");
        if std::env::var_os("UPDATE_SCHEMA").is_some() {
            std::fs::write(&path, super::schema_text()).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == super::schema_text(),
            "{} is not what the types say; regenerate it: runner schema > schemas/experiment.schema.json",
            path.display()
        );
    }
}
