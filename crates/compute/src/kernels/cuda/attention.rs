//! Attention: tiles on tensor cores (bf16, and TF32 where f32 products may use it) or in exact f32, for heads of up to 256; rows one by
//! one for new tokens over a cache.

use candle_core::{DType, Result, Tensor, bail};

use super::launch::{Launch, LaunchDims, kernel_for_type};
use crate::gpu::Gpu;
use crate::kernels::attention_shape::{AttentionMasks, AttentionShape, ValidLengths};
use crate::kernels::cpu::dropout::DropoutMask;

const THREADS: usize = 128;
/// The widest heads, and the widest of which eight lanes hold a row.
const MAX_HEAD_DIM: usize = 256;
const MAX_NARROW_HEAD_DIM: usize = 128;
/// The grid's second and third dimension.
const MAX_GRID_Y_Z: usize = 65_535;

/// The kernels of one arithmetic for heads of up to `width`, and the sizes of their tiles.
#[derive(Debug, Clone, Copy)]
struct Tiles {
    /// The end of the kernels' names.
    name: &'static str,
    arithmetic: &'static str,
    width: usize,
    /// True for kernels that only GPUs of compute capability 9.0 run.
    hopper: bool,
    /// Bytes of an element.
    bytes: usize,
    /// Queries and keys of the forward's tiles.
    forward: [usize; 2],
    /// Queries of the tiles for dK and dV; a block has `KEYS` keys.
    keys: usize,
    /// True if dK and dV are made by a kernel each.
    apart: bool,
    /// Queries and keys of the tiles for dQ.
    queries: [usize; 2],
}

const KEYS: usize = 64;

// `TILES`, as attention_*.cu have them: Hopper's come first, and the narrowest.
include!(concat!(env!("OUT_DIR"), "/tiles.rs"));

impl Tiles {
    /// The kernels for this type and head size.
    fn select(gpu: &Gpu, dtype: DType, head_dim: usize) -> Result<Self> {
        let arithmetic = match dtype {
            DType::BF16 => "bf16",
            DType::F32 if gpu.tf32() => "tf32",
            DType::F32 => "f32",
            other => bail!("GPU kernels take f32 or bf16, not {other:?}"),
        };
        let hopper = gpu.compute_capability() == (9, 0);
        let fits =
            |tiles: &&Self| tiles.arithmetic == arithmetic && head_dim <= tiles.width && (hopper || !tiles.hopper);
        match TILES.iter().find(fits) {
            Some(tiles) => Ok(*tiles),
            None => bail!("attention on a GPU accepts heads of up to {MAX_HEAD_DIM}, not {head_dim}"),
        }
    }

    /// The name of the kernel for `what`: `forward`, `keys`, `queries` or `values`.
    fn kernel(&self, what: &str, dropout: Option<&DropoutMask>) -> String {
        let dropout = if dropout.is_some() { "_dropout" } else { "" };
        format!("attention_{what}_{}{dropout}", self.name)
    }

    /// How many tiles of a walk the backward's blocks hold at a time: `STAGES` of attention.cuh.
    fn stages(&self) -> usize {
        if self.width * self.bytes > 512 { 1 } else { 2 }
    }

    fn dims(&self, seq: usize, per_block: usize, heads: usize, batch: usize, rows: usize, more: usize) -> LaunchDims {
        let grid = [seq.div_ceil(per_block) as u32, heads as u32, batch as u32];
        LaunchDims { grid, block: [THREADS as u32, 1, 1], shared: (rows * self.width * self.bytes + more) as u32 }
    }

    fn forward_dims(&self, s: AttentionShape) -> LaunchDims {
        let [queries, keys] = self.forward;
        self.dims(s.seq, queries, s.heads.queries, s.batch, queries + 2 * keys, 0)
    }

    fn keys_dims(&self, s: AttentionShape) -> LaunchDims {
        let held = 2 * self.stages() * self.keys;
        self.dims(s.seq, KEYS, s.heads.kv, s.batch, 2 * KEYS + held, held * size_of::<f32>())
    }

    fn queries_dims(&self, s: AttentionShape) -> LaunchDims {
        let [queries, keys] = self.queries;
        self.dims(s.seq, queries, s.heads.queries, s.batch, 2 * queries + 2 * self.stages() * keys, 0)
    }
}

/// Refuses shapes that the kernels' `int`s and grids cannot hold.
fn check_limits(s: AttentionShape) -> Result<()> {
    if s.heads.kv == 0 || !s.heads.queries.is_multiple_of(s.heads.kv) || s.heads.width == 0 {
        bail!("{} heads of {} share {} key-value heads", s.heads.queries, s.heads.width, s.heads.kv)
    }
    if s.batch > MAX_GRID_Y_Z || s.heads.queries > MAX_GRID_Y_Z {
        bail!(
            "attention on a GPU accepts up to {MAX_GRID_Y_Z} samples and heads, not {} and {}",
            s.batch,
            s.heads.queries
        )
    }
    // A tile's last row lies the first number of elements after its first; the second is beyond any key that a tile looks for.
    if i32::try_from(s.qkv_width() * 2 * MAX_HEAD_DIM).is_err() || i32::try_from(3 * s.seq).is_err() {
        bail!("attention over {} rows of {}", s.seq, s.qkv_width())
    }
    Ok(())
}

/// The lengths on the device.
fn device_lengths(lengths: Option<&ValidLengths>) -> Result<Option<&Tensor>> {
    let Some(lengths) = lengths else { return Ok(None) };
    if lengths.device.is_none() {
        bail!("valid lengths are not on the GPU")
    }
    Ok(lengths.device.as_ref())
}

/// Adds the last parameters of every attention kernel, `MASK_PARAMETERS` of attention_common.cuh.
fn with_masks(launch: Launch, s: AttentionShape, dropout: Option<&DropoutMask>) -> Result<Launch> {
    let launch = launch.ints([s.later_keys()])?;
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
    let (dtype, rows, statistics) = (qkv.dtype(), s.batch * s.seq, s.batch * s.heads.queries * s.seq);
    let valid_lengths = device_lengths(masks.valid_lengths)?;
    let out = gpu.empty(dtype, (rows, s.out_width()))?;
    let lse = gpu.empty(DType::F32, statistics)?;
    let tiles = Tiles::select(&gpu, dtype, s.heads.width)?;
    let launch = launch
        .array("qkv", qkv, dtype, rows * s.qkv_width())?
        .array("out", &out, dtype, rows * s.out_width())?
        .array("lse", &lse, DType::F32, statistics)?
        .array("valid_lengths", valid_lengths, DType::U32, s.batch)?
        .ints([s.seq, s.heads.queries, s.heads.kv, s.heads.width])?
        .floats([s.scale()]);
    let launch = with_masks(launch, s, masks.dropout)?;
    // SAFETY: (qkv, out, lse, valid_lengths, seq, heads, kv_heads, width, scale, masks); lengths beyond seq count as seq.
    unsafe { launch.run(&tiles.kernel("forward", masks.dropout), tiles.forward_dims(s))? }
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
    let (dtype, rows, statistics) = (qkv.dtype(), s.batch * s.seq, s.batch * s.heads.queries * s.seq);
    let valid_lengths = device_lengths(masks.valid_lengths)?;
    let delta = gpu.empty(DType::F32, statistics)?;
    let launch = launch
        .array("out", out, dtype, rows * s.out_width())?
        .array("dout", dout, dtype, rows * s.out_width())?
        .array("delta", &delta, DType::F32, statistics)?
        .ints([s.seq, s.heads.queries, s.heads.width])?
        .longs([statistics]);
    // Eight lanes for each head of a row.
    let dims = LaunchDims::linear((statistics * 8).div_ceil(256), 256);
    // SAFETY: (out, dout, delta, seq, heads, width, count).
    unsafe { launch.run(&kernel_for_type("attention_delta", dtype)?, dims)? }

    let dqkv = gpu.empty(dtype, (rows, s.qkv_width()))?;
    let arrays = || {
        Launch::for_tensor(qkv)?
            .array("qkv", qkv, dtype, rows * s.qkv_width())?
            .array("dout", dout, dtype, rows * s.out_width())?
            .array("lse", lse, DType::F32, statistics)?
            .array("delta", &delta, DType::F32, statistics)?
            .array("dqkv", &dqkv, dtype, rows * s.qkv_width())?
            .array("valid_lengths", valid_lengths, DType::U32, s.batch)
    };
    let tiles = Tiles::select(&gpu, dtype, s.heads.width)?;
    let mut kernels = vec![("keys", tiles.keys_dims(s)), ("queries", tiles.queries_dims(s))];
    kernels.extend(tiles.apart.then(|| ("values", tiles.keys_dims(s))));
    for (what, dims) in kernels {
        let launch = arrays()?.ints([s.seq, s.heads.queries, s.heads.kv, s.heads.width])?.floats([s.scale()]);
        let launch = with_masks(launch, s, masks.dropout)?;
        // SAFETY: (qkv, dout, lse, delta, dqkv, valid_lengths, seq, heads, kv_heads, width, scale, masks).
        unsafe { launch.run(&tiles.kernel(what, masks.dropout), dims)? }
    }
    Ok(dqkv)
}

/// [`attend_with_cache`](crate::kernels::attention::attend_with_cache) on a GPU. `cache` has the keys of `capacity` tokens, then their
/// values.
pub fn attend_with_cache(
    qkv: &Tensor,
    s: AttentionShape,
    start: usize,
    cache: &Tensor,
    capacity: usize,
) -> Result<Tensor> {
    check_limits(s)?;
    let launch = Launch::for_tensor(qkv)?;
    let gpu = launch.gpu.clone();
    let (dtype, rows, held) = (qkv.dtype(), s.batch * s.seq, s.batch * s.heads.kv * capacity * s.heads.width);
    let new = rows * s.heads.kv * s.heads.width;
    let dims = launch.dims_for_elements(new);
    let launch = launch
        .array("qkv", qkv, dtype, rows * s.qkv_width())?
        .array_part("keys", cache, dtype, 0, held)?
        .array_part("values", cache, dtype, held, held)?
        .ints([s.seq, start, capacity, s.heads.queries, s.heads.kv, s.heads.width])?
        .longs([new]);
    // SAFETY: (qkv, keys, values, seq, start, capacity, heads, kv_heads, width, count); start + seq is within the capacity.
    unsafe { launch.run(&kernel_for_type("cache_append", dtype)?, dims)? }
    if start == 0 && s.seq > 1 {
        // The cache holds only these tokens: the kernels over tiles are faster.
        return Ok(attention(qkv, s, AttentionMasks::default())?.0);
    }
    if s.heads.width > MAX_HEAD_DIM {
        bail!("attention on a GPU accepts heads of up to {MAX_HEAD_DIM}, not {}", s.heads.width)
    }
    let out = gpu.empty(dtype, (rows, s.out_width()))?;
    let launch = Launch::for_tensor(qkv)?
        .array("qkv", qkv, dtype, rows * s.qkv_width())?
        .longs([s.qkv_width()])
        .array_part("keys", cache, dtype, 0, held)?
        .array_part("values", cache, dtype, held, held)?
        .array("out", &out, dtype, rows * s.out_width())?
        .ints([start, capacity, s.heads.kv, s.heads.width])?
        .floats([s.scale()]);
    let grid = [s.seq as u32, s.heads.queries as u32, s.batch as u32];
    let dims = LaunchDims { grid, block: [THREADS as u32, 1, 1], shared: 0 };
    let kernel = if s.heads.width > MAX_NARROW_HEAD_DIM { "attention_rows_wide" } else { "attention_rows" };
    // SAFETY: (q, its stride, keys, values, out, start, capacity, kv_heads, width, scale); the grid says queries, heads and samples.
    unsafe { launch.run(&kernel_for_type(kernel, dtype)?, dims)? }
    Ok(out)
}
