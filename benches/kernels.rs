//! Criterion benches of the CPU kernels at GPT-2 124M's shapes, 1,024 tokens: throughput in FLOP or in elements.

#![expect(clippy::unwrap_used, reason = "a bench that cannot run should stop")]

use std::hint::black_box;

use candle_core::{DType, Device, Tensor};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use runner_compute::kernels::attention::{AttentionMasks, AttentionShape, attention, attention_backward};
use runner_compute::kernels::{StoredPrecision, loss, matmul, norm, optimizer, pointwise};
use runner_spec::experiment::Activation;

const ROWS: usize = 1024;

fn random(shape: impl Into<candle_core::Shape>) -> Tensor {
    Tensor::randn(0.0_f32, 1.0, shape, &Device::Cpu).unwrap()
}

fn products(c: &mut Criterion) {
    let mut group = c.benchmark_group("products");
    for (inner, out) in [(768, 2304), (768, 3072), (3072, 768), (768, 50_304)] {
        let (x, w, dy) = (random((ROWS, inner)), random((out, inner)), random((ROWS, out)));
        let dw = Tensor::zeros((out, inner), DType::F32, &Device::Cpu).unwrap();
        group.throughput(Throughput::Elements((2 * ROWS * inner * out) as u64));
        group.bench_function(format!("forward {inner}x{out}"), |b| {
            b.iter(|| matmul::linear(black_box(&x), &w, None, StoredPrecision::default()).unwrap());
        });
        group.bench_function(format!("input gradient {inner}x{out}"), |b| {
            b.iter(|| matmul::linear_backward_input(black_box(&dy), &w, StoredPrecision::default()).unwrap());
        });
        group.bench_function(format!("weight gradient {inner}x{out}"), |b| {
            b.iter(|| matmul::linear_backward_weight(&dw, black_box(&dy), &x).unwrap());
        });
    }
    group.finish();
}

fn passes(c: &mut Criterion) {
    let mut group = c.benchmark_group("passes");
    let precision = StoredPrecision::default();
    let (x, wide, vector) = (random((ROWS, 768)), random((ROWS, 3072)), random(768));
    group.throughput(Throughput::Elements((ROWS * 768) as u64));
    group.bench_function("layer norm", |b| {
        b.iter(|| norm::normalize(black_box(&x), None, &vector, Some(&vector), 1e-5, precision).unwrap());
    });
    group.bench_function("rms norm", |b| {
        b.iter(|| norm::normalize(black_box(&x), None, &vector, None, 1e-5, precision).unwrap());
    });
    group.throughput(Throughput::Elements((ROWS * 3072) as u64));
    group.bench_function("gelu", |b| {
        b.iter(|| pointwise::activate(black_box(&wide), Activation::Gelu, precision).unwrap());
    });
    group.bench_function("swiglu", |b| b.iter(|| pointwise::swiglu(black_box(&wide), precision).unwrap()));
    let logits = random((ROWS, 50_304));
    let targets: Vec<u32> = (0..ROWS as u32).collect();
    group.throughput(Throughput::Elements((ROWS * 50_304) as u64));
    group.bench_function("cross-entropy, losses and gradient", |b| {
        b.iter(|| {
            loss::cross_entropy(black_box(&logits), &targets, None, Some(1e-3), precision).unwrap().read().unwrap()
        });
    });
    let n = 10_000_000;
    let (state, grads) = (random(3 * n).abs().unwrap(), random(n));
    let step =
        optimizer::AdamW { lr: 1e-4, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, t: 10, grad_scale: 1.0 };
    group.throughput(Throughput::Elements(n as u64));
    group.bench_function("adamw", |b| {
        b.iter(|| optimizer::adamw(&state, black_box(&grads), n, &step, None).unwrap());
    });
    group.finish();
}

fn heads(c: &mut Criterion) {
    let mut group = c.benchmark_group("attention");
    let precision = StoredPrecision::default();
    for seq in [128, 256, 1024] {
        let s = AttentionShape { batch: ROWS / seq, seq, heads: 12, kv_heads: 12, head_dim: 64 };
        let qkv = random((ROWS, s.qkv_width()));
        let (out, lse) = attention(&qkv, s, AttentionMasks::default(), precision).unwrap();
        // FLOPs of scores and their product with the values, without the causal saving, as PaLM counts them.
        let forward = 4 * ROWS * seq * s.out_width();
        group.throughput(Throughput::Elements(forward as u64));
        group.bench_function(format!("forward {seq}"), |b| {
            b.iter(|| attention(black_box(&qkv), s, AttentionMasks::default(), precision).unwrap());
        });
        group.throughput(Throughput::Elements(2 * forward as u64));
        group.bench_function(format!("backward {seq}"), |b| {
            b.iter(|| {
                attention_backward(black_box(&qkv), &out, &lse, &out, s, AttentionMasks::default(), precision).unwrap()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, products, passes, heads);
criterion_main!(benches);
