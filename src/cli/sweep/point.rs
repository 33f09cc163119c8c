//! `runner sweep point`: replaces this process with the one that trains a point, for a job of an array.

use std::os::unix::process::CommandExt;
use std::process::Command;

use super::args::PointArgs;
use crate::cli::common;
use crate::cli::terminal::exit::{Context as _, Exit, Result, refuse};
use crate::cli::terminal::output::print;
use runner_sweep::run::point_arguments;
use runner_sweep::sweep_dir;

/// # Errors
/// If there is no such sweep or point, or its process cannot be started.
pub(super) fn run(args: &PointArgs) -> Result<Exit> {
    let record = sweep_dir::read_record(&args.sweep)?;
    let Some(point) = record.point(args.point) else {
        refuse!("sweep {} has points 1 to {}, not {}", record.id, record.points.len(), args.point);
    };
    if let Some(other) = point.same_as {
        print(&format!("point {} is the same run as point {other}: nothing to do\n", point.index))?;
        return Ok(Exit::Done);
    }
    let runs = sweep_dir::runs_folder(&args.sweep);
    let mut command = Command::new(std::env::current_exe().context("this program's file")?);
    command.args(point_arguments(&args.sweep, &record, point, &runs, args.threads.count(), args.until_step)?);
    for (name, _) in common::experiment_environment() {
        command.env_remove(name);
    }
    Err(command.exec()).context("starting the point")
}
