//! The effect of each precision on each kind of device.

use crate::cluster::PeakFlops;
use crate::experiment::Precision;
use crate::program::Device;

/// Describes in one line what a rank on `device` computes and stores under `precision`. Without master weights, which is for bf16 only,
/// weights, gradients and moments are stored in bf16, too.
pub fn describe(precision: Precision, master_weights: bool, device: Device) -> &'static str {
    match (precision, master_weights, device) {
        (_, false, _) => {
            "bf16 without master weights: matmuls, activations, weights, gradients and moments in bf16; f32 arithmetic of \
             updates, norms, softmax and loss"
        }
        (Precision::Fp32, ..) => "fp32: f32 throughout",
        (Precision::Tf32, _, Device::Cpu) => "tf32 runs as fp32: a CPU has no TF32 matrix units",
        (Precision::Tf32, _, Device::Cuda(_)) => "tf32: f32 storage, matrix products in TF32",
        (Precision::Bf16, ..) => {
            "bf16: matmuls and activations in bf16; f32 master weights, gradients, norms, softmax and loss"
        }
    }
}

/// The peak FLOP/s that MFU is measured against: that of the precision in which `device` computes, as a CPU computes tf32 as fp32.
pub fn peak(precision: Precision, device: Device, peak: &PeakFlops) -> Option<f64> {
    match (precision, device) {
        (Precision::Tf32, Device::Cpu) => peak.fp32,
        _ => peak.of(precision),
    }
}

/// Bytes of one element of the weights that are trained, their gradients and the moments: f32, or bf16 without master weights.
pub fn state_bytes(master_weights: bool) -> u64 {
    if master_weights { 4 } else { 2 }
}

/// True if a rank keeps a bf16 copy of its weights beside those that are trained. Norms read their gains and biases from the trained weights.
pub fn has_rounded_copy(precision: Precision, master_weights: bool) -> bool {
    precision == Precision::Bf16 && master_weights
}

/// Bytes of one element of the bf16 copy of the weights.
pub const ROUNDED_COPY_BYTES: u64 = 2;

/// Bytes of one activation element.
pub fn activation_bytes(precision: Precision) -> u64 {
    if precision == Precision::Bf16 { 2 } else { 4 }
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
