//! The keys of an experiment as parameters of MLflow: flat names and short texts.

use std::path::Path;

use runner_record::RecordError;
use runner_record::run_dir::RESOLVED;
use runner_yaml::document;
use serde_json::Value;

/// The number of characters of a value that every version of the server takes.
const MAX_VALUE_CHARS: usize = 500;
/// The number of characters of a name that every version of the server takes.
const MAX_NAME_CHARS: usize = 250;

/// The parameters of the experiment with the text `yaml`, in its order.
///
/// # Errors
/// If it is not YAML.
pub(crate) fn parameters_of(yaml: &str) -> Result<Vec<(String, String)>, RecordError> {
    let value: Value =
        document::from_str(yaml).map_err(|error| RecordError::damaged(Path::new(RESOLVED), error.to_string()))?;
    let mut parameters = Vec::new();
    add("", &value, &mut parameters);
    Ok(parameters)
}

fn add(path: &str, value: &Value, parameters: &mut Vec<(String, String)>) {
    let text = match value {
        Value::Object(keys) if !keys.is_empty() => {
            for (key, value) in keys {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                add(&path, value, parameters);
            }
            return;
        }
        Value::String(text) if !text.is_empty() => text.clone(),
        other => other.to_string(),
    };
    let legal = |c: char| if c.is_ascii_alphanumeric() || "_-. /".contains(c) { c } else { '_' };
    let name: String = path.chars().map(legal).take(MAX_NAME_CHARS).collect();
    parameters.push((name, shortened(text)));
}

/// `text`, or its beginning and an ellipsis.
fn shortened(text: String) -> String {
    if text.chars().count() <= MAX_VALUE_CHARS {
        return text;
    }
    text.chars().take(MAX_VALUE_CHARS - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_a_parameter() {
        let yaml = "name: a\nseed: 1\nmodel: {dropout: 0.1, tie: true, init: null}\nopt: {betas: [0.9, 0.95], 'a:b': ''}\nempty: {}\n";
        let parameters = parameters_of(yaml).unwrap();
        let mut all: Vec<String> = parameters.iter().map(|(key, value)| format!("{key}={value}")).collect();
        all.sort();
        assert_eq!(
            all,
            [
                "empty={}",
                "model.dropout=0.1",
                "model.init=null",
                "model.tie=true",
                "name=a",
                "opt.a_b=\"\"",
                "opt.betas=[0.9,0.95]",
                "seed=1"
            ]
        );
    }

    #[test]
    fn long_values_are_cut() {
        let (_, value) = parameters_of(&format!("a: {}\n", "ü".repeat(501))).unwrap().remove(0);
        assert_eq!((value.chars().count(), value.ends_with("ü…")), (500, true));
        assert!(parameters_of("a: [").is_err());
    }
}
