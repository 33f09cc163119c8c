//! Settings that the CUDA driver and NCCL read from the environment when they start. They are needed for ranks on several GPUs;
//! variables that the user has set stay.
//!
//! A kernel of NCCL runs until the kernels of the other ranks have come, and two things could keep those from coming. A kernel that is
//! loaded at its first launch may wait for everything that runs on its GPU, so kernels are loaded at the start. Streams that share a
//! hardware queue wait for each other; by default there are 8 queues, for a rank's own stream, those of its channels and groups, and
//! NCCL's.
//!
//! Where GPUs share an NVSwitch, NCCL would let it add large buffers, in an order that differs from call to call; the same run would not
//! end with the same bits.

use std::env;
use std::process::Command;

use runner_spec::program::{Device, Program};

const VARIABLES: [(&str, &str); 3] =
    [("CUDA_MODULE_LOADING", "EAGER"), ("CUDA_DEVICE_MAX_CONNECTIONS", "32"), ("NCCL_NVLS_ENABLE", "0")];

/// The variables that the user did not set.
fn unset_variables(is_set: impl Fn(&str) -> bool) -> impl Iterator<Item = (&'static str, &'static str)> {
    VARIABLES.into_iter().filter(move |(name, _)| !is_set(name))
}

fn is_set(name: &str) -> bool {
    env::var_os(name).is_some()
}

/// Sets the variables for a rank's process, if the rank communicates with others from a GPU.
pub(super) fn set_for_child(command: &mut Command, program: &Program) {
    if program.world_size() > 1 && matches!(program.device, Device::Cuda(_)) {
        command.envs(unset_variables(is_set));
    }
}

/// Sets the variables in this process, which is one of several ranks, before it starts the driver. Ranks on CPUs ignore them. No
/// other thread that reads variables may run yet.
pub fn set_for_this_process() {
    if !cfg!(feature = "nccl") {
        return;
    }
    for (name, value) in unset_variables(is_set) {
        #[expect(unsafe_code, reason = "the driver reads the environment")]
        // SAFETY: called while no other thread reads the environment but through `std::env`, which synchronizes with this.
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
            |set: &[&str]| unset_variables(|name| set.contains(&name)).map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(&[]), ["CUDA_MODULE_LOADING", "CUDA_DEVICE_MAX_CONNECTIONS", "NCCL_NVLS_ENABLE"]);
        assert_eq!(names(&["CUDA_MODULE_LOADING", "NCCL_NVLS_ENABLE"]), ["CUDA_DEVICE_MAX_CONNECTIONS"]);
    }
}
