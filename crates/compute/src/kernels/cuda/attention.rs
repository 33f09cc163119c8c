//! Attention: tiles on tensor cores (bf16, and TF32 where f32 products may use it) or in exact f32, for heads of up to 128; rows one by
//! one for wider heads, and for new tokens over a cache.

use candle_core::{DType, Result, Tensor, bail};

use super::launch::{Launch, kernel_for_type, typed};
use crate::gpu::{Gpu, LaunchDims};
use crate::kernels::attention_shape::{AttentionMasks, AttentionShape, ValidLengths};
use crate::kernels::cpu::dropout::DropoutMask;

const THREADS: usize = 128;
/// The widest heads that the kernels over tiles take, and those over single rows.
const MAX_TILE_HEAD_DIM: usize = 128;
const MAX_ROW_HEAD_DIM: usize = 512;
/// The grid's second and third dimension.
const MAX_GRID_Y_Z: usize = 65_535;

/// The kernels of one arithmetic for heads of up to `width`, and the sizes of their tiles, which attention_{bf16,f32,tf32}.cu set. Of
/// two names the second is the kernel with dropout.
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
    /// The kernels for this type and head size; `None` if the heads are too wide for tiles.
    fn select(gpu: &Gpu, dtype: DType, head_dim: usize) -> Result<Option<Self>> {
        let both = match dtype {
            DType::BF16 => BF16,
            DType::F32 if gpu.tf32() => TF32,
            DType::F32 => F32,
            other => bail!("GPU kernels take f32 or bf16, not {other:?}"),
        };
        Ok(both.into_iter().find(|t| head_dim <= t.width))
    }

    fn dims(&self, seq: usize, per_block: usize, heads: usize, batch: usize, rows: usize, more: usize) -> LaunchDims {
        let grid = [seq.div_ceil(per_block) as u32, heads as u32, batch as u32];
        LaunchDims { grid, block: [THREADS as u32, 1, 1], shared: (rows * self.width * self.bytes + more) as u32 }
    }

    fn forward_dims(&self, s: AttentionShape) -> LaunchDims {
        let rows = self.forward_queries + 2 * self.forward_keys;
        self.dims(s.seq, self.forward_queries, s.heads, s.batch, rows, 0)
    }

    fn keys_dims(&self, s: AttentionShape) -> LaunchDims {
        let statistics = 4 * self.keys_queries * size_of::<f32>();
        self.dims(s.seq, KEYS, s.kv_heads, s.batch, 2 * KEYS + 4 * self.keys_queries, statistics)
    }

    fn queries_dims(&self, s: AttentionShape) -> LaunchDims {
        let rows = 2 * self.queries_queries + 4 * self.queries_keys;
        self.dims(s.seq, self.queries_queries, s.heads, s.batch, rows, 0)
    }
}

/// One block per row.
fn row_dims(rows: usize, heads: usize, batch: usize) -> LaunchDims {
    LaunchDims { grid: [rows as u32, heads as u32, batch as u32], block: [THREADS as u32, 1, 1], shared: 0 }
}

/// Refuses shapes that the kernels' `int`s and grids cannot hold.
fn check_limits(s: AttentionShape) -> Result<()> {
    if s.kv_heads == 0 || !s.heads.is_multiple_of(s.kv_heads) || s.head_dim == 0 {
        bail!("{} heads of {} share {} key-value heads", s.heads, s.head_dim, s.kv_heads)
    }
    if s.head_dim > MAX_ROW_HEAD_DIM {
        bail!("attention on a GPU takes heads of up to {MAX_ROW_HEAD_DIM}, not {}", s.head_dim)
    }
    if s.batch > MAX_GRID_Y_Z || s.heads > MAX_GRID_Y_Z {
        bail!("attention on a GPU takes up to {MAX_GRID_Y_Z} samples and heads, not {} and {}", s.batch, s.heads)
    }
    // A tile's last row lies this many elements after its first.
    if i32::try_from(s.qkv_width() * 2 * MAX_TILE_HEAD_DIM).is_err() || i32::try_from(s.seq).is_err() {
        bail!("attention over {} rows of {}", s.seq, s.qkv_width())
    }
    Ok(())
}

fn scale(s: AttentionShape) -> f64 {
    1.0 / (s.head_dim as f64).sqrt()
}

/// The lengths on the device.
fn device_lengths(gpu: &Gpu, lengths: Option<&ValidLengths>) -> Result<Option<Tensor>> {
    lengths.map(|lengths| lengths.on_gpu(gpu)).transpose()
}

/// Adds the last parameters of every attention kernel, `DROPOUT_PARAMETERS` of attention_common.cuh.
fn with_dropout(launch: Launch, dropout: Option<&DropoutMask>) -> Result<Launch> {
    let Some(d) = dropout else {
        return Ok(launch.uints([0, 0, 0, 0, 0, 0]).floats([1.0]));
    };
    let Ok(threshold) = u32::try_from(d.threshold()) else { bail!("dropout of {} drops everything", d.p) };
    let [key0, key1] = d.stream.key();
    let launch = launch.uints([key0, key1, d.first_sample as u32, d.sample_stride as u32]);
    Ok(launch.uints([d.step as u32, threshold]).floats([1.0 / (1.0 - d.p)]))
}

/// [`attention`](crate::kernels::attention::attention) on a GPU; the log-sum-exps are f32.
pub fn attention(qkv: &Tensor, s: AttentionShape, masks: AttentionMasks<'_>) -> Result<(Tensor, Tensor)> {
    check_limits(s)?;
    let launch = Launch::for_tensor(qkv)?;
    let gpu = launch.gpu.clone();
    let (dtype, rows, statistics) = (qkv.dtype(), s.batch * s.seq, s.batch * s.heads * s.seq);
    let valid_lengths = device_lengths(&gpu, masks.valid_lengths)?;
    let out = gpu.empty(dtype, (rows, s.out_width()))?;
    let lse = gpu.empty(DType::F32, statistics)?;
    let Some(tiles) = Tiles::select(&gpu, dtype, s.head_dim)? else {
        let width = s.qkv_width();
        if rows > 0 {
            let kv = KeysValues {
                keys: (qkv, s.heads * s.head_dim),
                values: (qkv, (s.heads + s.kv_heads) * s.head_dim),
                sample_stride: s.seq * width,
                head_stride: s.head_dim,
                row_stride: width,
            };
            attend_rows(qkv, s, 0, kv, &out, Some(&lse), valid_lengths.as_ref(), masks.dropout)?;
        }
        return Ok((out, lse));
    };
    let launch = launch
        .array("qkv", qkv, dtype, rows * s.qkv_width())?
        .array("out", &out, dtype, rows * s.out_width())?
        .array("lse", &lse, DType::F32, statistics)?
        .optional_array("valid_lengths", valid_lengths.as_ref(), DType::U32, s.batch)?
        .ints([s.seq, s.heads, s.kv_heads, s.head_dim])?
        .floats([scale(s)]);
    let launch = with_dropout(launch, masks.dropout)?;
    // SAFETY: (qkv, out, lse, valid_lengths, seq, heads, kv_heads, width, scale, dropout); lengths beyond seq count as seq.
    unsafe { launch.run(tiles.forward[usize::from(masks.dropout.is_some())], tiles.forward_dims(s))? }
    Ok((out, lse))
}

/// [`attention_backward`](crate::kernels::attention::attention_backward) on a GPU.
pub fn attention_backward(
    qkv: &Tensor,
    out: &Tensor,
    lse: &Tensor,
    dout: &Tensor,
    s: AttentionShape,
    masks: AttentionMasks<'_>,
) -> Result<Tensor> {
    check_limits(s)?;
    let launch = Launch::for_tensor(qkv)?;
    let gpu = launch.gpu.clone();
    let (dtype, rows, statistics) = (qkv.dtype(), s.batch * s.seq, s.batch * s.heads * s.seq);
    let valid_lengths = device_lengths(&gpu, masks.valid_lengths)?;
    let delta = gpu.empty(DType::F32, statistics)?;
    let launch = launch
        .array("out", out, dtype, rows * s.out_width())?
        .array("dout", dout, dtype, rows * s.out_width())?
        .array("delta", &delta, DType::F32, statistics)?
        .ints([s.seq, s.heads, s.head_dim])?
        .longs([statistics]);
    // Eight lanes for each head of a row.
    let dims = LaunchDims::linear((statistics * 8).div_ceil(256), 256);
    // SAFETY: (out, dout, delta, seq, heads, width, count).
    unsafe { launch.run(kernel_for_type(dtype, typed!("attention_delta"))?, dims)? }

    let dqkv = gpu.empty(dtype, (rows, s.qkv_width()))?;
    let arrays = || {
        Launch::for_tensor(qkv)?
            .array("qkv", qkv, dtype, rows * s.qkv_width())?
            .array("dout", dout, dtype, rows * s.out_width())?
            .array("lse", lse, DType::F32, statistics)?
            .array("delta", &delta, DType::F32, statistics)?
            .array("dqkv", &dqkv, dtype, rows * s.qkv_width())?
            .optional_array("valid_lengths", valid_lengths.as_ref(), DType::U32, s.batch)
    };
    let Some(tiles) = Tiles::select(&gpu, dtype, s.head_dim)? else {
        let launch = with_dropout(arrays()?.ints([s.heads, s.head_dim])?.floats([scale(s)]), masks.dropout)?;
        let kernel = kernel_for_type(dtype, ["attention_rows_keys_f32_wide", "attention_rows_keys_bf16_wide"])?;
        // SAFETY: (qkv, dout, lse, delta, dqkv, valid_lengths, heads, width, scale, dropout); the grid says seq and kv_heads.
        unsafe { launch.run(kernel, row_dims(s.seq, s.kv_heads, s.batch))? }
        let launch = with_dropout(arrays()?.ints([s.kv_heads, s.head_dim])?.floats([scale(s)]), masks.dropout)?;
        let kernel = kernel_for_type(dtype, ["attention_rows_queries_f32_wide", "attention_rows_queries_bf16_wide"])?;
        // SAFETY: (qkv, dout, lse, delta, dqkv, valid_lengths, kv_heads, width, scale, dropout); the grid says seq and heads.
        unsafe { launch.run(kernel, row_dims(s.seq, s.heads, s.batch))? }
        return Ok(dqkv);
    };
    let which = usize::from(masks.dropout.is_some());
    for (kernel, dims) in [(tiles.keys[which], tiles.keys_dims(s)), (tiles.queries[which], tiles.queries_dims(s))] {
        let launch = arrays()?.ints([s.seq, s.heads, s.kv_heads, s.head_dim])?.floats([scale(s)]);
        let launch = with_dropout(launch, masks.dropout)?;
        // SAFETY: (qkv, dout, lse, delta, dqkv, valid_lengths, seq, heads, kv_heads, width, scale, dropout).
        unsafe { launch.run(kernel, dims)? }
    }
    Ok(dqkv)
}

/// Keys and values in memory: each a tensor and the index of its first element; the strides are in elements.
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
    s: AttentionShape,
    start: usize,
    kv: KeysValues<'_>,
    out: &Tensor,
    lse: Option<&Tensor>,
    valid_lengths: Option<&Tensor>,
    dropout: Option<&DropoutMask>,
) -> Result<()> {
    let (dtype, rows) = (qkv.dtype(), s.batch * s.seq);
    let kernel = if s.head_dim <= MAX_TILE_HEAD_DIM {
        kernel_for_type(dtype, typed!("attention_rows"))?
    } else {
        kernel_for_type(dtype, ["attention_rows_f32_wide", "attention_rows_bf16_wide"])?
    };
    let span = (s.batch - 1) * kv.sample_stride
        + (s.kv_heads - 1) * kv.head_stride
        + (start + s.seq - 1) * kv.row_stride
        + s.head_dim;
    let launch = Launch::for_tensor(qkv)?
        .array("qkv", qkv, dtype, rows * s.qkv_width())?
        .longs([s.qkv_width()])
        .array_part("keys", kv.keys.0, dtype, kv.keys.1, span)?
        .array_part("values", kv.values.0, dtype, kv.values.1, span)?
        .longs([kv.sample_stride, kv.head_stride, kv.row_stride])
        .array("out", out, dtype, rows * s.out_width())?
        .optional_array("lse", lse, DType::F32, s.batch * s.heads * s.seq)?
        .optional_array("valid_lengths", valid_lengths, DType::U32, s.batch)?
        .ints([start, s.kv_heads, s.head_dim])?
        .floats([scale(s)]);
    let launch = with_dropout(launch, dropout)?;
    // SAFETY: (q, its stride, keys, values, three strides, out, lse, valid_lengths, start, kv_heads, width, scale, dropout); the grid says
    // queries, heads and samples, and `span` is where the last key ends.
    unsafe { launch.run(kernel, row_dims(s.seq, s.heads, s.batch)) }
}

/// One layer's keys and values on a GPU, [batch, kv_heads, capacity, head_dim] each, of the type of the first tokens'.
#[derive(Debug)]
pub struct DeviceKvCache {
    pub capacity: usize,
    /// None before the first tokens.
    tensors: Option<(Tensor, Tensor)>,
}

impl DeviceKvCache {
    pub fn new(capacity: usize) -> Self {
        Self { capacity, tensors: None }
    }
}

/// [`attend_with_cache`](crate::kernels::attention::attend_with_cache) on a GPU.
pub fn attend_with_cache(qkv: &Tensor, s: AttentionShape, start: usize, cache: &mut DeviceKvCache) -> Result<Tensor> {
    check_limits(s)?;
    let capacity = cache.capacity;
    if start + s.seq > capacity {
        bail!("{} tokens in a cache for {capacity}", start + s.seq)
    }
    let launch = Launch::for_tensor(qkv)?;
    let gpu = launch.gpu.clone();
    let (dtype, rows, held) = (qkv.dtype(), s.batch * s.seq, s.batch * s.kv_heads * capacity * s.head_dim);
    let (keys, values) = if let Some(tensors) = &cache.tensors {
        tensors.clone()
    } else {
        let shape = (s.batch, s.kv_heads, capacity, s.head_dim);
        cache.tensors.insert((gpu.empty(dtype, shape)?, gpu.empty(dtype, shape)?)).clone()
    };
    let new = rows * s.kv_heads * s.head_dim;
    let dims = launch.dims_for_elements(new);
    let launch = launch
        .array("qkv", qkv, dtype, rows * s.qkv_width())?
        .array("keys", &keys, dtype, held)?
        .array("values", &values, dtype, held)?
        .ints([s.seq, start, capacity, s.heads, s.kv_heads, s.head_dim])?
        .longs([new]);
    // SAFETY: (qkv, keys, values, seq, start, capacity, heads, kv_heads, width, count); start + seq is within the capacity.
    unsafe { launch.run(kernel_for_type(dtype, typed!("cache_append"))?, dims)? }
    if start == 0 && s.seq > 1 {
        // The cache holds only these tokens: the kernels over tiles are faster.
        return Ok(attention(qkv, s, AttentionMasks::default())?.0);
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
