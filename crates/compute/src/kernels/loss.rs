//! Softmax cross-entropy.

use candle_core::{Result, Tensor, bail};

use runner_spec::data::IGNORED_TARGET;

use super::access::{on_host, write};
use super::cpu::cross_entropy;
use super::optimizer::DeviceSum;

/// The losses of rows, in nats, 0 where the target is `IGNORED_TARGET`.
#[derive(Debug)]
pub enum Losses {
    Ready(Vec<f32>),
    /// `[rows]` f32 on a GPU that may not have computed them yet: reading them waits for it.
    Pending(Tensor),
}

impl Losses {
    /// The losses. Waits for a GPU that still computes them.
    ///
    /// # Errors
    /// An error of the device.
    pub fn read(&self) -> Result<Vec<f32>> {
        match self {
            Self::Ready(losses) => Ok(losses.clone()),
            Self::Pending(losses) => on_host(losses)?.to_vec1(),
        }
    }

    /// The sum, which a GPU starts to compute if its losses are pending.
    ///
    /// # Errors
    /// If a launch fails.
    pub fn sum(&self) -> Result<DeviceSum> {
        match self {
            Self::Ready(losses) => Ok(DeviceSum::Ready(losses.iter().copied().map(f64::from).sum())),
            Self::Pending(losses) => {
                on_gpu!(losses => super::cuda::loss::sum(losses).map(DeviceSum::Pending));
                bail!("losses on {:?} are read already", losses.device().location())
            }
        }
    }
}

/// What differs from the plain cross-entropy.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LossOptions {
    /// Caps logits: with a cap c they are c·tanh(logits/c), in losses and gradients.
    pub cap: Option<f64>,
    /// Adds the gradient of z·log²Σexp(logits), which the losses do not contain (Devlin et al. 2014, PaLM).
    pub z: f64,
}

/// The loss of each row. With `scale`, `logits` (`[rows, vocab]`) become their own gradient times `scale`, in place. `device_targets`
/// are the targets on the logits' device, where that is a GPU: then nothing is uploaded.
pub fn cross_entropy(
    logits: &Tensor,
    targets: &[u32],
    device_targets: Option<&Tensor>,
    scale: Option<f64>,
    options: LossOptions,
) -> Result<Losses> {
    let (rows, vocab) = logits.dims2()?;
    if targets.len() != rows {
        bail!("{} targets for {rows} rows of logits", targets.len())
    }
    if let Some(t) = targets.iter().find(|&&t| t != IGNORED_TARGET && t as usize >= vocab) {
        bail!("target {t} is beyond the vocabulary of {vocab}")
    }
    #[cfg(feature = "cuda")]
    if logits.device().is_cuda() {
        let targets =
            device_targets.map_or_else(|| crate::gpu::gpu_of(logits)?.upload(targets), |there| Ok(there.clone()))?;
        return Ok(Losses::Pending(super::cuda::loss::cross_entropy(logits, &targets, scale, options)?));
    }
    let _ = device_targets;
    let losses = std::cell::RefCell::new(vec![0.0_f32; rows]);
    with_type!(logits, S => write::<S>(logits, "cross_entropy", |logits| {
        cross_entropy::cross_entropy(logits, vocab, targets, scale, options, &mut losses.borrow_mut());
    }))?;
    Ok(Losses::Ready(losses.into_inner()))
}
