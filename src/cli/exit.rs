//! The exit codes, and the code for each error.

use std::process::ExitCode;

use runner_data::DataError;
use runner_data::hub::HubError;
use runner_engine::error::EngineError;
use runner_engine::sweep::PointProblems;
use runner_exec::ExecError;
use runner_exec::eval::EvalError;
use runner_plan::PlanError;
use runner_spec::diagnostic::ConfigError;
use runner_store::StoreError;
use runner_weights::WeightsError;

/// How a command ends; the documented exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Done = 0,
    /// The run, or the machine, failed.
    Failed = 1,
    /// The request was wrong: the file, the flags, the name of a run.
    Request = 2,
    /// A command that compares found differences.
    Differ = 3,
    /// The run of a sweep's point belongs to another process; only the sweep sees this code.
    Busy = runner_engine::sweep::BUSY as isize,
    /// Stopped by Ctrl-C or SIGTERM.
    Interrupted = 130,
}

impl Exit {
    /// The exit that `code` stands for.
    pub(crate) fn from_code(code: u8) -> Self {
        [Self::Done, Self::Request, Self::Interrupted]
            .into_iter()
            .find(|exit| *exit as u8 == code)
            .unwrap_or(Self::Failed)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// A wrong request that the command line itself finds.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct RequestError(pub String);

/// The exit code of `error`.
#[must_use]
pub(crate) fn exit_of(error: &anyhow::Error) -> Exit {
    let request = error.chain().any(|cause| {
        cause.is::<ConfigError>()
            || cause.is::<RequestError>()
            || cause.downcast_ref::<PlanError>().is_some_and(PlanError::is_request)
            || cause.downcast_ref::<WeightsError>().is_some_and(WeightsError::is_request)
            || cause.downcast_ref::<DataError>().is_some_and(DataError::is_request)
            || cause.downcast_ref::<HubError>().is_some_and(HubError::is_request)
            || cause.downcast_ref::<StoreError>().is_some_and(StoreError::is_request)
            || cause.downcast_ref::<EngineError>().is_some_and(EngineError::is_request)
            || match cause.downcast_ref::<EvalError>() {
                Some(EvalError::Request(_)) => true,
                Some(EvalError::Data(error)) => error.is_request(),
                _ => false,
            }
    });
    // An error inside a run is a failure of the run, whatever its cause.
    let run = error.chain().any(<dyn std::error::Error>::is::<ExecError>);
    if request && !run { Exit::Request } else { Exit::Failed }
}

/// True if `error` says that the run belongs to another process.
#[must_use]
pub(crate) fn is_busy(error: &anyhow::Error) -> bool {
    let busy = |e: &StoreError| matches!(e, StoreError::Locked { .. } | StoreError::Busy { .. });
    error.chain().any(|cause| cause.downcast_ref::<StoreError>().is_some_and(busy))
}

/// The text for standard error about `error`.
#[must_use]
pub(crate) fn render(error: &anyhow::Error, color: bool) -> String {
    if let Some(mistakes) = error.chain().find_map(|cause| cause.downcast_ref::<ConfigError>()) {
        return mistakes.render(color);
    }
    if let Some(problems) = error.chain().find_map(|cause| cause.downcast_ref::<PointProblems>()) {
        return problems.render(color);
    }
    let label = console::style("error:").force_styling(color).red().bold();
    let mut out = format!("{label} {error}");
    let mut said = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        // Transparent errors repeat their cause.
        if !said.contains(&cause) {
            out.push_str(": ");
            out.push_str(&cause);
            said.push_str(&cause);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_failures_are_told_apart() {
        let locked = StoreError::Locked { id: "a".into(), holder: String::new() };
        let locked = anyhow::Error::from(locked).context("more");
        assert!(exit_of(&locked) == Exit::Request && is_busy(&locked));
        assert!(!is_busy(&RequestError("x".into()).into()));
        assert_eq!(exit_of(&RequestError("x".into()).into()), Exit::Request);
        assert_eq!(exit_of(&anyhow::anyhow!("x")), Exit::Failed);
        let full =
            StoreError::Io { action: "writing", path: "a".into(), source: std::io::ErrorKind::StorageFull.into() };
        assert_eq!(exit_of(&full.into()), Exit::Failed);
        let inside = ExecError::Eval(EvalError::Request("x".into()));
        assert_eq!(exit_of(&inside.into()), Exit::Failed);
    }

    #[test]
    fn causes_are_said_once() {
        let error = anyhow::Error::from(std::io::Error::other("inner")).context("outer");
        assert_eq!(render(&error, false), "error: outer: inner");
        let error = anyhow::anyhow!("inner").context("outer: inner");
        assert_eq!(render(&error, false), "error: outer: inner");
    }
}
