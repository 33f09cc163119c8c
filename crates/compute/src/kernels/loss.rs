//! Softmax cross-entropy.

use candle_core::{Result, Tensor, bail};

use runner_spec::data::IGNORE;

use super::access::{Math, write};
use super::cpu::cross_entropy;
use super::host::on_host;
use super::optimizer::Sum;

/// The losses of rows, in nats, 0 where the target is `IGNORE`.
#[derive(Debug)]
pub enum Losses {
    Read(Vec<f32>),
    /// \[rows\] f32 on a GPU that may not have come to them yet: reading them is waiting.
    There(Tensor),
}

impl Losses {
    /// # Errors
    /// That of the device.
    pub fn read(self) -> Result<Vec<f32>> {
        match self {
            Self::Read(losses) => Ok(losses),
            Self::There(losses) => on_host(&losses)?.to_vec1(),
        }
    }
}

/// Σ of losses that are still on a GPU (`Losses::There`), there too.
///
/// # Errors
/// If they are not.
pub fn sum_there(losses: &Tensor) -> Result<Sum> {
    on_gpu!(losses => super::cuda::loss::sum_there(losses).map(Sum::There));
    bail!("losses on {:?} are read already", losses.device().location())
}

/// Per-row losses. With `scale`, `logits` ([rows, vocab]) become their own gradient times `scale`, in place. `there` are the
/// targets on the logits' device, where that is a GPU: then nothing is waited for.
pub fn losses(
    logits: &Tensor,
    targets: &[u32],
    there: Option<&Tensor>,
    scale: Option<f64>,
    math: Math,
) -> Result<Losses> {
    let (rows, vocab) = logits.dims2()?;
    if targets.len() != rows {
        bail!("{} targets for {rows} rows of logits", targets.len())
    }
    if let Some(t) = targets.iter().find(|&&t| t != IGNORE && t as usize >= vocab) {
        bail!("target {t} is beyond the vocabulary of {vocab}")
    }
    #[cfg(feature = "cuda")]
    if logits.device().is_cuda() {
        let targets = there.map_or_else(|| crate::gpu::of(logits)?.upload(targets), |there| Ok(there.clone()))?;
        return Ok(Losses::There(super::cuda::loss::cross_entropy(logits, &targets, scale)?));
    }
    let _ = there;
    let losses = std::cell::RefCell::new(vec![0.0_f32; rows]);
    with_type!(logits, T => write::<T>(logits, "cross_entropy", |logits| {
        cross_entropy::cross_entropy(logits, vocab, targets, scale, &mut losses.borrow_mut(), math.bf16);
    }))?;
    Ok(Losses::Read(losses.into_inner()))
}

/// `losses`, read.
pub fn cross_entropy(logits: &Tensor, targets: &[u32], scale: Option<f64>, math: Math) -> Result<Vec<f32>> {
    losses(logits, targets, None, scale, math)?.read()
}
