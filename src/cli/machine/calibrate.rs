//! `runner calibrate`: measures this machine, so that plans can predict how long a run takes.

use std::time::Instant;

use crate::cli::common::cache_dir;
use crate::cli::terminal::exit::{CommandError, Context as _, Exit, Result, refuse};
use crate::cli::terminal::output;
use runner_data::claim_cache;
use runner_executor::ExecError;
use runner_inputs::calibration::{CalibrationParts, MAX_SPREAD, load, path, save, this_processor};
use runner_machine::host::load_average;
use runner_spec::format::{counted, percent};
use runner_workflows::calibrate::{measure_parts, part_count};

/// Measure this machine's CPU, so that `runner plan` can predict how long a run takes.
///
/// The measurement takes one to two minutes. It times the program's own kernels with one thread and with all threads, and stores the
/// results in the cache folder. Measure while the machine is idle, and again after you update runner. Parts during which the machine
/// was more than a quarter slower than in its fastest part are measured again, up to three times.
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

/// The number of times that disturbed parts are measured in one call.
const ATTEMPTS: u32 = 3;

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
        let parts = measure(args, &device, cores)?;
        let mut calibration = parts.calibration();
        if let Some(disturbance) = load.or_else(|| variation(&parts)) {
            output::print_to_stderr(&format!(
                "warning: {disturbance}; plans that use this calibration warn that their predictions may be wrong"
            ));
            calibration.set_disturbance(&disturbance);
        }
        save(&dir, &calibration).map_err(|error| output::describe_write_error(&dir, error))?;
        calibration
    };
    output::print_result(args.json, &calibration, || {
        let path = path(&dir, &device, cores);
        format!("measured {device} with {cores} cores\nstored in {}; `--show --json` prints it\n", path.display())
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

/// Measures all parts, and disturbed ones again.
///
/// # Errors
/// If parts are still disturbed and `--force` is not given, or memory is short.
fn measure(args: &CalibrateArgs, device: &str, cores: usize) -> Result<CalibrationParts> {
    let mut parts = CalibrationParts::new(device, cores, args.quick);
    let all = part_count(cores, args.quick);
    let time = if args.quick { "a few seconds" } else { "one to two minutes" };
    output::print_to_stderr(&format!("calibration takes {time}; leave the machine idle meanwhile"));
    let progress = |what: &str| output::print_to_stderr(&format!("measuring {what}"));
    for attempt in 1.. {
        let started = Instant::now();
        measure_parts(&mut parts, &progress).map_err(ExecError::from).context("measuring")?;
        output::print_to_stderr(&format!("measured in {:.1} s", started.elapsed().as_secs_f64()));
        let Some(disturbed) = variation(&parts).filter(|_| !args.force) else { break };
        let left = all - parts.quiet_parts();
        if attempt == ATTEMPTS {
            refuse!("{disturbed}; run the command again, or use `--force` to store disturbed measurements, too");
        }
        output::print_to_stderr(&format!("{disturbed}; measuring {left} of {all} parts again"));
    }
    Ok(parts)
}

/// Describes how much slower the machine was in its slowest part, if parts were disturbed.
fn variation(parts: &CalibrationParts) -> Option<String> {
    let spread = Some(parts.spread()).filter(|spread| *spread > MAX_SPREAD)?;
    Some(format!(
        "the same work took up to {} longer than in its fastest run, so another program is using the CPU",
        percent(spread)
    ))
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
