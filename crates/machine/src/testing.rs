//! Facts for tests.

use crate::gpu_facts::GpuFacts;
use runner_spec::cluster::ComputeCapability;

/// The facts that a driver reports of a board.
pub(crate) fn gpu(name: &str, capability: (u32, u32), sms: u32, clocks: [u32; 2], bus_width: u32) -> GpuFacts {
    GpuFacts {
        index: 0,
        name: name.to_owned(),
        memory_bytes: 80 << 30,
        compute_capability: ComputeCapability { major: capability.0, minor: capability.1 },
        sms,
        clock_khz: clocks[0],
        memory_clock_khz: clocks[1],
        bus_width,
    }
}
