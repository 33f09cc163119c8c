//! `runner data`: writes token shards, and shows the contents of shards.

use clap::{Args, Subcommand};

use super::data_inspect;
use super::data_prepare;
use super::exit::{Exit, Result};

/// Tokenize text into shards for llm.c, nanoGPT and build-nanogpt, or show the contents of a shard.
#[derive(Debug, Clone, Args)]
pub(crate) struct DataArgs {
    #[command(subcommand)]
    command: DataCommand,
}

#[derive(Debug, Clone, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "there is one of it at a time")]
enum DataCommand {
    Prepare(data_prepare::PrepareArgs),
    Inspect(data_inspect::InspectArgs),
}

pub(crate) fn run(args: &DataArgs) -> Result<Exit> {
    match &args.command {
        DataCommand::Prepare(args) => data_prepare::run(args),
        DataCommand::Inspect(args) => data_inspect::run(args),
    }
}
