//! Asking a person before something goes.

use std::io::{self, BufRead, IsTerminal, Write};

use super::exit::RequestError;

/// Asks `question` on a terminal; anything but yes is no.
///
/// # Errors
/// Where nobody can be asked: `--yes` says it beforehand.
pub(super) fn confirmed(question: &str) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(RequestError("nobody is here to be asked: --yes removes it".to_owned()).into());
    }
    write!(io::stderr(), "{question} [y/N] ")?;
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(is_yes(&answer))
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_is_yes() {
        assert!(["y\n", "Y", " yes \n", "YES"].iter().all(|a| is_yes(a)));
        assert!(["", "\n", "n", "no", "yeah", "y y"].iter().all(|a| !is_yes(a)));
    }
}
