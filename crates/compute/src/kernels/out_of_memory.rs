//! Recognizes errors of a GPU that has too little free memory, and records what was being computed.

use candle_core::Error;

/// The names of these errors in CUDA's driver and libraries.
const NAMES: [&str; 3] = ["CUDA_ERROR_OUT_OF_MEMORY", "CUBLAS_STATUS_ALLOC_FAILED", "CURAND_STATUS_ALLOCATION_FAILED"];

/// True if a GPU had too little free memory. (A failed allocation on the CPU ends the process.)
pub fn is_out_of_memory(error: &Error) -> bool {
    match error {
        Error::WithBacktrace { inner, .. } | Error::Context { inner, .. } | Error::WithPath { inner, .. } => {
            is_out_of_memory(inner)
        }
        Error::Cuda(inner) => {
            // Some errors contain their name only in the debug form.
            let text = format!("{inner} {inner:?}");
            NAMES.iter().any(|name| text.contains(name))
        }
        _ => false,
    }
}

/// Adds what was being computed to an error of too little memory; returns other errors as they are.
pub fn with_computation(error: Error, computation: impl FnOnce() -> String) -> Error {
    if is_out_of_memory(&error) { error.context(computation()) } else { error }
}

/// Returns what was being computed, if `with_computation` has added it.
pub fn failed_computation(error: &Error) -> Option<String> {
    match error {
        Error::WithBacktrace { inner, .. } => failed_computation(inner),
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
        let located = with_computation(error().bt(), || "layer 3".to_owned());
        assert!(is_out_of_memory(&located));
        assert_eq!((failed_computation(&located).as_deref(), failed_computation(&error())), (Some("layer 3"), None));
        let other = Error::Cuda(Box::new(Driver("CUDA_ERROR_ILLEGAL_ADDRESS")));
        assert!(
            !is_out_of_memory(&other)
                && failed_computation(&with_computation(other, || "layer 3".to_owned())).is_none()
        );
        assert!(!is_out_of_memory(&Error::Msg("CUDA_ERROR_OUT_OF_MEMORY in a file's name".to_owned())));
    }
}
