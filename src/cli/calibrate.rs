//! `runner calibrate`: measures this machine, so that plans can predict how long a run takes.

use std::time::Instant;

use super::common::cache_dir;
use super::exit::{CommandError, Context as _, Exit, Result, refuse};
use super::output;
use runner_data::claim_cache;
use runner_engine::calibrate::{Effort, Measurement, calibrate};
use runner_exec::ExecError;
use runner_machine::host::load_average;
use runner_prepare::calibration::{Calibration, load, path, save, this_processor};
use runner_report::calibration::calibration_text;
use runner_spec::format::{counted, percent};

/// Measure this machine's CPU, so that `runner plan` can predict how long a run takes.
///
/// The measurement takes about 40 s. It times the program's own kernels with one thread and with all threads, and stores the
/// results in the cache folder. Measure while the machine is idle, and again after you update runner. If the machine is busy, or
/// its measurements vary by more than a quarter twice in a row, nothing is stored.
#[derive(Debug, Clone, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct CalibrateArgs {
    /// Measure fewer sizes, which takes a few seconds.
    #[arg(long, conflicts_with = "show")]
    pub quick: bool,
    /// Show the stored measurements without measuring.
    #[arg(long)]
    pub show: bool,
    /// Measure even if the machine is busy, and store measurements that vary.
    #[arg(long, conflicts_with = "show")]
    pub force: bool,
    /// Print the measurements as JSON.
    #[arg(long)]
    pub json: bool,
}

/// The largest spread of a measurement on an idle machine.
const MAX_SPREAD: f64 = 0.25;
/// The number of times that a machine is measured before its measurements count as disturbed.
const ATTEMPTS: u32 = 2;

/// # Errors
/// If there is nothing to show, the machine is busy or short of memory, or the cache folder cannot be written.
pub(crate) fn run(args: &CalibrateArgs) -> Result<Exit> {
    let dir = cache_dir()?;
    let (device, cores) = this_processor();
    let calibration = if args.show {
        load(&dir, &device, cores).ok_or_else(|| {
            CommandError::request(format!(
                "{device} with {cores} cores has not been measured yet; run `runner calibrate`"
            ))
        })?
    } else {
        let load = load_problem(load_average(), cores);
        if let Some(problem) = load.as_ref().filter(|_| !args.force) {
            refuse!(
                "this machine is busy: {problem}; run the command a minute after other work has ended, or use \
                 `--force` to measure now"
            );
        }
        // A folder that cannot hold the result is refused before the measurement.
        claim_cache(&dir)?;
        let (mut calibration, variation) = measure(args, &device, cores)?;
        if let Some(disturbance) = load.or(variation) {
            output::print_to_stderr(&format!(
                "warning: {disturbance}; plans that use this calibration warn that their predictions may be wrong"
            ));
            calibration.set_disturbance(&disturbance);
        }
        save(&dir, &calibration).map_err(|error| output::describe_write_error(&dir, error))?;
        calibration
    };
    output::print_result(args.json, &calibration, || {
        let table = calibration_text(&device, cores, &calibration.rates);
        format!("{table}stored in {}\n", path(&dir, &device, cores).display())
    })
}

/// Describes why a machine with `cores` cores and the load average `load` is too busy to be measured, if it is.
fn load_problem(load: Option<f64>, cores: usize) -> Option<String> {
    let load = load.filter(|load| *load > cores as f64)?;
    Some(format!(
        "on average, {load:.1} processes were running over the last minute, on {}",
        counted(cores as u64, "core")
    ))
}

/// Measures this machine, and measures once more if the measurements vary. If they still vary, returns by how much.
///
/// # Errors
/// If they still vary and `--force` is not given; if memory is short.
fn measure(args: &CalibrateArgs, device: &str, cores: usize) -> Result<(Calibration, Option<String>)> {
    let (effort, time) = if args.quick { (Effort::Quick, "a few seconds") } else { (Effort::Full, "about 40 s") };
    output::print_to_stderr(&format!("calibration takes {time}; leave the machine idle meanwhile"));
    let progress = |what: &str| output::print_to_stderr(&format!("measuring {what}"));
    let mut attempt = 0;
    loop {
        attempt += 1;
        let started = Instant::now();
        let Measurement { calibration, spread } =
            calibrate(device, cores, effort, &progress).map_err(ExecError::from).context("measuring")?;
        output::print_to_stderr(&format!("measured in {:.1} s", started.elapsed().as_secs_f64()));
        if spread <= MAX_SPREAD {
            return Ok((calibration, None));
        }
        let disturbed = format!(
            "the same work took up to {} longer than in its fastest run, so another program is using the \
                CPU",
            percent(spread)
        );
        if args.force {
            return Ok((calibration, Some(disturbed)));
        }
        if attempt == ATTEMPTS {
            refuse!(
                "{disturbed}; nothing was stored; run the command while the machine is idle, or use `--force` to \
                 store the measurements anyway"
            );
        }
        output::print_to_stderr(&format!("{disturbed}; measuring once more"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_with_more_work_than_cores_is_busy() {
        let problem = load_problem(Some(2.5), 2).unwrap();
        assert!(problem.contains("2.5 processes") && problem.contains("2 cores"), "{problem}");
        assert_eq!(load_problem(Some(2.0), 2), None);
        assert_eq!(load_problem(None, 1), None, "the kernel does not say");
    }
}
