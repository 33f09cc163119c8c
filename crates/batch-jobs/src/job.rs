//! A job of Slurm, and its script, which is made from a template.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::needs::JobNeeds;
use runner_spec::error::{CommandError, Result};
use runner_spec::safe_text::is_unsafe;
use runner_template::Inputs;

/// The path of the user's template, in the current folder.
pub const TEMPLATE: &str = "templates/slurm.sh.j2";
/// The template, unless the user has one.
const BUILT_IN_TEMPLATE: &str = include_str!("../../../templates/slurm.sh.j2");

/// Before its time limit, a job is asked to stop by a signal. It then has this time to finish its step and save.
const WARNING_TIME: Duration = Duration::from_mins(2);

/// The settings of jobs that a user gives.
#[derive(Debug, Clone, Default)]
pub struct JobSettings {
    /// The number of machines for the ranks of a run; `None`: those that the plan is for.
    pub nodes: Option<usize>,
    /// The time limit; `None`: it follows from the predicted time.
    pub time_limit: Option<Duration>,
    /// Further options of sbatch, such as `--partition=long`.
    pub options: Vec<String>,
    /// The text of the user's template.
    pub template: Option<String>,
}

impl JobSettings {
    /// # Errors
    /// If one of the options cannot be a line of a script.
    pub fn check_options(&self) -> Result<()> {
        let is_legal = |option: &&String| !option.contains(char::is_control) && option.starts_with("--");
        match self.options.iter().find(|option| !is_legal(option)) {
            Some(bad) => Err(CommandError::request(format!(
                "--job-option must be an option of sbatch, such as --partition=long, got {bad:?}"
            ))),
            None => Ok(()),
        }
    }
}

/// Checks that a job can write files into `folder`, or be named like it. Slurm reads options in comments of the script, each in a line, where a
/// quotation mark or a line's end in a path could end the option and start another.
///
/// # Errors
/// If the path has such a character, or is not UTF-8.
pub fn check_folder(folder: &Path) -> Result<()> {
    let is_other = |c: char| c.is_control() || is_unsafe(c) || matches!(c, '"' | '\\');
    if folder.to_str().is_some_and(|path| !path.contains(is_other)) {
        return Ok(());
    }
    let shown = folder.to_string_lossy();
    Err(CommandError::request(format!(
        "no job can be written for {shown:?}: the path must be UTF-8 without `\"`, `\\` and control characters; use a different folder (`--runs` sets it)"
    )))
}

/// A run that Slurm is to start, or several points of a sweep.
#[derive(Debug, Clone)]
pub struct BatchJob<'a> {
    pub settings: &'a JobSettings,
    /// The id of the run or the sweep.
    pub id: &'a str,
    pub needs: JobNeeds,
    /// The number of threads of the ranks on one machine.
    pub threads: usize,
    /// The command of each rank, for a shell, without its number of threads.
    pub command: String,
    /// The absolute paths of the folder for what the job writes, and of the folder of runs.
    pub output: &'a Path,
    pub runs: &'a Path,
    /// The points; `None` for a run.
    pub array: Option<JobArray<'a>>,
}

/// An array of jobs, one for each point.
#[derive(Debug, Clone, Copy)]
pub struct JobArray<'a> {
    /// The numbers of the points, ascending.
    pub points: &'a [usize],
    /// The largest number of concurrent jobs.
    pub parallel: usize,
}

impl BatchJob<'_> {
    /// The number of machines.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.settings.nodes.unwrap_or(self.needs.nodes).clamp(1, self.needs.ranks.max(1))
    }

    /// The largest number of ranks on one machine.
    fn ranks_per_node(&self) -> usize {
        self.needs.ranks.max(1).div_ceil(self.nodes())
    }

    /// The time limit, rounded up to minutes; `None`: the partition's default.
    #[must_use]
    pub fn time_limit_minutes(&self) -> Option<u64> {
        let limit = self.settings.time_limit.or(self.needs.time_limit())?;
        Some(limit.as_secs().div_ceil(60).max(1))
    }

    /// The file with the job, from the user's template or the built-in one.
    ///
    /// # Errors
    /// If the folder's name cannot be in a script; a mistake in the template, at its place.
    pub fn script(&self) -> Result<String> {
        check_folder(self.output)?;
        check_folder(self.runs)?;
        let template = self.settings.template.as_deref().unwrap_or(BUILT_IN_TEMPLATE);
        let inputs = Inputs { vars: self.variables(), ..Inputs::default() };
        Ok(runner_template::render(template, Path::new(TEMPLATE), &inputs)?.text)
    }

    fn variables(&self) -> Map<String, Value> {
        let Self { settings, needs, .. } = self;
        let (nodes, per_node) = (self.nodes(), self.ranks_per_node());
        let cpus = self.threads.max(1).div_ceil(per_node);
        // On several machines the numbers of devices start again.
        let gpus = if nodes > 1 { needs.cuda_devices.min(per_node) } else { needs.cuda_devices };
        let values = json!({
            "name": self.id,
            "points": self.array.map(|array| point_ranges(array.points)),
            "parallel": self.array.map(|array| array.parallel),
            "ranks": needs.ranks.max(1),
            "nodes": nodes,
            "ranks_per_node": per_node,
            "cpus": cpus,
            "memory_mb": needs.memory_mb(per_node),
            "gpus": gpus,
            "minutes": self.time_limit_minutes(),
            "warning_seconds": WARNING_TIME.as_secs(),
            "options": settings.options,
            // Slurm replaces a percent sign in the name of a file.
            "output": self.output.to_string_lossy().replace('%', "%%"),
            "runs": self.runs.to_string_lossy(),
            "command": format!("{} --threads {}", self.command, cpus * per_node),
        });
        match values {
            Value::Object(map) => map,
            _ => Map::new(),
        }
    }
}

/// `1-3,7`.
fn point_ranges(points: &[usize]) -> String {
    let mut out = String::new();
    let mut rest = points;
    while let Some(&first) = rest.first() {
        let run = rest.iter().zip(first..).take_while(|(point, next)| **point == *next).count();
        let comma = if out.is_empty() { "" } else { "," };
        let _ = match run {
            1 => write!(out, "{comma}{first}"),
            n => write!(out, "{comma}{first}-{}", first + n - 1),
        };
        rest = &rest[run..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPECTED_ARRAY: &str = r#"#!/bin/sh
# Points of a sweep as an array of jobs, one for each point: written by `runner sweep --launcher slurm`.
# To change this job, put a template of your own at templates/slurm.sh.j2 in the folder where you call that command.
#SBATCH --job-name=s-12345678
#SBATCH --array=1-2%2
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --mem=514M
#SBATCH --output="/data/runs/sweeps/it's 5%%/points/%4a.job"
#SBATCH --open-mode=append
#SBATCH --requeue
# Slurm signals this script before the time limit. The run saves and ends with code 75, and the script requeues the job.
#SBATCH --signal=B:USR1@120
#SBATCH --partition=long

# The number of one job of the array is that of the array, which would requeue all of its jobs.
job="${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"
is_warned=
"#;

    fn job<'a>(settings: &'a JobSettings, array: Option<JobArray<'a>>) -> BatchJob<'a> {
        BatchJob {
            settings,
            id: "s-12345678",
            needs: JobNeeds {
                ranks: 1,
                nodes: 1,
                memory_bytes: 1 << 20,
                rank_memory_bytes: 1 << 20,
                cuda_devices: 0,
                predicted_seconds: None,
            },
            threads: 4,
            command: "runner resume /r".to_owned(),
            output: Path::new("/data/runs/sweeps/it's 5%/points"),
            runs: Path::new("/data/runs"),
            array,
        }
    }

    #[test]
    fn options_are_those_of_sbatch() {
        let check =
            |option: &str| JobSettings { options: vec![option.to_owned()], ..JobSettings::default() }.check_options();
        for good in ["--partition=long", "--comment=a b"] {
            check(good).unwrap();
        }
        for bad in ["-p long", "--comment=a\nexec evil"] {
            let error = check(bad).unwrap_err().to_string();
            assert!(error.starts_with("--job-option must be ") && error.contains(&format!("{bad:?}")), "{error}");
        }
    }

    #[test]
    fn folders_whose_names_would_end_a_line_are_refused() {
        check_folder(Path::new("/data/it's 5% of $x/é")).unwrap();
        for folder in ["/a\n#SBATCH --wrap=evil", "/a\" --wrap=evil", "/a\r", "/a\\b", "/a\u{1b}[2J", "/a\u{202e}b"] {
            let error = check_folder(Path::new(folder)).unwrap_err().to_string();
            assert!(error.contains(&format!("{folder:?}")) && !error.contains(char::is_control), "{error}");
        }
    }

    #[test]
    fn points_are_ranges() {
        assert_eq!(point_ranges(&[1, 2, 3, 7, 9, 10]), "1-3,7,9-10");
        assert_eq!((point_ranges(&[4]).as_str(), point_ranges(&[]).as_str()), ("4", ""));
    }

    #[test]
    fn an_array_asks_for_what_each_point_needs() {
        let settings = JobSettings { options: vec!["--partition=long".to_owned()], ..JobSettings::default() };
        let script = job(&settings, Some(JobArray { points: &[1, 2], parallel: 2 })).script().unwrap();
        assert!(script.starts_with(EXPECTED_ARRAY), "{script}");
        assert!(script.contains("\nsrun --cpus-per-task=4 --mpi=none runner resume /r --threads 4 &\n"), "{script}");
    }

    #[test]
    fn ranks_are_divided_among_machines() {
        let settings = JobSettings { nodes: Some(2), ..JobSettings::default() };
        let needs = JobNeeds { ranks: 3, cuda_devices: 3, predicted_seconds: Some(60.0), ..job(&settings, None).needs };
        let script = BatchJob { needs, ..job(&settings, None) }.script().unwrap();
        for part in [
            "#SBATCH --nodes=2\n#SBATCH --ntasks=3\n#SBATCH --ntasks-per-node=2\n#SBATCH --cpus-per-task=2\n",
            "#SBATCH --gpus-per-node=2\n#SBATCH --time=12\n",
            "/points/job.log\"\n",
            "\nexport RUNNER_TOKEN\n",
            "\nsrun --label --cpus-per-task=2 --mpi=none runner resume /r --threads 4 &\n",
        ] {
            assert!(script.contains(part), "{part}: {script}");
        }
        assert!(!script.contains("--array"), "{script}");
    }

    #[test]
    fn a_template_of_ones_own_is_held_to_its_variables() {
        let with = |text: &str| JobSettings { template: Some(text.to_owned()), ..JobSettings::default() };
        let settings = with("#{{ ranks }} {{ memory_mb }}\n");
        assert_eq!(job(&settings, None).script().unwrap(), "#1 514\n");
        let settings = with("\n{{ partition }}");
        let error = job(&settings, None).script().unwrap_err().to_string();
        assert!(error.contains("templates/slurm.sh.j2:2:4"), "{error}");
    }
}
