//! `runner schema`: prints the JSON Schemas in `schemas/`, of the experiment file and the sweep file.

use clap::Args;

use crate::cli::terminal::exit::{Exit, Result};
use crate::cli::terminal::output::print;

/// Flags of `runner schema`.
#[derive(Debug, Args)]
pub(crate) struct SchemaArgs {
    /// Print the schema of the sweep file instead.
    #[arg(long)]
    sweep: bool,
}

/// # Errors
/// If standard output cannot be written.
pub(crate) fn run(args: &SchemaArgs) -> Result<Exit> {
    print(&if args.sweep { runner_sweep::SCHEMA.to_owned() } else { runner_config::schema_text() })?;
    Ok(Exit::Done)
}
