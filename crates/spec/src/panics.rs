//! Panics of libraries that trust their input, as errors.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// The message of a panic that was caught.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CaughtPanic(pub String);

/// Runs `work`, and returns a panic as an error. The caller must not use the values of `work` after a panic. While `work`
/// runs, [`is_caught`] is true, so that the panic hook prints nothing.
///
/// # Errors
/// If `work` panics on this thread.
pub fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, CaughtPanic> {
    let was_caught = IS_CAUGHT.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    IS_CAUGHT.set(was_caught);
    result.map_err(|panic| CaughtPanic(panic_message(&*panic).to_owned()))
}

/// True if a panic on this thread becomes an error of [`catch_panic`]. A panic hook prints nothing in this case.
#[must_use]
pub fn is_caught() -> bool {
    IS_CAUGHT.get()
}

/// The message of a panic.
#[must_use]
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_its_message() {
        assert_eq!(catch_panic(|| 1 + 1), Ok(2));
        let zero = || 0_i32;
        let caught = catch_panic(|| {
            assert!(is_caught());
            10 / zero()
        });
        assert_eq!(caught, Err(CaughtPanic("attempt to divide by zero".to_owned())));
        assert!(!is_caught());
    }
}
