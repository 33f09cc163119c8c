//! Flags of the commands that submit jobs to a scheduler.

use std::path::Path;
use std::time::Duration;

use clap::Args;
use runner_batch_jobs::{JobSettings, TEMPLATE};
use runner_files::{if_present, read_regular_text};
use runner_record::time::parse_span;

use crate::cli::terminal::exit::{Result, refuse};

/// The shortest time limit: a job must have time to prepare, train and save.
const MIN_TIME_LIMIT: Duration = Duration::from_mins(5);

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct JobArgs {
    /// Divide the ranks of a run among this many machines [default: the machines that the plan uses].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub nodes: Option<u16>,
    /// The time limit of each job, such as 90m or 12h [default: 1.5 times the predicted time, plus 10 minutes].
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

    /// The settings of jobs, with the user's template in the current folder, if there is one.
    ///
    /// # Errors
    /// If a flag does not fit Slurm or this program, or the template cannot be read.
    pub(crate) fn settings(&self) -> Result<JobSettings> {
        let path = Path::new(TEMPLATE);
        let template = if_present(read_regular_text(path)).or_else(|error| refuse!("{}: {error}", path.display()))?;
        let settings = JobSettings {
            nodes: self.nodes.map(usize::from),
            time_limit: self.time,
            options: self.options.clone(),
            template,
        };
        settings.check_options()?;
        Ok(settings)
    }
}

fn time_limit(text: &str) -> Result<Duration, String> {
    let limit = parse_span(text).ok_or("must be a time such as 90m, 12h or 2d")?;
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
        assert_eq!(time_limit("12h"), Ok(Duration::from_hours(12)));
        for (text, rule) in [("4m", "at least 5m"), ("12 h", "such as 90m"), ("90", "such as 90m")] {
            assert!(time_limit(text).unwrap_err().contains(rule), "{text}");
        }
    }

    #[test]
    fn flags_fit_slurm() {
        let args = JobArgs { options: vec!["x".to_owned()], ..JobArgs::default() };
        let error = args.settings().expect_err("it does not fit").to_string();
        assert!(error.contains("--job-option must be"), "{error}");
    }
}
