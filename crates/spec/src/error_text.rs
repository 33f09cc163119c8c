//! The text of an error with its causes.

use std::error::Error;

/// The text of `error` and of its causes, joined by `: `. A cause whose text is part of what was said before is left out.
pub fn error_text(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Explained {
        text: &'static str,
        source: io::Error,
    }

    #[test]
    fn every_cause_is_said_once() {
        let error = |text| error_text(&Explained { text, source: io::Error::other("gone") });
        assert_eq!(error("no run"), "no run: gone");
        assert_eq!(error("reading a: gone"), "reading a: gone");
    }
}
