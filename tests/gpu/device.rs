//! The GPUs on which the tests run.

use candle_core::cuda_backend::cudarc::driver::CudaContext;

/// The variable that makes a missing GPU a failure instead of a skipped test.
const REQUIRED: &str = "RUNNER_GPU_REQUIRED";

/// The number of GPUs if it is at least `least`. `None` means that the calling test is skipped.
pub fn gpus(least: usize) -> Option<usize> {
    let found = runner_machine::doctor::check_gpus().map(|_| CudaContext::device_count().unwrap_or(0) as usize);
    match found {
        Ok(n) if n >= least => return Some(n),
        Ok(n) => println!("skipped: {n} GPUs, {least} are needed"),
        Err(why) => println!("skipped: {why}"),
    }
    // A machine need not have more than one GPU.
    assert!(least > 1 || std::env::var_os(REQUIRED).is_none(), "{REQUIRED} is set, and no GPU can be used");
    None
}
