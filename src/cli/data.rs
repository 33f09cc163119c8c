//! `runner data`: writes token shards, and shows the contents of shards.

pub(crate) mod inspect;
pub(crate) mod prepare;
pub(crate) mod tokenizer;

use clap::{Args, Subcommand};

use crate::cli::terminal::exit::{Exit, Result};

/// Tokenize text into shards for llm.c, nanoGPT and build-nanogpt, or show the contents of a shard.
#[derive(Debug, Clone, Args)]
pub(crate) struct DataArgs {
    #[command(subcommand)]
    command: DataCommand,
}

#[derive(Debug, Clone, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "there is one of it at a time")]
enum DataCommand {
    Prepare(prepare::PrepareArgs),
    Inspect(inspect::InspectArgs),
}

pub(crate) fn run(args: &DataArgs) -> Result<Exit> {
    match &args.command {
        DataCommand::Prepare(args) => prepare::run(args),
        DataCommand::Inspect(args) => inspect::run(args),
    }
}
