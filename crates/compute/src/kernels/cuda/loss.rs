//! Softmax cross-entropy, and sums of losses.

use candle_core::{DType, Result, Tensor};

use crate::kernels::loss::LossOptions;

use super::launch::{CrossEntropy, Launch, LaunchDims, Sum, int, whole_warps};

/// Per-row losses, `[rows]` f32, of `targets` (`[rows]` u32 on the same GPU, below the vocabulary or `IGNORED_TARGET`). With `scale`, the
/// logits, whose rows may have gaps between them, become their own gradient times `scale`, in place.
pub fn cross_entropy(logits: &Tensor, targets: &Tensor, scale: Option<f64>, options: LossOptions) -> Result<Tensor> {
    let (rows, vocab) = logits.dims2()?;
    let launch = Launch::for_tensor(logits)?;
    let losses = launch.gpu.empty(DType::F32, rows)?;
    let parameters = CrossEntropy {
        losses: launch.array("losses", &losses, rows)?,
        logits: launch.rows("logits", logits)?,
        targets: launch.array("targets", targets, rows)?,
        vocab: int(vocab)?,
        stride: int(logits.stride()[0])?,
        scale: scale.unwrap_or(0.0) as f32,
        gradient: i32::from(scale.is_some()),
        cap: options.cap.unwrap_or(0.0) as f32,
        z: options.z as f32,
    };
    let threads = whole_warps(vocab.div_ceil(8)).min(1024);
    let dims = LaunchDims { grid: [rows as u32, 1, 1], block: [threads as u32, 1, 1], shared: 0 };
    // SAFETY: a block for each row.
    unsafe {
        launch.run_named(
            &[logits.dtype().as_str(), if options.cap.is_some() { "capped" } else { "" }],
            &parameters,
            dims,
        )?;
    }
    Ok(losses)
}

/// Σ x in f64, `[1]`, left on the device. `x` is f32 or f64.
pub fn sum(x: &Tensor) -> Result<Tensor> {
    let launch = Launch::for_tensor(x)?;
    let out = launch.gpu.empty(DType::F64, 1)?;
    let n = x.elem_count();
    let parameters = Sum { out: launch.array("out", &out, 1)?, x: launch.array("x", x, n)?, n: n as i64 };
    // SAFETY: one block.
    unsafe { launch.run(&parameters, LaunchDims::linear(1, 1024))? }
    Ok(out)
}
