//! Softmax cross-entropy.

use candle_core::{Result, Tensor, bail};

use super::access::{Math, write};
use super::cpu::cross_entropy;

/// A target that the loss ignores (padding).
pub const IGNORE: u32 = u32::MAX;

/// Per-row losses in nats, 0 where the target is `IGNORE`. With `scale`, `logits` ([rows, vocab]) become their own
/// gradient times `scale`, in place.
pub fn cross_entropy(logits: &Tensor, targets: &[u32], scale: Option<f64>, math: Math) -> Result<Vec<f32>> {
    let (rows, vocab) = logits.dims2()?;
    if targets.len() != rows {
        bail!("{} targets for {rows} rows of logits", targets.len())
    }
    if let Some(t) = targets.iter().find(|&&t| t != IGNORE && t as usize >= vocab) {
        bail!("target {t} is beyond the vocabulary of {vocab}")
    }
    let losses = std::cell::RefCell::new(vec![0.0_f32; rows]);
    with_type!(logits, T => write::<T>(logits, "cross_entropy", |logits| {
        cross_entropy::cross_entropy(logits, vocab, targets, scale, &mut losses.borrow_mut(), math.bf16);
    }))?;
    Ok(losses.into_inner())
}
