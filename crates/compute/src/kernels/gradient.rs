//! The gradient of a layer's output.

use candle_core::{DType, Result, Tensor};

use super::matmul;

/// `[rows, width]`. A GPU's kernel that made it may have summed rows on the way, for the bias that was added to each.
#[derive(Debug, Clone)]
pub struct Gradient {
    pub tensor: Tensor,
    /// Sums of parts of the rows, `[parts, width]` in f32.
    pub row_sums: Option<Tensor>,
}

impl Gradient {
    /// The same with one row of sums, which a task that waits can keep. The gradient of a bias has the same bits.
    pub fn summed(self) -> Result<Self> {
        let Some(parts) = &self.row_sums else { return Ok(self) };
        let sum = Tensor::zeros(parts.dim(1)?, DType::F32, parts.device())?;
        matmul::bias_backward(&sum, &self)?;
        Ok(Self { row_sums: Some(sum.unsqueeze(0)?), ..self })
    }
}

impl From<Tensor> for Gradient {
    fn from(tensor: Tensor) -> Self {
        Self { tensor, row_sums: None }
    }
}
