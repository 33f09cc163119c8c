//! `runner calibrate`: measures this machine, so that plans can predict how long a run takes.

use std::time::Instant;

use anyhow::Context;

use super::common::cache_dir;
use super::exit::{Exit, RequestError};
use super::output;
use runner_engine::calibrate::{Effort, calibrate, load, path, save, this_processor};
use runner_report::calibration::calibration_text;

/// Measure this machine's CPU, so that `runner plan` can predict how long a run takes.
///
/// The measurement takes about half a minute. It times the program's own kernels with one thread and with all threads, and
/// stores the results in the cache folder. Measure while the machine is idle, and again after an update of the program.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct CalibrateArgs {
    /// Measure fewer sizes, which takes a few seconds.
    #[arg(long, conflicts_with = "show")]
    pub quick: bool,
    /// Show the stored measurements and measure nothing.
    #[arg(long)]
    pub show: bool,
    /// Print the measurements as JSON.
    #[arg(long)]
    pub json: bool,
}

/// # Errors
/// If there is nothing to show, the machine is short of memory, or the cache folder cannot be written.
pub(crate) fn run(args: &CalibrateArgs) -> anyhow::Result<Exit> {
    let dir = cache_dir()?;
    let (device, cores) = this_processor();
    let calibration = if args.show {
        load(&dir, &device, cores).ok_or_else(|| {
            RequestError(format!("{device} with {cores} cores has not been measured yet: run `runner calibrate`"))
        })?
    } else {
        let effort = if args.quick { Effort::Quick } else { Effort::Full };
        let started = Instant::now();
        let progress = |what: &str| output::print_to_stderr(&format!("measuring {what}"));
        let calibration = calibrate(&device, cores, effort, &progress).context("measuring")?;
        save(&dir, &calibration).with_context(|| format!("writing to {}", dir.display()))?;
        output::print_to_stderr(&format!("measured in {:.1} s", started.elapsed().as_secs_f64()));
        calibration
    };
    output::print_result(args.json, &calibration, || {
        let table = calibration_text(&device, cores, &calibration.rates);
        format!("{table}kept in {}\n", path(&dir, &device, cores).display())
    })
}
