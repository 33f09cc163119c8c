//! The pass of an optimizer over flat buffers, in parallel; what it does to an element is in `optim/`. In bf16, scaled gradients are rounded before, weights and moments after the
//! arithmetic, which is f32, as PyTorch's fused optimizers do with bfloat16 tensors.

use std::array;
use std::ops::Range;

use half::bf16;
use rayon::prelude::*;

use super::pieces::Pieces;
use super::simd::{Shared, TASK, inlined, vectorize};
use super::{Real, Stored};

/// Where the tasks of an update store the first weights rounded, as many as there is room for.
#[derive(Clone, Copy)]
struct RoundedCopy {
    to: Shared<bf16>,
    len: usize,
}

impl RoundedCopy {
    fn new(to: &mut [bf16]) -> Self {
        Self { to: Shared::new(to), len: to.len() }
    }

    /// Stores `weights`, which are those from number `first` on.
    ///
    /// # Safety
    /// The copy's numbers still exist, and no other task stores these.
    #[inline(always)]
    unsafe fn store<S: Stored>(self, first: usize, weights: &[S]) {
        let len = weights.len().min(self.len.saturating_sub(first));
        // SAFETY: the caller's promise, and there are so many.
        let to = unsafe { self.to.slice(first, len) };
        for (to, weight) in to.iter_mut().zip(weights) {
            *to = bf16::store(weight.load().double() as f32);
        }
    }
}

/// An optimizer's update, which computes each weight and its moments from nothing but them and their gradient.
pub trait ElementUpdate<const SCALARS: usize, const MOMENTS: usize>: Sync {
    /// The last words of the CUDA kernel's name: `adamw` of `update_f32_adamw`.
    const KERNEL: &'static str;

    /// The numbers that all elements share, in the order of the fields of the CUDA kernel's struct.
    fn scalars(&self) -> [f64; SCALARS];

    /// The new weight and moments from the old ones and the gradient `g`. Implementations must be `#[inline(always)]`, because [`vectorize`]
    /// runs them.
    fn element<S: Stored>(
        scalars: &[S::Real; SCALARS],
        w: S::Real,
        moments: [S::Real; MOMENTS],
        g: S::Real,
    ) -> (S::Real, [S::Real; MOMENTS]);
}

/// Updates the weights number `elements` of `state`, and their moments. `state` is weights and moments, as many as gradients `g` each; the
/// first `skipped` weights have no second moment.
pub fn update<S: Stored, U: ElementUpdate<SCALARS, MOMENTS>, const SCALARS: usize, const MOMENTS: usize>(
    update: &U,
    elements: &Range<usize>,
    skipped: usize,
    state: &mut [S],
    g: &[S],
    copy: &mut [bf16],
) {
    let n = g.len();
    let scalars = update.scalars().map(<S::Real as Real>::real);
    let (w, moments) = state.split_at_mut(n);
    assert_eq!(moments.len() + skipped, MOMENTS * n, "moments of {n} weights");
    let (copy, moments) = (RoundedCopy::new(copy), Shared::new(moments));
    let chunks = w[elements.clone()].par_chunks_mut(TASK).zip(g[elements.clone()].par_chunks(TASK)).enumerate();
    chunks.for_each_piece(|(chunk, (w, g))| {
        let first = elements.start + chunk * TASK;
        vectorize(inlined!(|| {
            // Local values, so that the compiler knows that no store changes them.
            let (scalars, len) = (scalars, w.len());
            let (w, g) = (&mut w[..len], &g[..len]);
            // SAFETY: chunks do not overlap, and each moment has an element for each weight.
            let part = inlined!(|k: usize| unsafe { moments.slice(k * n + first - k * skipped, len) });
            let moments: [&mut [S]; MOMENTS] = array::from_fn(part);
            for i in 0..len {
                let mut old = [S::Real::ZERO; MOMENTS];
                for k in 0..MOMENTS {
                    old[k] = moments[k][i].load();
                }
                let (weight, new) = U::element::<S>(&scalars, w[i].load(), old, g[i].load());
                w[i] = S::store(weight);
                for k in 0..MOMENTS {
                    moments[k][i] = S::store(new[k]);
                }
            }
            // SAFETY: chunks do not overlap.
            unsafe { copy.store(first, w) };
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::UpdateInputs;
    use crate::optim::adamw::AdamWUpdate;
    use crate::optim::sgd::PlainSgdUpdate;
    use runner_spec::optimizer::AdamW;

    type Update<'a> = &'a dyn Fn(&mut [f32], &mut [bf16]);

    /// The copy ends before the weights, and a group ends within a chunk.
    #[test]
    fn first_weights_are_copied_rounded() {
        const LEN: usize = 3 * TASK + 7;
        const COPIED: usize = 2 * TASK + 5;
        const GROUPS: [Range<usize>; 2] = [0..TASK + 9, TASK + 9..LEN];
        let numbers = |scale: f32| (0..LEN).map(|i| ((i * 7919 % 1009) as f32 - 504.0) * scale).collect::<Vec<_>>();
        let grads = numbers(1e-3);
        let inputs = UpdateInputs { lr: 0.1, t: 1, grad_scale: 0.5 };
        let adamw = AdamWUpdate(AdamW::default(), inputs);
        let updates: [(usize, Update); 2] = [
            (2, &|state, copy| GROUPS.into_iter().for_each(|group| update(&adamw, &group, 0, state, &grads, copy))),
            (0, &|state, copy| update(&PlainSgdUpdate(inputs), &(0..LEN), 0, state, &grads, copy)),
        ];
        for (moments, update) in updates {
            let mut state = numbers(0.01);
            state.resize((1 + moments) * LEN, 0.0);
            let mut copy = vec![bf16::NAN; COPIED + 1];
            update(&mut state, &mut copy[..COPIED]);
            let weights = &state[..LEN];
            assert_ne!(weights, numbers(0.01));
            let rounded: Vec<bf16> = weights[..COPIED].iter().map(|weight| bf16::store(*weight)).collect();
            assert_eq!(copy[..COPIED], rounded);
            assert!(copy[COPIED].is_nan(), "written behind the copy");
        }
    }
}
