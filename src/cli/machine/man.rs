//! `runner man`: writes the manual pages.

use std::fs;
use std::path::PathBuf;

use clap::{Args, CommandFactory};

use crate::cli::terminal::exit::{Exit, Result};
use crate::cli::terminal::output::{describe_write_error, print};

/// Write a manual page for each command into a folder, such as ~/.local/share/man/man1.
#[derive(Debug, Clone, Args)]
pub(crate) struct ManArgs {
    /// The folder, which is created if it is missing. Pages of the same names are replaced.
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

/// # Errors
/// If a page cannot be written.
pub(crate) fn run<C: CommandFactory>(args: &ManArgs) -> Result<Exit> {
    let folder = &args.folder;
    let written = fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(C::command(), folder));
    written.map_err(|error| describe_write_error(folder, error))?;
    print(&format!("wrote the manual pages to {0}: man {0}/runner.1\n", folder.display()))?;
    Ok(Exit::Done)
}
