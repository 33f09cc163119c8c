//! What a template may use up: minijinja counts instructions, this counts what one instruction can do.
//!
//! A guard runs before each tag. It looks at the values that the tag can reach, so that no value grows from tag to tag
//! beyond what is left alone here, adds up the text that is printed, and watches the clock.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};

use super::scan::{Kind, Piece};

/// Instructions.
pub(super) const MAX_FUEL: u64 = 5_000_000;
/// Bytes of the result, and of all that is printed on the way to it.
pub(super) const MAX_PRINTED: usize = 4 << 20;
/// Bytes of texts in one value, and values in it.
pub(super) const MAX_TEXT: usize = 1 << 20;
pub(super) const MAX_ITEMS: usize = 20_000;
const MAX_DEPTH: usize = 64;
/// Values looked at in all: a list that is reached again and again is looked at each time.
const MAX_LOOKED: usize = 50_000_000;
/// Repetitions of text that one tag may have.
const MAX_STARS: usize = 2;
/// `MAX_PRINTED` and `MAX_TEXT` of templates that make one text out of one record of a source.
const RECORD_PRINTED: usize = 64 << 20;
const RECORD_TEXT: usize = 16 << 20;
/// Far above what any template needs, which is milliseconds.
const MAX_TIME: Duration = Duration::from_secs(10);

thread_local! {
    /// When the template that this thread renders must be done.
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
    /// Bytes that this template may print, and that a value in it may have.
    static LIMITS: Cell<(usize, usize)> = const { Cell::new((MAX_PRINTED, MAX_TEXT)) };
}

/// From here on, this thread renders one template.
pub(super) fn start_clock() {
    DEADLINE.set(Some(Instant::now() + MAX_TIME));
    LIMITS.set((MAX_PRINTED, MAX_TEXT));
}

/// From here on, this thread renders a template of one record.
pub(super) fn start_record() {
    DEADLINE.set(Some(Instant::now() + MAX_TIME));
    LIMITS.set((RECORD_PRINTED, RECORD_TEXT));
}

/// Bytes that the template of this thread may print.
pub(super) fn max_printed() -> usize {
    LIMITS.get().0
}

fn max_text() -> usize {
    LIMITS.get().1
}

/// # Errors
/// If the time for the template is over.
pub(super) fn in_time() -> Result<(), Error> {
    match DEADLINE.get() {
        Some(deadline) if Instant::now() > deadline => {
            Err(beyond(format!("this takes longer than {} seconds", MAX_TIME.as_secs())))
        }
        _ => Ok(()),
    }
}

/// What a guard has to look at.
#[derive(Debug, Default)]
struct Task {
    names: Vec<String>,
    /// Bytes of the literal text before it.
    literal: usize,
    stars: usize,
    quotes: bool,
}

/// Names that were not defined, and those that were.
type Names = (Vec<String>, Vec<String>);

/// The guards of all files of one rendering.
#[derive(Debug)]
pub(super) struct Guards {
    tasks: Mutex<Vec<Task>>,
    printed: AtomicUsize,
    looked: AtomicUsize,
    /// The names of each tag that were not defined when it was last reached, and what was.
    undefined: Mutex<BTreeMap<usize, Names>>,
}

impl Guards {
    pub(super) fn new() -> Self {
        Self {
            tasks: Mutex::default(),
            printed: AtomicUsize::new(0),
            looked: AtomicUsize::new(0),
            undefined: Mutex::default(),
        }
    }

    /// Adds the guards of a file; returns the number of its first.
    pub(super) fn add(&self, pieces: &[Piece]) -> usize {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let first = tasks.len();
        let mut literal = 0;
        for piece in pieces {
            match piece.kind {
                Kind::Literal | Kind::Raw => {
                    literal += piece.inner.len();
                    tasks.push(Task::default());
                }
                Kind::Comment => tasks.push(Task::default()),
                Kind::Value | Kind::Block => {
                    let names = piece.names.clone();
                    tasks.push(Task { names, literal, stars: piece.stars.len(), quotes: piece.quotes });
                    literal = 0;
                }
            }
        }
        tasks.push(Task { literal, ..Task::default() });
        first
    }

    /// The next rendering starts with nothing used up.
    pub(super) fn reset(&self) {
        self.printed.store(0, Ordering::Relaxed);
        self.looked.store(0, Ordering::Relaxed);
    }

    /// Guard `id`.
    ///
    /// # Errors
    /// What the template uses up.
    pub(super) fn pass(&self, state: &State<'_, '_>, id: usize) -> Result<(), Error> {
        in_time()?;
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(task) = tasks.get(id) else { return Ok(()) };
        self.print(task.literal)?;
        let (mut undefined, mut texts) = (Vec::new(), task.quotes);
        for name in &task.names {
            match state.lookup(name) {
                None => undefined.push(name.clone()),
                // Names that a macro saw nothing of, and arguments that it did not get.
                Some(value) if value.is_undefined() => undefined.push(name.clone()),
                Some(value) => {
                    let mut size = Size::default();
                    let fits = measure(&value, 0, &mut size);
                    let looked = self.looked.fetch_add(size.items, Ordering::Relaxed);
                    if !fits {
                        return Err(beyond(format!("the value of `{name}` {size}")));
                    }
                    if looked > MAX_LOOKED {
                        return Err(beyond("this works on large lists too often".to_owned()));
                    }
                    texts |= size.text > 0;
                }
            }
        }
        if task.stars > MAX_STARS && texts {
            return Err(beyond(format!("more than {MAX_STARS} repetitions of text in one tag")));
        }
        let mut all = self.undefined.lock().unwrap_or_else(PoisonError::into_inner);
        if undefined.is_empty() {
            all.remove(&id);
        } else {
            let known = || state.known_variables().iter().map(ToString::to_string).collect();
            all.entry(id).or_insert_with(|| (Vec::new(), known())).0 = undefined;
        }
        Ok(())
    }

    /// Counts `bytes` of output.
    ///
    /// # Errors
    /// If they are too many.
    pub(super) fn print(&self, bytes: usize) -> Result<(), Error> {
        let before = self.printed.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > max_printed() {
            return Err(beyond(format!("this prints more than {} MB", max_printed() >> 20)));
        }
        Ok(())
    }

    /// The names of guard `id`'s tag that were not defined when it was last reached, and the names that were.
    pub(super) fn undefined(&self, id: usize) -> Option<Names> {
        self.undefined.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }
}

/// What a value takes up.
#[derive(Debug, Default)]
pub(super) struct Size {
    pub text: usize,
    pub items: usize,
    deep: bool,
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.deep {
            write!(f, "is nested more than {MAX_DEPTH} deep")
        } else if self.text > max_text() {
            write!(f, "is longer than {} MB", max_text() >> 20)
        } else {
            write!(f, "has more than {MAX_ITEMS} items")
        }
    }
}

/// Adds up what `value` takes; `false` as soon as that is too much.
pub(super) fn measure(value: &Value, depth: usize, size: &mut Size) -> bool {
    size.items += 1;
    if let Some(text) = value.as_str() {
        size.text = size.text.saturating_add(text.len());
    }
    if depth > MAX_DEPTH {
        size.deep = true;
        return false;
    }
    if size.text > max_text() || size.items > MAX_ITEMS {
        return false;
    }
    match value.kind() {
        // The length first: a lazy list that is its own double many times over must not be walked.
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => {
            let length = value.len().unwrap_or(0);
            if length > MAX_ITEMS.saturating_sub(size.items) {
                size.items = size.items.saturating_add(length);
                return false;
            }
            // What counts up to a number, such as a range, holds nothing.
            if value.kind() == ValueKind::Iterable && value.len().is_none() {
                return true;
            }
            let Ok(items) = value.try_iter() else { return true };
            for item in items {
                let inner = if value.kind() == ValueKind::Map { value.get_item(&item).ok() } else { None };
                if !measure(&item, depth + 1, size) || inner.is_some_and(|v| !measure(&v, depth + 1, size)) {
                    return false;
                }
            }
            true
        }
        _ => true,
    }
}

/// As `measure`, for the arguments of a filter or function.
///
/// # Errors
/// If one is too large.
pub(super) fn fits(values: &[Value]) -> Result<(), Error> {
    for value in values {
        let mut size = Size::default();
        if !measure(value, 0, &mut size) {
            return Err(beyond(format!("a value here {size}")));
        }
    }
    Ok(())
}

pub(super) fn beyond(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}
