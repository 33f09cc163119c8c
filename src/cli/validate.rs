//! `runner validate`: whether an experiment file is right, and where each of its values comes from.

use std::io::Write;
use std::path::Path;

use crate::config::{self, LoadOptions};

/// Loads the file and says so on `out`; with `explain`, a table of every value and where it is from.
///
/// # Errors
/// `ConfigError` with the mistakes of the file (exit code 2), or `io::Error` of writing.
pub fn run(path: &Path, options: &LoadOptions, explain: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let loaded = config::load(path, options)?;
    if explain {
        write!(out, "{}", config::explain(&loaded.origins))?;
    } else {
        writeln!(out, "{}: `{}` is a valid experiment", path.display(), loaded.experiment.name)?;
    }
    Ok(out.flush()?)
}
