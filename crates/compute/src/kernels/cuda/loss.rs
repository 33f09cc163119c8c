//! Softmax cross-entropy, and sums of losses.

use candle_core::{DType, Result, Tensor, bail};

use super::launch::{Launch, LaunchDims, kernel_for_type, whole_warps};

/// Per-row losses, `[rows]` f32, of `targets` (`[rows]` u32 on the same GPU, below the vocabulary or `IGNORED_TARGET`). With `scale`, the
/// logits, whose rows may have gaps between them, become their own gradient times `scale`, in place.
pub fn cross_entropy(logits: &Tensor, targets: &Tensor, scale: Option<f64>) -> Result<Tensor> {
    let ((rows, vocab), dtype) = (logits.dims2()?, logits.dtype());
    let launch = Launch::for_tensor(logits)?;
    let losses = launch.gpu.empty(DType::F32, rows)?;
    let launch = launch
        .array("losses", &losses, DType::F32, rows)?
        .rows("logits", logits)?
        .array("targets", targets, DType::U32, rows)?
        .ints([vocab, logits.stride()[0]])?
        .floats([scale.unwrap_or(0.0)])
        .ints([usize::from(scale.is_some())])?;
    let threads = whole_warps(vocab.div_ceil(8)).min(1024);
    let dims = LaunchDims { grid: [rows as u32, 1, 1], block: [threads as u32, 1, 1], shared: 0 };
    // SAFETY: (losses, logits, targets, vocab, stride, scale, gradient), a block for each row.
    unsafe { launch.run(&kernel_for_type("cross_entropy", dtype)?, dims)? }
    Ok(losses)
}

/// Σ x in f64, `[1]`, left on the device. `x` is f32 or f64.
pub fn sum(x: &Tensor) -> Result<Tensor> {
    let kernel = match x.dtype() {
        DType::F32 => "sum_f32",
        DType::F64 => "sum_f64",
        other => bail!("sums of f32 or f64, not {other:?}"),
    };
    let launch = Launch::for_tensor(x)?;
    let out = launch.gpu.empty(DType::F64, 1)?;
    let n = x.elem_count();
    let launch = launch.array("out", &out, DType::F64, 1)?.array("x", x, x.dtype(), n)?.longs([n]);
    // SAFETY: (out, x, n), one block.
    unsafe { launch.run(kernel, LaunchDims::linear(1, 1024))? }
    Ok(out)
}
