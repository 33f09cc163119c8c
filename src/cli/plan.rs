//! `runner plan`: shows what a run would do and cost, without running it.

use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;

use super::common::ThreadArgs;
use super::exit::RequestError;
use super::output;
use crate::config::Experiment;
use crate::data::DataFacts;
use crate::plan::{ClusterFacts, Plan, compile};

/// Show the plan of an experiment: parameters, memory, FLOPs, steps, data, and the program.
///
/// Data is prepared (and cached) for it, since the plan depends on how much there is. Nothing is trained.
#[derive(Debug, Clone, clap::Args)]
pub struct PlanArgs {
    /// The experiment file.
    pub file: PathBuf,
    /// Override a key of the file, such as `train.steps=10`; may be given several times.
    #[arg(long, value_name = "KEY.PATH=VALUE")]
    pub set: Vec<String>,
    /// Threads that the run would compute with [default: all cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub threads: Option<u16>,
    /// Print the plan as JSON, as `plan.json` in a run directory.
    #[arg(long)]
    pub json: bool,
    /// Show every instruction of the program, and every line of the memory table.
    #[arg(long, conflicts_with = "json")]
    pub program: bool,
}

/// Plans what `inputs` gives (the experiment of `args.file` and facts of its prepared data) for this machine, and prints
/// it to standard output.
///
/// # Errors
/// Those of `inputs`; a `PlanError`; a `RUNNER_PEAK_FLOPS` that is no number; an output that cannot be written. A reader
/// that closes the pipe early is no error.
pub fn run(args: &PlanArgs, inputs: impl FnOnce() -> anyhow::Result<(Experiment, DataFacts)>) -> anyhow::Result<()> {
    let threads = ThreadArgs { threads: args.threads }.count();
    let cluster = ClusterFacts::local(threads).with_peak_flops(peak_flops(env::var_os(PEAK_FLOPS))?);
    let (experiment, data) = inputs()?;
    let plan = compile(&experiment, &data, &cluster)?;
    print(&plan, args, &mut io::stdout().lock())
}

/// The environment variable that says the device's peak FLOP/s, which MFU is reported against.
pub const PEAK_FLOPS: &str = "RUNNER_PEAK_FLOPS";

/// The peak FLOP/s that `value` of `RUNNER_PEAK_FLOPS` says.
///
/// # Errors
/// If it is no positive number.
pub fn peak_flops(value: Option<OsString>) -> anyhow::Result<Option<f64>> {
    let Some(value) = value else { return Ok(None) };
    let number = value.to_str().and_then(|text| text.trim().replace('_', "").parse::<f64>().ok());
    match number {
        Some(peak) if peak.is_finite() && peak > 0.0 => Ok(Some(peak)),
        _ => {
            let value = value.display();
            let message = format!("{PEAK_FLOPS}: {value} is no positive number; FLOP/s are meant, such as 400e9");
            Err(RequestError(message).into())
        }
    }
}

fn print(plan: &Plan, args: &PlanArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let text = if args.json {
        let mut json = serde_json::to_string_pretty(plan).context("the plan as JSON")?;
        json.push('\n');
        json
    } else {
        plan.render_with(args.program)
    };
    output::print_to(out, &text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::{compiled, experiment};

    fn args(json: bool, program: bool) -> PlanArgs {
        PlanArgs { file: PathBuf::from("exp.yaml"), set: Vec::new(), threads: Some(1), json, program }
    }

    fn printed(args: &PlanArgs) -> String {
        let mut out = Vec::new();
        print(&compiled(&experiment()), args, &mut out).expect("prints");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn json_is_the_plan() {
        let plan: Plan = serde_json::from_str(&printed(&args(true, false))).expect("JSON");
        assert_eq!(plan, compiled(&experiment()));
    }

    #[test]
    fn program_lists_each_instruction() {
        assert!(printed(&args(false, false)).contains("Load 0 … 3"));
        let full = printed(&args(false, true));
        assert!(full.contains("  Load 3\n") && full.contains("  Backward 2\n"));
    }

    #[test]
    fn the_peak_is_a_positive_number() {
        assert_eq!(peak_flops(None).expect("absent"), None);
        assert_eq!(peak_flops(Some("4_00e9".into())).expect("a number"), Some(4e11));
        for bad in ["fast", "-1", "0", "inf", ""] {
            assert!(peak_flops(Some(bad.into())).is_err(), "{bad:?} is no peak");
        }
    }
}
