//! `runner sweep --launcher slurm`: each point a job of its own, in one array.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use super::find::absolute;
use super::preview::many;
use crate::cli::exit::{Exit, RequestError};
use runner_lab::sweep::frozen::{PlannedPoint, SweepRecord};
use runner_lab::sweep::slurm::{SlurmArray, TEMPLATE};
use runner_lab::sweep::standing::{PointProgress, read_all};
use runner_lab::sweep_dir::{SCRIPT, SweepDir};
use runner_report::Screen;

/// How points are to be submitted.
#[derive(Debug, Clone, Copy)]
pub(super) struct How<'a> {
    pub parallel: usize,
    pub threads: usize,
    pub options: &'a [String],
}

/// What a sweep must be for its points to be jobs.
///
/// # Errors
/// If it decides on points while others run, or an option is no line of a script.
pub(super) fn check(early_stop: bool, options: &[String]) -> anyhow::Result<()> {
    if early_stop {
        bail!(RequestError(
            "early_stop decides from point to point which goes on: take --launcher local, or leave early_stop out"
                .into()
        ));
    }
    if let Some(bad) = options.iter().find(|o| !o.starts_with("--") || o.contains(char::is_control)) {
        bail!(RequestError(format!("--slurm-option is an option of sbatch such as --partition=long, not {bad:?}")));
    }
    Ok(())
}

/// That Slurm can number the jobs of a sweep's points.
///
/// # Errors
/// If a point's number is too large.
pub(super) fn check_numbers(frozen: &SweepRecord) -> anyhow::Result<()> {
    let last = frozen.points.iter().filter(|p| p.same_as.is_none()).map(|p| p.index).max().unwrap_or(0);
    // What has no more points than any Slurm allows needs no question.
    let most = if last < MAX_ARRAY_SIZE { MAX_ARRAY_SIZE } else { max_array_size().unwrap_or(MAX_ARRAY_SIZE) };
    if last >= most {
        bail!(RequestError(format!(
            "jobs of an array have numbers up to {} here (MaxArraySize in slurm.conf), but the last point is {last}: make \
             several sweeps of it",
            most - 1
        )));
    }
    Ok(())
}

/// Slurm's default: one more than the largest number.
const MAX_ARRAY_SIZE: usize = 1001;

/// What Slurm says of itself; `None` if it does not.
fn max_array_size() -> Option<usize> {
    let said = slurm(Command::new("scontrol").args(["show", "config"])).ok()?;
    let mut settings = said.lines().filter_map(|line| line.split_once('='));
    settings.find(|(name, _)| name.trim() == "MaxArraySize")?.1.trim().parse().ok()
}

/// Submits the points that are neither done nor with Slurm already.
///
/// # Errors
/// If Slurm's commands are not there or refuse; a mistake in the script's template.
pub(super) fn submit(sweep: &SweepDir, root: &Path, how: How<'_>, screen: &Screen) -> anyhow::Result<Exit> {
    let frozen = sweep.frozen();
    let program = std::env::current_exe().context("this program's file")?;
    let path = absolute(sweep.path());
    // First what waits: what ends in between is done, then, and in neither list.
    let queued = queued(&path.join(SCRIPT))?;
    let open = unfinished(root, frozen);
    let points: Vec<usize> = open.iter().copied().filter(|point| !queued.contains(point)).collect();
    if points.is_empty() {
        screen.line(&format!(
            "sweep    {}: {} queued or running, the others are done",
            frozen.id,
            many(open.len(), "point")
        ));
        return Ok(Exit::Done);
    }
    let array = SlurmArray {
        program: &program,
        sweep: &path,
        points: &points,
        parallel: how.parallel,
        threads: how.threads,
        options: how.options,
    };
    let given = template()?;
    let script = array.script(frozen, given.as_deref())?;
    sweep.write_script(&script)?;
    let file = path.join(SCRIPT);
    let said = slurm(Command::new("sbatch").arg("--parsable").arg(&file))?;
    // `--parsable` prints the number, and on federations `;` and the cluster.
    let job = said.trim().split(';').next().unwrap_or_default();
    if job.is_empty() || !job.bytes().all(|b| b.is_ascii_digit()) {
        bail!("sbatch did not say which job it made: {said:?}");
    }
    screen.result_line(&format!(
        "sweep    {}: {} submitted as job {job}, {} at once ({})\n\
         next     runner sweep status {} shows how they stand; this command again submits those that failed",
        frozen.id,
        many(points.len(), "point"),
        how.parallel,
        file.display(),
        frozen.id
    ));
    Ok(Exit::Done)
}

/// Points, from 1, that are runs of their own and of which something is left to do.
fn unfinished(root: &Path, frozen: &SweepRecord) -> Vec<usize> {
    let standings = read_all(root, frozen);
    let over = |(standing, p): (&Option<PointProgress>, &PlannedPoint)| {
        standing.as_ref().is_some_and(|s| s.finding(p.steps, p.steps).is_some())
    };
    let open = standings.iter().zip(&frozen.points).filter(|(s, p)| p.same_as.is_none() && !over((s, p)));
    open.map(|(_, p)| p.index).collect()
}

/// The points that wait or run in arrays of this user whose script is `script`, of whichever call.
///
/// # Errors
/// If Slurm does not say: what is queued already must not be submitted twice.
fn queued(script: &Path) -> anyhow::Result<Vec<usize>> {
    let said = slurm(Command::new("squeue").args(["--me", "--noheader", "--array", "--format=%K %o"]))?;
    let script = script.to_string_lossy();
    let ours = said.lines().filter_map(|line| line.trim().split_once(' ')).filter(|(_, of)| of.trim() == script);
    Ok(ours.filter_map(|(point, _)| point.parse().ok()).collect())
}

/// The template of the current folder, if there is one.
fn template() -> anyhow::Result<Option<String>> {
    match std::fs::read_to_string(PathBuf::from(TEMPLATE)) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(RequestError(format!("{TEMPLATE}: {error}")).into()),
    }
}

fn start(command: &mut Command) -> anyhow::Result<std::process::Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.output().map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            RequestError(format!("there is no {name} here: jobs are submitted where Slurm's commands are")).into()
        }
        _ => anyhow::Error::from(error).context(name),
    })
}

fn slurm(command: &mut Command) -> anyhow::Result<String> {
    let output = start(command)?;
    if !output.status.success() {
        let name = command.get_program().to_string_lossy().into_owned();
        bail!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
