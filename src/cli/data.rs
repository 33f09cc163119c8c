//! `runner data`: writes token shards.

pub(crate) mod prepare;
pub(crate) mod tokenizer;

use clap::{Args, Subcommand};

use crate::cli::terminal::exit::{Exit, Result};

/// Tokenize text into shards for llm.c, nanoGPT and build-nanogpt.
#[derive(Debug, Clone, Args)]
pub(crate) struct DataArgs {
    #[command(subcommand)]
    command: DataCommand,
}

#[derive(Debug, Clone, Subcommand)]
enum DataCommand {
    Prepare(prepare::PrepareArgs),
}

pub(crate) fn run(args: &DataArgs) -> Result<Exit> {
    let DataCommand::Prepare(args) = &args.command;
    prepare::run(args)
}
