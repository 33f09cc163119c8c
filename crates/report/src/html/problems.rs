//! Files that cannot be read are listed beside what can.

use std::fmt::Display;

/// The value of `result`, or the default of its type and an entry in `problems`.
pub(super) fn or_problem<T: Default>(result: Result<T, impl Display>, problems: &mut Vec<String>) -> T {
    result.unwrap_or_else(|error| {
        problems.push(error.to_string());
        T::default()
    })
}
