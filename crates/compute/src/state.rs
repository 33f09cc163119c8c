//! The state that a rank carries from step to step: everything a checkpoint must hold, and nothing else.

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};

use crate::kernels::on_host;
use runner_spec::event::BestValidation;
use runner_spec::model::layout::ParamLayout;

/// The buffers of a rank and its position in the run. The buffers are f32, or bf16 in a run without master weights; tests that check
/// gradients use f64. There is no generator state, because random numbers are counter-based.
#[derive(Debug)]
pub struct TrainState {
    /// Optimizer steps done.
    pub step: u64,
    /// Valid tokens seen.
    pub tokens: u64,
    /// The lowest validation loss so far, and the step after which it was measured.
    pub best: Option<BestValidation>,
    pub layout: Arc<ParamLayout>,
    /// Flat: `layout.total` weights, then each optimizer moment ([`ParamLayout::section`]). The optimizer changes them together, and candle's
    /// in-place ops take one mutable buffer.
    pub buffer: Tensor,
    /// The number of optimizer moments that `buffer` holds.
    pub moments: usize,
}

impl TrainState {
    /// Zeroed buffers for `layout`.
    ///
    /// # Errors
    /// If the device cannot hold them.
    pub fn zeroed(layout: Arc<ParamLayout>, moments: usize, dtype: DType, device: &Device) -> Result<Self> {
        let buffer = Tensor::zeros(layout.state_len(moments), dtype, device)?;
        Ok(Self { step: 0, tokens: 0, best: None, layout, buffer, moments })
    }

    /// Section `index` of the buffer: 0 the weights and 1 the first moment, `[layout.total]`, 2 the second moment, of the elements from
    /// `layout.one_moment` on. A view.
    ///
    /// # Errors
    /// If there is no such section.
    pub fn section(&self, index: usize) -> Result<Tensor> {
        let section = self.layout.section(index);
        self.buffer.narrow(0, section.start, section.len())
    }

    /// Returns the state with its buffer in the host's memory: the same buffer on a CPU, a copy on a GPU.
    ///
    /// # Errors
    /// If a kernel before it failed.
    pub fn on_host(&self) -> Result<Self> {
        let buffer = on_host(&self.buffer)?;
        Ok(Self { layout: self.layout.clone(), buffer, ..*self })
    }

    /// The weights, `[layout.total]`. A view.
    ///
    /// # Errors
    /// If the buffer does not match the layout.
    pub fn weights(&self) -> Result<Tensor> {
        self.section(0)
    }
}
