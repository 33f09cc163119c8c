//! PyTorch's SGD: m = momentum·m + g, w −= lr·m; without momentum, w −= lr·g.

use super::UpdateInputs;
use crate::kernels::cpu::{Real, Stored};
use crate::kernels::optimizer::ElementUpdate;

/// One update without momentum.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlainSgdUpdate(pub(crate) UpdateInputs);

impl ElementUpdate<2, 0> for PlainSgdUpdate {
    const KERNEL: &'static str = "sgd";

    fn scalars(&self) -> [f64; 2] {
        [self.0.lr, self.0.grad_scale]
    }

    #[inline(always)]
    fn element<S: Stored>(
        &[lr, scale]: &[S::Real; 2],
        w: S::Real,
        _: [S::Real; 0],
        g: S::Real,
    ) -> (S::Real, [S::Real; 0]) {
        let change = if S::IS_BF16 { lr * S::rounded(scale * g) } else { lr * scale * g };
        (w - change, [])
    }
}

/// One update with this momentum.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MomentumSgdUpdate(pub(crate) f64, pub(crate) UpdateInputs);

impl ElementUpdate<3, 1> for MomentumSgdUpdate {
    const KERNEL: &'static str = "sgd_momentum";

    fn scalars(&self) -> [f64; 3] {
        let Self(momentum, UpdateInputs { lr, grad_scale, .. }) = *self;
        [lr, momentum, grad_scale]
    }

    #[inline(always)]
    fn element<S: Stored>(
        &[lr, momentum, scale]: &[S::Real; 3],
        w: S::Real,
        [m]: [S::Real; 1],
        g: S::Real,
    ) -> (S::Real, [S::Real; 1]) {
        let g = scale * g;
        let m = if S::IS_BF16 { momentum * m + S::rounded(g) } else { momentum.fma(m, g) };
        (w - lr * m, [m])
    }
}
