//! Which text of a record is its document: one of its fields, or what a template makes of several.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value};

use runner_template::{RecordTemplate, unknown_field};

/// The field that is read unless the experiment names one.
const DEFAULT_FIELD: &str = "text";

/// How a document is found in a record.
#[derive(Debug, Clone)]
pub(crate) enum TextOf {
    /// The string in this field.
    Field(String),
    Template {
        /// As it was written.
        text: String,
        template: Arc<RecordTemplate>,
    },
}

impl PartialEq for TextOf {
    fn eq(&self, other: &Self) -> bool {
        self.hashed() == other.hashed()
    }
}

impl Eq for TextOf {}

impl TextOf {
    /// `field` or `template`, of which one is given.
    ///
    /// # Errors
    /// What is wrong with the template.
    pub(super) fn new(field: Option<&str>, template: Option<&str>) -> Result<Self, String> {
        match (field, template) {
            (_, Some(text)) => {
                Ok(Self::Template { text: text.to_owned(), template: Arc::new(RecordTemplate::new(text)?) })
            }
            (field, None) => Ok(Self::Field(field.unwrap_or(DEFAULT_FIELD).to_owned())),
        }
    }

    /// What the content hash of a source knows of it.
    pub(super) fn hashed(&self) -> (&'static str, &str) {
        match self {
            Self::Field(name) => ("", name),
            Self::Template { text, .. } => (" template", text),
        }
    }

    /// The fields that are read.
    pub(crate) fn fields(&self) -> BTreeSet<&str> {
        match self {
            Self::Field(name) => [name.as_str()].into(),
            Self::Template { template, .. } => template.fields().collect(),
        }
    }

    /// The document in `record`; an empty one is none.
    ///
    /// # Errors
    /// A field that is not there or holds no text.
    pub(super) fn of(&self, mut record: Map<String, Value>) -> Result<Option<String>, String> {
        let text = match self {
            Self::Template { template, .. } => template.render(&record)?,
            Self::Field(name) => match record.remove(name) {
                Some(Value::String(text)) => text,
                Some(other) => return Err(format!("field `{name}` is {}, not a string", kind(&other))),
                None => return Err(unknown_field("field", name, record.keys())),
            },
        };
        Ok((!text.is_empty()).then_some(text))
    }
}

/// What `value` is, for a message.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
