//! AdamW (Loshchilov and Hutter 2019), in PyTorch's order of operations: w −= lr·wd·w, then
//! w −= lr/(1−β1^t)·m / (√v/√(1−β2^t) + eps), with m = β1·m + (1−β1)·g and v = β2·v + (1−β2)·g².

use super::UpdateInputs;
use crate::kernels::cpu::{Real, Stored};
use crate::kernels::optimizer::ElementUpdate;
use runner_spec::optimizer::AdamW;

/// One update by AdamW.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AdamWUpdate(pub(crate) AdamW, pub(crate) UpdateInputs);

impl ElementUpdate<11, 2> for AdamWUpdate {
    const KERNEL: &'static str = "adamw";

    fn scalars(&self) -> [f64; 11] {
        let Self(AdamW { betas: [beta1, beta2], eps, weight_decay, .. }, UpdateInputs { lr, t, grad_scale }) = *self;
        let size = lr / (1.0 - beta1.powf(t as f64));
        let root = (1.0 - beta2.powf(t as f64)).sqrt();
        let decay = lr * weight_decay;
        [beta1, beta2, 1.0 - beta1, 1.0 - beta2, size, 1.0 / root, root, eps, grad_scale, 1.0 - decay, decay]
    }

    #[inline(always)]
    fn element<S: Stored>(
        scalars: &[S::Real; 11],
        w: S::Real,
        [m, v]: [S::Real; 2],
        g: S::Real,
    ) -> (S::Real, [S::Real; 2]) {
        let [beta1, beta2, rest1, rest2, size, inverse, root, eps, scale, shrink, decay] = *scalars;
        let g = S::rounded(g * scale);
        if S::IS_BF16 {
            // In the fused kernel's own order, so that what is rounded is the same number.
            let (m, v) = (m + rest1 * (g - m), beta2 * v + rest2 * g * g);
            (w - decay * w - size * m / (v.root() / root + eps), [m, v])
        } else {
            let (m, v) = (beta1.fma(m, rest1 * g), beta2.fma(v, rest2 * g * g));
            (w * shrink - size * m / (v.root() * inverse + eps), [m, v])
        }
    }
}
