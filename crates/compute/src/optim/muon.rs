//! Muon (Jordan et al. 2024): w −= lr·scale·O, where O is the momentum's direction, made nearly orthogonal by iterations of Newton and
//! Schulz.

use candle_core::{DType, Result, Tensor};

use super::UpdateInputs;
use crate::kernels::muon::{Momentum, Step, direction, polynomial, step};
use crate::kernels::{matmul, storage};
use runner_spec::model::layout::ParamEntry;
use runner_spec::optimizer::Muon;

/// The polynomial x ← a·x + b·x³ + c·x⁵ of singular values, by Jordan. It moves values in (0, 1] to about 0.7 to 1.2 in five iterations.
const COEFFICIENTS: [f64; 3] = [3.4445, -4.7750, 2.0315];

/// One update of the matrix at `entry`. `weights`, `moment` and `grads` are flat, of one type, and laid out alike; `copy` is the weights in bf16.
/// Products are computed in `dtype`: the type of the weights, or bf16.
pub(super) fn update(
    muon: &Muon,
    inputs: UpdateInputs,
    entry: &ParamEntry,
    [weights, moment, grads]: [&Tensor; 3],
    copy: Option<&Tensor>,
    dtype: DType,
) -> Result<()> {
    let part = |flat: &Tensor| flat.narrow(0, entry.offset, entry.spec.len());
    let shape = [entry.spec.shape[0], entry.spec.shape[1]];
    let Muon { momentum, nesterov, iterations, scale, weight_decay, cautious_decay, .. } = *muon;
    let rule = Momentum { momentum, nesterov, grad_scale: inputs.grad_scale };
    let x = orthogonalized(direction(&part(moment)?, &part(grads)?, shape, rule, dtype)?, iterations)?;
    let (rate, decay) = (inputs.lr * scale.factor(shape), inputs.lr * weight_decay);
    let w = part(weights)?;
    step(&w, &x, Step { rate, decay, cautious: cautious_decay })?;
    copy.map_or(Ok(()), |copy| storage::convert(&part(copy)?, &w))
}

/// The matrix with the singular vectors of `x`, whose norm is at most 1, and singular values near 1.
fn orthogonalized(mut x: Tensor, iterations: u32) -> Result<Tensor> {
    let (rows, cols) = x.dims2()?;
    for _ in 0..iterations {
        // Of the smaller side.
        let gram = if rows <= cols { matmul::linear(&x, &x, None)? } else { transposed_product(&x)? };
        // It is symmetric: it is its own transpose.
        let square = matmul::linear(&gram, &gram, None)?;
        polynomial(&square, &gram, COEFFICIENTS)?;
        drop(gram);
        x = if rows <= cols { matmul::linear_backward_input(&square, &x)? } else { matmul::linear(&x, &square, None)? };
    }
    Ok(x)
}

/// xᵀ·x, in the type of x.
fn transposed_product(x: &Tensor) -> Result<Tensor> {
    let (_, cols) = x.dims2()?;
    let real = if x.dtype() == DType::BF16 { DType::F32 } else { x.dtype() };
    let gram = storage::zeros(cols * cols, real, x.device())?.reshape((cols, cols))?;
    matmul::linear_backward_weight(&gram, x, x, false)?;
    if real == x.dtype() { Ok(gram) } else { storage::converted(&gram) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use candle_core::Device;
    use half::bf16;

    use super::*;
    use crate::optim;
    use crate::state::TrainState;
    use runner_spec::model::layout::ParamLayout;
    use runner_spec::model::{ParamInit, ParamRole, ParamSpec};
    use runner_spec::optimizer::{AdamW, GroupOptions, MuonScale, Optimizer};

    type Matrix = Vec<Vec<f64>>;

    fn product(a: &Matrix, b: &Matrix) -> Matrix {
        a.iter().map(|row| (0..b[0].len()).map(|j| row.iter().zip(b).map(|(x, b)| x * b[j]).sum()).collect()).collect()
    }

    fn transposed(a: &Matrix) -> Matrix {
        (0..a[0].len()).map(|j| a.iter().map(|row| row[j]).collect()).collect()
    }

    /// Jordan's iteration, as written: X ← a·X + (b·A + c·A²)·X with A = X·Xᵀ, of a wide X.
    fn reference(direction: &Matrix, iterations: u32) -> Matrix {
        let is_tall = direction.len() > direction[0].len();
        let norm = direction.iter().flatten().map(|x| x * x).sum::<f64>().sqrt().max(1e-7);
        let scaled: Matrix = direction.iter().map(|row| row.iter().map(|x| x / norm).collect()).collect();
        let mut x = if is_tall { transposed(&scaled) } else { scaled };
        let [a, b, c] = [3.4445, -4.7750, 2.0315];
        for _ in 0..iterations {
            let gram = product(&x, &transposed(&x));
            let square = product(&gram, &gram);
            let sum: Matrix =
                gram.iter().zip(&square).map(|(g, s)| g.iter().zip(s).map(|(g, s)| b * g + c * s).collect()).collect();
            let moved = product(&sum, &x);
            for (x, moved) in x.iter_mut().flatten().zip(moved.iter().flatten()) {
                *x = a * *x + moved;
            }
        }
        if is_tall { transposed(&x) } else { x }
    }

    /// A state of three matrices of layers, an embedding and a bias, in the order of the flat storage.
    const SHAPES: [(&str, &[usize], usize); 5] = [
        ("wide", &[6, 10], 1),
        ("tall", &[9, 4], 1),
        ("square", &[5, 5], 2),
        ("embedding", &[7, 3], 0),
        ("bias", &[6], 1),
    ];

    fn layout(muon: &Optimizer) -> Arc<ParamLayout> {
        let spec = |(name, shape, block): (&str, &[usize], usize)| ParamSpec {
            name: name.to_owned(),
            shape: shape.to_vec(),
            init: ParamInit::Zeros,
            block,
            role: ParamRole::Weight,
        };
        let has_one = |spec: &ParamSpec| muon.update_of(spec, 2).moments == 1;
        Arc::new(ParamLayout::with_fewer_moments(SHAPES.into_iter().map(spec).collect(), has_one))
    }

    fn numbers(len: usize, seed: usize) -> Vec<f64> {
        (0..len).map(|i| ((i * 7919 + seed * 104_729) % 61) as f64 / 32.0 - 0.9375).collect()
    }

    /// The weights of the matrix at `range` after these steps, by the formula.
    fn expected(muon: &Muon, [rows, cols]: [usize; 2], start: &[f64], grads: &[Vec<f64>], lr: f64) -> Vec<f64> {
        let (mut w, mut m) = (start.to_vec(), vec![0.0; start.len()]);
        for g in grads {
            let mean = |m: f64, g: f64| muon.momentum * m + (1.0 - muon.momentum) * 0.5 * g;
            m = m.iter().zip(g).map(|(m, g)| mean(*m, *g)).collect();
            let direction: Vec<f64> =
                m.iter().zip(g).map(|(m, g)| if muon.nesterov { mean(*m, *g) } else { *m }).collect();
            let x = reference(&direction.chunks(cols).map(<[f64]>::to_vec).collect(), muon.iterations);
            let rate = lr * muon.scale.factor([rows, cols]);
            for (w, x) in w.iter_mut().zip(x.iter().flatten()) {
                let decays = !muon.cautious_decay || *w * x >= 0.0;
                *w -= if decays { lr * muon.weight_decay * *w } else { 0.0 } + rate * x;
            }
        }
        w
    }

    fn assert_follows(muon: Muon, dtype: DType, products: DType, tolerance: f64) {
        let optimizer = Optimizer::Muon(muon);
        let layout = layout(&optimizer);
        assert_eq!((layout.one_moment, layout.total), (121, 148));
        let tensor = |values: Vec<f64>| Tensor::new(values, &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
        let start = numbers(layout.total, 0);
        let mut state = TrainState::zeroed(layout.clone(), 2, dtype, &Device::Cpu).unwrap();
        assert_eq!(state.buffer.elem_count(), 148 + 148 + 27);
        state.buffer.slice_set(&tensor(start.clone()), 0, 0).unwrap();
        let grads: Vec<_> = (1..5).map(|seed| numbers(layout.total, seed)).collect();
        let options = [GroupOptions { r#match: "square".to_owned(), lr_scale: Some(0.5), weight_decay: None }];
        let groups = optimizer.groups(&options, &layout, 2);
        assert_eq!(groups.len(), 4);
        let copy = Tensor::zeros(layout.total, DType::BF16, &Device::Cpu).unwrap();
        let with_copy = (dtype == DType::F32).then_some(&copy);
        for g in &grads {
            optim::update(&state, &groups, &tensor(g.clone()), [muon.lr, 0.5], with_copy, products).unwrap();
            state.step += 1;
        }
        let got: Vec<f64> = state.weights().unwrap().to_dtype(DType::F64).unwrap().to_vec1().unwrap();
        for entry in &layout.entries[..3] {
            let (range, shape) = (entry.range(), [entry.spec.shape[0], entry.spec.shape[1]]);
            let lr = if entry.spec.name == "square" { 0.5 * muon.lr } else { muon.lr };
            let grads: Vec<_> = grads.iter().map(|g| g[range.clone()].to_vec()).collect();
            let expected = expected(&muon, shape, &start[range.clone()], &grads, lr);
            for (got, expected) in got[range.clone()].iter().zip(&expected) {
                assert!((got - expected).abs() <= tolerance, "{}: {got} is not {expected}", entry.spec.name);
            }
            let moved = got[range.clone()].iter().zip(&start[range]).any(|(a, b)| (a - b).abs() > 0.01);
            assert!(moved, "{} moves", entry.spec.name);
        }
        assert_ne!(got[121..], start[121..], "adamw's parameters move");
        if with_copy.is_some() {
            let copy: Vec<bf16> = copy.to_vec1().unwrap();
            let rounded: Vec<bf16> = got.iter().map(|w| bf16::from_f64(*w)).collect();
            assert_eq!(copy, rounded);
        }
    }

    /// f64 differs by the order of sums. f32 and bf16 round in each of five iterations, and an iteration multiplies an error by up to 3.4:
    /// 3.4⁵·2⁻²⁴ is 3e-5. In bf16 the same bound is above 1, so the tolerance, about the size of a step, shows only gross mistakes here;
    /// `tests/numerics/peers.rs` compares bf16 products with PyTorch's error over 100 steps.
    #[test]
    fn updates_follow_jordans_iteration() {
        let muon =
            Muon { lr: 0.0625, weight_decay: 0.25, adamw: AdamW { lr: 0.01, ..AdamW::default() }, ..Muon::default() };
        let all = [
            muon,
            Muon { nesterov: false, iterations: 3, scale: MuonScale::MatchRmsAdamw, ..muon },
            Muon { cautious_decay: true, momentum: 0.5, ..muon },
        ];
        for muon in all {
            assert_follows(muon, DType::F64, DType::F64, 1e-12);
            assert_follows(muon, DType::F32, DType::F32, 1e-4);
            assert_follows(muon, DType::F32, DType::BF16, 0.1);
            assert_follows(muon, DType::BF16, DType::BF16, 0.1);
        }
    }

    /// A direction of zeros stays one.
    #[test]
    fn no_gradient_means_no_step() {
        let [m, g] = [12, 12].map(|len| Tensor::zeros(len, DType::F32, &Device::Cpu).unwrap());
        let rule = Momentum { momentum: 0.95, nesterov: true, grad_scale: 1.0 };
        let x = direction(&m, &g, [3, 4], rule, DType::F32).unwrap();
        let x: Vec<f32> = orthogonalized(x, 5).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        assert_eq!(x, [0.0; 12]);
    }
}
