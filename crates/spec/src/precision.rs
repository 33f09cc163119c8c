//! The effect of each precision on each kind of device.

use crate::cluster::PeakFlops;
use crate::experiment::Precision;
use crate::program::Device;

/// Describes in one line what a rank on `device` computes and stores under `precision`. Without master weights, which is for bf16 only,
/// weights, gradients and moments are stored in bf16, too.
pub fn describe(precision: Precision, master_weights: bool, device: Device) -> &'static str {
    match (precision, master_weights, device) {
        (_, false, Device::Cpu) => {
            "bf16 without master weights: matmuls and activations rounded to bf16 where a GPU would, in f32 storage; weights, \
             gradients and moments in bf16; f32 arithmetic of updates, norms, softmax and loss"
        }
        (_, false, Device::Cuda(_)) => {
            "bf16 without master weights: matmuls, activations, weights, gradients and moments in bf16; f32 arithmetic of \
             updates, norms, softmax and loss"
        }
        (Precision::Fp32, ..) => "fp32: f32 throughout",
        (Precision::Tf32, _, Device::Cpu) => "tf32 runs as fp32: a CPU has no TF32 matrix units",
        (Precision::Tf32, _, Device::Cuda(_)) => "tf32: f32 storage, matrix products in TF32",
        (Precision::Bf16, _, Device::Cpu) => {
            "bf16: matmuls and activations rounded to bf16 where a GPU would, in f32 storage; f32 master weights, \
             gradients, norms, softmax and loss"
        }
        (Precision::Bf16, _, Device::Cuda(_)) => {
            "bf16: matmuls and activations in bf16; f32 master weights, gradients, norms, softmax and loss"
        }
    }
}

/// The peak FLOP/s that MFU is measured against: that of the precision in which `device` computes, as a CPU computes tf32 as fp32.
pub fn peak(precision: Precision, device: Device, peak: &PeakFlops) -> Option<f64> {
    match (precision, device) {
        (Precision::Fp32, _) | (Precision::Tf32, Device::Cpu) => peak.fp32,
        (Precision::Tf32, Device::Cuda(_)) => peak.tf32,
        (Precision::Bf16, _) => peak.bf16,
    }
}

/// Bytes of one element of the weights that are trained, their gradients and the moments: f32, or bf16 without master weights.
pub fn state_bytes(master_weights: bool) -> u64 {
    if master_weights { 4 } else { 2 }
}

/// The copy of the weights that products read in a bf16 run, besides those that are trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundedCopy {
    pub bytes_per_parameter: u64,
    /// Its name in the memory table.
    pub name: &'static str,
}

/// The rounded copy of the weights that the executor keeps beside master weights. A CPU has no bf16 arithmetic, so its copy is f32. On a
/// GPU norms read their gains and biases from the f32 weights.
pub fn rounded_copy(precision: Precision, master_weights: bool, device: Device) -> Option<RoundedCopy> {
    match (precision, device) {
        (Precision::Bf16, Device::Cuda(_)) if master_weights => {
            Some(RoundedCopy { bytes_per_parameter: 2, name: "weights in bf16" })
        }
        (Precision::Bf16, Device::Cpu) if master_weights => {
            Some(RoundedCopy { bytes_per_parameter: 4, name: "weights rounded to bf16" })
        }
        _ => None,
    }
}

/// Bytes of one activation element.
pub fn activation_bytes(precision: Precision, device: Device) -> u64 {
    match (precision, device) {
        (Precision::Bf16, Device::Cuda(_)) => 2,
        _ => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_measures_tf32_against_its_fp32_peak() {
        let facts = PeakFlops { fp32: Some(1.0), tf32: Some(2.0), bf16: Some(3.0) };
        assert_eq!(peak(Precision::Tf32, Device::Cpu, &facts), Some(1.0));
        assert_eq!(peak(Precision::Tf32, Device::Cuda(0), &facts), Some(2.0));
        assert!(describe(Precision::Tf32, true, Device::Cpu).contains("runs as fp32"));
    }
}
