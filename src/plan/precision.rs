//! What each precision turns into on each kind of device.

use crate::plan::facts::PeakFlops;
use crate::plan::program::{Device, Precision};

/// The name of `precision` in an experiment file.
#[must_use]
pub fn name(precision: Precision) -> &'static str {
    match precision {
        Precision::Fp32 => "fp32",
        Precision::Tf32 => "tf32",
        Precision::Bf16 => "bf16",
    }
}

/// One line, where weights are bf16 themselves.
#[must_use]
pub fn describe_without_masters(device: Device) -> &'static str {
    match device {
        Device::Cpu => {
            "bf16 without master weights: matmuls, activations, weights, gradients and moments rounded to bf16 where a GPU \
             would, in f32 storage; f32 arithmetic of updates, norms, softmax and loss"
        }
        Device::Cuda(_) => {
            "bf16 without master weights: matmuls, activations, weights, gradients and moments in bf16; f32 arithmetic of \
             updates, norms, softmax and loss"
        }
    }
}

/// One line: what a rank on `device` computes and stores under `precision`.
#[must_use]
pub fn describe(precision: Precision, device: Device) -> &'static str {
    match (precision, device) {
        (Precision::Fp32, _) => "fp32: f32 throughout",
        (Precision::Tf32, Device::Cpu) => "tf32 runs as fp32: a CPU has no TF32 matrix units",
        (Precision::Tf32, Device::Cuda(_)) => "tf32: f32 storage, matrix products in TF32",
        (Precision::Bf16, Device::Cpu) => {
            "bf16: matmuls and activations rounded to bf16 where a GPU would, in f32 storage; f32 master weights, \
             gradients, norms, softmax and loss"
        }
        (Precision::Bf16, Device::Cuda(_)) => {
            "bf16: matmuls and activations in bf16; f32 master weights, gradients, norms, softmax and loss"
        }
    }
}

/// The peak that MFU is measured against: that of what really runs.
#[must_use]
pub fn peak(precision: Precision, device: Device, peak: &PeakFlops) -> Option<f64> {
    match (precision, device) {
        (Precision::Fp32, _) | (Precision::Tf32, Device::Cpu) => peak.fp32,
        (Precision::Tf32, Device::Cuda(_)) => peak.tf32,
        (Precision::Bf16, _) => peak.bf16,
    }
}

/// Whether the executor keeps a second copy of the weights, rounded to bf16, and the bytes of one of its elements.
#[must_use]
pub fn rounded_weight_bytes(precision: Precision, master_weights: bool, device: Device) -> u64 {
    match (precision, device) {
        _ if !master_weights => 0,
        (Precision::Bf16, Device::Cpu) => 4,
        (Precision::Bf16, Device::Cuda(_)) => 2,
        _ => 0,
    }
}

/// Bytes of one element of the weights that are trained, their gradients and the moments.
#[must_use]
pub fn state_bytes(master_weights: bool, device: Device) -> u64 {
    match device {
        Device::Cuda(_) if !master_weights => 2,
        _ => 4,
    }
}

/// Bytes of one activation element.
#[must_use]
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
        assert!(describe(Precision::Tf32, Device::Cpu).contains("runs as fp32"));
    }
}
