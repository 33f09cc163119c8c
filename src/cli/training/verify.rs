//! `runner verify`: checks every byte of a sealed run, and trains steps of it again.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::Args;
use runner_compare::verdict::Verdict;
use runner_inputs::MovedData;
use runner_report::OutputMode;
use runner_report::verdict::describe_verdict;
use runner_spec::format::{bytes, count, counted, json_value, printable, quoted_line};
use runner_workflows::seal::{FileChange, SealVerdict, Verification, VerificationEnd, VerifyRequest, verify};
use runner_workflows::session::SessionOptions;

use crate::cli::common::{MovedDataArgs, RunsFolderArgs, ThreadArgs, host, parse_non_negative, parse_steps};
use crate::cli::terminal::exit::{Exit, Result};
use crate::cli::terminal::interrupt::Interrupt;
use crate::cli::terminal::output::exit_of_screen;
use crate::cli::terminal::repeated_command::repeated_command;
use crate::cli::terminal::screen_observer::ScreenObserver;
use crate::cli::training::reproduce::ReproductionObserver;

#[derive(Debug, Clone, Args)]
pub(crate) struct VerifyArgs {
    /// The folder of a sealed run.
    pub dir: PathBuf,
    /// Train these steps again, from the sealed state before them, or from the start [default: from the sealed state to the weights].
    #[arg(long, value_name = "A..B", value_parser = parse_steps)]
    pub steps: Option<RangeInclusive<u64>>,
    /// Only compare every byte with the manifest, and the manifest with the record.
    #[arg(long, conflicts_with_all = ["steps", "data", "tolerance"])]
    pub only_files: bool,
    #[command(flatten)]
    pub data: MovedDataArgs,
    #[command(flatten)]
    pub threads: ThreadArgs,
    #[command(flatten)]
    pub root: RunsFolderArgs,
    /// The largest relative difference of a loss [default: 1e-4, in bf16 1e-2].
    #[arg(long, value_name = "X", value_parser = parse_non_negative, allow_negative_numbers = true)]
    pub tolerance: Option<f64>,
    /// Print only errors, warnings and the last lines.
    #[arg(long, short)]
    pub quiet: bool,
    /// Print events as JSON lines on standard output, everything else on standard error.
    #[arg(long)]
    pub json: bool,
}

/// # Errors
/// If there is no sealed run, the steps or the data are wrong, or training failed.
pub(crate) fn run(args: &VerifyArgs) -> Result<Exit> {
    let interrupt = Interrupt::install()?;
    let mode = OutputMode::detect(args.json, args.quiet);
    let screen = ScreenObserver::new(mode, Some(repeated_command()))?;
    let mut observer = ReproductionObserver { screen, only_check: false };
    let request = VerifyRequest {
        folder: args.dir.clone(),
        steps: args.steps.clone(),
        only_files: args.only_files,
        data: MovedData::parse(&args.data.data)?,
        tolerance: args.tolerance,
        options: SessionOptions { has_other_runs_folder: args.root.runs.is_some(), ..SessionOptions::default() },
    };
    let host = host(args.root.root(), args.threads)?;
    let result = interrupt.stoppable(|stop| verify(&request, &host, stop, &mut observer));
    let screen = observer.screen.finish();
    let found = match result? {
        VerificationEnd::Interrupted(reason) => return Ok(reason.exit()),
        VerificationEnd::Done(found) => found,
    };
    screen.json_line(&serde_json::json!({"kind": "verification", "verification": json_value(&found)}).to_string());
    screen.result_line(&describe(&found));
    let exit = match found.verdict {
        SealVerdict::Bitwise | SealVerdict::WithinTolerance | SealVerdict::Intact => Exit::Done,
        SealVerdict::Incomplete | SealVerdict::Diverged | SealVerdict::Contradictory | SealVerdict::Changed => {
            Exit::Differ
        }
    };
    exit_of_screen(&screen, exit)
}

/// The verdict in one line, then what it is about, one per line.
fn describe(found: &Verification) -> String {
    let mut lines = Vec::new();
    let weights = found.weights.as_ref().filter(|weights| !weights.equal);
    match found.verdict {
        SealVerdict::Intact => lines.push(format!("intact: every byte of {} matches its manifest", found.run)),
        SealVerdict::Changed => {
            lines.push(format!("changed: the files of {} are not those that were sealed", found.run));
        }
        SealVerdict::Contradictory => {
            lines.push(format!("contradictory: the files of {} contradict one another", found.run));
        }
        SealVerdict::Incomplete if found.steps.is_none() => {
            lines.push(format!("incomplete: no step of {} was trained again", found.run));
        }
        SealVerdict::Diverged if found.steps.as_ref().is_some_and(|steps| steps.verdict != Verdict::Diverged) => {
            lines.push("diverged: the sealed weights are not those that these steps lead to".to_owned());
        }
        _ => {}
    }
    if let Some(steps) = &found.steps {
        // A verdict on steps alone does not count the weights.
        lines.push(describe_verdict(steps));
    }
    let mut line = |name: &str, text: String| lines.push(format!("  {name:12}{text}"));
    for file in &found.changed {
        let what = match file.change {
            FileChange::Changed => "changed",
            FileChange::Missing => "missing",
            FileChange::Unreadable => "there, and cannot be read",
            FileChange::Added => "not in the manifest",
        };
        let tensor = file
            .tensor
            .as_ref()
            .map_or_else(String::new, |name| format!(", first in the tensor {}", quoted_line(name)));
        let hash = match (&file.sealed, &file.found) {
            (Some(sealed), Some(found)) => format!(": BLAKE3 {found}, was {sealed}"),
            (Some(sealed), None) => format!(": BLAKE3 was {sealed}"),
            (None, Some(found)) => format!(": BLAKE3 {found}"),
            (None, None) if file.change == FileChange::Added => ", and cannot be read".to_owned(),
            (None, None) => ": its content does not match its `content_hash`".to_owned(),
        };
        line("file", format!("{} is {what}{tensor}{hash}", quoted_line(&file.path)));
    }
    for contradiction in &found.contradictions {
        line("record", printable(contradiction));
    }
    if found.changed.is_empty() {
        line(
            "files",
            format!("{}, {}: every byte matches the manifest", counted(found.files as u64, "file"), bytes(found.bytes)),
        );
    }
    if let Some(hash) = &found.hash {
        line("hash", format!("{hash}; compare it with the one that the author published"));
    }
    match (&found.weights, weights) {
        (_, Some(weights)) => {
            let tensor =
                weights.tensor.as_ref().map_or_else(String::new, |name| format!(", first in {}", quoted_line(name)));
            line("weights", format!("those after step {} differ{tensor}", count(weights.step)));
        }
        (Some(weights), None) if weights.trained => {
            line("weights", format!("those after step {} are the sealed ones, bit for bit", count(weights.step)));
        }
        (Some(weights), None) => {
            line("weights", format!("those after step {} are those of the sealed state", count(weights.step)));
        }
        (None, None) => {}
    }
    for gap in &found.not_verified {
        line("not verified", format!(" {}", printable(gap)));
    }
    lines.join("\n")
}
