//! The schedulers for which jobs are written.

use std::path::Path;

use serde_json::{Map, Value};

use runner_record::run_dir::{KUBERNETES_JOB, PBS_SCRIPT, SLURM_SCRIPT};
use runner_spec::error::{CommandError, Result};
use runner_spec::safe_text::is_unsafe;

/// Checks that a job can write files into `folder`, or be named like it. Schedulers read options in comments of the script, each in a
/// line, where a quotation mark or a line's end in a path could end the option and start another.
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

/// A scheduler of batch jobs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Scheduler {
    #[default]
    Slurm,
    Pbs,
    Kubernetes,
}

impl Scheduler {
    /// The name of the file with a job.
    #[must_use]
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Slurm => SLURM_SCRIPT,
            Self::Pbs => PBS_SCRIPT,
            Self::Kubernetes => KUBERNETES_JOB,
        }
    }

    /// The path of the user's template, in the current folder.
    #[must_use]
    pub fn template_path(self) -> &'static str {
        match self {
            Self::Slurm => "templates/slurm.sh.j2",
            Self::Pbs => "templates/pbs.sh.j2",
            Self::Kubernetes => "templates/kubernetes.yaml.j2",
        }
    }

    /// The template, unless the user has one.
    pub(crate) fn built_in_template(self) -> &'static str {
        match self {
            Self::Slurm => include_str!("../../../templates/slurm.sh.j2"),
            Self::Pbs => include_str!("../../../templates/pbs.sh.j2"),
            Self::Kubernetes => include_str!("../../../templates/kubernetes.yaml.j2"),
        }
    }

    /// Checks what a user gives as options of the scheduler; `template` is the user's own.
    ///
    /// # Errors
    /// If one cannot be a line of a script or, for Kubernetes, gives no value that the template reads.
    pub fn check_options(self, options: &[String], template: Option<&str>) -> Result<()> {
        let template = template.unwrap_or_else(|| self.built_in_template());
        let is_read = |name: &str, value: &str| {
            let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let reads = |rest: &str| rest.strip_prefix(name).is_some_and(|after| !after.starts_with(is_word));
            let is_path = name != "folder" || value.starts_with('/');
            !name.is_empty() && is_path && !value.is_empty() && template.split("options.").skip(1).any(reads)
        };
        let is_legal = |option: &&String| {
            !option.contains(char::is_control)
                && match self {
                    Self::Slurm => option.starts_with("--"),
                    Self::Pbs => option.starts_with('-'),
                    Self::Kubernetes => option.split_once('=').is_some_and(|(name, value)| is_read(name, value)),
                }
        };
        let expected = match self {
            Self::Slurm => "an option of sbatch, such as --partition=long",
            Self::Pbs => "an option of qsub, such as \"-q long\"",
            Self::Kubernetes => {
                "a value that the template reads as options.NAME: image=registry/runner:1, claim=NAME or folder=/PATH"
            }
        };
        match options.iter().find(|option| !is_legal(option)) {
            Some(bad) => Err(CommandError::request(format!("--job-option must be {expected}, got {bad:?}"))),
            None => Ok(()),
        }
    }

    /// The options as a template reads them: lines or, for Kubernetes, values by name.
    pub(crate) fn template_options(self, options: &[String]) -> Value {
        if self != Self::Kubernetes {
            return options.into();
        }
        let pairs = options.iter().filter_map(|option| option.split_once('='));
        pairs.map(|(name, value)| (name.to_owned(), value.into())).collect::<Map<_, _>>().into()
    }

    /// The name of a job for the run or sweep `id`. Names in Kubernetes are those of hosts, with a number after them.
    pub(crate) fn job_name(self, id: &str) -> String {
        const MAX_HOST_NAME: usize = 50;
        if self != Self::Kubernetes {
            return id.to_owned();
        }
        let legal = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
        let name: String = id.chars().map(legal).collect();
        // The hash at the end distinguishes ids.
        let name = &name[name.len().saturating_sub(MAX_HOST_NAME)..];
        let name = name.trim_matches('-');
        if name.starts_with(|c: char| c.is_ascii_alphabetic()) { name.to_owned() } else { format!("run-{name}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_those_of_the_scheduler() {
        let check = |scheduler: Scheduler, option: &str| scheduler.check_options(&[option.to_owned()], None);
        for (scheduler, good, bad) in [
            (Scheduler::Slurm, "--partition=long", "-p long"),
            (Scheduler::Slurm, "--comment=a b", "--comment=a\nexec evil"),
            (Scheduler::Pbs, "-q long", "long"),
            (Scheduler::Kubernetes, "image=a/b:1", "image"),
            (Scheduler::Kubernetes, "claim=disk", "imag=a/b:1"),
            (Scheduler::Kubernetes, "folder=/runs", "folder=runs"),
            (Scheduler::Kubernetes, "image=a", "image="),
        ] {
            check(scheduler, good).unwrap();
            let error = check(scheduler, bad).unwrap_err().to_string();
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
    fn a_name_in_kubernetes_is_that_of_a_host() {
        for (id, name) in
            [("lab-1a2b3c4d", "lab-1a2b3c4d"), ("My_Lab.é-1a2b3c4d-2", "my-lab---1a2b3c4d-2"), ("7-0f", "run-7-0f")]
        {
            assert_eq!(Scheduler::Kubernetes.job_name(id), name);
        }
        let long = Scheduler::Kubernetes.job_name(&format!("{}-1a2b3c4d", "x".repeat(90)));
        assert!(long.len() == 50 && long.ends_with("-1a2b3c4d"), "{long}");
        assert_eq!(Scheduler::Slurm.job_name("My_Lab.é"), "My_Lab.é");
    }
}
