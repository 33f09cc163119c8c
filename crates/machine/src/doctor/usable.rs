//! Asked before candle or NCCL call a library: what is missing is an error then, not the end of the process.

use super::driver;
use super::features::too_old;
use super::library::{CUBLAS_LT, DRIVER, NCCL};
use super::report::Build;

/// Whether GPUs can be used here: the driver works and shows one, and the library for matrix products is there.
///
/// # Errors
/// What is missing.
pub fn usable() -> Result<(), String> {
    let advice = |what: String| format!("{what}; `runner doctor` tells what is missing");
    if driver::count().map_err(advice)? == 0 {
        return Err(advice("the driver shows no GPU".to_owned()));
    }
    if let Some(old) = too_old(Build::here().cuda, DRIVER.facts().version.as_deref()) {
        return Err(advice(old.what));
    }
    CUBLAS_LT.open().map(drop).map_err(advice)
}

/// Whether GPUs can talk through NCCL: its library is there.
///
/// # Errors
/// What is missing.
pub fn usable_nccl() -> Result<(), String> {
    NCCL.open().map(|_| ()).map_err(|what| format!("{what}; `runner doctor` tells what is missing"))
}
