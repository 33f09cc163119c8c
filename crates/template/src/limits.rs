//! The limits of one rendering: minijinja counts instructions, and the output has a largest size. Also the messages of this program.

use std::io::{self, Write};

use minijinja::{Environment, Error, ErrorKind, Template, Value};

/// Instructions.
pub(super) const MAX_FUEL: u64 = 5_000_000;
/// Bytes of one file.
pub(super) const MAX_FILE_BYTES: u64 = 128 << 10;
/// Bytes that the template of an experiment may print.
pub(super) const EXPERIMENT_TEXT: usize = 4 << 20;
/// A template that makes one text out of one record of a source gets large texts.
pub(super) const RECORD_TEXT: usize = 64 << 20;

/// Renders `template` with the variables of `context` to at most `max_text` bytes.
pub(super) fn render_within(template: &Template<'_, '_>, context: Value, max_text: usize) -> Result<String, Error> {
    let mut out = LimitedText { text: Vec::new(), limit: max_text };
    template.render_captured_to(context, &mut out)?;
    String::from_utf8(out.text).map_err(|error| invalid_operation(error.to_string()))
}

struct LimitedText {
    text: Vec<u8>,
    limit: usize,
}

impl Write for LimitedText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.text.len() + bytes.len() > self.limit {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Makes `{{ … }}` print what `text_of` returns.
pub(super) fn set_formatter(env: &mut Environment<'_>, text_of: fn(&Value) -> Result<String, Error>) {
    env.set_formatter(move |out, _, value| Ok(out.write_str(&text_of(value)?)?));
}

/// Marks an error whose message this program wrote: what it says is shown as it is.
#[derive(Debug, thiserror::Error)]
#[error("a message of runner")]
struct OwnMessage;

/// An error whose second line, if there is one, is what to do.
pub(super) fn invalid_operation(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message).with_source(OwnMessage)
}

/// True if [`invalid_operation`] made `error`.
pub(super) fn is_own(error: &Error) -> bool {
    std::error::Error::source(error).is_some_and(<dyn std::error::Error>::is::<OwnMessage>)
}

/// The message of `error`, without its place.
pub fn error_detail(error: &Error) -> String {
    match error.kind() {
        ErrorKind::WriteFailure => "the template prints too much".to_owned(),
        kind => error.detail().map_or_else(|| kind.to_string(), str::to_owned),
    }
}
