//! The facts that a session records about this program, this machine and their environment.

use std::collections::BTreeSet;

use runner_compute::kernels::cpu::product::Bf16Products;
use runner_compute::kernels::cpu::simd::{instruction_set, matmul_instruction_set};
use runner_machine::host::Machine;
use runner_machine::platform::{CpuInstructions, Platform, gpus_and_libraries};
use runner_record::manifest::{Session, SessionLayout};
use runner_spec::data::TEXT_READING_RULE;
use runner_spec::experiment::{Experiment, Precision};
use runner_spec::plan::Plan;
use runner_spec::program::Device;

use runner_inputs::Host;

/// The instruction sets that this program uses on this machine.
pub fn cpu_instructions() -> CpuInstructions {
    CpuInstructions {
        vector_instructions: instruction_set(),
        matmul_instructions: matmul_instruction_set(),
        bf16_matmul_instructions: Bf16Products::in_use().instruction_set(),
    }
}

/// A session of this program on `host`, which has not started: it would run `plan`, that of `experiment`.
pub fn describe_session(host: &Host, experiment: &Experiment, plan: &Plan) -> Session {
    let mut environment = host.platform_environment.clone();
    environment.extend(host.recorded_environment.clone());
    Session {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        threads: host.threads,
        machine: Machine::detect(),
        environment,
        platform: Some(detect_platform(host, plan)),
        layout: Some(SessionLayout::of(experiment)),
        text_reading_rule: TEXT_READING_RULE,
        ..Session::default()
    }
}

fn detect_platform(host: &Host, plan: &Plan) -> Platform {
    let gpu_of = |device| match device {
        Device::Cuda(index) => Some(index),
        Device::Cpu => None,
    };
    let used = || plan.ranks.iter().filter_map(|rank| gpu_of(rank.device));
    // Each machine sees its own GPUs, whose numbers are those of the ranks on it.
    let indices: BTreeSet<usize> = used().collect();
    let (gpus, gpu_libraries) = gpus_and_libraries(&indices, used().count() > 1);
    let is_bf16 = plan.ranks.iter().any(|rank| rank.device == Device::Cpu && rank.program.precision == Precision::Bf16);
    let CpuInstructions { vector_instructions, matmul_instructions, bf16_matmul_instructions } = cpu_instructions();
    Platform {
        target: host.build.target.clone(),
        source_hash: host.build.source_hash.clone(),
        vector_instructions: Some(vector_instructions.to_owned()),
        matmul_instructions: Some(matmul_instructions.to_owned()),
        bf16_matmul_instructions: is_bf16.then(|| bf16_matmul_instructions.to_owned()),
        gpus,
        gpu_libraries,
    }
}
