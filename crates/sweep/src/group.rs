//! The group of runs that an experiment with `seeds` makes: a sweep that varies nothing but the seed.

use runner_config::ExperimentFile;
use runner_spec::diagnostic::{ConfigError, Diagnostic};
use runner_spec::format::json_value;
use runner_yaml::document;
use runner_yaml::source::Source;
use serde_json::{Value, json};

use super::read::read_text;
use super::spec::{Dimension, SweepSpec};

/// The key of experiments that makes a group.
const SEEDS: &str = "seeds";

/// The setting that makes one run of an experiment with `seeds`.
pub const ONE_RUN: &str = "seeds=null";

/// True if `file` is an experiment that makes a group of runs.
#[must_use]
pub fn makes_group(file: &ExperimentFile) -> bool {
    file.has_key(SEEDS) && !file.has_key("sweep")
}

/// The sweep that trains the group of the experiment `file`.
///
/// # Errors
/// If the file also has `seed`; mistakes in its `seeds`.
pub(super) fn group_spec(file: &ExperimentFile) -> Result<SweepSpec, ConfigError> {
    let source = Source::file(&file.path, file.text.clone());
    if file.has_key("seed") {
        let message = "`seeds` gives each run of the group its seed, so the file cannot have `seed`, too".to_owned();
        return Err(file.diagnostic("seed", message, "delete one of the two".to_owned()).into());
    }
    let wrong = |message: String| ConfigError::from(source.diagnostic_whole(message, String::new()));
    let document: document::Value = document::from_str(&file.text).map_err(|error| wrong(error.to_string()))?;
    let seeds = document.get(SEEDS).map_or(Value::Null, json_value);
    let base = file.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let sweep = json!({"base": base, "set": {"seeds": null}, "seeds": seeds});
    let text = format!("# The group of runs of {base}.\nsweep: {sweep}\n");
    // The mistakes are those of the experiment's key.
    read_text(&text, &file.path, true).map_err(|mistakes| {
        let own = |mistake: Diagnostic| {
            file.diagnostic(
                SEEDS,
                mistake.message.replace("sweep.seeds", SEEDS),
                mistake.help.replace("sweep.seeds", SEEDS),
            )
        };
        ConfigError::new(mistakes.diagnostics.into_iter().map(own).collect())
    })
}

/// The number of runs in the group of the experiment `file`.
///
/// # Errors
/// Mistakes in its `seeds`.
pub fn group_size(file: &ExperimentFile) -> Result<usize, ConfigError> {
    Ok(group_spec(file)?.axes.iter().map(Dimension::value_count).product())
}
