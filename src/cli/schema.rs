//! `runner schema`: the JSON Schemas of the experiment file and the sweep file, as `schemas/` has them.

use std::io::{self, Write};

use clap::Args;

use runner_lab::sweep;

/// Flags of `runner schema`.
#[derive(Debug, Args)]
pub(crate) struct SchemaArgs {
    /// That of the sweep file.
    #[arg(long)]
    sweep: bool,
}

/// Writes the schema to `out`.
///
/// # Errors
/// Those of writing.
pub(crate) fn run(args: &SchemaArgs, out: &mut dyn Write) -> io::Result<()> {
    let text = if args.sweep { sweep::SCHEMA.to_owned() } else { runner_config::schema_text() };
    out.write_all(text.as_bytes())?;
    out.flush()
}
