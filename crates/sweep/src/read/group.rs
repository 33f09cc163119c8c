//! The group of runs that an experiment with `seeds` makes: a sweep that varies nothing but the seed.

use runner_config::ExperimentFile;
use runner_spec::diagnostic::ConfigError;
use runner_yaml::source::Source;
use serde_json::{Value, json};

use super::{SweepReader, json_of};
use crate::spec::{Dimension, SweepSpec};

/// The key of experiments that makes a group.
const SEEDS: &str = "seeds";

/// The setting that makes one run of an experiment with `seeds`.
pub const ONE_RUN: &str = "seeds=null";

/// True if `file` is an experiment that makes a group of runs.
#[must_use]
pub fn makes_group(file: &ExperimentFile) -> bool {
    file.has_key(SEEDS) && !file.has_key("sweep")
}

/// The sweep that trains the group of the experiment `file`: it varies nothing but the seed.
///
/// # Errors
/// If the file also has `seed`; mistakes in its `seeds`.
pub(super) fn read_group(file: &ExperimentFile) -> Result<SweepSpec, ConfigError> {
    if file.has_key("seed") {
        let message =
            "`seeds` gives each run of the group its seed, so the experiment cannot have `seed`, too".to_owned();
        return Err(file.diagnostic("seed", message, "delete one of the two".to_owned()).into());
    }
    let whole = Source::file(&file.path, file.text.clone());
    let entry = file.entry(SEEDS);
    let source = entry.as_ref().map_or(&whole, |(source, _)| source);
    let mut reader = SweepReader::new(source, Vec::new());
    let seeds = entry.as_ref().map_or(Value::Null, |(source, entry)| json_of(&entry.value, source));
    let axis = entry.as_ref().and_then(|(_, entry)| reader.read_seeds(entry, SEEDS, &seeds));
    let (Some(axis), true) = (axis, reader.diagnostics.is_empty()) else {
        return Err(ConfigError::new(reader.diagnostics));
    };
    let base = file.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let sweep = json!({"base": base, "set": {SEEDS: null}, "seeds": seeds});
    Ok(SweepSpec {
        base: file.path.clone(),
        set: vec![ONE_RUN.to_owned()],
        axes: vec![axis],
        settings: reader.settings,
        copy: format!("# The group of runs of {base}.\nsweep: {sweep}\n"),
        ..SweepSpec::new(&file.path, &file.text, "sweep")
    })
}

/// The number of runs in the group of the experiment `file`.
///
/// # Errors
/// Mistakes in its `seeds`.
pub fn group_size(file: &ExperimentFile) -> Result<usize, ConfigError> {
    Ok(read_group(file)?.axes.iter().map(Dimension::value_count).product())
}
