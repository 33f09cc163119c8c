//! `runner import`: makes an experiment file of another trainer's configuration.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use crate::cli::models::text_source::printable_path;
use crate::cli::terminal::exit::{Exit, Result, refuse};
use crate::cli::terminal::output::{print_content, print_to_stderr, write_file};
use runner_files::parent_folder;
use runner_yaml::source::read;

/// Make an experiment file of another trainer's configuration.
#[derive(Debug, Clone, Args)]
pub(crate) struct ImportArgs {
    #[command(subcommand)]
    command: ImportCommand,
}

#[derive(Debug, Clone, Subcommand)]
enum ImportCommand {
    /// Read a nanoGPT config.py (which is not executed), or a Hugging Face config.json.
    ///
    /// Comments in the result name the setting that each value comes from, and the settings that have no counterpart. The result is checked
    /// as by `runner validate`, as far as possible without its data. A result that is not valid is still written; its mistakes are shown,
    /// and the exit code is 1.
    Config(ConfigArgs),
}

#[derive(Debug, Clone, Args)]
struct ConfigArgs {
    /// The other trainer's file.
    file: PathBuf,
    /// Write the experiment to this file [default: standard output].
    #[arg(long, short)]
    out: Option<PathBuf>,
    /// Replace the file if it exists.
    #[arg(long)]
    force: bool,
}

/// # Errors
/// If the file is of no known trainer, or the output exists and `--force` is not given.
pub(crate) fn run(args: &ImportArgs) -> Result<Exit> {
    let ImportCommand::Config(args) = &args.command;
    let text = read(&args.file, "name the configuration of another trainer, such as config.py")?;
    if let Some(out) = &args.out
        && out.canonicalize().is_ok_and(|out| args.file.canonicalize().is_ok_and(|file| file == out))
    {
        refuse!("{} is the configuration itself; name a different file for the experiment", printable_path(out));
    }
    let folder = args.out.as_deref().map_or(Path::new(""), parent_folder);
    let imported = runner_config::import_config(&text, &args.file, folder)?;
    for warning in &imported.warnings {
        print_to_stderr(&format!("warning: {warning}"));
    }
    let checked = imported.check(args.out.as_deref().unwrap_or(Path::new("standard output")));
    match &args.out {
        Some(out) => write_file(out, imported.text.as_bytes(), args.force)?,
        None => print_content(&imported.text)?,
    }
    if let Err(mistakes) = checked {
        let mistakes = mistakes.render_mistakes(console::colors_enabled_stderr());
        let (result, next) = match &args.out {
            Some(out) => (out.display().to_string(), format!(", then run\n  runner validate {}", out.display())),
            None => ("the experiment".to_owned(), String::new()),
        };
        print_to_stderr(&format!("{mistakes}{result} was written, but it is not valid; correct these values{next}"));
        return Ok(Exit::Failed);
    }
    if let Some(out) = &args.out {
        print_to_stderr(&format!("wrote {0}\n  runner validate {0}", out.display()));
    }
    Ok(Exit::Done)
}
