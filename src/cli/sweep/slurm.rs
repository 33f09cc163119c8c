//! `runner sweep --launcher slurm`: each point a job of its own, in one array.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use super::find::absolute;
use super::preview::many;
use crate::cli::exit::{Exit, RequestError};
use crate::report::Screen;
use crate::store::manifest::RunStatus;
use crate::store::sweep_dir::SweepDir;
use crate::store::time;
use crate::sweep::frozen::Frozen;
use crate::sweep::slurm::{Array, Submitted, TEMPLATE};
use crate::sweep::standing::read_all;

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

/// Submits the points that are neither done nor with Slurm already.
///
/// # Errors
/// If Slurm's commands are not there or refuse; a mistake in the script's template.
pub(super) fn submit(sweep: &SweepDir, root: &Path, how: How<'_>, screen: &Screen) -> anyhow::Result<Exit> {
    let frozen = sweep.frozen();
    let before = sweep.submitted()?;
    let open = unfinished(root, frozen);
    let queued = before.iter().map(queued).collect::<anyhow::Result<Vec<_>>>()?.concat();
    let points: Vec<usize> = open.iter().copied().filter(|point| !queued.contains(point)).collect();
    if points.is_empty() {
        screen.line(&format!(
            "sweep    {}: {} queued or running, the others are done",
            frozen.id,
            many(open.len(), "point")
        ));
        return Ok(Exit::Done);
    }
    let program = std::env::current_exe().context("this program's file")?;
    let path = absolute(sweep.path());
    let array = Array {
        program: &program,
        sweep: &path,
        points: &points,
        parallel: how.parallel,
        threads: how.threads,
        options: how.options,
    };
    let given = template()?;
    let script = array.script(frozen, given.as_deref())?;
    let file = sweep.write_script(&script)?;
    let said = slurm(Command::new("sbatch").arg("--parsable").arg(&file))?;
    // `--parsable` prints the number, and on federations `;` and the cluster.
    let job = said.trim().split(';').next().unwrap_or_default().to_owned();
    if job.is_empty() || !job.bytes().all(|b| b.is_ascii_digit()) {
        bail!("sbatch did not say which job it made: {said:?}");
    }
    let mut all = before;
    all.push(Submitted { job: job.clone(), at: time::now(), points: points.clone() });
    sweep.note_submitted(&all)?;
    screen.last(&format!(
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

/// Points, from 1, that are runs of their own and not done.
fn unfinished(root: &Path, frozen: &Frozen) -> Vec<usize> {
    let standings = read_all(root, frozen);
    let done = |i: usize| standings[i].as_ref().is_some_and(|s| s.status == RunStatus::Done);
    let open = frozen.points.iter().enumerate().filter(|(i, p)| p.same_as.is_none() && !done(*i));
    open.map(|(_, p)| p.index).collect()
}

/// The points of an array that still wait or run.
fn queued(submitted: &Submitted) -> anyhow::Result<Vec<usize>> {
    let mut command = Command::new("squeue");
    command.args(["--noheader", "--array", "--format=%K", "--jobs", &submitted.job]);
    let output = start(&mut command)?;
    // Slurm forgets jobs some minutes after their end, and then says so by an error.
    let said =
        if output.status.success() { String::from_utf8_lossy(&output.stdout).into_owned() } else { String::new() };
    Ok(said.lines().filter_map(|line| line.trim().parse().ok()).collect())
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
