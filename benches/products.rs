//! The matrix products of a GPT-2 training step alone, with their shapes, operand layouts and order: x·Wᵀ of every linear layer and
//! of the head, then for each of them, backwards, dW += dyᵀ·x and dx = dy·W. `compare.py` divides the time of a whole step by theirs.
//!
//! The products inside attention (queries with keys, probabilities with values) are not among them, and neither are biases. In bf16
//! a product includes the rounding of its result, as in a step. Prints one line a repetition, until it is stopped:
//!
//! ```text
//! cargo build --release --example products
//! target/release/examples/products --layers 4 --d-model 128 --vocab 1024 --rows 2048 --threads 2
//! ```

use std::io::Write;
use std::time::Instant;

use candle_core::{DType, Device, Tensor};
use clap::{Parser, ValueEnum};
use mimalloc::MiMalloc;
use runner_compute::kernels::cpu::product::Bf16Products;
use runner_compute::kernels::matmul;
use runner_threads::large_blocks::LargeBlocks;

/// The allocator of the program.
#[global_allocator]
static ALLOCATOR: LargeBlocks<MiMalloc> = LargeBlocks::new(MiMalloc);

/// Times the matrix products of a GPT-2 training step alone.
#[derive(Parser)]
struct Arguments {
    #[arg(long)]
    layers: usize,
    #[arg(long)]
    d_model: usize,
    #[arg(long)]
    vocab: usize,
    /// Tokens of a micro-batch
    #[arg(long)]
    rows: usize,
    #[arg(long, value_enum, default_value = "fp32")]
    dtype: Dtype,
    /// How bf16 matrices are multiplied: amx_bf16, avx512_bf16 or f32 [default: as on this processor]
    #[arg(long, value_parser = Bf16Products::parse_name)]
    bf16_products: Option<Bf16Products>,
    #[arg(long)]
    threads: usize,
    /// Stop after this many repetitions [default: never]
    #[arg(long)]
    repetitions: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Dtype {
    Fp32,
    Bf16,
}

/// A linear layer: its weight [out, in], the weight's gradient, the layer's input [rows, in], and the gradient of its output
/// [rows, out].
struct Linear {
    w: Tensor,
    dw: Tensor,
    x: Tensor,
    dy: Tensor,
}

impl Linear {
    fn new(rows: usize, inner: usize, out: usize, dtype: Dtype) -> candle_core::Result<Self> {
        let random = |shape: (usize, usize)| {
            let values = Tensor::randn(0.0_f32, 0.02, shape, &Device::Cpu)?;
            match dtype {
                Dtype::Fp32 => Ok(values),
                Dtype::Bf16 => values.to_dtype(DType::BF16),
            }
        };
        let dw = Tensor::zeros((out, inner), DType::F32, &Device::Cpu)?;
        Ok(Self { w: random((out, inner))?, dw, x: random((rows, inner))?, dy: random((rows, out))? })
    }
}

/// The linear layers of the model, in the order of a forward pass.
fn linear_layers(arguments: &Arguments) -> candle_core::Result<Vec<Linear>> {
    let d = arguments.d_model;
    let block = [(d, 3 * d), (d, d), (d, 4 * d), (4 * d, d)];
    let blocks = std::iter::repeat_n(block, arguments.layers).flatten();
    blocks
        .chain([(d, arguments.vocab)])
        .map(|(inner, out)| Linear::new(arguments.rows, inner, out, arguments.dtype))
        .collect()
}

fn multiply(layers: &[Linear]) -> candle_core::Result<()> {
    for layer in layers {
        matmul::linear(&layer.x, &layer.w, None)?;
    }
    for layer in layers.iter().rev() {
        matmul::linear_backward_weight(&layer.dw, &layer.dy, &layer.x, true)?;
        matmul::linear_backward_input(&layer.dy, &layer.w)?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let arguments = Arguments::parse();
    if let Some(method) = arguments.bf16_products {
        method.choose();
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(arguments.threads).build()?;
    pool.install(|| {
        let layers = linear_layers(&arguments)?;
        let mut out = std::io::stdout();
        for repetition in 1..=arguments.repetitions.unwrap_or(u64::MAX) {
            let start = Instant::now();
            multiply(&layers)?;
            writeln!(out, "repetition {repetition}  {:.3} ms", start.elapsed().as_secs_f64() * 1e3)?;
            out.flush()?;
        }
        Ok(())
    })
}
