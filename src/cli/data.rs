//! `runner data`: text to token shards, and what files hold.

use clap::{Args, Subcommand};

use super::data_inspect;
use super::data_prepare;
use super::exit::Exit;

/// Write token shards of text for llm.c, nanoGPT and build-nanogpt, or see what a file of tokens or text holds.
#[derive(Debug, Clone, Args)]
pub(crate) struct DataArgs {
    #[command(subcommand)]
    command: DataCommand,
}

#[derive(Debug, Clone, Subcommand)]
enum DataCommand {
    Prepare(data_prepare::PrepareArgs),
    Inspect(data_inspect::InspectArgs),
}

/// # Errors
/// As the subcommands.
pub(crate) fn run(args: &DataArgs) -> anyhow::Result<Exit> {
    match &args.command {
        DataCommand::Prepare(args) => data_prepare::run(args),
        DataCommand::Inspect(args) => data_inspect::run(args),
    }
}
