//! The group of runs that an experiment with `seeds` makes: a sweep that varies nothing but the seed.

use runner_config::ExperimentFile;
use runner_spec::diagnostic::ConfigError;

use super::read::read_group;
use super::spec::Dimension;

/// The key of experiments that makes a group.
pub(super) const SEEDS: &str = "seeds";

/// The setting that makes one run of an experiment with `seeds`.
pub const ONE_RUN: &str = "seeds=null";

/// True if `file` is an experiment that makes a group of runs.
#[must_use]
pub fn makes_group(file: &ExperimentFile) -> bool {
    file.has_key(SEEDS) && !file.has_key("sweep")
}

/// The number of runs in the group of the experiment `file`.
///
/// # Errors
/// Mistakes in its `seeds`.
pub fn group_size(file: &ExperimentFile) -> Result<usize, ConfigError> {
    Ok(read_group(file)?.axes.iter().map(Dimension::value_count).product())
}
