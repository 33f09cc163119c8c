//! `runner doctor`: what this machine has, and what is missing for which feature.

use super::output;
use runner_machine::doctor::DoctorReport;
use runner_report::doctor::text;

/// Say what this machine has: processor, driver, GPUs, libraries; what is ready, and what is missing for the rest.
///
/// Nothing runs on a GPU, and no file is written.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Print the report as JSON.
    #[arg(long)]
    pub json: bool,
}

/// # Errors
/// If standard output cannot be written.
pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    let report = DoctorReport::collect();
    if args.json { output::print_json(&report) } else { output::print(&text(&report)) }
}
