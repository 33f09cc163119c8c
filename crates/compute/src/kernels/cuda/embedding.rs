//! Embedding of token ids, and its gradients without atomics: ids are sorted, and each one's rows added in order.

use candle_core::{DType, Result, Tensor, bail};

use super::launch::{Launch, LaunchDims, kernel_for_type, warp_per_row, whole_warps};

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
    let kernel = match (dtype, kind) {
        (DType::BF16, DType::F32) => "embed_bf16_fixed".to_owned(),
        _ => kernel_for_type("embed", dtype)?,
    };
    let launch = Launch::for_tensor(table)?;
    let y = launch.gpu.empty(dtype, (rows, d))?;
    let launch = launch
        .array("y", &y, dtype, rows * d)?
        .array("ids", ids, DType::U32, rows)?
        .array("table", table, dtype, vocab * d)?
        .array("positions", positions, kind, length * d)?
        .floats([scale.unwrap_or(1.0)])
        .longs([rows])
        .ints([d, vocab, seq, start])?;
    // SAFETY: (y, ids, table, positions, scale, rows, d, vocab, seq, start), a warp for each row; positions are below `length`.
    unsafe { launch.run(&kernel, warp_per_row(rows))? }
    Ok(y)
}

/// Sorts (id, row) pairs by id, stable, with a radix sort of nine bits at a time; returns the ids and the rows.
fn sort_by_id(ids: &Tensor, vocab: usize) -> Result<(Tensor, Tensor)> {
    const DIGIT_BITS: usize = 9;
    const DIGITS: usize = 1 << DIGIT_BITS;
    const MIN_GROUP_LENGTH: usize = 256;
    const MAX_GROUPS: usize = 128;
    let n = ids.elem_count();
    let gpu = crate::gpu::gpu_of(ids)?;
    let group = n.div_ceil(n.div_ceil(MIN_GROUP_LENGTH).clamp(1, MAX_GROUPS)).max(1);
    let groups = n.div_ceil(group).max(1);
    let counts = gpu.empty(DType::U32, DIGITS * groups)?;
    let bits = usize::BITS as usize - vocab.saturating_sub(1).leading_zeros() as usize;
    let (mut keys, mut rows): (Tensor, Option<Tensor>) = (ids.clone(), None);
    for shift in (0..bits.max(1)).step_by(DIGIT_BITS) {
        let launch = Launch::for_tensor(ids)?
            .array("counts", &counts, DType::U32, DIGITS * groups)?
            .array("keys", &keys, DType::U32, n)?
            .ints([n, group, shift])?;
        // SAFETY: (counts, keys, n, group, shift), a warp for each group.
        unsafe { launch.run("sort_count", LaunchDims::linear(groups, 32))? }
        let launch =
            Launch::for_tensor(ids)?.array("counts", &counts, DType::U32, DIGITS * groups)?.ints([DIGITS * groups])?;
        // SAFETY: (x, n), one block.
        unsafe { launch.run("sort_scan", LaunchDims::linear(1, 1024))? }
        let (sorted, moved) = (gpu.empty(DType::U32, n)?, gpu.empty(DType::U32, n)?);
        let launch = Launch::for_tensor(ids)?
            .array("sorted keys", &sorted, DType::U32, n)?
            .array("sorted rows", &moved, DType::U32, n)?
            .array("keys", &keys, DType::U32, n)?
            .array("rows", rows.as_ref(), DType::U32, n)?
            .array("counts", &counts, DType::U32, DIGITS * groups)?
            .ints([n, group, shift])?;
        // SAFETY: (keys_out, rows_out, keys, rows, places, n, group, shift), a warp for each group; the places are those that
        // the same groups counted, so they are below n.
        unsafe { launch.run("sort_scatter", LaunchDims::linear(groups, 32))? }
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
    let launch = Launch::for_tensor(dtable)?;
    let partial = launch.gpu.empty(DType::F32, (chunks * 2, d))?;
    let launch = launch
        .array("dtable", dtable, DType::F32, vocab * d)?
        .array("partial", &partial, DType::F32, chunks * 2 * d)?
        .array("ids", &keys, DType::U32, n)?
        .array("rows", &rows, DType::U32, n)?
        .array("dy", dy, dy.dtype(), n * d)?
        .floats([scale.unwrap_or(1.0)])
        .ints([n, d, vocab])?;
    let kernel = kernel_for_type("embed_backward", dy.dtype())?;
    // SAFETY: (table, partial, ids, rows, dy, scale, n, d, vocab), a block for each chunk; rows are a permutation of 0..n.
    unsafe { launch.run(&kernel, LaunchDims::linear(chunks, threads))? }
    let launch = Launch::for_tensor(dtable)?
        .array("dtable", dtable, DType::F32, vocab * d)?
        .array("partial", &partial, DType::F32, chunks * 2 * d)?
        .array("ids", &keys, DType::U32, n)?
        .ints([n, d, vocab])?;
    let threads = whole_warps(d).min(256);
    let dims =
        LaunchDims { grid: [chunks as u32, d.div_ceil(threads) as u32, 1], block: [threads as u32, 1, 1], shared: 0 };
    // SAFETY: (table, partial, ids, n, d, vocab), blocks for each chunk, of a thread for each column.
    unsafe { launch.run("embed_join", dims) }
}

/// `dpositions` is f32, with at least `seq` rows.
pub fn position_backward(dpositions: &Tensor, seq: usize, dy: &Tensor) -> Result<()> {
    let (rows, d) = dy.dims2()?;
    let width = if d.is_multiple_of(8) { 8 } else { 1 };
    let launch = Launch::for_tensor(dpositions)?
        .array_part("dpositions", dpositions, DType::F32, 0, seq * d)?
        .array("dy", dy, dy.dtype(), rows * d)?
        .longs([rows])
        .ints([seq, d])?;
    let kernel = kernel_for_type("position_backward", dy.dtype())?;
    // SAFETY: (positions, dy, rows, seq, d), a thread for each `width` of seq · d elements.
    unsafe { launch.run(&kernel, LaunchDims::linear((seq * d / width).div_ceil(256), 256)) }
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
    let launch = launch
        .array("y", &y, x.dtype(), rows.len() * d)?
        .array("x", x, x.dtype(), count * d)?
        .array("rows", &numbers, DType::U32, rows.len())?
        .longs([rows.len()])
        .ints([d])?;
    // SAFETY: (y, x, rows, count, d), a warp for each row; the rows are x's.
    unsafe { launch.run(&kernel_for_type("take_rows", x.dtype())?, warp_per_row(rows.len()))? }
    Ok(y)
}
