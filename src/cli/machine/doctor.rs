//! `runner doctor`: shows what this machine has, and what it lacks for each feature.

use crate::cli::terminal::exit::{Exit, Result};
use crate::cli::terminal::output::print_result;
use runner_machine::doctor::DoctorReport;
use runner_report::doctor::doctor_text;
use runner_workflows::session_facts::cpu_instructions;

/// Show the processor, driver, GPUs and libraries of this machine, and which features are ready to use.
///
/// For each feature that is not ready, the report says what is missing. Nothing runs on a GPU, and no file is written.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Print the report as JSON.
    #[arg(long)]
    pub json: bool,
}

/// # Errors
/// If standard output cannot be written.
pub(crate) fn run(args: &DoctorArgs) -> Result<Exit> {
    let report = DoctorReport::collect(cpu_instructions());
    print_result(args.json, &report, || doctor_text(&report))
}
