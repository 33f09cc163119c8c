//! Asks a person to confirm a removal.

use std::io::{self, BufRead, IsTerminal, Write};

use crate::cli::terminal::exit::{Result, refuse};
use runner_spec::safe_text::terminal_text;

/// Asks `question` on the terminal. Any answer but `y` or `yes` is a no.
///
/// # Errors
/// If standard input or standard error is not a terminal.
pub(crate) fn confirmed(question: &str) -> Result<bool> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        refuse!("cannot ask for confirmation without a terminal; use `--yes` to remove without asking");
    }
    write!(io::stderr(), "{} [y/N] ", terminal_text(question))?;
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
