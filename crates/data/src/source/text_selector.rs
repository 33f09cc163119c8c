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
pub(crate) struct TextSelector {
    /// The name of the field that holds it, or the text of the template.
    text: String,
    template: Option<Arc<RecordTemplate>>,
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
        let text = template.or(field).unwrap_or(DEFAULT_FIELD).to_owned();
        let template = template.map(RecordTemplate::new).transpose()?.map(Arc::new);
        Ok(Self { text, template })
    }

    /// The words that stand for the rule in the content hash of a source.
    pub(super) fn identity(&self) -> (&'static str, &str) {
        (if self.template.is_some() { " template" } else { "" }, &self.text)
    }

    /// The fields that the text needs.
    pub(crate) fn fields(&self) -> BTreeSet<&str> {
        self.template.as_ref().map_or_else(|| [self.text.as_str()].into(), |template| template.fields().collect())
    }

    /// The document in `record`; `None` if its text is empty or null.
    ///
    /// # Errors
    /// If a field is missing or holds no text.
    pub(super) fn extract(&self, mut record: Map<String, Value>) -> Result<Option<String>, PlainError> {
        let name = &self.text;
        let text = match &self.template {
            Some(template) => template.render(&record)?,
            None => match record.remove(name) {
                Some(Value::String(text)) => text,
                Some(Value::Null) => return Ok(None),
                Some(other) => {
                    let message = format!("field `{name}` is {}, not a string", describe_type(&other));
                    return Err(PlainError::request(message));
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
