//! `runner seal`: makes a folder with a run's record, weights and training state that others can verify.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use runner_report::Screen;
use runner_spec::format::{bytes, count, counted, json_value, printable};
use runner_workflows::seal::{SealRequest, seal};

use crate::cli::args::checkpoint::CheckpointArgs;
use crate::cli::common::{RunsFolderArgs, ThreadArgs, host};
use crate::cli::machine::completions::runs_completer;
use crate::cli::terminal::exit::{Exit, Result};
use crate::cli::terminal::output::print_result;
use crate::cli::terminal::screen_observer::PreparationObserver;

#[derive(Debug, Clone, Args)]
pub(crate) struct SealArgs {
    /// The run: its directory, its id, or a prefix of its id.
    #[arg(add = runs_completer())]
    pub run: String,
    /// The folder to make. It must not exist.
    pub dir: PathBuf,
    #[command(flatten)]
    pub checkpoint: CheckpointArgs,
    /// Leave out the training state, which is larger than the weights. Steps can then be verified from the start of the run only.
    #[arg(long)]
    pub no_state: bool,
    #[command(flatten)]
    pub threads: ThreadArgs,
    #[command(flatten)]
    pub root: RunsFolderArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// # Errors
/// If there is no such run or checkpoint, the run trains, is private or damaged, or the folder exists or cannot be written.
pub(crate) fn run(args: &SealArgs) -> Result<Exit> {
    let request = SealRequest {
        run: args.run.clone(),
        to: args.dir.clone(),
        weights: args.checkpoint.which(),
        without_state: args.no_state,
    };
    let host = host(args.root.root(), args.threads)?;
    let mut screen = Screen::on_standard_error();
    let made = seal(&request, &host, &mut PreparationObserver::new(&mut screen))?;
    print_result(args.json, &json_value(&made), || {
        let mut out = format!(
            "sealed  {} as {}: {}, {}\nweights after step {}\n",
            made.run,
            printable(&args.dir.display().to_string()),
            counted(made.files as u64, "file"),
            bytes(made.bytes),
            count(made.step)
        );
        if let (Some(step), Some(size)) = (made.state_step, made.state_bytes) {
            let _ = write!(out, "state   after step {}, {}", count(step), bytes(size));
            if let Some([from, to]) = made.steps {
                let _ = write!(out, "; steps {} to {} can be trained again from it", count(from), count(to));
            }
            out.push('\n');
        }
        let _ =
            write!(out, "hash    {}\n        publish it with the folder: it determines every byte of it\n", made.hash);
        for note in &made.notes {
            let _ = writeln!(out, "note    {note}");
        }
        out
    })
}
