//! What the CUDA driver is told of ranks on several GPUs, by variables that it reads when it starts; those that the user set stay.
//!
//! Kernels of NCCL run until another rank's have come, and two things would keep those from coming. A kernel that is loaded when it is
//! first launched may wait for all that runs on its GPU; so kernels are loaded at the start. And streams that share a queue of
//! the hardware wait for each other: by default there are 8 queues, for a rank's own stream, those of its channels and groups,
//! and NCCL's.

use std::env;
use std::process::Command;

use runner_spec::program::{Device, Program};

const VARIABLES: [(&str, &str); 2] = [("CUDA_MODULE_LOADING", "EAGER"), ("CUDA_DEVICE_MAX_CONNECTIONS", "32")];

/// Those that the user has not `set`.
fn missing(set: impl Fn(&str) -> bool) -> Vec<(&'static str, &'static str)> {
    VARIABLES.into_iter().filter(|(name, _)| !set(name)).collect()
}

fn is_set(name: &str) -> bool {
    env::var_os(name).is_some()
}

/// Gives them to the process of a rank, where it talks to others from a GPU.
pub(super) fn tell(command: &mut Command, program: &Program) {
    if program.world_size() > 1 && matches!(program.device, Device::Cuda(_)) {
        command.envs(missing(is_set));
    }
}

/// Sets them in this process, which is one of several ranks, before it starts the driver; they mean nothing to ranks on CPUs.
/// To be called before other threads are started that ask for variables.
pub fn tell_this_process() {
    if !cfg!(feature = "nccl") {
        return;
    }
    for (name, value) in missing(is_set) {
        #[expect(unsafe_code, reason = "the driver reads the environment")]
        // SAFETY: called while no other thread reads the environment but through `std::env`, which is in order with this.
        unsafe {
            env::set_var(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_user_set_stays() {
        let names =
            |set: &[&str]| missing(|name| set.contains(&name)).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(&[]), ["CUDA_MODULE_LOADING", "CUDA_DEVICE_MAX_CONNECTIONS"]);
        assert_eq!(names(&["CUDA_MODULE_LOADING"]), ["CUDA_DEVICE_MAX_CONNECTIONS"]);
    }
}
