//! The results of commands, and the text and exit code for each error.

pub(crate) use runner_spec::error::{CommandError, Context, ErrorKind, Result};
pub(crate) use runner_spec::exit::Exit;

/// Returns an error about a wrong request, with a formatted message, from a function.
macro_rules! refuse {
    ($($message:tt)+) => {
        return Err($crate::cli::terminal::exit::CommandError::request(format!($($message)+)))
    };
}
pub(crate) use refuse;

/// The text for standard error about `error`.
#[must_use]
pub(crate) fn render(error: &CommandError, color: bool) -> String {
    let label = console::style("error:").force_styling(color).red().bold();
    error.render(&label.to_string(), color)
}

#[cfg(test)]
mod tests {
    use runner_record::RecordError;

    use super::*;

    #[test]
    fn requests_and_failures_are_distinguished() {
        let exit = |error: CommandError| Exit::of_error(error.kind());
        let locked = RecordError::Locked { id: "a".into(), holder: String::new() };
        let locked = CommandError::from(locked).context("more");
        assert_eq!(locked.kind(), ErrorKind::Busy);
        assert_eq!(exit(locked), Exit::Request);
        assert_eq!(exit(CommandError::request("x")), Exit::Request);
        assert_eq!(exit(CommandError::failure("x")), Exit::Failed);
        let full =
            RecordError::Io { action: "writing", path: "a".into(), source: std::io::ErrorKind::StorageFull.into() };
        assert_eq!(exit(full.into()), Exit::Failed);
    }
}
