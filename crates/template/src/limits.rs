//! The limits of one rendering: time, printed text and the size of values. minijinja itself counts instructions.
//!
//! [`check_tag`] runs before each tag. It measures the variables that the tag can read, so that no value grows from tag to
//! tag without bounds, adds up the text that is printed, and watches the clock.

use std::cell::Cell;
use std::fmt;
use std::time::{Duration, Instant};

use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::tags::Tag;

/// Instructions.
pub(super) const MAX_FUEL: u64 = 5_000_000;
/// Values in a value.
const MAX_ITEMS: usize = 20_000;
const MAX_DEPTH: usize = 64;
/// Repetitions of text that one tag may have.
const MAX_STARS: usize = 2;
/// Far above what any template needs, which is milliseconds.
const MAX_TIME: Duration = Duration::from_secs(10);

/// Bytes that the template of an experiment may print, the text of `set` blocks and macros included.
pub(super) const EXPERIMENT_TEXT: usize = 4 << 20;
/// A template that makes one text out of one record of a source gets large texts.
pub(super) const RECORD_TEXT: usize = 64 << 20;

/// The resources that the rendering on this thread may use and has used.
#[derive(Debug, Clone, Copy)]
struct Usage {
    max_printed: usize,
    printed: usize,
    started: Option<Instant>,
}

thread_local! {
    static USAGE: Cell<Usage> = const { Cell::new(Usage { max_printed: EXPERIMENT_TEXT, printed: 0, started: None }) };
}

/// Starts a rendering on this thread that may print `max_printed` bytes.
pub(super) fn start(max_printed: usize) {
    USAGE.set(Usage { max_printed, printed: 0, started: Some(Instant::now()) });
}

pub(super) fn max_printed() -> usize {
    USAGE.get().max_printed
}

/// Bytes of text in one value.
fn max_value_text() -> usize {
    max_printed() / 4
}

/// Fails if the time for the template is over.
pub(super) fn check_time() -> Result<(), Error> {
    if USAGE.get().started.is_some_and(|started| started.elapsed() > MAX_TIME) {
        return Err(invalid_operation(format!("this takes longer than {} seconds", MAX_TIME.as_secs())));
    }
    Ok(())
}

/// Counts `bytes` of output.
fn count_printed(bytes: usize) -> Result<(), Error> {
    let mut usage = USAGE.get();
    usage.printed = usage.printed.saturating_add(bytes);
    USAGE.set(usage);
    if usage.printed > usage.max_printed {
        return Err(invalid_operation(format!("this prints more than {} MB", usage.max_printed >> 20)));
    }
    Ok(())
}

/// Makes `{{ … }}` print what `text_of` returns, within the limits.
pub(super) fn set_formatter(env: &mut Environment<'_>, text_of: fn(&Value) -> Result<String, Error>) {
    env.set_formatter(move |out, _, value| {
        ValueSize::measure_argument(value)?;
        let text = text_of(value)?;
        count_printed(text.len())?;
        Ok(out.write_str(&text)?)
    });
}

/// Fails if what the template has used up, or a variable that `tag` can read, exceeds a limit.
pub(super) fn check_tag(state: &State<'_, '_>, tag: &Tag) -> Result<(), Error> {
    check_time()?;
    count_printed(tag.literal_bytes)?;
    let mut has_text = tag.has_quoted_text;
    for name in tag.read.iter().chain(&tag.called) {
        let mut size = ValueSize::default();
        if state.lookup(name).is_some_and(|value| !size.add(&value, 0)) {
            return Err(invalid_operation(format!("the value of `{name}` {size}")));
        }
        has_text |= size.text > 0;
    }
    if tag.stars.len() > MAX_STARS && has_text {
        return Err(invalid_operation(format!("more than {MAX_STARS} repetitions of text in one tag")));
    }
    Ok(())
}

/// The size of one or more values.
#[derive(Debug, Default)]
pub(super) struct ValueSize {
    /// Bytes.
    pub text: usize,
    pub items: usize,
    pub largest_integer: i64,
    is_too_deep: bool,
}

impl fmt::Display for ValueSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let max_text = max_value_text();
        if self.is_too_deep {
            write!(f, "is nested more than {MAX_DEPTH} levels deep")
        } else if self.text > max_text {
            write!(f, "is longer than {} MB", max_text >> 20)
        } else {
            write!(f, "has more than {MAX_ITEMS} items")
        }
    }
}

impl ValueSize {
    /// The size of an argument of a filter, or an error if it is too large.
    pub(super) fn measure_argument(value: &Value) -> Result<Self, Error> {
        let mut size = Self::default();
        if size.add(value, 0) { Ok(size) } else { Err(invalid_operation(format!("a value here {size}"))) }
    }

    /// Adds the size of `value`, which is `depth` levels deep in another; `false` as soon as the sum is too large.
    fn add(&mut self, value: &Value, depth: usize) -> bool {
        self.items += 1;
        self.text += value.as_str().map_or(0, str::len);
        self.largest_integer = self.largest_integer.max(value.as_i64().unwrap_or(0));
        self.is_too_deep |= depth > MAX_DEPTH;
        if self.is_too_deep || self.text > max_value_text() || self.items > MAX_ITEMS {
            return false;
        }
        if !matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
            return true;
        }
        // The length is checked first, so that the loop below never walks a lazy list that was doubled many times.
        let length = value.len();
        if length.unwrap_or(0) > MAX_ITEMS.saturating_sub(self.items) {
            self.items = MAX_ITEMS + 1;
            return false;
        }
        // An iterator without a length, such as one that counts up, holds no values.
        if value.kind() == ValueKind::Iterable && length.is_none() {
            return true;
        }
        let Ok(mut items) = value.try_iter() else { return true };
        items.all(|item| {
            let inner = if value.kind() == ValueKind::Map { value.get_item(&item).ok() } else { None };
            self.add(&item, depth + 1) && inner.is_none_or(|inner| self.add(&inner, depth + 1))
        })
    }
}

/// Marks an error whose message this program wrote: what it says is shown as it is.
#[derive(Debug)]
struct OwnMessage;

impl fmt::Display for OwnMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message of runner")
    }
}

impl std::error::Error for OwnMessage {}

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
    error.detail().map_or_else(|| error.kind().to_string(), str::to_owned)
}
