//! Attention: tiles on tensor cores (bf16, and TF32 where f32 products may use it) or in exact f32, for heads of up to 128; rows one by
//! one for wider heads, and for new tokens over a cache.

use candle_core::{DType, Result, Tensor, bail};

use super::launch::{Launch, of_type};
use crate::gpu::{Dims, Gpu};
use crate::kernels::attention::{Filled, Masks, Shape};
use crate::kernels::cpu::dropout::Dropout;

const THREADS: usize = 128;
/// Heads that the tiles take, and those that rows one by one take.
const WIDEST: usize = 128;
const WIDEST_ROW: usize = 512;
/// The grid's second and third dimension.
const MOST_BLOCKS: usize = 65_535;

/// The kernels of one arithmetic for heads of up to `width`, and the sizes of their tiles: as in attention_{bf16,f32,tf32}.cu. Of two
/// names the second has dropout.
#[derive(Debug, Clone, Copy)]
struct Tiles {
    width: usize,
    bytes: usize,
    forward: [&'static str; 2],
    forward_queries: usize,
    forward_keys: usize,
    /// For dK and dV; a block has `KEYS` keys.
    keys: [&'static str; 2],
    keys_queries: usize,
    /// For dQ.
    queries: [&'static str; 2],
    queries_queries: usize,
    queries_keys: usize,
}

const KEYS: usize = 64;

macro_rules! tiles {
    ($name:literal, $width:literal, $bytes:literal, $fq:literal x $fk:literal, $kq:literal, $qq:literal x $qk:literal) => {
        Tiles {
            width: $width,
            bytes: $bytes,
            forward: [concat!("attention_forward_", $name), concat!("attention_forward_", $name, "_dropout")],
            forward_queries: $fq,
            forward_keys: $fk,
            keys: [concat!("attention_keys_", $name), concat!("attention_keys_", $name, "_dropout")],
            keys_queries: $kq,
            queries: [concat!("attention_queries_", $name), concat!("attention_queries_", $name, "_dropout")],
            queries_queries: $qq,
            queries_keys: $qk,
        }
    };
}

const BF16: [Tiles; 2] =
    [tiles!("bf16_64", 64, 2, 128 x 64, 32, 128 x 32), tiles!("bf16_128", 128, 2, 128 x 32, 32, 64 x 32)];
const TF32: [Tiles; 2] =
    [tiles!("tf32_64", 64, 4, 128 x 32, 32, 64 x 32), tiles!("tf32_128", 128, 4, 64 x 32, 16, 64 x 16)];
const F32: [Tiles; 2] =
    [tiles!("f32_64", 64, 4, 128 x 32, 32, 64 x 32), tiles!("f32_128", 128, 4, 64 x 32, 16, 64 x 16)];

impl Tiles {
    /// Those for `qkv`'s type and heads, if tiles take them.
    fn of(gpu: &Gpu, dtype: DType, head_dim: usize) -> Result<Option<Self>> {
        let both = match dtype {
            DType::BF16 => BF16,
            DType::F32 if gpu.tf32() => TF32,
            DType::F32 => F32,
            other => bail!("GPU kernels take f32 or bf16, not {other:?}"),
        };
        Ok(both.into_iter().find(|t| head_dim <= t.width))
    }

    fn dims(&self, seq: usize, per_block: usize, heads: usize, batch: usize, rows: usize, more: usize) -> Dims {
        let grid = [seq.div_ceil(per_block) as u32, heads as u32, batch as u32];
        Dims { grid, block: [THREADS as u32, 1, 1], shared: (rows * self.width * self.bytes + more) as u32 }
    }

    fn forward_dims(&self, s: Shape) -> Dims {
        let rows = self.forward_queries + 2 * self.forward_keys;
        self.dims(s.seq, self.forward_queries, s.heads, s.batch, rows, 0)
    }

    fn keys_dims(&self, s: Shape) -> Dims {
        let statistics = 4 * self.keys_queries * size_of::<f32>();
        self.dims(s.seq, KEYS, s.kv_heads, s.batch, 2 * KEYS + 4 * self.keys_queries, statistics)
    }

    fn queries_dims(&self, s: Shape) -> Dims {
        let rows = 2 * self.queries_queries + 4 * self.queries_keys;
        self.dims(s.seq, self.queries_queries, s.heads, s.batch, rows, 0)
    }
}

/// One block per row.
fn row_dims(rows: usize, heads: usize, batch: usize) -> Dims {
    Dims { grid: [rows as u32, heads as u32, batch as u32], block: [THREADS as u32, 1, 1], shared: 0 }
}

/// What the kernels' `int`s and grids hold.
fn check(s: Shape) -> Result<()> {
    if s.kv_heads == 0 || !s.heads.is_multiple_of(s.kv_heads) || s.head_dim == 0 {
        bail!("{} heads of {} share {} key-value heads", s.heads, s.head_dim, s.kv_heads)
    }
    if s.head_dim > WIDEST_ROW {
        bail!("attention on a GPU takes heads of up to {WIDEST_ROW}, not {}", s.head_dim)
    }
    if s.batch > MOST_BLOCKS || s.heads > MOST_BLOCKS {
        bail!("attention on a GPU takes up to {MOST_BLOCKS} samples and heads, not {} and {}", s.batch, s.heads)
    }
    // A tile's last row lies this many elements behind its first.
    if i32::try_from(s.qkv_width() * 2 * WIDEST).is_err() || i32::try_from(s.seq).is_err() {
        bail!("attention over {} rows of {}", s.seq, s.qkv_width())
    }
    Ok(())
}

fn scale(s: Shape) -> f64 {
    1.0 / (s.head_dim as f64).sqrt()
}

/// The lengths on the device.
fn lengths(gpu: &Gpu, filled: Option<&Filled>) -> Result<Option<Tensor>> {
    let Some(filled) = filled else { return Ok(None) };
    match &filled.device {
        Some(there) => Ok(Some(there.clone())),
        None => {
            gpu.upload(&filled.host.iter().map(|&n| u32::try_from(n).unwrap_or(u32::MAX)).collect::<Vec<_>>()).map(Some)
        }
    }
}

/// (key0, key1, first sample, samples apart, step, threshold, keep).
fn dropped(launch: Launch, dropout: Option<&Dropout>) -> Result<Launch> {
    let Some(d) = dropout else {
        return Ok(launch.word(0).word(0).word(0).word(0).word(0).word(0).float(1.0));
    };
    let Ok(threshold) = u32::try_from(d.threshold()) else { bail!("dropout of {} drops everything", d.p) };
    let [key0, key1] = d.stream.key();
    let launch = launch.word(key0).word(key1).word(d.first_sample as u32).word(d.sample_stride as u32);
    Ok(launch.word(d.step as u32).word(threshold).float(1.0 / (1.0 - d.p)))
}

/// As `kernels::attention::attention`; the log-sum-exps are f32.
pub fn attention(qkv: &Tensor, s: Shape, masks: Masks<'_>) -> Result<(Tensor, Tensor)> {
    check(s)?;
    let launch = Launch::on(qkv)?;
    let gpu = launch.gpu.clone();
    let (dtype, rows, statistics) = (qkv.dtype(), s.batch * s.seq, s.batch * s.heads * s.seq);
    let filled = lengths(&gpu, masks.filled)?;
    let out = gpu.empty(dtype, (rows, s.out_width()))?;
    let lse = gpu.empty(DType::F32, statistics)?;
    let Some(tiles) = Tiles::of(&gpu, dtype, s.head_dim)? else {
        let width = s.qkv_width();
        if rows > 0 {
            let kv = KeysValues {
                keys: (qkv, s.heads * s.head_dim),
                values: (qkv, (s.heads + s.kv_heads) * s.head_dim),
                sample_stride: s.seq * width,
                head_stride: s.head_dim,
                row_stride: width,
            };
            attend_rows(qkv, s, 0, kv, &out, Some(&lse), filled.as_ref(), masks.dropout)?;
        }
        return Ok((out, lse));
    };
    let launch = launch
        .array("qkv", qkv, dtype, rows * s.qkv_width())?
        .array("out", &out, dtype, rows * s.out_width())?
        .array("lse", &lse, DType::F32, statistics)?
        .maybe("filled", filled.as_ref(), DType::U32, s.batch)?
        .int(s.seq)?
        .int(s.heads)?
        .int(s.kv_heads)?
        .int(s.head_dim)?
        .float(scale(s));
    let launch = dropped(launch, masks.dropout)?;
    // SAFETY: (qkv, out, lse, filled, seq, heads, kv_heads, width, scale, dropout); lengths beyond seq count as seq.
    unsafe { launch.run(tiles.forward[usize::from(masks.dropout.is_some())], tiles.forward_dims(s))? }
    Ok((out, lse))
}

/// As `kernels::attention::attention_backward`.
pub fn attention_backward(
    qkv: &Tensor,
    out: &Tensor,
    lse: &Tensor,
    dout: &Tensor,
    s: Shape,
    masks: Masks<'_>,
) -> Result<Tensor> {
    check(s)?;
    let launch = Launch::on(qkv)?;
    let gpu = launch.gpu.clone();
    let (dtype, rows, statistics) = (qkv.dtype(), s.batch * s.seq, s.batch * s.heads * s.seq);
    let filled = lengths(&gpu, masks.filled)?;
    let delta = gpu.empty(DType::F32, statistics)?;
    let launch = launch
        .array("out", out, dtype, rows * s.out_width())?
        .array("dout", dout, dtype, rows * s.out_width())?
        .array("delta", &delta, DType::F32, statistics)?
        .int(s.seq)?
        .int(s.heads)?
        .int(s.head_dim)?
        .long(statistics);
    // Eight lanes for each head of a row.
    let dims = Dims::of((statistics * 8).div_ceil(256), 256);
    // SAFETY: (out, dout, delta, seq, heads, width, count).
    unsafe { launch.run(of_type(dtype, ["attention_delta_f32", "attention_delta_bf16"])?, dims)? }

    let dqkv = gpu.empty(dtype, (rows, s.qkv_width()))?;
    let arrays = || {
        Launch::on(qkv)?
            .array("qkv", qkv, dtype, rows * s.qkv_width())?
            .array("dout", dout, dtype, rows * s.out_width())?
            .array("lse", lse, DType::F32, statistics)?
            .array("delta", &delta, DType::F32, statistics)?
            .array("dqkv", &dqkv, dtype, rows * s.qkv_width())?
            .maybe("filled", filled.as_ref(), DType::U32, s.batch)
    };
    let Some(tiles) = Tiles::of(&gpu, dtype, s.head_dim)? else {
        let launch = dropped(arrays()?.int(s.heads)?.int(s.head_dim)?.float(scale(s)), masks.dropout)?;
        let kernel = of_type(dtype, ["attention_rows_keys_f32_wide", "attention_rows_keys_bf16_wide"])?;
        // SAFETY: (qkv, dout, lse, delta, dqkv, filled, heads, width, scale, dropout); the grid says seq and kv_heads.
        unsafe { launch.run(kernel, row_dims(s.seq, s.kv_heads, s.batch))? }
        let launch = dropped(arrays()?.int(s.kv_heads)?.int(s.head_dim)?.float(scale(s)), masks.dropout)?;
        let kernel = of_type(dtype, ["attention_rows_queries_f32_wide", "attention_rows_queries_bf16_wide"])?;
        // SAFETY: (qkv, dout, lse, delta, dqkv, filled, kv_heads, width, scale, dropout); the grid says seq and heads.
        unsafe { launch.run(kernel, row_dims(s.seq, s.heads, s.batch))? }
        return Ok(dqkv);
    };
    let which = usize::from(masks.dropout.is_some());
    for (kernel, dims) in [(tiles.keys[which], tiles.keys_dims(s)), (tiles.queries[which], tiles.queries_dims(s))] {
        let launch = arrays()?.int(s.seq)?.int(s.heads)?.int(s.kv_heads)?.int(s.head_dim)?.float(scale(s));
        let launch = dropped(launch, masks.dropout)?;
        // SAFETY: (qkv, dout, lse, delta, dqkv, filled, seq, heads, kv_heads, width, scale, dropout).
        unsafe { launch.run(kernel, dims)? }
    }
    Ok(dqkv)
}

/// Where keys and values are: tensors with the element of their first row, and how many elements samples, heads and rows are apart.
#[derive(Debug, Clone, Copy)]
struct KeysValues<'a> {
    keys: (&'a Tensor, usize),
    values: (&'a Tensor, usize),
    sample_stride: usize,
    head_stride: usize,
    row_stride: usize,
}

/// A block per query: `s.seq` queries from position `start` on, over all positions up to their own.
fn attend_rows(
    qkv: &Tensor,
    s: Shape,
    start: usize,
    kv: KeysValues<'_>,
    out: &Tensor,
    lse: Option<&Tensor>,
    filled: Option<&Tensor>,
    dropout: Option<&Dropout>,
) -> Result<()> {
    let (dtype, rows) = (qkv.dtype(), s.batch * s.seq);
    let kernel = if s.head_dim <= WIDEST {
        of_type(dtype, ["attention_rows_f32", "attention_rows_bf16"])?
    } else {
        of_type(dtype, ["attention_rows_f32_wide", "attention_rows_bf16_wide"])?
    };
    let span = (s.batch - 1) * kv.sample_stride
        + (s.kv_heads - 1) * kv.head_stride
        + (start + s.seq - 1) * kv.row_stride
        + s.head_dim;
    let launch = Launch::on(qkv)?
        .array("qkv", qkv, dtype, rows * s.qkv_width())?
        .long(s.qkv_width())
        .part("keys", kv.keys.0, dtype, kv.keys.1, span)?
        .part("values", kv.values.0, dtype, kv.values.1, span)?
        .long(kv.sample_stride)
        .long(kv.head_stride)
        .long(kv.row_stride)
        .array("out", out, dtype, rows * s.out_width())?
        .maybe("lse", lse, DType::F32, s.batch * s.heads * s.seq)?
        .maybe("filled", filled, DType::U32, s.batch)?
        .int(start)?
        .int(s.kv_heads)?
        .int(s.head_dim)?
        .float(scale(s));
    let launch = dropped(launch, dropout)?;
    // SAFETY: (q, its stride, keys, values, three strides, out, lse, filled, start, kv_heads, width, scale, dropout); the grid says
    // queries, heads and samples, and `span` is where the last key ends.
    unsafe { launch.run(kernel, row_dims(s.seq, s.heads, s.batch)) }
}

/// One layer's keys and values on a GPU, [batch, kv_heads, capacity, head_dim] each, of the type of the first tokens'.
#[derive(Debug)]
pub struct DeviceCache {
    pub capacity: usize,
    /// None before the first tokens.
    tensors: Option<(Tensor, Tensor)>,
}

impl DeviceCache {
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { capacity, tensors: None }
    }
}

/// As `kernels::attention::attend`.
pub fn attend(qkv: &Tensor, s: Shape, start: usize, cache: &mut DeviceCache) -> Result<Tensor> {
    check(s)?;
    let capacity = cache.capacity;
    if start + s.seq > capacity {
        bail!("{} tokens in a cache for {capacity}", start + s.seq)
    }
    let launch = Launch::on(qkv)?;
    let gpu = launch.gpu.clone();
    let (dtype, rows, held) = (qkv.dtype(), s.batch * s.seq, s.batch * s.kv_heads * capacity * s.head_dim);
    let (keys, values) = if let Some(tensors) = &cache.tensors {
        tensors.clone()
    } else {
        let shape = (s.batch, s.kv_heads, capacity, s.head_dim);
        cache.tensors.insert((gpu.empty(dtype, shape)?, gpu.empty(dtype, shape)?)).clone()
    };
    let new = rows * s.kv_heads * s.head_dim;
    let dims = launch.flat(new);
    let launch = launch
        .array("qkv", qkv, dtype, rows * s.qkv_width())?
        .array("keys", &keys, dtype, held)?
        .array("values", &values, dtype, held)?
        .int(s.seq)?
        .int(start)?
        .int(capacity)?
        .int(s.heads)?
        .int(s.kv_heads)?
        .int(s.head_dim)?
        .long(new);
    // SAFETY: (qkv, keys, values, seq, start, capacity, heads, kv_heads, width, count); start + seq is within the capacity.
    unsafe { launch.run(of_type(dtype, ["cache_append_f32", "cache_append_bf16"])?, dims)? }
    if start == 0 && s.seq > 1 {
        // Nothing is in the cache but these tokens: tiles are faster.
        return Ok(attention(qkv, s, Masks::default())?.0);
    }
    let out = gpu.empty(dtype, (rows, s.out_width()))?;
    if rows > 0 {
        let kv = KeysValues {
            keys: (&keys, 0),
            values: (&values, 0),
            sample_stride: s.kv_heads * capacity * s.head_dim,
            head_stride: capacity * s.head_dim,
            row_stride: s.head_dim,
        };
        attend_rows(qkv, s, start, kv, &out, None, None, None)?;
    }
    Ok(out)
}
