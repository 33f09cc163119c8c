//! Attention: tiles on tensor cores (bf16, and TF32 where f32 products may use it) or in exact f32, for heads of up to 256; rows one by
//! one for new tokens over a cache.

use candle_core::{DType, Result, Tensor, bail};

use super::launch::{
    AttentionBackward, AttentionCall, AttentionDelta, AttentionForward, AttentionRows, CacheAppend, Launch, LaunchDims,
    int,
};
use crate::gpu::Gpu;
use crate::kernels::Gradient;
use crate::kernels::attention_shape::{AttentionMasks, AttentionShape, Documents, ValidLengths};
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
    /// The start of the kernels' names after their families'.
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

/// The documents on the device.
fn device_documents(documents: Option<&Documents>) -> Result<Option<&Tensor>> {
    let Some(documents) = documents else { return Ok(None) };
    if documents.device.is_none() {
        bail!("documents are not on the GPU")
    }
    Ok(documents.device.as_ref())
}

/// What the kernels over tiles take besides arrays, and the last word of their names.
fn call(s: AttentionShape, dropout: Option<&DropoutMask>) -> Result<(AttentionCall, &'static str)> {
    let call = AttentionCall {
        seq: int(s.seq)?,
        heads: int(s.heads.queries)?,
        kv_heads: int(s.heads.kv)?,
        width: int(s.heads.width)?,
        scale: s.scale() as f32,
        earlier_keys: int(s.earlier_keys())?,
        later_keys: int(s.later_keys())?,
        key0: 0,
        key1: 0,
        first_sample: 0,
        sample_stride: 0,
        step: 0,
        threshold: 0,
        keep: 1.0,
    };
    let Some(d) = dropout else { return Ok((call, "")) };
    let Ok(threshold) = u32::try_from(d.threshold()) else { bail!("dropout of {} drops everything", d.p) };
    let ([key0, key1], keep) = (d.stream.key(), (1.0 / (1.0 - d.p)) as f32);
    let (first_sample, sample_stride, step) = (d.first_sample as u32, d.sample_stride as u32, d.step as u32);
    Ok((AttentionCall { key0, key1, first_sample, sample_stride, step, threshold, keep, ..call }, "dropout"))
}

/// [`attention`](crate::kernels::attention::attention) on a GPU; the log-sum-exps are f32.
pub fn attention(qkv: &Tensor, s: AttentionShape, masks: AttentionMasks<'_>) -> Result<(Tensor, Tensor)> {
    check_limits(s)?;
    let launch = Launch::for_tensor(qkv)?;
    let gpu = launch.gpu.clone();
    let (dtype, rows, statistics) = (qkv.dtype(), s.batch * s.seq, s.batch * s.heads.queries * s.seq);
    let valid_lengths = device_lengths(masks.valid_lengths)?;
    let documents = device_documents(masks.documents)?;
    let out = gpu.empty(dtype, (rows, s.out_width()))?;
    let lse = gpu.empty(DType::F32, statistics)?;
    let tiles = Tiles::select(&gpu, dtype, s.heads.width)?;
    let (call, dropout) = call(s, masks.dropout)?;
    let parameters = AttentionForward {
        qkv: launch.array("qkv", qkv, rows * s.qkv_width())?,
        out: launch.array("out", &out, rows * s.out_width())?,
        lse: launch.array("lse", &lse, statistics)?,
        valid_lengths: launch.array("valid_lengths", valid_lengths, s.batch)?,
        documents: launch.array("documents", documents, 2 * rows)?,
        call,
    };
    // SAFETY: a block for each tile; lengths beyond seq count as seq.
    unsafe { launch.run_named(&[tiles.name, dropout], &parameters, tiles.forward_dims(s))? }
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
    sums: bool,
) -> Result<Gradient> {
    check_limits(s)?;
    let launch = Launch::for_tensor(qkv)?;
    let gpu = launch.gpu.clone();
    let (dtype, rows, statistics) = (qkv.dtype(), s.batch * s.seq, s.batch * s.heads.queries * s.seq);
    let valid_lengths = device_lengths(masks.valid_lengths)?;
    let documents = device_documents(masks.documents)?;
    let delta = gpu.empty(DType::F32, statistics)?;
    let parameters = AttentionDelta {
        out: launch.array("out", out, rows * s.out_width())?,
        dout: launch.array("dout", dout, rows * s.out_width())?,
        delta: launch.array("delta", &delta, statistics)?,
        seq: int(s.seq)?,
        heads: int(s.heads.queries)?,
        width: int(s.heads.width)?,
        count: statistics as i64,
    };
    // SAFETY: eight lanes for each head of a row.
    unsafe { launch.run(&parameters, LaunchDims::linear((statistics * 8).div_ceil(256), 256))? }

    let dqkv = gpu.empty(dtype, (rows, s.qkv_width()))?;
    let parts = s.batch * s.seq.div_ceil(KEYS);
    let row_sums = sums.then(|| gpu.empty(DType::F32, (parts, s.qkv_width()))).transpose()?;
    let (call, dropout) = call(s, masks.dropout)?;
    let parameters = AttentionBackward {
        qkv: launch.array("qkv", qkv, rows * s.qkv_width())?,
        dout: launch.array("dout", dout, rows * s.out_width())?,
        lse: launch.array("lse", lse, statistics)?,
        delta: launch.array("delta", &delta, statistics)?,
        dqkv: launch.array("dqkv", &dqkv, rows * s.qkv_width())?,
        sums: launch.array("row sums", row_sums.as_ref(), parts * s.qkv_width())?,
        valid_lengths: launch.array("valid_lengths", valid_lengths, s.batch)?,
        documents: launch.array("documents", documents, 2 * rows)?,
        call,
    };
    let tiles = Tiles::select(&gpu, dtype, s.heads.width)?;
    let mut kernels = vec![("keys", tiles.keys_dims(s)), ("queries", tiles.queries_dims(s))];
    kernels.extend(tiles.apart.then(|| ("values", tiles.keys_dims(s))));
    for (what, dims) in kernels {
        // SAFETY: a block for each tile; lengths beyond seq count as seq.
        unsafe { launch.run_named(&[tiles.name, what, dropout], &parameters, dims)? }
    }
    Ok(Gradient { tensor: dqkv, row_sums })
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
    let parameters = CacheAppend {
        qkv: launch.array("qkv", qkv, rows * s.qkv_width())?,
        keys: launch.array_part("keys", cache, 0, held)?,
        values: launch.array_part("values", cache, held, held)?,
        seq: int(s.seq)?,
        start: int(start)?,
        capacity: int(capacity)?,
        heads: int(s.heads.queries)?,
        kv_heads: int(s.heads.kv)?,
        width: int(s.heads.width)?,
        count: new as i64,
    };
    // SAFETY: start + seq is within the capacity.
    unsafe { launch.run(&parameters, launch.dims_for_elements(new))? }
    if start == 0 && s.seq > 1 {
        // The cache holds only these tokens: the kernels over tiles are faster.
        return Ok(attention(qkv, s, AttentionMasks::default())?.0);
    }
    if s.heads.width > MAX_HEAD_DIM {
        bail!("attention on a GPU accepts heads of up to {MAX_HEAD_DIM}, not {}", s.heads.width)
    }
    let out = gpu.empty(dtype, (rows, s.out_width()))?;
    let parameters = AttentionRows {
        q: launch.array("qkv", qkv, rows * s.qkv_width())?,
        q_stride: s.qkv_width() as i64,
        keys: launch.array_part("keys", cache, 0, held)?,
        values: launch.array_part("values", cache, held, held)?,
        out: launch.array("out", &out, rows * s.out_width())?,
        start: int(start)?,
        capacity: int(capacity)?,
        earlier_keys: int(s.mask.reach(start + s.seq)[0])?,
        kv_heads: int(s.heads.kv)?,
        width: int(s.heads.width)?,
        scale: s.scale() as f32,
    };
    let grid = [s.seq as u32, s.heads.queries as u32, s.batch as u32];
    let dims = LaunchDims { grid, block: [THREADS as u32, 1, 1], shared: 0 };
    let name = [dtype.as_str(), if s.heads.width > MAX_NARROW_HEAD_DIM { "wide" } else { "" }];
    // SAFETY: the grid says queries, heads and samples.
    unsafe { launch.run_named(&name, &parameters, dims)? }
    Ok(out)
}
