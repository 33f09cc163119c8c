//! What the correctness tests share: reproducible random numbers, small models, and comparisons that show what differed.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of this")]
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

pub mod cases;
pub mod counter;
pub mod layouts;
pub mod oracle;
pub mod pipeline;

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};
use runner_compute::model::{Model, Output, Params, SavedActivations};
use runner_compute::nn::MicroBatch;
use runner_executor::Trainer;
use runner_spec::experiment::{Activation, Family, NormPlace, PositionKind};
use runner_spec::experiment::{Optimizer, Precision, Recompute};
use runner_spec::model::layout::ParamLayout;
use runner_spec::model::{Biases, LayerOptions, ModelOptions, NormGain, QkNorm, RopeScaling};
use runner_spec::model::{ModelSpec, ParamInit, ParamRole, ParamSpec, parameters};
use runner_spec::philox::Philox;
use runner_spec::program;
use runner_spec::program::{BatchSpec, BlockRange, EvalSpec, LrSchedule, Mesh, Program, RowOrder};

/// `n` standard normal numbers, the same for the same purpose.
pub fn normals(purpose: &str, n: usize) -> Vec<f64> {
    let stream = Philox::new(0, purpose);
    (0..n.div_ceil(4) as u64).flat_map(|i| stream.normals(i)).take(n).collect()
}

/// `n` numbers below `limit`.
pub fn below(purpose: &str, n: usize, limit: usize) -> Vec<u32> {
    let stream = Philox::new(0, purpose);
    (0..n as u32).map(|i| ((u64::from(stream.block([i, 0, 0, 0])[0]) * limit as u64) >> 32) as u32).collect()
}

/// A random f64 tensor.
pub fn random(purpose: &str, shape: (usize, usize), std: f64) -> Tensor {
    let values: Vec<f64> = normals(purpose, shape.0 * shape.1).iter().map(|v| v * std).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// All elements, in f64.
pub fn values(x: &Tensor) -> Vec<f64> {
    x.flatten_all().unwrap().to_dtype(DType::F64).unwrap().to_vec1().unwrap()
}

/// The norm of the gradients that the trainer's rank counts.
pub fn grad_norm(trainer: &Trainer) -> f64 {
    trainer.launch_grad_squares().unwrap().into_iter().map(|sum| sum.read().unwrap()).sum::<f64>().sqrt()
}

/// A parameter's specification for tests of single layers.
pub fn spec(name: &str, shape: &[usize]) -> ParamSpec {
    let init = if name.ends_with("norm") { ParamInit::Ones } else { ParamInit::Zeros };
    ParamSpec { name: name.into(), shape: shape.to_vec(), init, block: 0, role: ParamRole::Weight }
}

/// Random f64 parameters with nothing special about any: matrices around 0, norm weights around 1, biases around 0.
pub fn random_params(specs: Vec<ParamSpec>, std: f64) -> Params {
    let layout = Arc::new(ParamLayout::new(specs));
    let mut flat = vec![0.0; layout.total];
    for entry in &layout.entries {
        let centre = match entry.spec.init {
            ParamInit::Ones => 1.0,
            ParamInit::Constant { value } => value,
            _ => 0.0,
        };
        for (v, n) in flat[entry.range()].iter_mut().zip(normals(&entry.spec.name, entry.spec.len())) {
            *v = centre + std * n;
        }
    }
    with_values(&layout, flat, DType::F64)
}

/// Parameters with these values; those of `DType::BF16` are the rounded copy of f32 weights.
pub fn with_values(layout: &Arc<ParamLayout>, flat: Vec<f64>, dtype: DType) -> Params {
    let flat = Tensor::from_vec(flat, layout.total, &Device::Cpu).unwrap();
    match dtype {
        DType::BF16 => Params::rounded(layout.clone(), flat.to_dtype(DType::F32).unwrap()).unwrap(),
        _ => Params::new(layout.clone(), flat.to_dtype(dtype).unwrap()),
    }
}

/// Gradient buffers of zeros: f32 for bf16 weights.
pub fn zeros(like: &Params) -> Params {
    let dtype = if like.flat.dtype() == DType::BF16 { DType::F32 } else { like.flat.dtype() };
    Params::new(like.layout.clone(), Tensor::zeros(like.layout.total, dtype, &Device::Cpu).unwrap())
}

/// A small GPT-2: 2 layers, 2 heads.
pub fn small_gpt2() -> ModelSpec {
    ModelSpec {
        family: Family::Gpt2,
        vocab_size: 13,
        context_length: 12,
        layers: 2,
        heads: 2,
        kv_heads: 2,
        d_model: 8,
        d_ff: 20,
        dropout: 0.0,
        tie_embeddings: true,
        norm_eps: 1e-5,
        rope_theta: 10_000.0,
        options: ModelOptions::default(),
    }
}

/// What makes a stack of PyTorch's encoder layers of a GPT-2, as its tutorials do; without dropout.
pub fn encoder() -> ModelOptions {
    ModelOptions {
        norm: NormPlace::Post,
        activation: Some(Activation::Relu),
        positions: PositionKind::Sinusoidal,
        embedding_scale: true,
        head_bias: true,
        final_norm: false,
        ..ModelOptions::default()
    }
}

/// Small models with the parts of published ones, by whose names they go; and others that have what none of these has.
#[expect(clippy::too_many_lines, reason = "a list")]
pub fn recent_models() -> Vec<(&'static str, ModelSpec)> {
    let (llama, plain) = (small_llama(), LayerOptions::default());
    let of = |options: ModelOptions| ModelSpec { options, ..llama.clone() };
    let base = ModelOptions::default;
    let local = LayerOptions { window: Some(4), rope_theta: Some(50.0), ..plain.clone() };
    let yarn =
        RopeScaling::Yarn { factor: 4.0, original_context: 8, beta_fast: 2.0, beta_slow: 0.5, attention_factor: None };
    vec![
        ("Qwen 2", of(ModelOptions { biases: Some(Biases::Qkv), ..base() })),
        ("Qwen 3", of(ModelOptions { head_dim: Some(6), qk_norm: QkNorm::Head, ..base() })),
        (
            "OLMo 3",
            // A norm of small outputs is so curved that differences need a larger epsilon.
            ModelSpec {
                norm_eps: 0.1,
                ..of(ModelOptions {
                    norm: NormPlace::Output,
                    qk_norm: QkNorm::Width,
                    rope_scaling: yarn,
                    pattern: vec![
                        LayerOptions { window: Some(3), rope_scaling: Some(RopeScaling::None {}), ..plain.clone() },
                        plain.clone(),
                    ],
                    ..base()
                })
            },
        ),
        (
            "Gemma 3",
            ModelSpec {
                tie_embeddings: true,
                ..of(ModelOptions {
                    norm: NormPlace::Both,
                    norm_gain: NormGain::OnePlusWeight,
                    head_dim: Some(6),
                    qk_norm: QkNorm::Head,
                    activation: Some(Activation::Gelu),
                    embedding_scale: true,
                    attention_scale: Some(0.3),
                    pattern: vec![local, plain.clone()],
                    ..base()
                })
            },
        ),
        (
            "SmolLM3",
            of(ModelOptions { pattern: vec![plain.clone(), LayerOptions { rope: false, ..plain.clone() }], ..base() }),
        ),
        (
            "nanochat",
            of(ModelOptions {
                norm_gain: NormGain::None,
                activation: Some(Activation::Relu2),
                gated: Some(false),
                qk_norm: QkNorm::HeadAfterRope,
                rope_fraction: Some(0.5),
                logit_softcap: Some(2.0),
                embedding_norm: true,
                ..base()
            }),
        ),
        (
            "GPT-2 without biases, with gates and both norms",
            ModelSpec {
                options: ModelOptions {
                    norm: NormPlace::Both,
                    biases: Some(Biases::None),
                    activation: Some(Activation::Silu),
                    gated: Some(true),
                    qk_norm: QkNorm::Width,
                    window: Some(5),
                    embedding_norm: true,
                    ..base()
                },
                ..small_gpt2()
            },
        ),
        (
            "layers of one part",
            ModelSpec {
                layers: 3,
                ..of(ModelOptions {
                    norm_gain: NormGain::OnePlusWeight,
                    biases: Some(Biases::Attention),
                    qk_norm: QkNorm::HeadAfterRope,
                    pattern: vec![
                        LayerOptions { mlp: false, ..plain.clone() },
                        LayerOptions { attention: false, layers: 2, ..plain },
                    ],
                    ..base()
                })
            },
        ),
    ]
}

/// Sums at every place, with every kind of value, in models of 3 layers.
pub const SUMS: &str = "
values:
  first: {embedding: {}}
  half: {output: {layers: [0]}}
  skipped: {output: {layers: [0, 1], in: [1, 2]}}
  own: {table: {in: [1]}}
  shared: {table: {in: [0, 2], shared: [0, 0]}}
  smear: {scalar: {initial: 0.5}}
  near: {gate: {channels: 5}}
  resid: {scalar: {initial: 1.2, initial_of_last: 0.8}}
  mix: {scalar: {initial: 0.3}}
  skip: {scalar: {initial: -1, sigmoid: true}}
  open: {gate: {channels: 3}}
  weak: {scalar: {initial: 0.4}}
  wide: {gate: {channels: 7}}
  turned: {gate: {channels: 2}}
  out: {scalar: {initial: 0.2}}
sums:
  embedding: ['x + smear * near * previous(x)', 'norm(x)', '0.9 * x - 0.2 * previous(x)']
  layer: ['x + skip * skipped', 'resid * x + mix * turned * first']
  value: ['v + 3 * open * own + weak * shared']
  attended: ['wide * y']
  head: ['x - out * half', 'norm(x)']
";

/// Small models of 3 layers with sums.
pub fn models_with_sums() -> Vec<(&'static str, ModelSpec)> {
    let options = ModelOptions::of_section(serde_yaml::from_str(SUMS).unwrap());
    // Norms of small embeddings are so curved that differences need a larger epsilon.
    let of = |base: ModelSpec| ModelSpec { layers: 3, norm_eps: 0.1, options: options.clone(), ..base };
    vec![("Llama with sums", of(small_llama())), ("GPT-2 with sums", of(small_gpt2()))]
}

/// A small model of such layers: untied.
pub fn small_encoder() -> ModelSpec {
    ModelSpec { tie_embeddings: false, options: encoder(), ..small_gpt2() }
}

/// A small Llama: 2 layers, 4 heads over 2 key-value heads.
pub fn small_llama() -> ModelSpec {
    ModelSpec {
        family: Family::Llama,
        heads: 4,
        d_model: 16,
        d_ff: 24,
        tie_embeddings: false,
        rope_theta: 100.0,
        ..small_gpt2()
    }
}

/// The model of `spec` with all its blocks, and random f64 weights.
pub fn model(spec: &ModelSpec, std: f64) -> (Model, Params) {
    let params = random_params(parameters(spec), std);
    (model_for(spec, &params), params)
}

/// The model of `spec` over the layout and element type of `params`.
pub fn model_for(spec: &ModelSpec, params: &Params) -> Model {
    Model::new(spec, params.layout.clone(), 0..spec.block_count(), 7, &params.flat).unwrap()
}

/// Complete passes over a model or a chunk.
pub trait WholePasses {
    /// The output, and what the backward needs.
    fn forward(&self, params: &Params, input: Option<Tensor>, mb: &MicroBatch) -> Result<(Output, Saved)>;

    /// The losses of a whole model, and what the backward needs.
    fn forward_losses(&self, params: &Params, mb: &MicroBatch) -> (Vec<f32>, Saved) {
        match self.forward(params, None, mb).unwrap() {
            (Output::Losses(losses), saved) => (losses.read().unwrap(), saved),
            (Output::Hidden(_), _) => panic!("a whole model ends in losses"),
        }
    }

    /// Adds the gradients of all blocks. Returns the gradient for the previous chunk.
    fn backward(
        &self,
        params: &Params,
        grads: &Params,
        saved: Saved,
        dy: Option<Tensor>,
        mb: &MicroBatch,
    ) -> Result<Option<Tensor>>;
}

type Saved = Vec<SavedActivations>;

impl WholePasses for Model {
    fn forward(&self, params: &Params, input: Option<Tensor>, mb: &MicroBatch) -> Result<(Output, Saved)> {
        let input = input.map(|packed| self.unpacked(packed, self.range.start)).transpose()?;
        self.forward_with_hook(params, input, mb, &mut |_, _| Ok(()))
    }

    fn backward(
        &self,
        params: &Params,
        grads: &Params,
        mut saved: Saved,
        dy: Option<Tensor>,
        mb: &MicroBatch,
    ) -> Result<Option<Tensor>> {
        let dy = dy.map(|packed| self.unpacked(packed, self.range.end)).transpose()?;
        let dx = self.backward_blocks(params, grads, &mut saved, dy, mb, self.range.clone())?;
        dx.map(|dx| dx.packed()).transpose()
    }
}

/// A micro-batch of `batch` rows of `seq` ids below `vocab`, without targets.
pub fn micro_batch(ids: &[u32], targets: Vec<u32>, seq: usize) -> MicroBatch {
    MicroBatch {
        device_targets: None,
        ids: Tensor::from_slice(ids, ids.len(), &Device::Cpu).unwrap(),
        targets,
        batch: ids.len() / seq,
        seq,
        valid_lengths: None,
        documents: None,
        step: 0,
        first_sample: 0,
        sample_stride: 1,
        scale: 1.0,
        training: false,
    }
}

/// A program of one CPU rank that takes each global batch as one micro-batch; AdamW.
pub fn program(model: ModelSpec, precision: Precision, sequences: usize, length: usize) -> Program {
    Program {
        rank: 0,
        mesh: Mesh::single(),
        seed: 7.into(),
        device: program::Device::Cpu,
        precision,
        master_weights: true,
        recompute: Recompute::None,
        chunks: vec![BlockRange { start: 0, end: model.block_count() }],
        buckets: Vec::new(),
        shards: Vec::new(),
        sharded: runner_spec::experiment::ShardedState::default(),
        model,
        batch: BatchSpec {
            sequences,
            slice: (0, sequences),
            stride: 1,
            micro_batch: sequences,
            length,
            pieces: 1,
            mask_padding: false,
            order: RowOrder::default(),
            position: None,
        },
        optimizer: Optimizer::default().without_lr(),
        groups: Vec::new(),
        transfer: None,
        schedule: LrSchedule {
            peak: 3e-3,
            start: 0,
            warmup_steps: 0,
            warmup_from: None,
            hold_steps: 0,
            later_decays: Vec::new(),
            decay: runner_spec::schedule::Decay::Constant {},
        },
        steps: 30,
        start: Vec::new(),
        step: Vec::new(),
        periodic: Vec::new(),
        copies_saved_state: false,
        eval: EvalSpec::default(),
        flops_per_step: 0.0,
        peak_flops: None,
        earlier: Vec::new(),
    }
}

/// The largest magnitude.
pub fn largest(x: &[f64]) -> f64 {
    x.iter().fold(0.0, |m, v| if v.is_nan() { f64::NAN } else { v.abs().max(m) })
}

/// Fails unless every element of `a` is within `tolerance` of `b`'s, absolute.
pub fn assert_close(what: &str, a: &[f64], b: &[f64], tolerance: f64) {
    assert_eq!(a.len(), b.len(), "{what}: lengths differ");
    for (i, (x, y)) in a.iter().zip(b).enumerate() {
        assert!((x - y).abs() <= tolerance, "{what}: element {i} is {x:e}, expected {y:e} ± {tolerance:e}");
    }
}

/// `assert_close` with a tolerance relative to the largest element of `b`.
pub fn assert_close_relative(what: &str, a: &[f64], b: &[f64], tolerance: f64) {
    assert_close(what, a, b, tolerance * largest(b));
}
