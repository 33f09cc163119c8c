//! Kernels on a GPU beside their floors: the bytes that they must move over the memory's bandwidth, or the operations that they
//! must do over the tensor cores' peak. In bf16, of a model's shapes; GPT-2 124M's by default.
//!
//! `cargo bench --features cuda --bench gpu`, or `-- --tiny` for shapes that an emulated driver computes in seconds. With one of these
//! flags only matrix products are measured: `-- --algorithms 16` with each of the first 16 algorithms that cuBLASLt lists, `-- --occupy 16`
//! while a kernel of 16 blocks takes as many multiprocessors, as NCCL's kernels do while they wait for another rank.

#![allow(unsafe_code, reason = "launches a kernel that waits for a word of the host")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a program that prints a table, and stops where it cannot"
)]

use std::sync::Arc;

use candle_core::cuda_backend::cudarc::driver::sys::CUdevice_attribute as Attribute;
use candle_core::cuda_backend::cudarc::driver::sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
use candle_core::cuda_backend::cudarc::driver::{CudaFunction, CudaStream, result};
use candle_core::cuda_backend::cudarc::nvrtc::Ptx;
use candle_core::{DType, Device, Result, Tensor};
use runner_compute::gpu::Gpu;
use runner_compute::kernels::attention::{AttentionMasks, AttentionShape};
use runner_compute::kernels::cpu::dropout::DropoutMask;
use runner_compute::kernels::cuda;
use runner_compute::kernels::loss::LossOptions;
use runner_compute::kernels::pointwise::Rope;
use runner_compute::optim::{self, UpdateInputs};
use runner_spec::experiment::Activation;
use runner_spec::model::{Heads, Mask, RopeScaling, Rotary};
use runner_spec::optimizer::{Optimizer, ParameterGroup};
use runner_spec::philox::Philox;

/// The sizes of a training step.
struct Shape {
    batch: usize,
    seq: usize,
    d: usize,
    vocab: usize,
    parameters: usize,
    repeats: usize,
}

const GPT2: Shape = Shape { batch: 16, seq: 1024, d: 768, vocab: 50_304, parameters: 124_475_904, repeats: 20 };
const TINY: Shape = Shape { batch: 2, seq: 8, d: 64, vocab: 320, parameters: 4096, repeats: 2 };

/// The least work that a kernel must do.
enum Floor {
    Bytes(usize),
    Flops(usize),
}

/// The GPU's limits per second; 0 where the driver does not report them.
struct GpuLimits {
    bytes: f64,
    flops: f64,
}

impl GpuLimits {
    fn of(gpu: &Gpu) -> Self {
        let attribute = |a| f64::from(gpu.stream().context().attribute(a).unwrap_or(0));
        // kHz and bits; two transfers for each cycle.
        let clock = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE) * 1e3;
        let bytes = 2.0 * clock * attribute(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH) / 8.0;
        // Dense bf16 operations of one multiprocessor in one cycle.
        let per = if gpu.compute_capability().0 >= 9 { 4096.0 } else { 2048.0 };
        let clock = attribute(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE) * 1e3;
        Self { bytes, flops: gpu.multiprocessors() as f64 * clock * per }
    }
}

/// How products are measured, if not only as they are.
enum Variants {
    None,
    /// So many algorithms of cuBLASLt.
    Algorithms(usize),
    /// So many multiprocessors in use by another kernel.
    Occupied(usize),
}

struct Bench<'a> {
    gpu: &'a Gpu,
    limits: GpuLimits,
    repeats: usize,
    variants: Variants,
}

/// A kernel that takes multiprocessors until it is dropped.
struct Occupation {
    stream: Arc<CudaStream>,
    /// Held, because the driver would unload the kernel with its last handle.
    _kernel: CudaFunction,
    /// Of the host, and read by the kernel, which ends when it is not 0.
    word: *mut u32,
}

impl Occupation {
    /// The first thread of each block waits for the word, the others for the first.
    const KERNEL: &'static str = ".version 7.0
.target sm_80
.address_size 64
.visible .entry hold(.param .u64 word) {
    .reg .pred rests, waits;
    .reg .u32 value;
    .reg .u64 address;
    mov.u32 value, %tid.x;
    setp.ne.u32 rests, value, 0;
    @rests bra meet;
    ld.param.u64 address, [word];
look:
    ld.volatile.global.u32 value, [address];
    setp.eq.u32 waits, value, 0;
    @waits bra look;
meet:
    bar.sync 0;
    ret;
}
";
    /// Of NCCL's kernels. A block takes all shared memory that it can have, so that no block of a product fits on the same multiprocessor.
    const THREADS: u32 = 640;

    fn start(gpu: &Gpu, blocks: usize) -> Self {
        let context = gpu.stream().context();
        let module = context.load_module(Ptx::from_src(Self::KERNEL)).unwrap();
        let function = module.load_function("hold").unwrap();
        let attribute = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let shared =
            context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN).unwrap() as u32;
        function.set_attribute(attribute, shared as i32).unwrap();
        let stream = context.new_stream().unwrap();
        // SAFETY: the word lives as long as the kernel, which only takes its address.
        unsafe {
            let mut word = result::malloc_host(size_of::<u32>(), 0).unwrap();
            word.cast::<u32>().write_volatile(0);
            let mut parameters = [(&raw mut word).cast()];
            let (grid, block) = ((blocks as u32, 1, 1), (Self::THREADS, 1, 1));
            result::launch_kernel(function.cu_function(), grid, block, shared, stream.cu_stream(), &mut parameters)
                .unwrap();
            Self { stream, _kernel: function, word: word.cast() }
        }
    }
}

impl Drop for Occupation {
    fn drop(&mut self) {
        // SAFETY: the kernel reads the word, and nothing else does. It is freed when the kernel has ended.
        unsafe {
            self.word.write_volatile(1);
            self.stream.synchronize().unwrap();
            result::free_host(self.word.cast()).unwrap();
        }
    }
}

impl Bench<'_> {
    /// Prints a row; of several algorithms the time of the fastest.
    fn row(&self, name: &str, floor: &Floor, f: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let (seconds, more) = match self.variants {
            Variants::None => (self.seconds(f)?, String::new()),
            Variants::Algorithms(number) => self.algorithms(number, f)?,
            Variants::Occupied(blocks) => self.beside(blocks, f)?,
        };
        let (amount, limit, unit) = match *floor {
            Floor::Bytes(n) => (n as f64, self.limits.bytes, "GB/s"),
            Floor::Flops(n) => (n as f64, self.limits.flops, "GFLOP/s"),
        };
        let share =
            if limit > 0.0 { format!("{:6.1}%", 100.0 * amount / limit / seconds) } else { "      ?".to_owned() };
        println!("{name:<34} {:>10.1} {:>12.0} {unit:<8} {share}{more}", seconds * 1e6, amount / seconds / 1e9);
        Ok(())
    }

    /// The time with the fastest of cuBLASLt's algorithms, which that is, and how long the first takes.
    fn algorithms(&self, number: usize, f: &mut dyn FnMut() -> Result<()>) -> Result<(f64, String)> {
        let mut measured = Vec::new();
        for choice in 0..number {
            self.gpu.choose_algorithm(choice);
            measured.push((self.seconds(f)?, choice));
        }
        let first = measured[0].0;
        let (seconds, choice) = measured.into_iter().fold((f64::INFINITY, 0), |a, b| if b.0 < a.0 { b } else { a });
        Ok((seconds, format!("  algorithm {choice}; the first takes {:.1} µs", first * 1e6)))
    }

    /// The time without another kernel. The text has the times while a kernel of `blocks` blocks waits, for a product made for all
    /// multiprocessors, and for one made for the rest.
    fn beside(&self, blocks: usize, f: &mut dyn FnMut() -> Result<()>) -> Result<(f64, String)> {
        let alone = self.seconds(f)?;
        let occupied = |f: &mut dyn FnMut() -> Result<()>| {
            // A kernel that is loaded now would wait for the other one.
            f()?;
            self.gpu.synchronize()?;
            let occupation = Occupation::start(self.gpu, blocks);
            let seconds = self.seconds(f)?;
            drop(occupation);
            Ok::<_, candle_core::Error>(seconds * 1e6)
        };
        let for_all = occupied(f)?;
        self.gpu.spare_multiprocessors(blocks);
        let for_rest = occupied(f)?;
        self.gpu.spare_multiprocessors(0);
        Ok((alone, format!("  while {blocks} blocks wait {for_all:.1} µs, made for the rest {for_rest:.1} µs")))
    }

    fn seconds(&self, f: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
        f()?;
        f()?;
        let from = self.gpu.record_timestamp()?;
        for _ in 0..self.repeats {
            f()?;
        }
        let to = self.gpu.record_timestamp()?;
        self.gpu.synchronize()?;
        Ok(to.elapsed_since(&from)?.map_or(0.0, |t| t.as_secs_f64()) / self.repeats as f64)
    }
}

fn main() -> Result<()> {
    if let Err(why) = runner_machine::doctor::check_gpus() {
        println!("no GPU: {why}");
        return Ok(());
    }
    let shape = if std::env::args().any(|a| a == "--tiny") { TINY } else { GPT2 };
    let number = |flag: &str| std::env::args().skip_while(|a| a != flag).nth(1).map(|n| n.parse().unwrap());
    let variants = match (number("--algorithms"), number("--occupy")) {
        (Some(number), _) => Variants::Algorithms(number),
        (None, Some(blocks)) => Variants::Occupied(blocks),
        (None, None) => Variants::None,
    };
    let device = runner_compute::gpu::open(0)?;
    let gpu = Gpu::of_device(&device)?;
    let repeats = shape.repeats;
    let bench = Bench { limits: GpuLimits::of(&gpu), repeats, gpu: &gpu, variants };
    println!("bandwidth {:.0} GB/s, bf16 peak {:.0} TFLOP/s", bench.limits.bytes / 1e9, bench.limits.flops / 1e12);
    println!("{:<34} {:>10} {:>12} {:<8} {:>7}", "kernel", "µs", "", "", "of it");
    if !matches!(bench.variants, Variants::None) {
        return products(&bench, &shape);
    }
    rows(&bench, &shape)?;
    attentions(&bench, &shape)?;
    products(&bench, &shape)?;
    flat(&bench, &shape)
}

/// Random values like activations, in bf16.
fn activations(gpu: &Gpu, shape: (usize, usize)) -> Result<Tensor> {
    let values = Tensor::randn(0.0_f32, 1.0, shape, &Device::Cpu)?.to_dtype(DType::BF16)?;
    values.to_device(&Device::Cuda(gpu.device().clone()))
}

fn rows(bench: &Bench<'_>, s: &Shape) -> Result<()> {
    let (gpu, rows, d) = (bench.gpu, s.batch * s.seq, s.d);
    let n = rows * d;
    let (x, dy) = (activations(gpu, (rows, d))?, activations(gpu, (rows, d))?);
    let (weight, bias) = (gpu.zeros(DType::F32, d)?, gpu.zeros(DType::F32, d)?);
    let stats = cuda::norm::normalize(&x, None, &weight, Some(&bias), 1e-5)?.2;
    bench.row("LayerNorm", &Floor::Bytes(4 * n), &mut || {
        cuda::norm::normalize(&x, None, &weight, Some(&bias), 1e-5).map(|_| ())
    })?;
    bench.row("sum and LayerNorm", &Floor::Bytes(8 * n), &mut || {
        cuda::norm::normalize(&x, Some(&dy), &weight, Some(&bias), 1e-5).map(|_| ())
    })?;
    bench.row("LayerNorm backward", &Floor::Bytes(8 * n), &mut || {
        cuda::norm::normalize_backward(&weight, Some(&bias), &x, &weight, &stats, &dy, Some(&dy)).map(|_| ())
    })?;
    bench.row("RMSNorm", &Floor::Bytes(4 * n), &mut || {
        cuda::norm::normalize(&x, None, &weight, None, 1e-5).map(|_| ())
    })?;
    bench.row("residual sum", &Floor::Bytes(6 * n), &mut || cuda::pointwise::add_assign(&x, &dy))?;
    let stream = Philox::new(1, "bench");
    let dropout = DropoutMask { stream, step: 1, first_sample: 0, sample_stride: 1, p: 0.1 };
    bench.row("dropout", &Floor::Bytes(4 * n), &mut || cuda::pointwise::dropout(&x, s.seq, &dropout))?;
    let head_dim = 64.min(d);
    let scaling = RopeScaling::None {};
    let rope = Rope::new(&Rotary { head_dim, dims: head_dim, theta: 10_000.0, scaling, context_length: s.seq }, &x)?;
    let heads = d / 64.min(d);
    bench.row("rotation", &Floor::Bytes(4 * n), &mut || rope.rotate(&x, heads, s.seq, 0, false))?;
    bench.row("bias gradient", &Floor::Bytes(2 * n), &mut || cuda::matmul::bias_backward(&bias, &dy, None))?;
    let (wide, dwide) = (activations(gpu, (rows, 4 * d))?, activations(gpu, (rows, 4 * d))?);
    bench.row("GELU", &Floor::Bytes(16 * n), &mut || cuda::pointwise::activate(&wide, Activation::Gelu).map(|_| ()))?;
    bench.row("GELU backward", &Floor::Bytes(24 * n), &mut || {
        cuda::pointwise::activate_backward(&dwide, &wide, Activation::Gelu)
    })?;
    let wide_bias = gpu.zeros(DType::F32, 4 * d)?;
    bench.row("bias gradient, 4 d", &Floor::Bytes(8 * n), &mut || {
        cuda::matmul::bias_backward(&wide_bias, &dwide, None)
    })?;
    bench.row("SwiGLU", &Floor::Bytes(12 * n), &mut || cuda::pointwise::gated(&wide, Activation::Silu).map(|_| ()))?;
    let half = activations(gpu, (rows, 2 * d))?;
    bench.row("SwiGLU backward", &Floor::Bytes(20 * n), &mut || {
        cuda::pointwise::gated_backward(&wide, &half, Activation::Silu).map(|_| ())
    })?;
    embeddings(bench, s, &dy)
}

fn embeddings(bench: &Bench<'_>, s: &Shape, dy: &Tensor) -> Result<()> {
    let (gpu, rows, d) = (bench.gpu, s.batch * s.seq, s.d);
    let n = rows * d;
    // Most of a text is a few frequent tokens.
    let ids: Vec<u32> = (0..rows)
        .map(|r| ((r * 7919 % rows) as f64 / rows as f64).powi(4) * s.vocab as f64)
        .map(|v| v as u32)
        .collect();
    let ids = gpu.upload(&ids)?;
    let (table, positions) = (activations(gpu, (s.vocab, d))?, activations(gpu, (s.seq, d))?);
    bench.row("embedding", &Floor::Bytes(4 * n), &mut || {
        cuda::embedding::embed(&ids, &table, None, Some(&positions), s.seq, 0).map(|_| ())
    })?;
    let (dtable, dpositions) = (gpu.zeros(DType::F32, (s.vocab, d))?, gpu.zeros(DType::F32, (s.seq, d))?);
    bench.row("embedding backward", &Floor::Bytes(2 * n), &mut || {
        cuda::embedding::embed_backward(&dtable, &ids, None, dy)
    })?;
    bench.row("position backward", &Floor::Bytes(2 * n), &mut || {
        cuda::embedding::position_backward(&dpositions, s.seq, dy)
    })?;
    let targets = ids;
    let logits = gpu.zeros(DType::BF16, (rows, s.vocab))?;
    bench.row("cross-entropy and gradient", &Floor::Bytes(4 * rows * s.vocab), &mut || {
        cuda::loss::cross_entropy(&logits, &targets, Some(1e-4), LossOptions::default()).map(|_| ())
    })
}

/// Attention over heads of 64 and of 128, with as many heads for keys as for queries and a quarter of them.
fn attentions(bench: &Bench<'_>, s: &Shape) -> Result<()> {
    for (width, share) in [(64, 1), (128, 1), (128, 4)] {
        let queries = (s.d / width).max(share).next_multiple_of(share);
        let heads = Heads { queries, kv: queries / share, width };
        let scale = (width as f64).powf(-0.5);
        let shape = AttentionShape { batch: s.batch, seq: s.seq, heads, mask: Mask::Causal, scale };
        let (rows, masks) = (s.batch * s.seq, AttentionMasks::default());
        let qkv = activations(bench.gpu, (rows, shape.qkv_width()))?;
        // A causal mask leaves half of the products.
        let flops = 2 * rows * s.seq * shape.out_width();
        let name = format!("attention, {queries}/{} heads of {width}", heads.kv);
        bench.row(&name, &Floor::Flops(flops), &mut || cuda::attention::attention(&qkv, shape, masks).map(|_| ()))?;
        let (out, lse) = cuda::attention::attention(&qkv, shape, masks)?;
        let dout = activations(bench.gpu, (rows, shape.out_width()))?;
        bench.row(&format!("{name}, backward"), &Floor::Flops(5 * flops / 2), &mut || {
            cuda::attention::attention_backward(&qkv, &out, &lse, &dout, shape, masks, true).map(|_| ())
        })?;
    }
    Ok(())
}

/// The matmuls of each linear layer: forward, and the gradients of input and weight.
fn products(bench: &Bench<'_>, s: &Shape) -> Result<()> {
    let (gpu, rows, d) = (bench.gpu, s.batch * s.seq, s.d);
    for (name, inner, out) in
        [("qkv", d, 3 * d), ("attention's out", d, d), ("up", d, 4 * d), ("down", 4 * d, d), ("head", d, s.vocab)]
    {
        let (x, w) = (activations(gpu, (rows, inner))?, activations(gpu, (out, inner))?);
        let (dy, dw) = (gpu.zeros(DType::BF16, (rows, out))?, gpu.zeros(DType::F32, (out, inner))?);
        let (bias, own) = (gpu.zeros(DType::F32, out)?, gpu.zeros(DType::BF16, out)?);
        let floor = Floor::Flops(2 * rows * inner * out);
        bench.row(&format!("{name}: forward"), &floor, &mut || cuda::matmul::linear(&x, &w, None).map(|_| ()))?;
        bench.row(&format!("{name}: forward, f32 bias"), &floor, &mut || {
            cuda::matmul::linear(&x, &w, Some(&bias)).map(|_| ())
        })?;
        bench.row(&format!("{name}: forward, bf16 bias"), &floor, &mut || {
            cuda::matmul::linear(&x, &w, Some(&own)).map(|_| ())
        })?;
        if name == "down" {
            let residual = activations(gpu, (rows, out))?;
            bench.row("down: forward, bf16 bias, residual sum", &floor, &mut || {
                cuda::matmul::linear_sum(&x, &w, Some(&own), &residual).map(|_| ())
            })?;
        }
        if name == "up" {
            bench.row("up: forward, f32 bias, GELU", &floor, &mut || {
                cuda::matmul::linear_gelu(&x, &w, &bias).map(|_| ())
            })?;
            bench.row("up: forward, bf16 bias, GELU", &floor, &mut || {
                cuda::matmul::linear_gelu(&x, &w, &own).map(|_| ())
            })?;
        }
        bench.row(&format!("{name}: input's gradient"), &floor, &mut || {
            cuda::matmul::linear_backward_input(&dy, &w).map(|_| ())
        })?;
        if name == "down" {
            bench.row("down: input's gradient, GELU's", &floor, &mut || {
                cuda::matmul::linear_backward_gelu(&dy, &w, &x).map(|_| ())
            })?;
        }
        bench.row(&format!("{name}: weight's gradient"), &floor, &mut || {
            cuda::matmul::linear_backward_weight(&dw, &dy, &x, true)
        })?;
    }
    Ok(())
}

/// The kernels that pass over all parameters.
fn flat(bench: &Bench<'_>, s: &Shape) -> Result<()> {
    let (gpu, n) = (bench.gpu, s.parameters);
    let (state, grads, copy) = (gpu.zeros(DType::F32, 3 * n)?, gpu.zeros(DType::F32, n)?, gpu.zeros(DType::BF16, n)?);
    let group = ParameterGroup { name: String::new(), elements: 0..n, optimizer: Optimizer::default(), lr_scale: 1.0 };
    let inputs = UpdateInputs { lr: 1e-3, t: 1, grad_scale: 1.0 };
    bench.row("AdamW with a bf16 copy", &Floor::Bytes(30 * n), &mut || {
        optim::update_elements(&group, &state, 0, &grads, inputs, Some(&copy))
    })?;
    bench.row("squares", &Floor::Bytes(4 * n), &mut || cuda::optimizer::sum_of_squares(&grads).map(|_| ()))?;
    bench.row("clear", &Floor::Bytes(4 * n), &mut || gpu.clear(&grads))
}
