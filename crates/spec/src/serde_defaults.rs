//! Defaults of fields that a file or a record leaves out, and the tests for leaving them out.

use schemars::{Schema, json_schema};
use serde_json::Value;

/// Defines a function for each default of a key, by which serde and the JSON Schema know it.
macro_rules! defaults {
    ($($name:ident: $type:ty = $value:expr;)*) => {
        $(fn $name() -> $type { $value })*
    };
}
pub(crate) use defaults;

/// The default of a field that is true unless a record says otherwise.
pub fn yes() -> bool {
    true
}

pub fn is_true(value: &bool) -> bool {
    *value
}

/// The default of a field that is 1 unless a record says otherwise.
pub fn one<T: From<u8>>() -> T {
    T::from(1)
}

pub fn is_one<T: From<u8> + PartialEq>(value: &T) -> bool {
    *value == T::from(1)
}

/// True if `value` is the default of its type, such as `false`, 0 or the first choice.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Makes `schema`, a mapping, accept a text too, which stands for its key `x-short`.
pub(crate) fn or_text(schema: &mut Schema) {
    or_value(schema, &json_schema!({"type": "string"}));
}

/// Makes `schema`, a mapping with the key `steps` or an enum whose last variant is untagged and skipped, accept a number of steps too, which
/// stands for its key `x-short`.
pub(crate) fn or_steps(schema: &mut Schema) {
    if let Some(choices) = schema.remove("anyOf") {
        schema.insert("oneOf".to_owned(), choices);
    }
    let steps = ["/properties/steps", "/oneOf/0/properties/steps"].into_iter().find_map(|place| schema.pointer(place));
    let bound = |key| steps.map_or(&Value::Null, |steps| &steps[key]);
    let number = json_schema!({
        "type": "integer", "format": "uint64", "minimum": bound("minimum"), "maximum": bound("maximum")
    });
    or_value(schema, &number);
}

fn or_value(schema: &mut Schema, value: &Schema) {
    let description = schema.remove("description");
    let mapping = std::mem::take(schema);
    *schema = json_schema!({"anyOf": [value, mapping]});
    if let Some(description) = description {
        schema.insert("description".to_owned(), description);
    }
}
