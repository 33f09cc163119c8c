//! Blocks keep for their backward exactly the tensors that their parts declare.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use candle_core::{DType, Device, Tensor};

use super::{BlockActivations, Model, SavedActivations};
use crate::kernels::bytes::write;
use crate::nn::transformer::{LayerActivations, PartActivations};
use crate::nn::{Params, WeightGradientTask};
use runner_spec::experiment::Recompute;
use runner_spec::model::layout::ParamLayout;
use runner_spec::model::parts::Buffer;
use runner_spec::model::{Activation, NormGain, NormPlace, PositionKind, QkNorm};
use runner_spec::model::{Family, ModelOptions, ModelSpec, ParamRole, parameters};

const ROWS: usize = 2;
const LENGTH: usize = 6;

/// Every option of every family that has it.
fn models() -> Vec<ModelSpec> {
    let mut all = Vec::new();
    for bits in 0_u32..128 {
        let on = |bit: u32| bits >> bit & 1 == 1;
        let options = ModelOptions {
            norm: if on(0) { NormPlace::Post } else { NormPlace::Pre },
            activation: Some(if on(1) { Activation::Relu } else { Activation::Gelu }),
            positions: if on(2) { PositionKind::Sinusoidal } else { PositionKind::Learned },
            mlp_dropout: if on(3) { 0.2 } else { 0.0 },
            head_bias: on(4),
            final_norm: !on(5),
            ..ModelOptions::default()
        };
        let sizes = ModelSpec::with_defaults(Family::Gpt2, [13, 8, 2, 4, 16]);
        all.push(ModelSpec { d_ff: 24, tie_embeddings: on(6), dropout: options.mlp_dropout, options, ..sizes });
    }
    for (kv_heads, tie_embeddings) in [(4, false), (2, false), (1, true)] {
        let sizes = ModelSpec::with_defaults(Family::Llama, [13, 8, 2, 4, 16]);
        all.push(ModelSpec { d_ff: 24, kv_heads, tie_embeddings, ..sizes });
    }
    let options = ModelOptions { activation: Some(Activation::Relu2), ..ModelOptions::default() };
    all.push(ModelSpec { options, d_ff: 24, ..ModelSpec::with_defaults(Family::Gpt2, [13, 8, 2, 4, 16]) });
    for (norm, qk_norm) in
        [(NormPlace::Output, QkNorm::Width), (NormPlace::Both, QkNorm::Head), (NormPlace::Pre, QkNorm::HeadAfterRope)]
    {
        for norm_gain in [NormGain::Weight, NormGain::None] {
            let options = ModelOptions { norm, norm_gain, qk_norm, head_dim: Some(6), ..ModelOptions::default() };
            for family in Family::ALL {
                let sizes = ModelSpec::with_defaults(family, [13, 8, 2, 4, 16]);
                all.push(ModelSpec { options: options.clone(), d_ff: 24, ..sizes });
            }
        }
    }
    for (family, options) in [(Family::Llama, ALL_SUMS), (Family::Gpt2, ALL_SUMS), (Family::Gpt2, NUMBERS)] {
        let sizes = ModelSpec::with_defaults(family, [13, 8, 4, 4, 16]);
        all.push(ModelSpec { options: serde_json::from_str(options).unwrap(), d_ff: 24, ..sizes });
    }
    all
}

/// Sums at every place, with every kind of value.
const ALL_SUMS: &str = r#"{
    "values": {
        "first": {"embedding": {}},
        "half": {"output": {"layers": [0]}},
        "skipped": {"output": {"layers": [1, 0], "in": [2, 3]}},
        "own": {"table": {"in": [1, 3]}},
        "shared": {"table": {"in": [0, 2], "shared": [0, 0]}},
        "smear": {"scalar": {"initial": 0.5}},
        "near": {"gate": {"channels": 5}},
        "resid": {"scalar": {"initial": 1.2, "initial_of_last": 0.8}},
        "mix": {"scalar": {"initial": 0.3}},
        "skip": {"scalar": {"initial": -1.0, "sigmoid": true}},
        "open": {"gate": {"channels": 3}},
        "weak": {"scalar": {"initial": 0.4}},
        "wide": {"gate": {"channels": 7}},
        "out": {"scalar": {"initial": 0.2}}
    },
    "sums": {
        "embedding": ["x + smear * near * previous(x)", "norm(x)"],
        "layer": ["x + skip * skipped", "resid * x + mix * first"],
        "value": ["v + 3 * open * own + weak * shared"],
        "attended": ["wide * y"],
        "head": ["x - out * half"]
    }
}"#;

/// Sums whose coefficients are numbers. They keep nothing.
const NUMBERS: &str = r#"{
    "values": {"first": {"embedding": {}}, "own": {"table": {}}},
    "sums": {"layer": ["0.9 * x + 0.1 * first"], "value": ["v + 0.5 * own"], "attended": ["2 * y"], "head": ["x - 0.2 * first"]}
}"#;

/// The bytes of tensors: those of activations, sorted, and the sum of those of statistics, which are f32 always.
type Held = (Vec<usize>, usize);

fn planned(buffers: &[Buffer], element: usize) -> Held {
    let bytes = |b: &Buffer, element: usize| b.per_position * ROWS * LENGTH * element;
    let (statistics, activations): (Vec<&Buffer>, Vec<&Buffer>) = buffers.iter().partition(|b| b.always_f32);
    let mut activations: Vec<usize> = activations.into_iter().map(|b| bytes(b, element)).collect();
    activations.sort_unstable();
    (activations, statistics.into_iter().map(|b| bytes(b, 4)).sum())
}

fn bytes(tensor: &Tensor) -> usize {
    tensor.elem_count() * tensor.dtype().size_in_bytes()
}

fn kept(activations: &[&Tensor], statistics: &[&Tensor]) -> Held {
    assert!(statistics.iter().all(|tensor| tensor.dtype() == DType::F32));
    let mut sizes: Vec<usize> = activations.iter().map(|tensor| bytes(tensor)).collect();
    sizes.sort_unstable();
    (sizes, statistics.iter().map(|tensor| bytes(tensor)).sum())
}

fn kept_by(saved: &SavedActivations) -> Held {
    match &saved.of {
        BlockActivations::Embedding => (Vec::new(), 0),
        BlockActivations::Head(head) => {
            let (x, stats): (Vec<_>, Vec<_>) = head.norm.iter().map(|(x, stats)| (x, stats)).unzip();
            let replaced = head.before_sums.iter().flatten().collect();
            kept(&[replaced, x, vec![&head.normed, &head.dlogits]].concat(), &stats)
        }
        BlockActivations::Layer(layer) => {
            let (replaced, parts) = match &**layer {
                LayerActivations::Input(x) => return kept(&[x], &[]),
                LayerActivations::All(replaced, parts) => (replaced, parts),
            };
            let (mut tensors, mut statistics): (Vec<_>, _) = (replaced.iter().flatten().collect(), Vec::new());
            for part in parts {
                tensors.push(&part.x);
                for (tensor, stats) in part.before.iter().chain(&part.after) {
                    tensors.push(tensor);
                    statistics.push(stats);
                }
                match &part.part {
                    PartActivations::Mlp(mlp) => tensors.extend([&mlp.before, &mlp.after]),
                    PartActivations::Attention(None) => {}
                    PartActivations::Attention(Some(attention)) => {
                        tensors.extend([&attention.qkv, &attention.heads]);
                        tensors.extend(attention.before_sums.iter().flatten());
                        statistics.push(&attention.lse);
                        for (tensor, stats) in attention.before_norms.iter().flatten() {
                            tensors.push(tensor);
                            statistics.push(stats);
                        }
                    }
                }
            }
            kept(&tensors, &statistics)
        }
    }
}

fn params(spec: &ModelSpec, dtype: DType) -> Params {
    let layout = Arc::new(ParamLayout::new(parameters(spec)));
    let flat = Tensor::randn(0.0_f32, 0.1, layout.total, &Device::Cpu).unwrap();
    if dtype == DType::BF16 { Params::rounded(layout, flat).unwrap() } else { Params::new(layout, flat) }
}

#[test]
fn blocks_keep_the_tensors_that_their_parts_declare() {
    for spec in models() {
        for (dtype, recompute) in [
            (DType::F32, Recompute::None),
            (DType::BF16, Recompute::None),
            (DType::F32, Recompute::Attention),
            (DType::BF16, Recompute::Block),
        ] {
            let (decoder, params) = (spec.decoder(), params(&spec, dtype));
            let blocks = 0..spec.block_count();
            let model = Model::new(&spec, params.layout.clone(), blocks, 7, &params.flat).unwrap();
            let model = model.with_recompute(recompute);
            let ids: Vec<u32> = (0..ROWS * LENGTH).map(|i| (i % spec.vocab_size) as u32).collect();
            let mut mb = model.micro_batch(&ids, ids.clone(), LENGTH).unwrap();
            mb.training = true;
            let (_, saved) = model.forward_with_hook(&params, None, &mb, &mut |_, _| Ok(())).unwrap();
            let element = dtype.size_in_bytes();
            let what = || format!("{spec:?}, {dtype:?}, {recompute:?}");
            let layers = decoder.layers.iter().map(|layer| planned(&layer.kept(recompute), element));
            let head = planned(&decoder.head.kept(), element);
            let planned_blocks: Vec<Held> = [(Vec::new(), 0)].into_iter().chain(layers).chain([head]).collect();
            assert_eq!(saved.iter().map(kept_by).collect::<Vec<_>>(), planned_blocks, "{}", what());
            for (block, saved) in saved.iter().enumerate() {
                let read: Vec<usize> = saved.carried.iter().map(|(place, _)| *place).collect();
                assert_eq!(read, decoder.carried_read_by(block).into_iter().collect::<Vec<_>>(), "{}", what());
            }

            // Inputs and gradients of products are all that the weights' gradients wait for, besides the norms' finished gradients.
            let (_, work) = model.backward_input(&params, saved, None, &mb).unwrap();
            for (work, layer) in work[1..].iter().zip(decoder.layers.iter()) {
                let mut found = [0, 0];
                for task in work {
                    match task {
                        WeightGradientTask::Linear { x, dy, .. } => {
                            found = [found[0] + bytes(x), found[1] + bytes(&dy.tensor)];
                        }
                        WeightGradientTask::Table { dy, .. } => found[1] += bytes(dy),
                        WeightGradientTask::Vector { .. } | WeightGradientTask::Embedding { .. } => {}
                    }
                }
                let deferred = layer.deferred().map(|b| b.per_position * ROWS * LENGTH * element);
                assert_eq!(found, deferred, "{}", what());
            }
        }
    }
}

#[test]
fn products_are_the_matrices_of_layers() {
    for spec in models() {
        for (index, layer) in spec.decoder().layers.iter().enumerate() {
            let matrices = parameters(&spec).into_iter().filter(|p| p.block == index + 1 && p.is_matrix());
            let multiplied = matrices.filter(|p| p.role != ParamRole::Table);
            assert_eq!(multiplied.map(|p| p.len()).sum::<usize>(), layer.multiplications());
        }
    }
}

/// Replicas with shards receive weights, and sum gradients, on another thread. While that one waits for a buffer, nobody else may
/// begin to read it: a kernel that reads it twice at once would wait for itself.
#[test]
fn kernels_continue_while_another_thread_waits_for_their_buffers() {
    const TIME: Duration = Duration::from_mins(2);
    let (done, is_done) = channel();
    thread::spawn(move || {
        let models = models();
        // Norms after the sums, a bias in the head, a Llama, sums of named values.
        let chosen = [&models[1], &models[16], &models[128], &models[models.len() - 3]];
        for (spec, dtype) in chosen.into_iter().flat_map(|spec| [(spec, DType::F32), (spec, DType::BF16)]) {
            let params = params(spec, dtype);
            let grads = Params::zeroed_like(params.layout.clone(), &params.flat.to_dtype(DType::F32).unwrap()).unwrap();
            let blocks = 0..spec.block_count();
            let model = Model::new(spec, params.layout.clone(), blocks.clone(), 7, &params.flat).unwrap();
            let ids: Vec<u32> = (0..ROWS * LENGTH).map(|i| (i % spec.vocab_size) as u32).collect();
            let mut mb = model.micro_batch(&ids, ids.clone(), LENGTH).unwrap();
            mb.training = true;
            let buffers = [Some(&params.flat), params.exact_vectors(), Some(&grads.flat)];
            let ended = AtomicBool::new(false);
            thread::scope(|scope| {
                for buffer in buffers.into_iter().flatten() {
                    let ended = &ended;
                    scope.spawn(move || {
                        while !ended.load(Ordering::Relaxed) {
                            write(buffer, |_| ()).unwrap();
                        }
                    });
                }
                for _ in 0..50 {
                    let (_, mut saved) = model.forward_with_hook(&params, None, &mb, &mut |_, _| Ok(())).unwrap();
                    model.backward_blocks(&params, &grads, &mut saved, None, &mb, blocks.clone()).unwrap();
                }
                ended.store(true, Ordering::Relaxed);
            });
        }
        done.send(()).unwrap();
    });
    is_done.recv_timeout(TIME).unwrap();
}
