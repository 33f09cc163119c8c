//! Embedding of token ids, and its gradients without atomics: ids are sorted, and each one's rows added in order.

use candle_core::{DType, Result, Tensor, bail};

use super::launch::{
    Embed, EmbedBackward, EmbedJoin, Launch, LaunchDims, PositionBackward, SortCount, SortScan, SortScatter, TakeRows,
    int, warp_per_row, whole_warps,
};

/// Rows that a block of the backward adds; `CHUNK` of embedding.cu.
const CHUNK: usize = 16;

/// `table` is bf16 or f32, `positions` like it, or f32. An id beyond the table gives a row of NaN.
pub fn embed(
    ids: &Tensor,
    table: &Tensor,
    scale: Option<f64>,
    positions: Option<&Tensor>,
    seq: usize,
    start: usize,
) -> Result<Tensor> {
    let ((vocab, d), dtype, rows) = (table.dims2()?, table.dtype(), ids.elem_count());
    let (kind, length) = match positions {
        Some(positions) => (positions.dtype(), positions.dims2()?.0),
        None => (dtype, 0),
    };
    if seq == 0 || (positions.is_some() && start + seq > length) {
        bail!("positions from {start} to {} of {length}", start + seq)
    }
    let launch = Launch::for_tensor(table)?;
    let y = launch.gpu.empty(dtype, (rows, d))?;
    let parameters = Embed {
        y: launch.array("y", &y, rows * d)?,
        ids: launch.array("ids", ids, rows)?,
        table: launch.array("table", table, vocab * d)?,
        positions: launch.array_of("positions", positions, kind, length * d)?,
        scale: scale.unwrap_or(1.0) as f32,
        rows: rows as i64,
        d: int(d)?,
        vocab: int(vocab)?,
        seq: int(seq)?,
        start: int(start)?,
    };
    let name = [dtype.as_str(), if kind == dtype { "" } else { "fixed" }];
    // SAFETY: a warp for each row; positions are below `length`, and of the type that the name says.
    unsafe { launch.run_named(&name, &parameters, warp_per_row(rows))? }
    Ok(y)
}

/// Sorts (id, row) pairs by id, stable, with a radix sort of nine bits at a time; returns the ids and the rows.
fn sort_by_id(ids: &Tensor, vocab: usize) -> Result<(Tensor, Tensor)> {
    const DIGIT_BITS: usize = 9;
    const DIGITS: usize = 1 << DIGIT_BITS;
    const MIN_GROUP_LENGTH: usize = 256;
    const MAX_GROUPS: usize = 128;
    let n = ids.elem_count();
    let launch = Launch::for_tensor(ids)?;
    let gpu = &launch.gpu;
    let group = n.div_ceil(n.div_ceil(MIN_GROUP_LENGTH).clamp(1, MAX_GROUPS)).max(1);
    let groups = n.div_ceil(group).max(1);
    let counts = gpu.empty(DType::U32, DIGITS * groups)?;
    let bits = usize::BITS as usize - vocab.saturating_sub(1).leading_zeros() as usize;
    let (mut keys, mut rows): (Tensor, Option<Tensor>) = (ids.clone(), None);
    for shift in (0..bits.max(1)).step_by(DIGIT_BITS) {
        let parameters = SortCount {
            counts: launch.array("counts", &counts, DIGITS * groups)?,
            keys: launch.array("keys", &keys, n)?,
            n: int(n)?,
            group: int(group)?,
            shift: int(shift)?,
        };
        // SAFETY: a warp for each group.
        unsafe { launch.run(&parameters, LaunchDims::linear(groups, 32))? }
        let parameters = SortScan { x: launch.array("counts", &counts, DIGITS * groups)?, n: int(DIGITS * groups)? };
        // SAFETY: one block.
        unsafe { launch.run(&parameters, LaunchDims::linear(1, 1024))? }
        let (sorted, moved) = (gpu.empty(DType::U32, n)?, gpu.empty(DType::U32, n)?);
        let parameters = SortScatter {
            keys_out: launch.array("sorted keys", &sorted, n)?,
            rows_out: launch.array("sorted rows", &moved, n)?,
            keys: launch.array("keys", &keys, n)?,
            rows: launch.array("rows", rows.as_ref(), n)?,
            places: launch.array("counts", &counts, DIGITS * groups)?,
            n: int(n)?,
            group: int(group)?,
            shift: int(shift)?,
        };
        // SAFETY: a warp for each group; the places are those that the same groups counted, so they are below n.
        unsafe { launch.run(&parameters, LaunchDims::linear(groups, 32))? }
        (keys, rows) = (sorted, Some(moved));
    }
    match rows {
        Some(rows) => Ok((keys, rows)),
        None => bail!("a sort without a pass"),
    }
}

/// `dtable` is f32. Ids beyond the table are left out.
pub fn embed_backward(dtable: &Tensor, ids: &Tensor, scale: Option<f64>, dy: &Tensor) -> Result<()> {
    let ((vocab, d), (n, width)) = (dtable.dims2()?, dy.dims2()?);
    if width != d || ids.elem_count() != n {
        bail!("gradients [{n}, {width}] of {} ids for a table of {d} columns", ids.elem_count())
    }
    if n == 0 {
        return Ok(());
    }
    let (keys, rows) = sort_by_id(ids, vocab)?;
    let (chunks, threads) = (n.div_ceil(CHUNK), whole_warps(d.div_ceil(8)).min(256));
    let launch = Launch::for_tensor(dy)?;
    let partial = launch.gpu.empty(DType::F32, (chunks * 2, d))?;
    let parameters = EmbedBackward {
        table: launch.array("dtable", dtable, vocab * d)?,
        partial: launch.array("partial", &partial, chunks * 2 * d)?,
        ids: launch.array("ids", &keys, n)?,
        rows: launch.array("rows", &rows, n)?,
        dy: launch.array("dy", dy, n * d)?,
        scale: scale.unwrap_or(1.0) as f32,
        n: int(n)?,
        d: int(d)?,
        vocab: int(vocab)?,
    };
    // SAFETY: a block for each chunk; rows are a permutation of 0..n.
    unsafe { launch.run(&parameters, LaunchDims::linear(chunks, threads))? }
    let parameters = EmbedJoin {
        table: launch.array("dtable", dtable, vocab * d)?,
        partial: launch.array("partial", &partial, chunks * 2 * d)?,
        ids: launch.array("ids", &keys, n)?,
        n: int(n)?,
        d: int(d)?,
        vocab: int(vocab)?,
    };
    let threads = whole_warps(d).min(256);
    let dims =
        LaunchDims { grid: [chunks as u32, d.div_ceil(threads) as u32, 1], block: [threads as u32, 1, 1], shared: 0 };
    // SAFETY: blocks for each chunk, of a thread for each column.
    unsafe { launch.run(&parameters, dims) }
}

/// `dpositions` is f32, with at least `seq` rows.
pub fn position_backward(dpositions: &Tensor, seq: usize, dy: &Tensor) -> Result<()> {
    let (rows, d) = dy.dims2()?;
    let width = if d.is_multiple_of(8) { 8 } else { 1 };
    let launch = Launch::for_tensor(dy)?;
    let parameters = PositionBackward {
        positions: launch.array_part("dpositions", dpositions, 0, seq * d)?,
        dy: launch.array("dy", dy, rows * d)?,
        rows: rows as i64,
        seq: int(seq)?,
        d: int(d)?,
    };
    // SAFETY: a thread for each `width` of seq · d elements.
    unsafe { launch.run(&parameters, LaunchDims::linear((seq * d / width).div_ceil(256), 256)) }
}

pub fn take_rows(x: &Tensor, rows: &[usize]) -> Result<Tensor> {
    let (count, d) = x.dims2()?;
    if let Some(row) = rows.iter().find(|&&row| row >= count) {
        bail!("row {row} of {count}")
    }
    let launch = Launch::for_tensor(x)?;
    let numbers: Vec<u32> = rows.iter().map(|&row| row as u32).collect();
    let numbers = launch.gpu.upload(&numbers)?;
    let y = launch.gpu.empty(x.dtype(), (rows.len(), d))?;
    let parameters = TakeRows {
        y: launch.array("y", &y, rows.len() * d)?,
        x: launch.array("x", x, count * d)?,
        rows: launch.array("rows", &numbers, rows.len())?,
        count: rows.len() as i64,
        d: int(d)?,
    };
    // SAFETY: a warp for each row; the rows are x's.
    unsafe { launch.run(&parameters, warp_per_row(rows.len()))? }
    Ok(y)
}
