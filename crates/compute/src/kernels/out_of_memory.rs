//! The one place that recognizes that a device's memory was not enough.

use candle_core::Error;

/// What CUDA's driver and its libraries call it.
const NAMES: [&str; 3] = ["CUDA_ERROR_OUT_OF_MEMORY", "CUBLAS_STATUS_ALLOC_FAILED", "CURAND_STATUS_ALLOCATION_FAILED"];

/// Whether `error` says that a GPU's memory was not enough. (A failed allocation on the CPU ends the process.)
#[must_use]
pub fn is_out_of_memory(error: &Error) -> bool {
    match error {
        Error::WithBacktrace { inner, .. } | Error::Context { inner, .. } | Error::WithPath { inner, .. } => {
            is_out_of_memory(inner)
        }
        Error::Cuda(inner) => {
            // Some errors say their name only to programmers.
            let text = format!("{inner} {inner:?}");
            NAMES.iter().any(|name| text.contains(name))
        }
        _ => false,
    }
}

/// `error`, and of one that is out of memory, `place`: what was being computed.
#[must_use]
pub fn within(error: Error, place: impl FnOnce() -> String) -> Error {
    if is_out_of_memory(&error) { error.context(place()) } else { error }
}

/// What was being computed, as `within` was told.
#[must_use]
pub fn place(error: &Error) -> Option<String> {
    match error {
        Error::WithBacktrace { inner, .. } => place(inner),
        Error::Context { context, .. } if is_out_of_memory(error) => Some(context.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("DriverError({0}, \"out of memory\")")]
    struct Driver(&'static str);

    #[test]
    fn a_drivers_error_is_recognized_however_it_is_wrapped() {
        let error = || Error::Cuda(Box::new(Driver("CUDA_ERROR_OUT_OF_MEMORY")));
        assert!(is_out_of_memory(&error()) && is_out_of_memory(&error().bt()));
        let at = within(error().bt(), || "layer 3".to_owned());
        assert!(is_out_of_memory(&at));
        assert_eq!((place(&at).as_deref(), place(&error())), (Some("layer 3"), None));
        let other = Error::Cuda(Box::new(Driver("CUDA_ERROR_ILLEGAL_ADDRESS")));
        assert!(!is_out_of_memory(&other) && place(&within(other, || "layer 3".to_owned())).is_none());
        assert!(!is_out_of_memory(&Error::Msg("CUDA_ERROR_OUT_OF_MEMORY in a file's name".to_owned())));
    }
}
