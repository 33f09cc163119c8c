//! `runner reproduce`: repeats a recorded run from its own directory, and reports whether the results are equal.

use std::ops::RangeInclusive;

use clap::Args;
use runner_compare::verdict::Verdict;
use runner_inputs::{MovedData, RunEvent, RunObserver};
use runner_report::verdict::describe_verdict;
use runner_report::{OutputMode, Screen};
use runner_workflows::reproduce::{ReproduceRequest, Reproduction, find_drift, reproduce};
use runner_workflows::session::SessionOptions;

use crate::cli::common::{MovedDataArgs, RunsFolderArgs, ThreadArgs, host, parse_non_negative, parse_steps};
use crate::cli::machine::completions::runs_completer;
use crate::cli::terminal::exit::{Exit, Result};
use crate::cli::terminal::interrupt::Interrupt;
use crate::cli::terminal::output::exit_of_screen;
use crate::cli::terminal::repeated_command::repeated_command;
use crate::cli::terminal::screen_observer::ScreenObserver;

#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct ReproduceArgs {
    /// A run directory, a run's id, or a prefix of an id that no other run shares.
    #[arg(add = runs_completer())]
    pub run: String,
    /// Repeat only these steps, from the newest checkpoint before them (the start, if there is none).
    #[arg(long, value_name = "A..B", value_parser = parse_steps)]
    pub steps: Option<RangeInclusive<u64>>,
    #[command(flatten)]
    pub data: MovedDataArgs,
    #[command(flatten)]
    pub threads: ThreadArgs,
    #[command(flatten)]
    pub root: RunsFolderArgs,
    /// The largest relative difference of a loss [default: 1e-4, in bf16 1e-2].
    #[arg(long, value_name = "X", value_parser = parse_non_negative, allow_negative_numbers = true)]
    pub tolerance: Option<f64>,
    /// Only report what has changed; exit with code 3 if a change may affect the numbers.
    #[arg(long)]
    pub check: bool,
    /// Record hashes of what each step computes. If the run has a trace too, the verdict names the first tensor that differs.
    #[arg(long)]
    pub trace: bool,
    /// Print only errors, warnings and the last lines.
    #[arg(long, short)]
    pub quiet: bool,
    /// Print events as JSON lines on standard output, everything else on standard error.
    #[arg(long)]
    pub json: bool,
}

/// Shows the run, and the drift that was found before it.
pub(crate) struct ReproductionObserver {
    pub screen: ScreenObserver,
    /// True if only drift was asked for, so that even a quiet command prints it.
    pub only_check: bool,
}

impl RunObserver for ReproductionObserver {
    fn observe(&mut self, event: &RunEvent<'_>) {
        if let RunEvent::Drift { run, drift } = event {
            let printer = self.screen.printer();
            let show_line = if self.only_check { Screen::result_line } else { Screen::line };
            for line in drift.lines() {
                printer.show(show_line, line);
            }
            let json = serde_json::json!({"kind": "drift", "run": run, "drift": drift});
            printer.show(Screen::json_line, json.to_string());
        }
        self.screen.observe(event);
    }
}

/// # Errors
/// If there is no such run, its data or the checkpoint that it started from is gone, or the reproduction failed (which its record then
/// shows, too).
pub(crate) fn run(args: &ReproduceArgs) -> Result<Exit> {
    let interrupt = Interrupt::install()?;
    let mode = OutputMode::detect(args.json, args.quiet);
    let screen = ScreenObserver::new(mode, Some(repeated_command()))?;
    let mut observer = ReproductionObserver { screen, only_check: args.check };
    let request = ReproduceRequest {
        run: args.run.clone(),
        steps: args.steps.clone(),
        data: MovedData::parse(&args.data.data)?,
        is_verification: false,
        tolerance: args.tolerance,
        options: SessionOptions {
            trace: args.trace,
            has_other_runs_folder: args.root.runs.is_some(),
            ..SessionOptions::default()
        },
    };
    let host = host(args.root.root(), args.threads)?;
    if args.check {
        let drift = interrupt.stoppable(|_| find_drift(&request, &host, &mut observer));
        observer.screen.finish();
        return Ok(if drift?.may_change_numbers() { Exit::Differ } else { Exit::Done });
    }
    let result = interrupt.stoppable(|stop| reproduce(&request, &host, stop, &mut observer));
    let screen = observer.screen.finish();
    match result? {
        Reproduction::Interrupted(reason) => Ok(reason.exit()),
        Reproduction::Judged { path, verdict, .. } => {
            screen.json_line(&serde_json::json!({"kind": "verdict", "run": path, "verdict": verdict}).to_string());
            screen.result_line(&describe_verdict(&verdict));
            let exit = match verdict.verdict {
                Verdict::Diverged | Verdict::Incomplete => Exit::Differ,
                Verdict::Bitwise | Verdict::BitwiseNumbers | Verdict::WithinTolerance => Exit::Done,
            };
            exit_of_screen(&screen, exit)
        }
    }
}
