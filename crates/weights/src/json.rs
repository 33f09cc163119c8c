//! Small JSON files that other programs wrote, read within limits.

use std::io::Read;
use std::path::Path;

use serde_json::{Map, Value};

use super::error::WeightsError;
use runner_files::{open_regular, strict_json, without_byte_order_mark};

/// Reads the JSON object in the file `path`, which has at most `most` bytes. A byte order mark in front of it is skipped.
///
/// # Errors
/// If it is missing, larger, or no object.
pub(super) fn read_object(path: &Path, most: u64) -> Result<Map<String, Value>, WeightsError> {
    let file = open_regular(path).map_err(WeightsError::io(path))?;
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(WeightsError::io(path))?;
    if bytes.len() as u64 > most {
        return Err(WeightsError::file(path, format!("more than {most} bytes are too many for such a file")));
    }
    match strict_json::parse(without_byte_order_mark(&bytes)) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => Err(WeightsError::file(
            path,
            format!("it is {}, not an object of keys", strict_json::describe_type(&other)),
        )),
        Err(error) => Err(WeightsError::file(path, format!("not right JSON: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_order_mark_is_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        std::fs::write(&path, "\u{feff}{\"model_type\": \"gpt2\"}").unwrap();
        assert_eq!(read_object(&path, 100).unwrap()["model_type"], "gpt2");
        std::fs::write(&path, "{\"a\": \u{feff}1}").unwrap();
        assert!(read_object(&path, 100).is_err());
    }
}
