//! `runner sweep point`: runs one fixed point in this process's place, as a job of its own does.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::Context;

use super::args::PointArgs;
use crate::cli::common;
use crate::cli::exit::{Exit, RequestError};
use crate::cli::output::print;
use runner_lab::sweep::frozen::{PlannedPoint, SweepRecord};
use runner_lab::sweep_dir;
use runner_lab::sweep_dir::point_file;

/// # Errors
/// If there is no such sweep or point; else this does not return.
pub(super) fn run(args: &PointArgs) -> anyhow::Result<Exit> {
    let frozen = sweep_dir::frozen(&args.sweep)?;
    let Some(point) = frozen.point(args.point) else {
        let message = format!("sweep {} has points 1 to {}, not {}", frozen.id, frozen.points.len(), args.point);
        return Err(RequestError(message).into());
    };
    if let Some(other) = point.same_as {
        print(&format!("point {} is the same run as point {other}: nothing to do\n", point.index))?;
        return Ok(Exit::Done);
    }
    let root = sweep_dir::root(&args.sweep);
    let arguments = arguments(&args.sweep, &frozen, point, &root, args.threads.count(), None);
    let program = std::env::current_exe().context("this program's file")?;
    let mut command = Command::new(program);
    command.args(arguments);
    for (name, _) in common::experiment_environment() {
        command.env_remove(name);
    }
    Err(command.exec()).context("starting the point")
}

/// The arguments of `runner` that train `point` of the sweep in `path`, to step `until` or to its end.
pub(super) fn arguments(
    path: &Path,
    frozen: &SweepRecord,
    point: &PlannedPoint,
    root: &Path,
    threads: usize,
    until: Option<u64>,
) -> Vec<OsString> {
    let mut out: Vec<OsString> = vec!["apply".into(), point_file(path, point.index).into()];
    out.extend(["--runs".into(), root.into(), "--threads".into(), threads.to_string().into()]);
    out.extend(["--expect-plan".into(), OsString::from(&point.plan_hash)]);
    out.extend(["--sweep-point".into(), format!("{}:{}", frozen.id, point.index).into()]);
    if let Some(step) = until {
        out.extend(["--until-step".into(), step.to_string().into()]);
    }
    out
}
