//! `runner schema`: prints the JSON Schemas in `schemas/`, of the experiment file and the sweep file.

use clap::Args;

use runner_lab::sweep;

/// Flags of `runner schema`.
#[derive(Debug, Args)]
pub(crate) struct SchemaArgs {
    /// Print the schema of the sweep file instead.
    #[arg(long)]
    sweep: bool,
}

/// The text of the schema.
pub(crate) fn run(args: &SchemaArgs) -> String {
    if args.sweep { sweep::SCHEMA.to_owned() } else { runner_config::schema_text() }
}
