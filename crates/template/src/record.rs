//! One text out of one record of a source, such as a prompt out of its instruction and its answer.
//!
//! The limits are those of the templates of experiments, except for larger texts. The template cannot include files, and has no functions
//! but minijinja's.

use std::collections::BTreeSet;

use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, Value};
use serde_json::{Map, Value as Json};

use super::builtins::environment;
use super::limits::{MAX_FILE_BYTES, RECORD_TEXT, error_detail, invalid_operation, render_within, set_formatter};
use super::render::with_large_stack;
use super::rewrite::undeclared_variables;
use super::tags::find_tags;
use runner_spec::diagnostic::{list, nearest};
use runner_spec::error::PlainError;
use runner_spec::panics::catch_panic;

const NAME: &str = "template";
/// Statements that need other files.
const FILE_STATEMENTS: [&str; 5] = ["include", "import", "from", "extends", "block"];
/// minijinja's functions, which hide fields of these names.
const FUNCTIONS: [&str; 3] = ["range", "dict", "namespace"];

/// A template that is filled in with the fields of a record.
#[derive(Debug)]
pub struct RecordTemplate {
    environment: Environment<'static>,
    fields: BTreeSet<String>,
}

impl RecordTemplate {
    /// # Errors
    /// A mistake in the template, with its line.
    pub fn new(text: &str) -> Result<Self, PlainError> {
        if text.len() as u64 > MAX_FILE_BYTES {
            return Err(PlainError::request(format!("the template is larger than {} kB", MAX_FILE_BYTES >> 10)));
        }
        with_large_stack(|| Self::compile(text))?.map_err(PlainError::request)
    }

    fn compile(text: &str) -> Result<Self, String> {
        // Jinja drops the last line break, which YAML's `|` brings.
        let text = text.strip_suffix('\n').unwrap_or(text);
        let found = find_tags(text);
        if let Some(tag) = found.tags.iter().find(|tag| FILE_STATEMENTS.contains(&tag.statement.as_str())) {
            let line = text[..tag.range.start].matches('\n').count() + 1;
            return Err(format!("`{}` cannot be used in the template of a record (line {line})", tag.statement));
        }
        let mut env = environment();
        set_formatter(&mut env, record_text);
        let mut fields = undeclared_variables(NAME, text, &found).map_err(|error| explain(&error))?;
        fields.retain(|name| !FUNCTIONS.contains(&name.as_str()));
        env.add_template_owned(NAME, text.to_owned()).map_err(|error| explain(&error))?;
        if fields.is_empty() {
            return Err("the template uses no field; write `{{ name }}` where a field's text goes".to_owned());
        }
        Ok(Self { environment: env, fields })
    }

    /// The fields that it uses.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(String::as_str)
    }

    /// The text of `record`.
    ///
    /// # Errors
    /// A field that is missing, null or not text; a template that exceeds its limits.
    pub fn render(&self, record: &Map<String, Json>) -> Result<String, PlainError> {
        let explain = |panic| format!("the template engine failed on a value of this record: {panic}");
        let rendered = catch_panic(|| self.render_unguarded(record)).map_err(explain).flatten();
        rendered.map_err(PlainError::request)
    }

    fn render_unguarded(&self, record: &Map<String, Json>) -> Result<String, String> {
        let template = self.environment.get_template(NAME).map_err(|error| explain(&error))?;
        let used = self.fields().filter_map(|name| Some((name.to_owned(), Value::from_serialize(record.get(name)?))));
        render_within(&template, used.collect(), RECORD_TEXT).map_err(|error| {
            if error.kind() == ErrorKind::UndefinedError {
                return match self.fields().find(|field| !record.contains_key(*field)) {
                    Some(absent) => unknown_field("field", absent, record.keys()),
                    None => format!("the template uses a value that does not exist ({})", explain(&error)),
                };
            }
            let nulls: Vec<&str> = self.fields().filter(|f| record.get(*f).is_some_and(Json::is_null)).collect();
            let note = match nulls.len() {
                0 => String::new(),
                1 => format!("; `{}` is null here", nulls[0]),
                _ => format!("; {} are null here", list(&nulls, "and")),
            };
            explain(&error) + &note
        })
    }
}

/// A message for a column or field that is not there, with those that are.
pub fn unknown_field<S: AsRef<str>>(what: &str, name: &str, all: impl IntoIterator<Item = S>) -> String {
    let all: Vec<S> = all.into_iter().collect();
    let known = if all.is_empty() {
        "there are none".to_owned()
    } else {
        let shown: Vec<&str> = all.iter().take(50).map(AsRef::as_ref).collect();
        format!("the {what}s are {}", list(&shown, "and"))
    };
    match nearest(name, all.iter().map(AsRef::as_ref)) {
        Some(near) => format!("no {what} `{name}`: did you mean `{near}`? {known}"),
        None => format!("no {what} `{name}`; {known}"),
    }
}

/// The text that `{{ value }}` prints: text as it is, numbers and truth values as in JSON.
fn record_text(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    match value.kind() {
        ValueKind::Undefined => Err(Error::from(ErrorKind::UndefinedError)),
        ValueKind::Bool | ValueKind::Number => Ok(value.to_string()),
        ValueKind::None => Err(invalid_operation("null has no text; test it, as in `{% if name %}`".to_owned())),
        kind => Err(invalid_operation(format!("a {kind} has no text; use a filter, such as `join` or `tojson`"))),
    }
}

/// The message of `error`, with the template's line.
fn explain(error: &Error) -> String {
    let message = error_detail(error);
    match error.line() {
        Some(line) => format!("{message} (line {line} of the template)"),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn render(template: &str, record: &Json) -> Result<String, String> {
        let rendered = RecordTemplate::new(template).and_then(|t| t.render(record.as_object().unwrap()));
        rendered.map_err(|error| error.text)
    }

    #[test]
    fn records_become_texts() {
        let template = "Do: {{ instruction }}\n{% if input %}\nWith: {{ input }}\n{% endif %}\nResult: {{ output }}\n";
        let record = json!({"instruction": "add", "input": "1 2", "output": "3 {{ x }}", "other": 1});
        assert_eq!(render(template, &record).unwrap(), "Do: add\nWith: 1 2\nResult: 3 {{ x }}");
        let record = json!({"instruction": "sing", "input": "", "output": "la\n"});
        assert_eq!(render(template, &record).unwrap(), "Do: sing\nResult: la\n");
        let chat = "{% for m in messages %}\n<{{ m.role }}>{{ m.text }}\n{% endfor %}";
        let record = json!({"messages": [{"role": "a", "text": "hi"}, {"role": "b", "text": 3}]});
        assert_eq!(render(chat, &record).unwrap(), "<a>hi\n<b>3\n");
        let fields = RecordTemplate::new(template).unwrap();
        assert_eq!(fields.fields().collect::<Vec<_>>(), ["input", "instruction", "output"]);
    }

    #[test]
    fn names_of_functions_are_no_fields() {
        let record = json!({"range": "1-3", "a": "x"});
        let call = "{% for i in range(2) %}{{ i }}{{ a }}{% endfor %}";
        assert_eq!(RecordTemplate::new(call).unwrap().fields().collect::<Vec<_>>(), ["a"]);
        assert_eq!(render(call, &record).unwrap(), "0x1x");
    }

    #[test]
    fn fields_are_found_wherever_they_are_read() {
        let fields =
            |text: &str| RecordTemplate::new(text).unwrap().fields().map(str::to_owned).collect::<Vec<_>>().join(" ");
        assert_eq!(fields("{% filter replace(old, new) %}{{ text }}{% endfilter %}"), "new old text");
        assert_eq!(fields("{% set text = text | trim %}{{ text }}"), "text");
        assert_eq!(fields("{% set x = 1 %}{% set x = x + 1 %}{% with y = 1, z = y %}{{ a }}{{ z }}{% endwith %}"), "a");
    }

    #[test]
    fn mistakes_name_the_field() {
        let record = json!({"instruction": "add", "output": "3", "empty": null, "items": [1]});
        let error = |template: &str| render(template, &record).unwrap_err();
        assert_eq!(
            error("{{ instructions }}"),
            "no field `instructions`: did you mean `instruction`? the fields are `empty`, `instruction`, `items` and `output`"
        );
        assert!(error("{{ empty }}").contains("`empty` is null here"), "{}", error("{{ empty }}"));
        assert!(error("{{ items }}").contains("sequence has no text"), "{}", error("{{ items }}"));
        assert!(error("a\n{{ instruction").contains("line 2"), "{}", error("a\n{{ instruction"));
        assert!(error("only text").contains("uses no field"));
        assert!(error("{% include 'x' %}{{ output }}").contains("`include` cannot be used"));
        assert!(error("{{ output | nosuch }}").contains("nosuch"));
    }

    #[test]
    fn a_template_cannot_grow_without_bounds() {
        let record = json!({"a": "x".repeat(1000)});
        for template in [
            "{{ a * 99999999999 }}",
            "{% for i in a %}{% for j in a %}{% for k in a %}{{ a }}{% endfor %}{% endfor %}{% endfor %}",
            "{% for i in range(100000) %}{{ a }}{% endfor %}",
            &format!("{{{{ {}a }}}}", "(".repeat(5000)),
        ] {
            assert!(render(template, &record).is_err(), "{}", &template[..40.min(template.len())]);
        }
    }
}
