//! The JSON Schema of the experiment file, generated from the raw types.

use std::sync::OnceLock;

use serde_json::Value;

use super::raw::RawExperiment;

/// JSON Schema of the experiment file (draft 7, which editors' YAML support understands best).
#[must_use]
pub fn schema() -> Value {
    schema_ref().clone()
}

/// The text of `schemas/experiment.schema.json`.
#[must_use]
pub fn schema_text() -> String {
    format!("{:#}\n", schema_ref())
}

pub(crate) fn schema_ref() -> &'static Value {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        schemars::generate::SchemaSettings::draft07()
            .into_generator()
            .into_root_schema_for::<RawExperiment>()
            .to_value()
    })
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
