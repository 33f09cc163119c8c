//! Sizes of a model for which a GPU has only slow kernels, as notes of the plan with the change that avoids them, or none.

use crate::error::{Result, refuse};
use runner_spec::cluster::DeviceFacts;
use runner_spec::experiment::Precision;
use runner_spec::format::{choice_name, count};
use runner_spec::model::ModelSpec;
use runner_spec::precision;
use runner_spec::program::Device;

/// Tensor cores read rows in pieces of this many bytes.
const ALIGNED_BYTES: usize = 16;

/// The widest heads that attention's kernels take (`compute/kernels/cuda/attention.rs`), and in f32 on GPUs with less shared memory than an A100.
const MAX_HEAD_DIM: usize = 256;
const MAX_HEAD_DIM_OF_SMALL: usize = 128;

/// A note for each size of `model` that the GPUs among `hardware` compute slowly.
///
/// # Errors
/// If they cannot compute one.
pub(crate) fn describe_slow_sizes(
    model: &ModelSpec,
    precision: Precision,
    hardware: &[DeviceFacts],
) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    if !hardware.iter().any(|facts| matches!(facts.device, Device::Cuda(_))) {
        return Ok(notes);
    }
    // An A100 has 163 KiB for a block, Hopper and Blackwell's B200 227, and others 99.
    let is_small = |facts: &DeviceFacts| {
        facts.compute_capability.is_some_and(|c| !matches!((c.major, c.minor), (8, 0) | (9 | 10, _)))
    };
    let is_limited = precision != Precision::Bf16 && hardware.iter().any(is_small);
    let widest = if is_limited { MAX_HEAD_DIM_OF_SMALL } else { MAX_HEAD_DIM };
    if model.head_dim() > widest {
        refuse!(
            "model.heads",
            "heads are {} wide, and attention on this GPU takes heads of up to {widest} in {}; use at least {} heads, or device: cpu",
            model.head_dim(),
            choice_name(&precision),
            model.d_model.div_ceil(widest)
        )
    }
    if precision != Precision::Fp32 {
        let multiple = ALIGNED_BYTES / precision::activation_bytes(precision) as usize;
        for (key, width) in [("d_model", model.d_model), ("d_ff", model.d_ff)] {
            if !width.is_multiple_of(multiple) {
                notes.push(format!(
                    "model.{key}: a row of {} numbers is not a multiple of {ALIGNED_BYTES} bytes, so matrix products are slow; use a \
                     multiple of {multiple}, such as {}",
                    count(width as u64),
                    count(width.next_multiple_of(multiple) as u64)
                ));
            }
        }
    }
    Ok(notes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::gpt2_124m;
    use runner_machine::cluster_description::named_cluster;
    use runner_spec::experiment::Family;

    fn notes(model: &ModelSpec, precision: Precision) -> String {
        let cluster = named_cluster("1x1xH100").expect("known");
        match describe_slow_sizes(model, precision, &cluster.devices) {
            Ok(notes) => notes.join("\n"),
            Err(error) => format!("error: {error}"),
        }
    }

    #[test]
    fn unaligned_rows_and_wide_heads_are_named_with_the_sizes_to_use() {
        let odd = ModelSpec { d_ff: 3_001, ..gpt2_124m(50_257) };
        insta::assert_snapshot!(notes(&odd, Precision::Bf16));
        let wide = ModelSpec::with_defaults(Family::Gpt2, [50_257, 1024, 12, 2, 768]);
        insta::assert_snapshot!(notes(&wide, Precision::Bf16), @"error: model.heads: heads are 384 wide, and attention on this GPU takes heads of up to 256 in bf16; use at least 3 heads, or device: cpu");
        // 3,004 numbers of 4 bytes are a multiple of 16 bytes; fp32 does not use tensor cores.
        let even = ModelSpec { d_ff: 3_004, ..gpt2_124m(50_257) };
        assert!(notes(&even, Precision::Bf16).contains("3,008"));
        assert_eq!(notes(&even, Precision::Tf32), "");
        assert_eq!(notes(&ModelSpec { d_ff: 3_001, ..even }, Precision::Fp32), "");
        assert_eq!(describe_slow_sizes(&wide, Precision::Bf16, &[]), Ok(Vec::new()));
    }
}
