//! `runner schema`: the JSON Schema of the experiment file, as `schemas/experiment.schema.json` has it.

use std::io::{self, Write};

use crate::config;

/// Writes the schema to `out`.
///
/// # Errors
/// Those of writing.
pub fn run(out: &mut dyn Write) -> io::Result<()> {
    out.write_all(config::schema_text().as_bytes())?;
    out.flush()
}
