//! Panics of libraries that trust their input, as errors.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`, whose values are not used after a panic. A panic in it becomes its message, and [`is_caught`] says that it need not be
/// printed.
///
/// # Errors
/// If `work` panics on this thread.
pub fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let was_caught = IS_CAUGHT.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    IS_CAUGHT.set(was_caught);
    result.map_err(|panic| panic_message(&*panic).to_owned())
}

/// True if a panic on this thread becomes an error. A panic hook prints nothing then.
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
        assert_eq!(caught, Err("attempt to divide by zero".to_owned()));
        assert!(!is_caught());
    }
}
