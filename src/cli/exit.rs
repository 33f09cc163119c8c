//! The exit codes, and the code for each error.

use std::error::Error;

use runner_config::ImportError;
use runner_data::DataError;
use runner_data::hub::HubError;
use runner_engine::error::EngineError;
pub(crate) use runner_engine::outcome::Exit;
use runner_engine::sweep::PointProblems;
use runner_exec::ExecError;
use runner_exec::eval::EvalError;
use runner_plan::PlanError;
use runner_record::RecordError;
use runner_record::select::SelectError;
use runner_report::export::ExportError;
use runner_spec::diagnostic::ConfigError;
use runner_weights::WeightsError;

/// A wrong request that the command line itself finds.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct RequestError(pub String);

/// Returns a [`RequestError`] with a formatted message from a function.
macro_rules! refuse {
    ($($message:tt)+) => {
        return Err($crate::cli::exit::RequestError(format!($($message)+)).into())
    };
}
pub(crate) use refuse;

/// The exit code of `error`.
#[must_use]
pub(crate) fn exit_of(error: &anyhow::Error) -> Exit {
    let request = error.chain().any(|cause| {
        cause.is::<ConfigError>()
            || cause.is::<ImportError>()
            || cause.is::<RequestError>()
            || cause.downcast_ref::<PlanError>().is_some_and(PlanError::is_request)
            || cause.downcast_ref::<WeightsError>().is_some_and(WeightsError::is_request)
            || cause.downcast_ref::<DataError>().is_some_and(DataError::is_request)
            || cause.downcast_ref::<HubError>().is_some_and(HubError::is_request)
            || cause.downcast_ref::<RecordError>().is_some_and(RecordError::is_request)
            || cause.downcast_ref::<EngineError>().is_some_and(EngineError::is_request)
            || cause.downcast_ref::<ExportError>().is_some_and(ExportError::is_request)
            || cause.is::<SelectError>()
            || match cause.downcast_ref::<EvalError>() {
                Some(EvalError::Request(_)) => true,
                Some(EvalError::Data(error)) => error.is_request(),
                _ => false,
            }
    });
    // An error inside a run is a failure of the run, whatever its cause.
    let run = error.chain().any(<dyn Error>::is::<ExecError>);
    if request && !run && !runner_template::was_thread_refused() { Exit::Request } else { Exit::Failed }
}

/// True if `error` says that the run belongs to another process.
#[must_use]
pub(crate) fn is_busy(error: &anyhow::Error) -> bool {
    let busy = |e: &RecordError| matches!(e, RecordError::Locked { .. } | RecordError::Busy { .. });
    error.chain().any(|cause| cause.downcast_ref::<RecordError>().is_some_and(busy))
}

/// The text for standard error about `error`.
#[must_use]
pub(crate) fn render(error: &anyhow::Error, color: bool) -> String {
    let label = console::style("error:").force_styling(color).red().bold();
    let render_mistakes = |cause: &(dyn Error + 'static)| {
        let mistakes = cause.downcast_ref::<ConfigError>().map(|mistakes| mistakes.render(color));
        mistakes.or_else(|| cause.downcast_ref::<PointProblems>().map(|problems| problems.render(color)))
    };
    if let Some((depth, mistakes)) = error.chain().enumerate().find_map(|(depth, e)| Some((depth, render_mistakes(e)?)))
    {
        let texts: Vec<String> = error.chain().take(depth + 1).map(ToString::to_string).collect();
        // An error that only wraps the mistakes has the same text.
        let context: Vec<&str> = texts.iter().filter(|text| **text != texts[depth]).map(String::as_str).collect();
        return if context.is_empty() { mistakes } else { format!("{label} {}:\n{mistakes}", context.join(": ")) };
    }
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
        let locked = RecordError::Locked { id: "a".into(), holder: String::new() };
        let locked = anyhow::Error::from(locked).context("more");
        assert!(exit_of(&locked) == Exit::Request && is_busy(&locked));
        assert!(!is_busy(&RequestError("x".into()).into()));
        assert_eq!(exit_of(&RequestError("x".into()).into()), Exit::Request);
        assert_eq!(exit_of(&anyhow::anyhow!("x")), Exit::Failed);
        let full =
            RecordError::Io { action: "writing", path: "a".into(), source: std::io::ErrorKind::StorageFull.into() };
        assert_eq!(exit_of(&full.into()), Exit::Failed);
        let inside = ExecError::Eval(EvalError::Request("x".into()));
        assert_eq!(exit_of(&inside.into()), Exit::Failed);
    }

    #[test]
    fn the_context_of_mistakes_is_shown() {
        let mistakes = || EngineError::from(ConfigError::new(Vec::new()));
        let shown = ConfigError::new(Vec::new()).render(false);
        assert_eq!(render(&mistakes().into(), false), shown);
        let within = anyhow::Error::from(mistakes()).context("other.yaml");
        assert_eq!(render(&within, false), format!("error: other.yaml:\n{shown}"));
    }

    #[test]
    fn causes_are_said_once() {
        let error = anyhow::Error::from(std::io::Error::other("inner")).context("outer");
        assert_eq!(render(&error, false), "error: outer: inner");
        let error = anyhow::anyhow!("inner").context("outer: inner");
        assert_eq!(render(&error, false), "error: outer: inner");
    }
}
