//! Rounding to bf16, the same bits on any number of threads, initial weights, and dropout masks.

use crate::common::{
    WholePasses as _, below, largest, micro_batch, model_for, program, random_params, small_gpt2, small_llama, values,
    with_values,
};
use candle_core::{DType, Device, Tensor};
use runner_compute::model::{Output, Params};
use runner_compute::nn::{DropoutSite, MicroBatch};
use runner_compute::optim;
use runner_executor::{Trainer, initial_state};
use runner_spec::data::IGNORED_TARGET;
use runner_spec::experiment::Family;
use runner_spec::experiment::Precision;
use runner_spec::model::{ModelOptions, ModelSpec, ParamInit, PytorchEmbedding, parameters};

/// Trains one step on `mb`, and returns the mean loss.
fn train(trainer: &mut Trainer, mb: &MicroBatch, lr: f64) -> f64 {
    let (losses, mut saved) = trainer.models[0].forward_losses(&trainer.weights, mb);
    let blocks = 0..trainer.models[0].spec.block_count();
    trainer.models[0].backward_blocks(&trainer.weights, &trainer.grads, &mut saved, None, mb, blocks).unwrap();
    let scale = optim::clip_scale(crate::common::grad_norm(trainer), Some(1.0));
    trainer.update(lr, scale).unwrap();
    losses.iter().map(|&l| f64::from(l)).sum::<f64>() * mb.scale
}

fn bits(x: &Tensor) -> Vec<u32> {
    x.flatten_all().unwrap().to_vec1::<f32>().unwrap().iter().map(|v| v.to_bits()).collect()
}

/// True if every element of this f32 tensor is a bf16 value.
fn is_bf16(x: &Tensor) -> bool {
    bits(x).iter().all(|b| b.trailing_zeros() >= 16)
}

/// The bf16 copy of `params`, and the same numbers in f32.
fn rounded(params: &Params) -> (Params, Params) {
    let layout = &params.layout;
    let low = with_values(layout, values(&params.flat), DType::BF16);
    // Gains and biases too, so that both are the same numbers.
    let full = with_values(layout, values(&low.flat), DType::F32);
    (Params::rounded(layout.clone(), full.flat.clone()).unwrap(), full)
}

/// Same bf16 weights, rounded activations against full ones. Each of about 10 roundings per layer, in 2 layers, is off by
/// up to 2^-9 relative and they add up like a random walk: √20 · 2^-9 ≈ 1% of a typical logit. A bound of 5% of the
/// largest logit leaves room for cancellation in the norms; below 0.01% nothing would have been rounded.
#[test]
fn bf16_forward_is_off_by_about_its_precision() {
    for spec in [small_gpt2(), small_llama()] {
        let (low, full) = rounded(&random_params(parameters(&spec), 0.3));
        let ids = below("bf16 ids", 24, spec.vocab_size);
        let logits =
            |params: &Params| model_for(&spec, params).logits(params, &micro_batch(&ids, Vec::new(), 12)).unwrap();
        let (full, low) = (logits(&full), logits(&low));
        assert_eq!((full.dtype(), low.dtype()), (DType::F32, DType::BF16));
        let (full, low) = (values(&full), values(&low));
        let off: Vec<f64> = full.iter().zip(low).map(|(a, b)| a - b).collect();
        let relative = largest(&off) / largest(&full);
        assert!((1e-4..0.05).contains(&relative), "{:?}: {relative}", spec.family);
    }
}

/// Every block's output in turn: a stage that ends there returns it.
#[test]
fn bf16_activations_and_their_gradients_are_bf16_tensors() {
    for spec in [ModelSpec { dropout: 0.1, ..small_gpt2() }, small_llama()] {
        let (params, _) = rounded(&random_params(parameters(&spec), 0.3));
        let ids = below("bf16 ids", 24, spec.vocab_size);
        for end in 1..=spec.layers + 1 {
            let stage = |range| {
                runner_compute::model::Model::new(&spec, params.layout.clone(), range, 7, &params.flat).unwrap()
            };
            let (first, second) = (stage(0..end), stage(end..spec.block_count()));
            let mut mb = micro_batch(&ids, ids.clone(), 12);
            (mb.training, mb.scale) = (true, 1.0 / 24.0);
            let (Output::Hidden(x), _) = first.forward(&params, None, &mb).unwrap() else { panic!("no head yet") };
            let x = x.packed().unwrap();
            assert_eq!(x.dtype(), DType::BF16, "{:?}: output of block {}", spec.family, end - 1);
            let (_, saved) = second.forward(&params, Some(x), &mb).unwrap();
            let grads = crate::common::zeros(&params);
            let dx = second.backward(&params, &grads, saved, None, &mb).unwrap().unwrap();
            assert_eq!(dx.dtype(), DType::BF16, "{:?}: gradient of block {}", spec.family, end - 1);
            assert!(!is_bf16(&grads.flat), "weight gradients keep full precision");
        }
    }
}

/// Thirty steps on one batch take the loss from ln 61 ≈ 4.1 to below 3; rounding at 2^-9 per activation shifts losses by
/// about that much relative, so 2% allows for several steps' worth of it.
#[test]
fn bf16_training_follows_fp32() {
    for family in [Family::Gpt2, Family::Llama] {
        let base = if family == Family::Gpt2 { small_gpt2() } else { small_llama() };
        let spec = ModelSpec { vocab_size: 61, d_model: 32, d_ff: 64, context_length: 16, ..base };
        let ids = below("training ids", 4 * 16, spec.vocab_size);
        let targets = below("training targets", 4 * 16, spec.vocab_size);
        let run = |precision: Precision| {
            let program = program(spec.clone(), precision, 4, 16);
            let mut trainer = Trainer::new(&program, initial_state(&program, None).unwrap()).unwrap();
            let mut mb = trainer.models[0].micro_batch(&ids, targets.clone(), 16).unwrap();
            (mb.training, mb.scale) = (true, 1.0 / 64.0);
            let losses: Vec<f64> = (0..30).map(|_| train(&mut trainer, &mb, 3e-3)).collect();
            if precision == Precision::Bf16 {
                let (weights, master) = (&trainer.weights, trainer.state.weights().unwrap());
                assert_eq!(
                    values(&weights.flat),
                    values(&master.to_dtype(DType::BF16).unwrap()),
                    "a copy of the last step's"
                );
                assert!(!is_bf16(weights.exact_vectors().unwrap()), "norms read gains and biases as they are");
                assert!(!is_bf16(&master), "master weights keep full precision");
            }
            losses
        };
        let (full, low) = (run(Precision::Fp32), run(Precision::Bf16));
        assert!(full[29] < 3.0, "{family:?} learns nothing: {full:?}");
        assert_ne!(full, low);
        for (step, (a, b)) in full.iter().zip(&low).enumerate() {
            assert!((a - b).abs() < 0.02 * a, "{family:?}, step {step}: {a} in fp32, {b} in bf16");
        }
    }
}

/// Two steps in pools of different sizes, at sizes where matrix products spread over the pool.
#[test]
fn any_number_of_threads_gives_the_same_bits() {
    for base in [ModelSpec { dropout: 0.1, heads: 4, kv_heads: 4, ..small_gpt2() }, small_llama()] {
        let spec = ModelSpec { d_model: 256, d_ff: 640, vocab_size: 1000, context_length: 128, layers: 1, ..base };
        let (batch, seq) = (8, 128);
        let ids = below("ids for threads", batch * seq, spec.vocab_size);
        let mut targets = below("targets for threads", batch * seq, spec.vocab_size);
        targets.iter_mut().step_by(9).for_each(|t| *t = IGNORED_TARGET);
        for precision in [Precision::Fp32, Precision::Bf16] {
            let program = program(spec.clone(), precision, batch, seq);
            let run = |threads: usize| {
                rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(|| {
                    let mut trainer = Trainer::new(&program, initial_state(&program, None).unwrap()).unwrap();
                    let mut mb = trainer.models[0].micro_batch(&ids, targets.clone(), seq).unwrap();
                    (mb.training, mb.scale) = (true, 1.0 / 900.0);
                    let (_, mut saved) = trainer.models[0].forward(&trainer.weights, None, &mb).unwrap();
                    trainer.models[0]
                        .backward_blocks(
                            &trainer.weights,
                            &trainer.grads,
                            &mut saved,
                            None,
                            &mb,
                            0..program.model.block_count(),
                        )
                        .unwrap();
                    let grads = bits(&trainer.grads.flat);
                    let losses = [train(&mut trainer, &mb, 1e-3), train(&mut trainer, &mb, 1e-3)];
                    (grads, losses, bits(&trainer.state.buffer))
                })
            };
            let one = run(1);
            for threads in [2, 3] {
                let other = run(threads);
                let differing = one.0.iter().zip(&other.0).filter(|(a, b)| a != b).count();
                let what = format!("{:?} {precision:?}, {threads} threads", spec.family);
                assert_eq!(differing, 0, "{what}: gradients differ in {differing} of {}", one.0.len());
                assert_eq!(one.1, other.1, "{what}: losses");
                assert!(one.2 == other.2, "{what}: weights and moments");
            }
        }
    }
}

/// The sample standard deviation of n normal numbers has a standard error of σ/√(2n), the mean one of σ/√n; 5 of each.
#[test]
fn initial_weights_have_their_moments() {
    for family in [Family::Gpt2, Family::Llama] {
        let base = if family == Family::Gpt2 { small_gpt2() } else { small_llama() };
        let spec = ModelSpec { d_model: 64, d_ff: 128, vocab_size: 300, layers: 3, tie_embeddings: false, ..base };
        let state = initial_state(&program(spec.clone(), Precision::Fp32, 1, 8), None).unwrap();
        let weights: Vec<f32> = state.weights().unwrap().to_vec1().unwrap();
        for entry in &state.layout.entries {
            let (name, values) = (&entry.spec.name, &weights[entry.range()]);
            // The paper's rule, repeated here: biases 0, norms 1, residual projections scaled by 1/√(2·layers).
            let bias = name.ends_with("bias");
            let norm = !bias && entry.spec.shape.len() == 1;
            if bias || norm {
                let start = if norm { 1.0 } else { 0.0 };
                assert!(values.iter().all(|&v| v == start), "{name}");
                continue;
            }
            let residual = name.ends_with("c_proj.weight");
            let std = if residual { 0.02 / (2.0 * spec.layers as f64).sqrt() } else { 0.02 };
            assert_eq!(entry.spec.init, ParamInit::Normal { std }, "{name}");
            let n = values.len() as f64;
            let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
            let variance = values.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
            assert!((variance.sqrt() - std).abs() < 5.0 * std / (2.0 * n).sqrt(), "{name}: std {}", variance.sqrt());
            assert!(mean.abs() < 5.0 * std / n.sqrt(), "{name}: mean {mean}");
        }
        let moments = state.buffer.narrow(0, state.layout.total, 2 * state.layout.total).unwrap();
        assert!(bits(&moments).iter().all(|&b| b == 0), "moments start at 0");
    }
}

#[test]
fn initial_weights_depend_only_on_seed_and_name() {
    let start = |seed: u64, spec: &ModelSpec| {
        let mut program = program(spec.clone(), Precision::Fp32, 1, 8);
        program.seed = seed.into();
        initial_state(&program, None).unwrap()
    };
    let matrix = |state: &runner_compute::state::TrainState, name: &str| {
        let weights: Vec<f32> = state.weights().unwrap().to_vec1().unwrap();
        weights[state.layout.entry(name).unwrap().range()].to_vec()
    };
    let spec = small_gpt2();
    let first = start(1, &spec);
    assert_eq!(bits(&first.buffer), bits(&start(1, &spec).buffer));
    let (a, b) = ("transformer.h.0.attn.c_attn.weight", "transformer.h.1.attn.c_attn.weight");
    assert_ne!(matrix(&first, a), matrix(&first, b));
    assert_ne!(matrix(&first, a), matrix(&start(2, &spec), a));
    // Other layouts of the same parameter: an untied head, and another model size around it.
    let untied = start(1, &ModelSpec { tie_embeddings: false, vocab_size: 29, context_length: 5, ..spec });
    assert_eq!(matrix(&first, a), matrix(&untied, a));
}

fn mask(p: f64, batch: usize, seq: usize, width: usize, first_sample: u64, step: u64, site: &str) -> Vec<f64> {
    let mut mb = micro_batch(&vec![0; batch * seq], Vec::new(), seq);
    (mb.training, mb.first_sample, mb.step) = (true, first_sample, step);
    let ones = Tensor::ones((batch * seq, width), DType::F32, &Device::Cpu).unwrap();
    DropoutSite::new(7, site, p).apply(&ones, &mb).unwrap();
    values(&ones)
}

#[test]
fn dropout_drops_the_fraction_and_keeps_the_mean() {
    for p in [0.1, 0.5, 0.9] {
        let x = mask(p, 4, 50, 300, 0, 0, "site");
        let keep = f64::from((1.0 / (1.0 - p)) as f32);
        assert!(x.iter().all(|&v| v == 0.0 || v == keep), "kept elements are scaled by 1/(1 − p)");
        let n = x.len() as f64;
        let dropped = x.iter().filter(|&&v| v == 0.0).count() as f64 / n;
        // Five standard errors of a binomial's fraction.
        assert!((dropped - p).abs() < 5.0 * (p * (1.0 - p) / n).sqrt(), "{dropped} of p = {p}");
    }
    assert!(mask(0.0, 1, 2, 3, 0, 0, "site").iter().all(|&v| v == 1.0));
}

#[test]
fn dropout_masks_belong_to_seed_site_step_and_sample() {
    let whole = mask(0.5, 4, 6, 40, 0, 3, "site");
    assert_eq!(whole, mask(0.5, 4, 6, 40, 0, 3, "site"), "recomputed");
    let halves = [mask(0.5, 2, 6, 40, 0, 3, "site"), mask(0.5, 2, 6, 40, 2, 3, "site")].concat();
    assert_eq!(whole, halves, "samples are grouped into other micro-batches");
    assert_ne!(whole, mask(0.5, 4, 6, 40, 0, 4, "site"), "the next step");
    assert_ne!(whole, mask(0.5, 4, 6, 40, 0, 3, "other"), "another site");
    let sample = whole.len() / 4;
    assert_ne!(whole[..sample], whole[sample..2 * sample], "the next sample");
}

/// Accumulation over two micro-batches of 2 is a micro-batch of 4, dropout everywhere included: the losses have the same
/// bits, the gradients differ by the order of sums (f64: some hundred terms of 1e-16).
#[test]
fn micro_batches_add_up_to_the_batch() {
    for base in [ModelSpec { dropout: 0.2, ..small_gpt2() }, small_llama()] {
        let params = random_params(parameters(&base), 0.3);
        let model = model_for(&base, &params);
        let ids = below("ids to split", 48, base.vocab_size);
        let mut targets = below("targets to split", 48, base.vocab_size);
        targets[40..].fill(IGNORED_TARGET);
        let run = |parts: &[(usize, usize)]| {
            let grads = crate::common::zeros(&params);
            let mut losses = Vec::new();
            for &(first, rows) in parts {
                let range = first * 12..(first + rows) * 12;
                let mut mb = micro_batch(&ids[range.clone()], targets[range].to_vec(), 12);
                (mb.training, mb.step, mb.first_sample, mb.scale) = (true, 5, first as u64, 1.0 / 40.0);
                let (part, saved) = model.forward_losses(&params, &mb);
                model.backward(&params, &grads, saved, None, &mb).unwrap();
                losses.extend(part);
            }
            (losses, values(&grads.flat))
        };
        let (whole, split) = (run(&[(0, 4)]), run(&[(0, 2), (2, 2)]));
        assert_eq!(whole.0, split.0, "{:?}", base.family);
        crate::common::assert_close_relative(&format!("{:?}", base.family), &split.1, &whole.1, 1e-13);
        assert_eq!(split.1, run(&[(0, 2), (2, 2)]).1, "the same plan gives the same bits");
    }
}

/// Outside training nothing is dropped.
#[test]
fn evaluation_drops_nothing() {
    let spec = small_gpt2();
    let params = random_params(parameters(&spec), 0.3);
    let mb = micro_batch(&below("ids", 24, spec.vocab_size), Vec::new(), 12);
    let logits = |dropout: f64| {
        let spec = ModelSpec { dropout, ..spec.clone() };
        values(&model_for(&spec, &params).logits(&params, &mb).unwrap())
    };
    assert_eq!(logits(0.0), logits(0.5));
}

/// Initial weights as PyTorch's modules have them: within the bounds that they are drawn from, near them, and with the variance
/// of a uniform distribution, bound²/3, within five standard errors (the variance of x² is 4/45·bound⁴).
#[test]
fn initial_weights_are_drawn_as_pytorch_draws_them() {
    let pytorch_init = Some(PytorchEmbedding::Uniform(0.1));
    let variant = ModelOptions { pytorch_init, ..crate::common::encoder() };
    let spec = ModelSpec { options: variant, vocab_size: 200, d_model: 64, d_ff: 96, ..crate::common::small_encoder() };
    let mut program = program(spec, Precision::Fp32, 4, 12);
    let state = initial_state(&program, None).unwrap();
    let flat = values(&state.weights().unwrap());
    let bounds = [
        ("attn.c_attn.weight", (6.0_f64 / (4.0 * 64.0)).sqrt()),
        ("attn.c_attn.bias", 0.0),
        ("attn.c_proj.weight", 1.0 / 8.0),
        ("attn.c_proj.bias", 0.0),
        ("mlp.c_fc.weight", 1.0 / 8.0),
        ("mlp.c_fc.bias", 1.0 / 8.0),
        ("mlp.c_proj.weight", 1.0 / 96_f64.sqrt()),
        ("mlp.c_proj.bias", 1.0 / 96_f64.sqrt()),
        ("wte.weight", 0.1),
        ("lm_head.weight", 0.1),
        ("lm_head.bias", 0.0),
    ];
    for entry in &state.layout.entries {
        let (name, values) = (&entry.spec.name, &flat[entry.range()]);
        let Some((_, bound)) = bounds.iter().find(|(end, _)| name.ends_with(end)) else {
            assert!(name.contains(".ln_"), "{name}");
            assert!(values.iter().all(|&v| v == f64::from(u8::from(name.ends_with("weight")))), "{name}");
            continue;
        };
        let top = largest(values);
        // Half a unit in the last place of f32 is what rounding may add to the bound.
        assert!(top <= bound * (1.0 + 6e-8) && top >= 0.9 * bound, "{name}: {top} of {bound}");
        let n = values.len() as f64;
        let square = values.iter().map(|v| v * v).sum::<f64>() / n;
        let error = 5.0 * (4.0 / 45.0 / n).sqrt() * bound * bound;
        assert!((square - bound * bound / 3.0).abs() <= error, "{name}: {square}");
    }
    program.seed.init += 1;
    assert_ne!(values(&initial_state(&program, None).unwrap().weights().unwrap()), flat, "they follow from the seed");
}

/// A Llama of PyTorch's modules: `nn.Linear` without biases is uniform within ± 1/√in, `nn.Embedding` is normal(0, 1), and norms are 1.
/// Means and variances are within five standard errors: the mean of x² has that of its variance, 4/45·bound⁴ or 2.
#[test]
fn initial_weights_of_a_llama_are_drawn_as_pytorch_draws_them() {
    let pytorch_init = Some(PytorchEmbedding::Normal);
    let variant = ModelOptions { pytorch_init, ..ModelOptions::default() };
    let spec = ModelSpec { options: variant, vocab_size: 200, d_model: 64, d_ff: 96, ..small_llama() };
    let state = initial_state(&program(spec, Precision::Fp32, 4, 12), None).unwrap();
    let flat = values(&state.weights().unwrap());
    let mut matrices = 0;
    for entry in &state.layout.entries {
        let (name, values) = (&entry.spec.name, &flat[entry.range()]);
        if entry.spec.shape.len() == 1 {
            assert!(name.ends_with("norm.weight") && values.iter().all(|&v| v == 1.0), "{name}");
            continue;
        }
        matrices += 1;
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let square = values.iter().map(|v| v * v).sum::<f64>() / n;
        // The variance of a value, and that of its square.
        let (variance, of_square) = if name == "model.embed_tokens.weight" {
            assert!(largest(values) > 3.0, "{name}: a normal distribution has no bound");
            (1.0, 2.0)
        } else {
            let bound = 1.0 / (entry.spec.shape[1] as f64).sqrt();
            let top = largest(values);
            assert!(top <= bound * (1.0 + 6e-8) && top >= 0.99 * bound, "{name}: {top} of {bound}");
            (bound.powi(2) / 3.0, 4.0 / 45.0 * bound.powi(4))
        };
        assert!(mean.abs() <= 5.0 * (variance / n).sqrt(), "{name}: mean {mean}");
        assert!((square - variance).abs() <= 5.0 * (of_square / n).sqrt(), "{name}: {square} for {variance}");
    }
    assert_eq!(matrices, 2 + 7 * small_llama().layers);
}

/// Without master weights, weights, gradients and moments are bf16 tensors, and there is one copy of the weights, besides the f32 gains and
/// biases that norms read. The sum of each backward is rounded once where it is stored.
#[test]
fn bf16_without_master_weights_holds_nothing_else() {
    for base in [crate::common::small_encoder(), ModelSpec { tie_embeddings: false, ..small_llama() }] {
        let mut program = program(base, Precision::Bf16, 2, 12);
        program.master_weights = false;
        let mut trainer = Trainer::new(&program, initial_state(&program, None).unwrap()).unwrap();
        let other = trainer.state.layout.total - trainer.state.layout.matrices;
        assert!(!trainer.has_rounded_copy && trainer.copied_weight_bytes() == 4 * other);
        let ids = below("ids", 24, program.model.vocab_size);
        let mut mb = trainer.models[0].micro_batch(&ids, ids.clone(), 12).unwrap();
        (mb.training, mb.scale) = (true, 1.0 / 24.0);
        let widened = |params: &Params| {
            Params::new(params.layout.clone(), runner_compute::kernels::storage::converted(&params.flat).unwrap())
        };
        let backward = |trainer: &Trainer, weights: &Params, grads: &Params| {
            let (_, mut saved) = trainer.models[0].forward(weights, None, &mb).unwrap();
            trainer.models[0]
                .backward_blocks(weights, grads, &mut saved, None, &mb, 0..program.model.block_count())
                .unwrap();
        };
        for _ in 0..5 {
            assert_eq!((trainer.state.buffer.dtype(), trainer.grads.flat.dtype()), (DType::BF16, DType::BF16));
            assert_eq!(values(&trainer.weights.flat), values(&trainer.state.weights().unwrap()), "one copy");
            for _ in 0..2 {
                let expected = widened(&trainer.grads);
                backward(&trainer, &trainer.weights, &expected);
                assert!(!is_bf16(&expected.flat), "the sum has more digits");
                backward(&trainer, &trainer.weights, &trainer.grads);
                let rounded = expected.flat.to_dtype(DType::BF16).unwrap();
                assert_eq!(values(&trainer.grads.flat), values(&rounded), "{:?}", program.model.family);
            }
            let norm = crate::common::grad_norm(&trainer);
            let square = values(&trainer.grads.flat).iter().map(|g| g * g).sum::<f64>();
            assert!((norm / square.sqrt() - 1.0).abs() < 1e-5, "{norm}");
            trainer.update(3e-3, 0.7).unwrap();
        }
        // A state of f32, as a checkpoint of another precision holds.
        let full = crate::common::program(program.model.clone(), Precision::Fp32, 2, 12);
        let state = initial_state(&full, None).unwrap();
        assert!(!is_bf16(&state.buffer));
        let rounded = Trainer::new(&program, state).unwrap().state.buffer;
        assert_eq!(values(&rounded), values(&initial_state(&program, None).unwrap().buffer));
    }
}

/// Tokens before the padding are the same to the bit whether attention sees padding or not; padded ones are not.
#[test]
fn padding_that_attention_does_not_see() {
    for spec in [small_gpt2(), small_llama()] {
        let (model, params) = crate::common::model(&spec, 0.3);
        let mb = micro_batch(&below("ids", 24, spec.vocab_size), Vec::new(), 12);
        let all = values(&model.logits(&params, &mb).unwrap());
        let masked = values(&model.logits(&params, &mb.with_valid_lengths(&[5, 12]).unwrap()).unwrap());
        for (token, (a, b)) in all.chunks(spec.vocab_size).zip(masked.chunks(spec.vocab_size)).enumerate() {
            assert_eq!(a == b, !(5..12).contains(&token), "{:?}: token {token}", spec.family);
        }
    }
}
