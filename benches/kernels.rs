//! The CPU kernels at GPT-2 124M's widths, each beside the least time that its bytes or its operations take on this machine.
//!
//! The floor of a pass over memory is its bytes over the bandwidth of copies, that of a product its operations over the rate of a large
//! square product. Both are measured in every round, in turn with the kernels, so that a change of the machine's speed affects both sides.
//!
//! ```text
//! cargo bench --bench kernels -- --dtype bf16 --only gelu --threads 2
//! ```

#![expect(clippy::unwrap_used, reason = "a bench that cannot run should stop")]

use std::io::Write;
use std::time::Instant;

use candle_core::{DType, Device, Tensor};
use clap::{Parser, ValueEnum};
use mimalloc::MiMalloc;
use runner_compute::kernels::attention::{AttentionMasks, AttentionShape, attention, attention_backward};
use runner_compute::kernels::cpu::product::Bf16Products;
use runner_compute::kernels::pointwise::Rope;
use runner_compute::kernels::{bytes, embedding, loss, matmul, norm, optimizer, pointwise};
use runner_compute::optim::{self, UpdateInputs};
use runner_spec::experiment::Activation;
use runner_spec::model::{Heads, Mask, RopeScaling, Rotary};
use runner_spec::optimizer::{Optimizer, ParameterGroup};
use runner_threads::large_blocks::LargeBlocks;

/// The allocator of the program.
#[global_allocator]
static ALLOCATOR: LargeBlocks<MiMalloc> = LargeBlocks::new(MiMalloc);

/// Width of the model, of its MLP, and the vocabulary.
const D: usize = 768;
const FF: usize = 4 * D;
const VOCAB: usize = 50_304;
const LENGTH: usize = 256;

/// Bytes that a copy, from which bandwidth is measured, reads.
const COPIED_BYTES: usize = 128 << 20;
/// Rows, columns and depth of the product from which the rate of products is measured.
const SQUARE: usize = 2048;

/// Times the CPU kernels beside this machine's bandwidth and product rate.
#[derive(Parser)]
struct Arguments {
    #[arg(long, value_enum, default_value = "fp32")]
    dtype: Dtype,
    /// How bf16 matrices are multiplied: amx_bf16, avx512_bf16 or f32 [default: as on this processor]
    #[arg(long, value_parser = Bf16Products::parse_name)]
    bf16_products: Option<Bf16Products>,
    /// Kernels whose name contains this text
    #[arg(long)]
    only: Option<String>,
    #[arg(long, default_value_t = num_threads())]
    threads: usize,
    /// Tokens of a micro-batch
    #[arg(long, default_value_t = 2048)]
    rows: usize,
    #[arg(long, default_value_t = 11)]
    rounds: usize,
    /// What `cargo bench` passes
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Dtype {
    Fp32,
    Bf16,
}

fn num_threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// The work that bounds a kernel.
#[derive(Clone, Copy)]
enum Work {
    Bytes(usize),
    Flops(usize),
}

struct Kernel {
    name: String,
    work: Work,
    run: Box<dyn Fn() + Send + Sync>,
    seconds: Vec<f64>,
}

struct Kernels {
    dtype: DType,
    rows: usize,
    only: Option<String>,
    list: Vec<Kernel>,
}

impl Kernels {
    fn tensor(&self, shape: impl Into<candle_core::Shape>) -> Tensor {
        Tensor::randn(0.0_f32, 1.0, shape, &Device::Cpu).unwrap().to_dtype(self.dtype).unwrap()
    }

    fn add(&mut self, name: impl Into<String>, work: Work, run: impl Fn() + Send + Sync + 'static) {
        let name = name.into();
        if self.only.as_ref().is_none_or(|only| name.contains(only)) {
            self.list.push(Kernel { name, work, run: Box::new(run), seconds: Vec::new() });
        }
    }

    fn add_products(&mut self) {
        let rows = self.rows;
        for (inner, out) in [(D, 3 * D), (D, D), (D, FF), (FF, D), (D, VOCAB)] {
            let (x, w, dy) = (self.tensor((rows, inner)), self.tensor((out, inner)), self.tensor((rows, out)));
            let dw = Tensor::zeros((out, inner), DType::F32, &Device::Cpu).unwrap();
            let work = Work::Flops(2 * rows * inner * out);
            let (a, b) = (x.clone(), w.clone());
            self.add(format!("product {inner} to {out}"), work, move || drop(matmul::linear(&a, &b, None).unwrap()));
            let a = dy.clone();
            self.add(format!("product {inner} to {out}, input's gradient"), work, move || {
                drop(matmul::linear_backward_input(&a, &w).unwrap());
            });
            self.add(format!("product {inner} to {out}, weight's gradient"), work, move || {
                matmul::linear_backward_weight(&dw, &dy, &x, true).unwrap();
            });
        }
        for (inner, out) in [(D, FF), (D, VOCAB)] {
            let (x, w) = (self.tensor((1, inner)), self.tensor((out, inner)));
            let work = Work::Bytes(w.elem_count() * self.dtype.size_in_bytes());
            self.add(format!("one row, {inner} to {out}"), work, move || drop(matmul::linear(&x, &w, None).unwrap()));
        }
    }

    fn add_passes(&mut self) {
        let (rows, size) = (self.rows, self.dtype.size_in_bytes());
        let f32s = |n: usize| Tensor::randn(0.0_f32, 1.0, n, &Device::Cpu).unwrap();
        let passes = move |numbers: usize, count: usize| Work::Bytes(numbers * count * size);
        let (x, dy, wide, dwide) =
            (self.tensor((rows, D)), self.tensor((rows, D)), self.tensor((rows, FF)), self.tensor((rows, FF)));
        let (gain, bias, dgain, dbias) = (f32s(D), f32s(D), f32s(D), f32s(D));
        let (_, _, stats) = norm::normalize(&x, None, &gain, Some(&bias), 1e-5).unwrap();
        let (a, g, b) = (x.clone(), gain.clone(), bias.clone());
        self.add("layer norm", passes(rows * D, 2), move || {
            drop(norm::normalize(&a, None, &g, Some(&b), 1e-5).unwrap());
        });
        let (a, d) = (x.clone(), dy.clone());
        self.add("layer norm, gradients", passes(rows * D, 4), move || {
            drop(norm::normalize_backward(&dgain, Some(&dbias), &a, &gain, &stats, &d, Some(&d)).unwrap());
        });
        let a = wide.clone();
        self.add("gelu", passes(rows * FF, 2), move || drop(pointwise::activate(&a, Activation::Gelu).unwrap()));
        let (a, d) = (wide.clone(), dwide.clone());
        self.add("gelu, gradient", passes(rows * FF, 3), move || {
            pointwise::activate_backward(&d, &a, Activation::Gelu).unwrap();
        });
        let a = wide.clone();
        self.add("swiglu", passes(rows * FF / 2, 3), move || drop(pointwise::gated(&a, Activation::Silu).unwrap()));
        let (a, d) = (wide, self.tensor((rows, FF / 2)));
        self.add("swiglu, gradient", passes(rows * FF / 2, 5), move || {
            drop(pointwise::gated_backward(&a, &d, Activation::Silu).unwrap());
        });
        let dwide_bias = f32s(FF);
        self.add("bias, gradient", passes(rows * FF, 1), move || {
            matmul::bias_backward(&dwide_bias, &dwide.clone().into()).unwrap();
        });
        let a = x.clone();
        self.add("residual sum", passes(rows * D, 3), move || pointwise::add_assign(&a, &dy).unwrap());
        let scaling = RopeScaling::None {};
        let rotary = Rotary { head_dim: 64, dims: 64, theta: 1e4, scaling, context_length: LENGTH };
        let rope = Rope::new(&rotary, &x).unwrap();
        let a = x.clone();
        self.add("rotary positions", passes(rows * D, 2), move || rope.rotate(&a, D / 64, LENGTH, 0, false).unwrap());
        let ids: Vec<u32> = (0..rows).map(|i| (i * 7919 % VOCAB) as u32).collect();
        let (table, targets) = (self.tensor((VOCAB, D)), ids.clone());
        let ids = Tensor::from_vec(ids, rows, &Device::Cpu).unwrap();
        self.add("embedding", passes(rows * D, 2), move || {
            drop(embedding::embed(&ids, &table, None, None, LENGTH, 0).unwrap());
        });
        let logits = self.tensor((rows, VOCAB));
        self.add("cross-entropy and its gradient", passes(rows * VOCAB, 2), move || {
            loss::cross_entropy(&logits, &targets, None, Some(1e-3), loss::LossOptions::default())
                .unwrap()
                .read()
                .unwrap();
        });
    }

    fn add_attention(&mut self) {
        for length in [128, 256, 1024] {
            let batch = self.rows / length;
            let s = AttentionShape {
                batch,
                seq: length,
                heads: Heads { queries: 12, kv: 12, width: 64 },
                mask: Mask::Causal,
                scale: 0.125,
            };
            let qkv = self.tensor((s.batch * length, s.qkv_width()));
            let (out, lse) = attention(&qkv, s, AttentionMasks::default()).unwrap();
            // A query sees half of the keys on average: two products forward, five backward.
            let product = s.batch * length * length * s.out_width();
            let a = qkv.clone();
            self.add(format!("attention over {length}"), Work::Flops(2 * product), move || {
                drop(attention(&a, s, AttentionMasks::default()).unwrap());
            });
            self.add(format!("attention over {length}, gradient"), Work::Flops(5 * product), move || {
                drop(attention_backward(&qkv, &out, &lse, &out, s, AttentionMasks::default(), false).unwrap());
            });
        }
    }

    fn add_updates(&mut self) {
        let n = 20_000_000;
        let state = Tensor::randn(0.0_f32, 1.0, 3 * n, &Device::Cpu).unwrap().abs().unwrap();
        let grads = Tensor::randn(0.0_f32, 1.0, n, &Device::Cpu).unwrap();
        let copy = (self.dtype == DType::BF16).then(|| Tensor::zeros(n, DType::BF16, &Device::Cpu).unwrap());
        let group =
            ParameterGroup { name: String::new(), elements: 0..n, optimizer: Optimizer::default(), lr_scale: 1.0 };
        let inputs = UpdateInputs { lr: 1e-4, t: 10, grad_scale: 1.0 };
        let bytes = 7 * 4 + if copy.is_some() { 2 } else { 0 };
        let g = grads.clone();
        self.add("adamw", Work::Bytes(n * bytes), move || {
            optim::update_elements(&group, &state, 0, &g, inputs, copy.as_ref()).unwrap();
        });
        let g = grads.clone();
        self.add("gradients' norm", Work::Bytes(4 * n), move || _ = optimizer::norm(&g).unwrap());
        self.add("gradients to zero", Work::Bytes(4 * n), move || optimizer::clear(&grads).unwrap());
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn seconds(run: &dyn Fn()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64()
}

fn measure(arguments: Arguments) {
    if let Some(method) = arguments.bf16_products {
        method.choose();
    }
    let dtype = if arguments.dtype == Dtype::Bf16 { DType::BF16 } else { DType::F32 };
    let mut kernels = Kernels { dtype, rows: arguments.rows, only: arguments.only, list: Vec::new() };
    kernels.add_products();
    kernels.add_attention();
    kernels.add_passes();
    kernels.add_updates();

    let source = Tensor::ones(COPIED_BYTES / 4, DType::F32, &Device::Cpu).unwrap();
    let target = Tensor::zeros(COPIED_BYTES / 4, DType::F32, &Device::Cpu).unwrap();
    let (a, b) = (kernels.tensor((SQUARE, SQUARE)), kernels.tensor((SQUARE, SQUARE)));
    let (mut copies, mut squares) = (Vec::new(), Vec::new());
    for round in 0..=arguments.rounds {
        let copy = seconds(&|| copy(&source, &target));
        let square = seconds(&|| drop(matmul::linear(&a, &b, None).unwrap()));
        let times: Vec<f64> = kernels.list.iter().map(|kernel| seconds(&*kernel.run)).collect();
        // The first round touches the memory.
        if round > 0 {
            copies.push(copy);
            squares.push(square);
            kernels.list.iter_mut().zip(times).for_each(|(kernel, time)| kernel.seconds.push(time));
        }
    }
    let bandwidth = 2.0 * COPIED_BYTES as f64 / median(&mut copies);
    let rate = 2.0 * (SQUARE as f64).powi(3) / median(&mut squares);
    let mut out = std::io::stdout();
    writeln!(out, "bandwidth of copies {:.1} GB/s, product rate {:.0} GFLOP/s\n", bandwidth / 1e9, rate / 1e9).unwrap();
    writeln!(out, "| kernel | ms | rate | time over its floor |\n|---|---|---|---|").unwrap();
    for kernel in &mut kernels.list {
        let time = median(&mut kernel.seconds);
        let (rate, floor) = match kernel.work {
            Work::Bytes(bytes) => (format!("{:.1} GB/s", bytes as f64 / time / 1e9), bytes as f64 / bandwidth),
            Work::Flops(flops) => (format!("{:.0} GFLOP/s", flops as f64 / time / 1e9), flops as f64 / rate),
        };
        writeln!(out, "| {} | {:.3} | {rate} | {:.2} |", kernel.name, time * 1e3, time / floor).unwrap();
    }
}

/// Copies on all threads.
fn copy(source: &Tensor, target: &Tensor) {
    use rayon::prelude::*;
    bytes::read(source, |source| {
        bytes::write(target, |target| {
            target.par_chunks_mut(1 << 18).zip(source.par_chunks(1 << 18)).for_each(|(t, s)| t.copy_from_slice(s));
        })
    })
    .unwrap()
    .unwrap();
}

fn main() {
    let arguments = Arguments::parse();
    rayon::ThreadPoolBuilder::new().num_threads(arguments.threads).build().unwrap().install(|| measure(arguments));
}
