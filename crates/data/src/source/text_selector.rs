//! Selects the text of a record that is its document: one field, or a template over several.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value};

use runner_files::strict_json::describe_type;
use runner_spec::error::PlainError;
use runner_template::{RecordTemplate, unknown_field};

/// The field that is read if the experiment names none.
const DEFAULT_FIELD: &str = "text";

/// The rule that selects the text of a document from a record.
#[derive(Debug, Clone)]
pub(crate) enum TextSelector {
    /// The string in this field.
    Field(String),
    Template {
        text: String,
        template: Arc<RecordTemplate>,
    },
}

impl PartialEq for TextSelector {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for TextSelector {}

impl TextSelector {
    /// Selects `template` if it is given, otherwise `field`.
    ///
    /// # Errors
    /// If the template is wrong; the message says how.
    pub(super) fn new(field: Option<&str>, template: Option<&str>) -> Result<Self, PlainError> {
        let Some(text) = template else { return Ok(Self::Field(field.unwrap_or(DEFAULT_FIELD).to_owned())) };
        Ok(Self::Template { text: text.to_owned(), template: Arc::new(RecordTemplate::new(text)?) })
    }

    /// The words that stand for the rule in the content hash of a source.
    pub(super) fn identity(&self) -> (&'static str, &str) {
        match self {
            Self::Field(name) => ("", name),
            Self::Template { text, .. } => (" template", text),
        }
    }

    /// The fields that the text needs.
    pub(crate) fn fields(&self) -> BTreeSet<&str> {
        match self {
            Self::Field(name) => [name.as_str()].into(),
            Self::Template { template, .. } => template.fields().collect(),
        }
    }

    /// The document in `record`; `None` if its text is empty or null.
    ///
    /// # Errors
    /// If a field is missing or holds no text.
    pub(super) fn extract(&self, mut record: Map<String, Value>) -> Result<Option<String>, PlainError> {
        let text = match self {
            Self::Template { template, .. } => template.render(&record)?,
            Self::Field(name) => match record.remove(name) {
                Some(Value::String(text)) => text,
                Some(Value::Null) => return Ok(None),
                Some(other) => {
                    return Err(PlainError::request(format!(
                        "field `{name}` is {}, not a string",
                        describe_type(&other)
                    )));
                }
                None => return Err(PlainError::request(unknown_field("field", name, record.keys()))),
            },
        };
        Ok((!text.is_empty()).then_some(text))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn skips_empty_texts_and_nulls() {
        let text = |record: Value| {
            let Value::Object(record) = record else { panic!() };
            TextSelector::new(None, None).unwrap().extract(record)
        };
        assert_eq!(text(json!({"text": "a"})), Ok(Some("a".to_owned())));
        assert_eq!(text(json!({"text": ""})), Ok(None));
        assert_eq!(text(json!({"text": null, "id": 1})), Ok(None));
        let Ok(nan) = runner_files::strict_json::parse(br#"{"text": NaN}"#) else { panic!() };
        assert_eq!(text(nan).unwrap_err().text, "field `text` is NaN, not a string");
        assert!(text(json!({"text": 3})).unwrap_err().text.contains("is a number, not a string"));
        assert!(text(json!({"txt": null})).is_err(), "a missing field is a mistake");
    }
}
