//! `runner validate`: checks an experiment file, and shows where each of its values comes from.

use clap::Args;

use super::common::ExperimentArgs;
use super::exit::Exit;
use super::output::print;

#[derive(Debug, Args)]
pub(crate) struct ValidateArgs {
    #[command(flatten)]
    experiment: ExperimentArgs,
    /// Show every value and its origin: default, preset, file, environment or flag.
    #[arg(long)]
    explain: bool,
}

/// Loads the file and says that it is valid; with `--explain`, shows all values and their origins in a table instead.
///
/// # Errors
/// `ConfigError` with the mistakes of the file (exit code 2).
pub(crate) fn run(args: &ValidateArgs) -> anyhow::Result<Exit> {
    let loaded = args.experiment.load()?;
    print(&if args.explain {
        runner_config::explain(&loaded.origins)
    } else {
        format!("{}: `{}` is a valid experiment\n", args.experiment.file.display(), loaded.experiment.name)
    })?;
    Ok(Exit::Done)
}
