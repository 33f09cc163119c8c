//! Every kernel on a GPU compared with the CPU's kernel, on random numbers: odd sizes, single rows, long rows, padding, unaligned
//! views.

use candle_core::{DType, Result, Tensor};
use runner_compute::kernels::Gradient;
use runner_compute::kernels::cpu::dropout::DropoutMask;
use runner_compute::kernels::loss::LossOptions;
use runner_compute::kernels::muon::{self, Momentum};
use runner_compute::kernels::pointwise::Rope;
use runner_compute::kernels::weighted_sum::{Term, weighted_sum, weighted_sum_backward};
use runner_compute::kernels::{embedding, loss, matmul, norm, optimizer, pointwise, storage};
use runner_compute::optim::{self, UpdateInputs};
use runner_spec::experiment::Activation;
use runner_spec::model::layout::ParamLayout;
use runner_spec::model::{ParamInit, ParamRole, ParamSpec, RopeScaling, Rotary};
use runner_spec::optimizer::{Lion, Optimizer, Sgd};
use runner_spec::philox::Philox;

use crate::sides::{Out, Side, compare, normals, read};

#[test]
fn activations_and_their_gradients_agree_with_the_cpus() {
    for n in [1, 7, 8, 1000, 20_003] {
        compare(&format!("activations of {n}"), |side| {
            let x = side.activations(1, &[n]);
            let [dgelu, drelu, drelu2, sum] = [2; 4].map(|seed| side.activations(seed, &[n]));
            pointwise::activate_backward(&dgelu, &x, Activation::Gelu)?;
            pointwise::activate_backward(&drelu, &x, Activation::Relu)?;
            pointwise::activate_backward(&drelu2, &x, Activation::Relu2)?;
            pointwise::add_assign(&sum, &x)?;
            let (dsilu, capped) = (side.activations(2, &[n]), side.activations(3, &[n]));
            pointwise::activate_backward(&dsilu, &x, Activation::Silu)?;
            pointwise::softcap(&capped, 1.5)?;
            Ok(vec![
                Out::stored("silu", &pointwise::activate(&x, Activation::Silu)?, 1),
                Out::stored("dsilu", &dsilu, 1),
                Out::stored("capped", &capped, 1),
                Out::stored("gelu", &pointwise::activate(&x, Activation::Gelu)?, 1),
                Out::stored("dgelu", &dgelu, 1),
                Out::equal("relu", &pointwise::activate(&x, Activation::Relu)?),
                Out::equal("drelu", &drelu),
                Out::equal("relu2", &pointwise::activate(&x, Activation::Relu2)?),
                Out::equal("drelu2", &drelu2),
                Out::equal("sum", &sum),
            ])
        });
    }
}

/// The slope of GELU is a factor within the product where rows are whole vectors, and a separate pass elsewhere.
#[test]
fn gradients_of_gelus_input_agree_with_the_cpus() {
    for (rows, inner, out) in [(1, 1, 1), (5, 3, 7), (3, 8, 5), (64, 48, 96), (33, 264, 65), (130, 1024, 256)] {
        compare(&format!("gradient of GELU's input, {rows} x {inner} from {out}"), |side| {
            let (dy, w) = (side.activations(1, &[rows, out]), side.activations(2, &[out, inner]));
            let before = side.activations(3, &[rows, inner]);
            Ok(vec![Out::rounded_twice("dbefore", &matmul::linear_backward_gelu(&dy, &w, &before)?, out)])
        });
    }
}

#[test]
fn gates_and_their_gradients_agree_with_the_cpus() {
    for (rows, width) in [(1, 1), (3, 7), (5, 64), (2, 2731)] {
        for activation in [Activation::Gelu, Activation::Relu, Activation::Relu2, Activation::Silu] {
            compare(&format!("{} of {rows} x {width}", activation.names().gated), |side| {
                let (x, dy) = (side.activations(1, &[rows, 2 * width]), side.activations(2, &[rows, width]));
                Ok(vec![
                    Out::stored("y", &pointwise::gated(&x, activation)?, 1),
                    Out::stored("dx", &pointwise::gated_backward(&x, &dy, activation)?, 1),
                ])
            });
        }
    }
}

#[test]
fn columns_are_copied_as_on_cpus() {
    for (rows, stride, from, width) in [(1, 1, 0, 1), (3, 20, 5, 7), (5, 192, 64, 64), (4, 24, 8, 16)] {
        compare(&format!("columns {from}.. of {rows} x {stride}"), |side| {
            let x = side.activations(1, &[rows, stride]);
            let taken = pointwise::take_columns(&x, from, width)?;
            pointwise::put_columns(&x, &side.activations(2, &[rows, width]), from)?;
            Ok(vec![Out::equal("taken", &taken), Out::equal("put", &x)])
        });
    }
}

/// Terms with every kind of coefficient; groups of a row that are whole vectors, and others.
#[test]
fn weighted_sums_and_their_gradients_agree_with_the_cpus() {
    for (samples, seq, width, groups) in [(1, 1, 1, 1), (2, 3, 20, 4), (3, 4, 64, 8), (2, 5, 768, 6), (1, 9, 250, 5)] {
        let rows = samples * seq;
        compare(&format!("sums of {rows} x {width} in {groups} groups"), |side| {
            let x = [1, 2, 3].map(|seed| side.activations(seed, &[rows, width]));
            let [heads, tokens] = [(4, groups), (5, 1)].map(|(seed, n)| side.activations(seed, &[rows, n]));
            let (plain, through) = (side.numbers(6, &[1]), side.numbers(7, &[1]));
            let term = |x, number, scalar, gate, is_previous| Term { x, number, scalar, gate, is_previous };
            let terms = [
                term(&x[0], 1.0, None, None, false),
                term(&x[1], 3.0, Some((&plain, false)), Some(&heads), false),
                term(&x[0], -0.5, Some((&through, true)), Some(&tokens), true),
                term(&x[2], 0.25, None, None, false),
            ];
            let dy = side.activations(8, &[rows, width]);
            let mut outs = vec![Out::stored("sum", &weighted_sum(&terms, seq)?, 8)];
            outs.push(Out::stored("sum of one", &weighted_sum(&terms[1..2], seq)?, 4));
            for term in &terms {
                let gradients = weighted_sum_backward(term, &dy, seq)?;
                outs.push(Out::stored("dx", &gradients.x, 4));
                outs.extend(gradients.gate.map(|gate| Out::stored("dgate", &gate, width / groups + 4)));
                outs.extend(gradients.scalar.map(|scalar| Out::f32("dscalar", &scalar, width + 4, width as f64)));
            }
            Ok(outs)
        });
    }
}

/// Row widths that fit in a warp, and in blocks of all sizes.
const NORMS: [(usize, usize); 9] =
    [(1, 8), (3, 5), (1, 768), (70, 768), (33, 250), (5, 1025), (3, 1600), (2, 4096), (3, 8191)];

/// The gradient of a bias has the same bits with the sums that a norm's kernel made as without them: the norm may be on another rank.
fn check_row_sums(side: &Side, dx: &Gradient) -> Result<()> {
    let d = dx.tensor.dim(1)?;
    assert_eq!(dx.row_sums.is_some(), side.is_gpu() && d <= 2048);
    let [with_sums, without] = [side.numbers(8, &[d]), side.numbers(8, &[d])];
    matmul::bias_backward(&with_sums, dx)?;
    matmul::bias_backward(&without, &dx.tensor.clone().into())?;
    assert_eq!(read(&with_sums), read(&without), "sums of {:?}", dx.tensor);
    Ok(())
}

#[test]
fn layer_norm_and_its_gradients_agree_with_the_cpus() {
    for (rows, d) in NORMS {
        compare(&format!("layer norm of {rows} x {d}"), |side| {
            let (x, dy, skip) =
                (side.activations(1, &[rows, d]), side.activations(2, &[rows, d]), side.activations(3, &[rows, d]));
            let (weight, bias) = (side.numbers(4, &[d]), side.numbers(5, &[d]));
            let (dw, db) = (side.numbers(6, &[d]), side.numbers(7, &[d]));
            let (_, y, stats) = norm::normalize(&x, None, &weight, Some(&bias), 1e-5)?;
            let dx = norm::normalize_backward(&dw, Some(&db), &x, &weight, &stats, &dy, None)?;
            check_row_sums(side, &dx)?;
            let dx = dx.tensor;
            let skipped = norm::normalize_backward(&dw, Some(&db), &x, &weight, &stats, &dy, Some(&skip))?;
            check_row_sums(side, &skipped)?;
            let skipped = skipped.tensor;
            let (sum, y2, stats2) = norm::normalize(&x.copy()?, Some(&skip), &weight, Some(&bias), 1e-5)?;
            Ok(vec![
                Out::stored("y", &y, d),
                Out::f32("stats", &stats, d, 1.0),
                Out::stored("dx", &dx, d),
                Out::stored("dx + skip", &skipped, d),
                Out::f32("dweight", &dw, rows, 2.0 * rows as f64),
                Out::f32("dbias", &db, rows, 2.0 * rows as f64),
                Out::equal("sum", &sum),
                Out::stored("norm of the sum", &y2, d),
                Out::f32("its stats", &stats2, d, 1.0),
            ])
        });
    }
}

#[test]
fn rms_norm_and_its_gradient_agree_with_the_cpus() {
    for (rows, d) in NORMS {
        compare(&format!("RMS norm of {rows} x {d}"), |side| {
            let (x, dy, skip) =
                (side.activations(1, &[rows, d]), side.activations(2, &[rows, d]), side.activations(3, &[rows, d]));
            let (weight, dw) = (side.numbers(4, &[d]), side.numbers(6, &[d]));
            let (_, y, stats) = norm::normalize(&x, None, &weight, None, 1e-6)?;
            let dx = norm::normalize_backward(&dw, None, &x, &weight, &stats, &dy, None)?.tensor;
            let skipped = norm::normalize_backward(&dw, None, &x, &weight, &stats, &dy, Some(&skip))?.tensor;
            let (sum, y2, _) = norm::normalize(&x.copy()?, Some(&skip), &weight, None, 1e-6)?;
            Ok(vec![
                Out::stored("y", &y, d),
                Out::f32("stats", &stats, d, 1.0),
                Out::stored("dx", &dx, d),
                Out::stored("dx + skip", &skipped, d),
                Out::f32("dweight", &dw, rows, 2.0 * rows as f64),
                Out::equal("sum", &sum),
                Out::stored("norm of the sum", &y2, d),
            ])
        });
    }
}

/// Ids as text has them: a few that are everywhere, and many that are rare.
fn ids(n: usize, vocab: usize) -> Vec<u32> {
    let uniform = |v: f32| f64::from(v.abs()).fract();
    normals(9, n).into_iter().map(|v| (vocab as f64 * uniform(v).powi(4)) as u32).collect()
}

#[test]
fn embeddings_with_positions_agree_with_the_cpus() {
    for (vocab, d, seq, batch, start) in
        [(50_257, 8, 13, 3, 0), (11, 5, 4, 2, 3), (300, 768, 16, 2, 0), (1, 32, 1, 1, 0)]
    {
        compare(&format!("embedding of {vocab} x {d}"), |side| {
            let ids = side.ids(&ids(batch * seq, vocab));
            let (table, learned) = (side.activations(1, &[vocab, d]), side.activations(2, &[start + seq, d]));
            let fixed = side.numbers(3, &[start + seq, d]);
            let embed = |scale, positions| embedding::embed(&ids, &table, scale, positions, seq, start);
            Ok(vec![
                Out::equal("tokens", &embed(None, None)?),
                Out::equal("learned", &embed(None, Some(&learned))?),
                Out::stored("fixed and scaled", &embed(Some(3.7), Some(&fixed))?, 1),
            ])
        });
    }
}

/// Gradients that are small whole numbers have sums that are exact in any order, so they are equal; others differ by the order of
/// runs that several blocks add.
#[test]
fn gradients_of_embeddings_agree_with_the_cpus() {
    for (vocab, d, n) in
        [(50_257, 9, 700), (50_257, 64, 1), (3, 768, 130), (1, 8, 1000), (70_000, 16, 3000), (300_000, 8, 40)]
    {
        compare(&format!("gradient of {n} rows of {vocab} x {d}"), |side| {
            let ids = side.ids(&ids(n, vocab));
            let whole: Vec<f32> = normals(1, n * d).iter().map(|v| (v * 4.0).round()).collect();
            let (whole, any) = (side.stored(&whole, &[n, d]), side.activations(1, &[n, d]));
            let start: Vec<f32> = normals(2, vocab * d).iter().map(|v| (v * 4.0).round()).collect();
            let (exact, table) = (side.exactly(&start, &[vocab, d]), side.exactly(&start, &[vocab, d]));
            embedding::embed_backward(&exact, &ids, None, &whole)?;
            embedding::embed_backward(&table, &ids, Some(0.3), &any)?;
            Ok(vec![Out::equal("whole numbers", &exact), Out::f32("any numbers", &table, n, n as f64 / 4.0)])
        });
    }
    for (batch, seq, d) in [(1, 1, 1), (3, 5, 7), (4, 16, 64)] {
        compare(&format!("gradient of {seq} positions"), |side| {
            let (dy, positions) = (side.activations(1, &[batch * seq, d]), side.numbers(2, &[seq + 2, d]));
            embedding::position_backward(&positions, seq, &dy)?;
            Ok(vec![Out::equal("positions", &positions)])
        });
    }
}

#[test]
fn rows_are_taken_by_number() {
    for d in [1, 7, 768] {
        compare(&format!("rows of {d}"), |side| {
            let x = side.activations(1, &[9, d]);
            Ok(vec![Out::equal("rows", &embedding::take_rows(&x, &[8, 0, 3, 3])?)])
        });
    }
}

/// The masks are the CPU's, bit for bit, and so are the elements that remain.
#[test]
fn dropout_masks_are_equal() {
    for (samples, seq, width, p) in [(1, 1, 1, 0.5), (3, 5, 7, 0.1), (2, 16, 64, 0.37), (2, 3, 3000, 1.0 / 3.0)] {
        compare(&format!("dropout of {samples} x {seq} x {width}"), |side| {
            let x = side.activations(1, &[samples * seq, width]);
            let stream = Philox::new(3, "dropout");
            let dropout = DropoutMask { stream, step: 70_000, first_sample: 5, sample_stride: 3, p };
            pointwise::dropout(&x, seq, &dropout)?;
            Ok(vec![Out::equal("x", &x)])
        });
    }
}

#[test]
fn rotary_embedding_agrees_with_the_cpus() {
    for (head_dim, dims, heads, extra, seq) in [
        (2, 2, 1, 0, 1),
        (10, 10, 3, 4, 7),
        (64, 64, 4, 128, 9),
        (128, 128, 2, 0, 3),
        (64, 32, 2, 64, 5),
        (10, 4, 3, 1, 5),
    ] {
        compare(&format!("rotation of {dims} dimensions of {heads} heads of {head_dim}"), |side| {
            let x = side.activations(1, &[2 * seq, heads * head_dim + extra]);
            let back = side.activations(1, &[2 * seq, heads * head_dim + extra]);
            let rotary =
                Rotary { head_dim, dims, theta: 10_000.0, scaling: RopeScaling::None {}, context_length: seq + 5 };
            let rope = Rope::new(&rotary, &x)?;
            rope.rotate(&x, heads, seq, 5, false)?;
            rope.rotate(&back, heads, seq, 0, true)?;
            Ok(vec![Out::stored("forward", &x, 2), Out::stored("inverse", &back, 2)])
        });
    }
}

#[test]
fn cross_entropy_and_its_gradient_agree_with_the_cpus() {
    let sizes = [(1, 2), (3, 5), (5, 1000), (3, 50_257), (2, 50_304)];
    let options = [LossOptions::default(), LossOptions { cap: Some(2.0), z: 0.0 }, LossOptions { cap: None, z: 0.01 }];
    for ((rows, vocab), options) in sizes.into_iter().flat_map(|size| options.map(|options| (size, options))) {
        compare(&format!("cross-entropy of {rows} x {vocab}, {options:?}"), |side| {
            let targets: Vec<u32> = (0..rows)
                .map(|r| {
                    if r % 3 == 1 {
                        runner_spec::data::IGNORED_TARGET
                    } else {
                        (r * 7919 + vocab - 1) as u32 % vocab as u32
                    }
                })
                .collect();
            let (logits, kept) = (side.activations(1, &[rows, vocab]), side.activations(1, &[rows, vocab]));
            let losses = loss::cross_entropy(&logits, &targets, None, Some(0.125), options)?.read()?;
            let again = loss::cross_entropy(&kept, &targets, None, None, options)?.read()?;
            assert_eq!(losses, again, "with and without a gradient");
            let sum = if side.is_gpu() {
                let there = side.exactly(&losses, &[rows]);
                loss::Losses::Pending(there).sum()?.read()?
            } else {
                losses.iter().map(|&l| f64::from(l)).sum()
            };
            let device = candle_core::Device::Cpu;
            Ok(vec![
                Out::f32("losses", &Tensor::from_slice(&losses, rows, &device)?, vocab, 1.0),
                Out::f32("sum", &Tensor::from_slice(&[sum as f32], 1, &device)?, vocab, rows as f64),
                Out::stored("gradient", &logits, vocab),
                Out::equal("logits", &kept),
            ])
        });
    }
}

/// Logits have gaps between their rows on a GPU where the vocabulary is not a multiple of 8.
#[test]
fn rows_with_gaps_agree_with_the_cpus() {
    for (rows, inner, vocab) in [(1, 8, 9), (3, 16, 7), (33, 24, 8), (33, 24, 67), (65, 48, 1001), (4, 8, 50_257)] {
        compare(&format!("head of {rows} x {inner} x {vocab}"), |side| {
            let (x, w) = (side.activations(1, &[rows, inner]), side.activations(2, &[vocab, inner]));
            let with_gaps = |seed| {
                let logits = side.activations(seed, &[rows, vocab.next_multiple_of(8)]).narrow(1, 0, vocab)?;
                if side.is_gpu() { Ok(logits) } else { logits.contiguous() }
            };
            let (dy, logits, dw) = (with_gaps(3)?, with_gaps(4)?, side.numbers(5, &[vocab, inner]));
            let product = matmul::linear_aligned(&x, &w, None)?;
            if side.is_gpu() && vocab > 8 {
                assert_eq!(product.stride()[0] % 8, 0, "aligned rows");
            }
            matmul::linear_backward_weight(&dw, &dy, &x, true)?;
            let losses =
                loss::cross_entropy(&logits, &ids(rows, vocab), None, Some(0.125), LossOptions::default())?.read()?;
            let losses = Tensor::from_slice(&losses, rows, &candle_core::Device::Cpu)?;
            Ok(vec![
                Out::stored("logits", &product, inner),
                Out::rounded_twice("dx", &matmul::linear_backward_input(&dy, &w)?, vocab),
                Out::f32("dw", &dw, rows, rows as f64),
                Out::f32("losses", &losses, vocab, 1.0),
                Out::stored("gradient", &logits, vocab),
            ])
        });
    }
}

#[test]
fn gradients_of_biases_agree_with_the_cpus() {
    for (rows, width) in [(1, 1), (3, 7), (1000, 256), (130, 2305), (2000, 40)] {
        compare(&format!("bias gradient of {rows} x {width}"), |side| {
            let (dy, dbias) = (side.activations(1, &[rows, width]), side.numbers(2, &[width]));
            matmul::bias_backward(&dbias, &dy.into())?;
            Ok(vec![Out::f32("dbias", &dbias, rows, rows as f64)])
        });
    }
}

/// The bias is added in the product, with GELU where rows are of whole vectors. A bias that is not aligned is added by a separate pass, after
/// the product was rounded to what is stored, and the sum is rounded again. So is a bias of a product in bf16 with odd sizes where cuBLASLt has no
/// algorithm that adds one: on an H100 it has none for 33 x 65 x 17.
#[test]
fn products_of_linear_layers_agree_with_the_cpus() {
    for (rows, inner, out) in [(1, 1, 1), (5, 3, 7), (33, 65, 17), (9, 35, 24), (64, 48, 96)] {
        compare(&format!("products of {rows} x {inner} x {out}"), |side| {
            let (x, w) = (side.activations(1, &[rows, inner]), side.activations(2, &[out, inner]));
            let (bias, dy) = (side.activations(3, &[out]), side.activations(4, &[rows, out]));
            let dw = side.numbers(5, &[out, inner]);
            matmul::linear_backward_weight(&dw, &dy, &x, true)?;
            let (before, after) = matmul::linear_gelu(&x, &w, &bias)?;
            let is_even = inner.is_multiple_of(2) && out.is_multiple_of(2);
            let with_bias = if side.is_aligned() && is_even { Out::stored } else { Out::rounded_twice };
            Ok(vec![
                Out::stored("x·wᵀ", &matmul::linear(&x, &w, None)?, inner),
                with_bias("x·wᵀ + bias", &matmul::linear(&x, &w, Some(&bias))?, inner),
                with_bias("before GELU", &before, inner),
                Out::rounded_twice("GELU", &after, inner),
                Out::stored("dy·w", &matmul::linear_backward_input(&dy, &w)?, out),
                Out::f32("dw", &dw, rows, rows as f64),
            ])
        });
    }
}

/// The residual stream is added within the product wherever the bias is. Otherwise both are added by separate passes.
#[test]
fn residual_sums_agree_with_the_cpus() {
    for (rows, inner, out) in [(1, 1, 1), (5, 3, 7), (33, 65, 17), (64, 48, 96), (130, 1024, 256)] {
        compare(&format!("residual sum of {rows} x {out} from {inner}"), |side| {
            let (x, w) = (side.activations(1, &[rows, inner]), side.activations(2, &[out, inner]));
            let (bias, residual) = (side.activations(3, &[out]), side.activations(4, &[rows, out]));
            let sum = |bias| matmul::linear_sum(&x, &w, bias, &residual);
            Ok(vec![
                Out::rounded_twice("x·wᵀ + residual", &sum(None)?, inner),
                Out::rounded_twice("x·wᵀ + bias + residual", &sum(Some(&bias))?, inner),
            ])
        });
    }
}

/// TF32 keeps ten bits of the factors' mantissas; a GPU that is set to TF32 uses them, others do not.
#[test]
fn products_in_tf32_are_rounded_as_tf32() {
    let Some(_) = crate::device::gpus(1) else { return };
    let (rows, inner, out) = (32, 256, 48);
    let (x, w) = (normals(1, rows * inner), normals(2, out * inner));
    let product = |tf32: bool| {
        let device = runner_compute::gpu::open(0).unwrap();
        runner_compute::gpu::Gpu::of_device(&device).unwrap().set_tf32(tf32);
        let x = Tensor::from_slice(&x, (rows, inner), &device).unwrap();
        let w = Tensor::from_slice(&w, (out, inner), &device).unwrap();
        read(&matmul::linear(&x, &w, None).unwrap())
    };
    let error = |y: &[f32]| {
        let exact = |r: usize, c: usize| -> f64 {
            (0..inner).map(|i| f64::from(x[r * inner + i]) * f64::from(w[c * inner + i])).sum()
        };
        (0..rows * out).map(|i| (f64::from(y[i]) - exact(i / out, i % out)).abs()).fold(0.0, f64::max)
    };
    // Rounding errors of both factors, up to 2^-11 each, of random signs in sums of 256 products: the largest of 1,536 sums is
    // some four deviations (√(2·256)·2^-11/√3 each).
    let (full, tf32) = (error(&product(false)), error(&product(true)));
    assert!(full < 1e-4 && tf32 < 0.05, "{full:e}, {tf32:e}");
    assert!(tf32 > 10.0 * full, "TF32 was not used: {tf32:e}, in f32 {full:e}");
}

/// State as a run keeps it: f32 masters, and in bf16 runs bf16 tensors.
#[test]
fn optimizers() {
    // The first elements of the last two have no second moment, as under Muon.
    for (n, matrices, copied, without) in [
        (1, 1, 0, 0),
        (1003, 500, 500, 0),
        (4096, 0, 4096, 0),
        (2049, 2049, 1001, 0),
        (1003, 500, 1003, 7),
        (4096, 96, 64, 16),
    ] {
        compare(&format!("updates of {n}"), |side| {
            let state = |slots: usize| {
                // Second moments are squares.
                let positive = |(i, v): (usize, f32)| if i < 2 * n { v } else { v * v };
                let len = if slots > 2 { slots * n - without } else { slots * n };
                let values: Vec<f32> = normals(1, len).into_iter().enumerate().map(positive).collect();
                (side.exactly(&values, &[len]), side.flat_buffer(&values))
            };
            let (grads, stored_grads) = (side.numbers(2, &[n]), side.flat_buffer(&normals(2, n)));
            let mut outs = Vec::new();
            let spec = |shape| ParamSpec {
                name: String::new(),
                shape,
                init: ParamInit::Zeros,
                block: 0,
                role: ParamRole::Weight,
            };
            let specs = [vec![1, matrices], vec![n - matrices]].map(spec);
            let layout = ParamLayout::new(specs.into_iter().filter(|spec| !spec.is_empty()).collect());
            let sgd = |momentum| Optimizer::Sgd(Sgd { lr: 0.1, momentum });
            let lion = Optimizer::Lion(Lion { weight_decay: 0.1, ..Lion::default() });
            let optimizers = [Optimizer::default(), lion, sgd(0.0), sgd(0.9)];
            for (optimizer, t) in optimizers.into_iter().flat_map(|optimizer| [(optimizer, 1), (optimizer, 1000)]) {
                let inputs = UpdateInputs { lr: 0.01, t, grad_scale: 0.7 };
                let (masters, stored) = state(1 + optimizer.description().moments());
                let copy = side.bf16.then(|| side.stored(&vec![0.0; copied], &[copied]));
                for mut group in optimizer.groups(&[], &layout, 0) {
                    group.elements.start = group.elements.start.max(without);
                    optim::update_elements(&group, &masters, without, &grads, inputs, copy.as_ref())?;
                    optim::update_elements(&group, &stored, without, &stored_grads, inputs, None)?;
                }
                outs.extend([Out::stored("masters", &masters, 1), Out::stored("without masters", &stored, 1)]);
                outs.extend(copy.map(|copy| Out::stored("copy", &copy, 1)));
            }
            Ok(outs)
        });
    }
}

/// The passes of Muon, on state as a run keeps it. Its matrix products have tests above.
#[test]
fn passes_of_muon() {
    for [rows, cols] in [[1, 1], [5, 9], [24, 16], [17, 33], [64, 64]] {
        compare(&format!("muon of {rows} x {cols}"), |side| {
            let n = rows * cols;
            let mut outs = Vec::new();
            for nesterov in [false, true] {
                let rule = Momentum { momentum: 0.95, nesterov, grad_scale: 0.7 };
                let (m, g) = (side.numbers(1, &[n]), side.numbers(2, &[n]));
                let products = if side.bf16 { DType::BF16 } else { DType::F32 };
                let x = muon::direction(&m, &g, [rows, cols], rule, products)?;
                let w = side.numbers(4, &[n]);
                muon::step(&w, &x, muon::Step { rate: 0.25, decay: 0.125, cautious: nesterov })?;
                // A sum of n squares is in each number of x.
                outs.extend([
                    Out::f32("moment", &m, 2, 1.0),
                    Out::stored("direction", &x, n),
                    Out::stored("weights", &w, n),
                ]);
                let (m, g) = (side.flat_buffer(&normals(1, n)), side.flat_buffer(&normals(2, n)));
                let x = muon::direction(&m, &g, [rows, cols], rule, products)?;
                let w = side.flat_buffer(&normals(4, n));
                muon::step(&w, &x, muon::Step { rate: 0.25, decay: 0.0, cautious: false })?;
                outs.extend([Out::stored("stored moment", &m, 2), Out::rounded_twice("stored weights", &w, n)]);
            }
            let (square, gram) = (side.activations(5, &[rows, rows]), side.activations(6, &[rows, rows]));
            muon::polynomial(&square, &gram, [3.4445, -4.7750, 2.0315])?;
            outs.push(Out::stored("polynomial", &square, 3));
            Ok(outs)
        });
    }
}

#[test]
fn measures_of_flat_buffers() {
    for n in [1, 9, 1000, 300_001] {
        compare(&format!("measures of {n}"), |side| {
            let (x, numbers) = (side.flat_buffer(&normals(1, n)), side.numbers(2, &[n]));
            let (zeros, bf16_zeros) = (side.numbers(3, &[n]), side.flat_buffer(&normals(3, n)));
            let copied = side.numbers(3, &[n]);
            optimizer::clear(&zeros)?;
            optimizer::clear(&bf16_zeros)?;
            let measure =
                |x: &Tensor| Tensor::new(&[optimizer::sum_of_squares(x)?.read()? as f32], &candle_core::Device::Cpu);
            assert!(optimizer::all_finite(&x)? && optimizer::all_finite(&numbers)?);
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for at in [0, n / 2, n - 1] {
                    let mut values = vec![1.0; n];
                    values[at] = bad;
                    assert!(!optimizer::all_finite(&side.exactly(&values, &[n]))?, "{bad} at {at} of {n}");
                    assert!(!optimizer::all_finite(&side.flat_buffer(&values))?, "{bad} at {at} of {n}");
                }
            }
            let rounded = storage::converted(&numbers)?;
            assert_eq!(rounded.dtype(), DType::BF16);
            storage::convert(&copied.narrow(0, n / 2, n - n / 2)?, &rounded.narrow(0, n / 2, n - n / 2)?.copy()?)?;
            Ok(vec![
                // Squares are summed in f64 on the GPU, in f32 within a task on the CPU.
                Out::f32("squares of a stored buffer", &measure(&x)?, 16_384, n as f64),
                Out::f32("squares", &measure(&numbers)?, 16_384, n as f64),
                Out::equal("zeros", &zeros),
                Out::equal("zeros of a stored buffer", &bf16_zeros),
                Out::equal("as bf16", &rounded),
                Out::equal("and back", &storage::converted(&rounded)?),
                Out::equal("a part of it", &copied),
            ])
        });
    }
}

/// A kernel reports input that it cannot take, and does not launch.
#[test]
fn inputs_that_do_not_fit_are_refused() {
    let Some(_) = crate::device::gpus(1) else { return };
    let gpu = runner_compute::gpu::open(0).unwrap();
    let there =
        |len: usize| Tensor::zeros(len, DType::F32, &candle_core::Device::Cpu).unwrap().to_device(&gpu).unwrap();
    let short = pointwise::add_assign(&there(8), &there(7)).unwrap_err();
    assert!(short.to_string().contains("7 elements, not 8"), "{short}");
    let here = Tensor::zeros(8, DType::F32, &candle_core::Device::Cpu).unwrap();
    let here = pointwise::add_assign(&there(8), &here).unwrap_err();
    assert!(here.to_string().contains("another device"), "{here}");
    let wide = there(2 * 8200).reshape((2, 8200)).unwrap();
    let wide = norm::normalize(&wide, None, &there(8200), None, 1e-5).unwrap_err();
    assert!(wide.to_string().contains("8192"), "{wide}");
    // An id beyond the table does not become an address beyond it.
    let table = there(6).reshape((3, 2)).unwrap();
    let ids = Tensor::from_slice(&[1_u32, 3], 2, &gpu).unwrap();
    let rows = embedding::embed(&ids, &table, None, None, 2, 0).unwrap();
    assert!(read(&rows)[..2].iter().all(|&v| v == 0.0) && read(&rows)[2..].iter().all(|v| v.is_nan()));
}
