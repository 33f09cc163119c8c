//! `runner validate`: checks an experiment file or a sweep file, and shows where each value of an experiment comes from.

use clap::Args;

use crate::cli::common::{ExperimentArgs, ThreadArgs, host_without_runs, warn_of_absent_files};
use crate::cli::terminal::exit::{Exit, Result, refuse};
use crate::cli::terminal::output::{print, print_to_stderr};
use crate::cli::terminal::screen_observer::PreparationObserver;
use runner_config::{ExperimentFile, LoadOptions};
use runner_data::may_join_documents;
use runner_report::Screen;
use runner_spec::data::NO_SEPARATOR_WARNING;
use runner_spec::format::counted;
use runner_sweep::run::check_sweep;

#[derive(Debug, Args)]
pub(crate) struct ValidateArgs {
    #[command(flatten)]
    experiment: ExperimentArgs,
    /// Show every value of the experiment and its origin: default, preset, file, environment or flag. Missing files are warnings.
    #[arg(long)]
    explain: bool,
}

/// Loads the file and reports that it is valid; with `--explain`, shows all values and their origins in a table instead, and warns of files
/// that are missing. Of a sweep file, it loads the experiments of all points.
///
/// # Errors
/// `ConfigError` with the mistakes of the file (exit code 2).
pub(crate) fn run(args: &ValidateArgs) -> Result<Exit> {
    let file = ExperimentFile::read(&args.experiment.file)?;
    let is_group = runner_sweep::makes_group(&file);
    let is_sweep = ["sweep", "ladder"].iter().any(|key| file.has_key(key));
    if is_sweep || is_group && !args.explain {
        return validate_sweep(args, &file);
    }
    let mut options = LoadOptions { allows_absent_files: args.explain, ..args.experiment.options()? };
    if is_group {
        options.sets.push(runner_sweep::ONE_RUN.to_owned());
    }
    let loaded = ExperimentArgs::load_file(&file, &options)?;
    warn_of_absent_files(&loaded);
    if may_join_documents(&loaded.experiment.data) {
        print_to_stderr(&format!("warning: {NO_SEPARATOR_WARNING}"));
    }
    print(&if args.explain {
        runner_config::explain(&loaded.origins)
    } else {
        format!("{}: `{}` is a valid experiment\n", args.experiment.file.display(), loaded.experiment.name)
    })?;
    Ok(Exit::Done)
}

fn validate_sweep(args: &ValidateArgs, file: &ExperimentFile) -> Result<Exit> {
    let is_group = runner_sweep::makes_group(file);
    let (spec, file) = (runner_sweep::from_file(file)?, &file.path);
    if args.explain {
        let (file, base) = (file.display(), spec.base.display());
        refuse!(
            "--explain shows the values of one experiment, but {file} is a sweep; use the file that it varies, {base}"
        );
    }
    let host = host_without_runs(ThreadArgs { threads: None })?;
    let mut screen = Screen::on_standard_error();
    let mut observer = PreparationObserver::new(&mut screen);
    let points = check_sweep(&spec, &args.experiment.options()?, &host, &mut observer)? as u64;
    let what = if is_group {
        format!("a valid experiment, whose `seeds` make a group of {}", counted(points, "run"))
    } else {
        format!("a valid sweep of {}", counted(points, "point"))
    };
    print(&format!("{}: `{}` is {what}\n", file.display(), spec.name))?;
    Ok(Exit::Done)
}
