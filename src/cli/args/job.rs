//! Flags of the commands that submit jobs to a scheduler.

use std::path::Path;
use std::time::Duration;

use clap::Args;
use runner_batch_jobs::{JobSettings, Scheduler, parse_time_limit};
use runner_files::{if_present, read_regular_text};
use runner_spec::format::printable;

use crate::cli::terminal::exit::{Result, refuse};
use crate::cli::terminal::output::print_to_stderr;

/// The shortest time limit: a job must have time to prepare, train and save.
const MIN_TIME_LIMIT: Duration = Duration::from_mins(5);

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct JobArgs {
    /// Divide the ranks of a run among this many machines [default: the machines that the plan uses].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub nodes: Option<u16>,
    /// The time limit of each job, such as 90m or 12h, or in a form of sbatch, such as 1-12:00; a number alone is in minutes [default: 1.5
    /// times the predicted time, plus 10 minutes; in Kubernetes none].
    #[arg(long, value_name = "TIME", value_parser = time_limit)]
    pub time: Option<Duration>,
    /// An additional option for each job, such as --partition=long; may be given several times.
    #[arg(long = "job-option", value_name = "OPTION", allow_hyphen_values = true)]
    pub options: Vec<String>,
}

impl JobArgs {
    /// A flag that was given, if any was.
    pub(crate) fn first_given(&self) -> Option<&'static str> {
        let given = [
            (self.nodes.is_some(), "--nodes"),
            (self.time.is_some(), "--time"),
            (!self.options.is_empty(), "--job-option"),
        ];
        given.into_iter().find(|(is_given, _)| *is_given).map(|(_, flag)| flag)
    }

    /// The settings of jobs of `scheduler`, with the user's template in the current folder, if there is one.
    ///
    /// # Errors
    /// If a flag does not fit the scheduler or this program, or the template cannot be read.
    pub(crate) fn settings(&self, scheduler: Scheduler) -> Result<JobSettings> {
        let path = Path::new(scheduler.template_path());
        let template = if_present(read_regular_text(path)).or_else(|error| refuse!("{}: {error}", path.display()))?;
        scheduler.check_options(&self.options, template.as_deref())?;
        if scheduler == Scheduler::Kubernetes && self.nodes.is_some() {
            refuse!("--nodes has no effect in Kubernetes: each rank has its own pod");
        }
        Ok(JobSettings {
            scheduler,
            nodes: self.nodes.map(usize::from),
            time_limit: self.time,
            options: self.options.clone(),
            template,
            report: Some(|text| print_to_stderr(&format!("note: {}", printable(text)))),
        })
    }
}

fn time_limit(text: &str) -> Result<Duration, String> {
    let limit = parse_time_limit(text).ok_or(
        "must be a time such as 90m, 12h or 2d, or in a form of sbatch, such as 90 (minutes), 12:00:00 or 1-12:00",
    )?;
    if limit < MIN_TIME_LIMIT {
        return Err("must be at least 5m, because a job needs time to prepare, train and save".to_owned());
    }
    Ok(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_limit_leaves_time_to_save() {
        assert_eq!(["12h", "0-12"].map(time_limit), [const { Ok(Duration::from_hours(12)) }; 2]);
        for (text, rule) in
            [("4m", "at least 5m"), ("4:59", "at least 5m"), ("0", "at least 5m"), ("12 h", "such as 90m")]
        {
            assert!(time_limit(text).unwrap_err().contains(rule), "{text}");
        }
    }

    #[test]
    fn flags_fit_the_scheduler() {
        for (args, scheduler, rule) in [
            (JobArgs { nodes: Some(2), ..JobArgs::default() }, Scheduler::Kubernetes, "each rank has its own pod"),
            (JobArgs { options: vec!["x".to_owned()], ..JobArgs::default() }, Scheduler::Slurm, "--job-option must be"),
        ] {
            let error = args.settings(scheduler).expect_err("it does not fit").to_string();
            assert!(error.contains(rule), "{error}");
        }
    }
}
