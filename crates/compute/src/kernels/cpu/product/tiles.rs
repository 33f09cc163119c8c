//! Products of bf16 matrices with instructions that sum a tile in registers.
//!
//! The right matrix is packed into panels. The left one is read in place where its rows are contiguous, not whole pages apart, and fill
//! tiles; otherwise they are copied. The sums of a tile stay in registers over the whole depth of a block.

use std::arch::x86_64::{
    __m256bh, __m256i, __m512, _mm256_mask_storeu_epi16, _mm256_maskz_loadu_epi16, _mm512_add_ps, _mm512_castsi512_ps,
    _mm512_cvtepu16_epi32, _mm512_cvtneps_pbh, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_mask_storeu_ps,
    _mm512_maskz_loadu_ps, _mm512_mul_ps, _mm512_set1_ps, _mm512_slli_epi32,
};
use std::mem::transmute;
use std::ops::Range;

use half::bf16;

use super::packing::{REGISTER_LANES, RowPair, copy_rows, lane_mask, pack_panels};
use super::{
    Destination, FreeBuffers, OPERAND_BYTES, PANEL_COLUMNS, SUM_BYTES, TASKS_PER_THREAD, Threads, split_range,
};
use crate::kernels::cpu::gemm::Mat;
use crate::kernels::cpu::simd::Shared;

/// The depth of the deepest block, whose panels fit in the second-level cache. Deeper products consist of blocks of half this depth.
const MAX_DEPTH: usize = 4096;

/// Rows of the left matrix that are this many elements apart, a page, compete for the same lines of the first-level cache.
const PAGE_ELEMENTS: usize = 2048;

/// A task computes at most this many tiles in each direction.
const TASK_TILES: usize = 4;

/// Instructions that multiply bf16 numbers and sum the products of a tile.
pub(super) trait TileInstructions {
    /// The sums of a tile, row by row.
    type Sums: AsMut<[[f32; PANEL_COLUMNS]]> + Default;
    /// Rows of a tile.
    const ROWS: usize;
    /// The depth of a tile is a multiple of this even number, which divides [`MAX_DEPTH`] / 2.
    const DEPTH_STEP: usize;

    /// Runs a task that sums tiles.
    ///
    /// # Safety
    /// The processor must have the instructions.
    unsafe fn run_task(task: impl FnOnce());

    /// Stores the product of [`Self::ROWS`] rows and a panel in `sums`.
    ///
    /// # Safety
    /// The call must be inside of [`Self::run_task`].
    ///
    /// # Panics
    /// If the shapes do not fit: an invariant of the caller.
    unsafe fn sum_tile(left: Mat<bf16>, right: &[RowPair], sums: &mut Self::Sums);
}

static BUFFERS: FreeBuffers<Buffers> = FreeBuffers::new();

#[derive(Default)]
struct Buffers {
    left: Vec<bf16>,
    right: Vec<RowPair>,
    /// Sums over the blocks so far, where a product is deeper than a block.
    sums: Vec<f32>,
}

/// The part of a product that is computed at once: its rows, its columns, and the part of the inner dimension that it sums over.
#[derive(Clone)]
struct Block {
    rows: Range<usize>,
    cols: Range<usize>,
    depth: Range<usize>,
}

/// # Safety
/// The promise of [`super::multiply`] must hold, and the processor must have the instructions, and AVX-512 with its extensions BF16, BW and
/// VL.
pub(super) unsafe fn multiply<T: TileInstructions>(
    a: Mat<bf16>,
    b: Mat<bf16>,
    destination: Destination<'_>,
    threads: Threads,
) {
    let (rows, inner, cols) = (a.rows(), a.cols(), b.cols());
    let is_read_in_place = a.col_stride() == 1
        && !a.row_stride().is_multiple_of(PAGE_ELEMENTS)
        && inner.is_multiple_of(T::DEPTH_STEP)
        && rows >= T::ROWS;
    let depth = if inner <= MAX_DEPTH { inner } else { MAX_DEPTH / 2 };
    let lines = OPERAND_BYTES / (size_of::<bf16>() * depth.next_multiple_of(T::DEPTH_STEP));
    let block_cols = (lines / PANEL_COLUMNS * PANEL_COLUMNS).clamp(PANEL_COLUMNS, cols.next_multiple_of(PANEL_COLUMNS));
    let keeps_sums = matches!(destination, Destination::Rounded(..)) && depth < inner;
    let most_rows = [
        if is_read_in_place { usize::MAX } else { lines },
        if keeps_sums { SUM_BYTES / (size_of::<f32>() * block_cols) } else { usize::MAX },
    ];
    let block_rows = rows.min(most_rows[0]).min(most_rows[1]).max(T::ROWS);
    let mut buffers = BUFFERS.take(threads);
    let Buffers { left, right, sums } = &mut buffers;
    for row_range in split_range(rows, block_rows) {
        for columns in split_range(cols, block_cols) {
            if keeps_sums {
                sums.resize(sums.len().max(row_range.len() * columns.len()), 0.0);
            }
            for depth in split_range(inner, depth) {
                let block = Block { rows: row_range.clone(), cols: columns.clone(), depth };
                let padded = block.depth.len().next_multiple_of(T::DEPTH_STEP);
                // SAFETY: the caller's promise.
                let panels = unsafe { pack_panels(b, block.depth.clone(), block.cols.clone(), padded, right, threads) };
                let (left, first_row) = if is_read_in_place {
                    (Mat::strided(&a.data()[block.depth.start..], rows, padded, a.row_stride()), block.rows.start)
                } else {
                    let stride = if padded.is_multiple_of(PAGE_ELEMENTS) { padded + PANEL_COLUMNS } else { padded };
                    let copied = block.rows.len().max(T::ROWS);
                    // SAFETY: the caller's promise.
                    unsafe { copy_rows(a, block.rows.clone(), block.depth.clone(), stride, copied, left, threads) };
                    (Mat::strided(left, copied, padded, stride), 0)
                };
                let output = Output {
                    destination,
                    cols,
                    sums: keeps_sums.then(|| Shared::new(sums)),
                    is_first: block.depth.start == 0,
                    is_last: block.depth.end == inner,
                };
                // SAFETY: the caller's promise; the panels are those of this block.
                unsafe { multiply_block::<T>(&block, left, first_row, panels, output, threads) };
            }
        }
    }
    BUFFERS.put_back(buffers, threads);
}

impl Destination<'_> {
    /// The destination of the sums over a part of the depth, which is the first part or a later one.
    fn for_depth_block(self, is_first: bool) -> Self {
        match self {
            Self::Scaled { to, scale, adds } => Self::Scaled { to, scale, adds: adds || !is_first },
            rounded @ Self::Rounded(..) => rounded,
        }
    }
}

/// The destination of the sums of a block.
#[derive(Clone, Copy)]
struct Output<'a> {
    destination: Destination<'a>,
    /// Columns of the whole product.
    cols: usize,
    /// The sums over the blocks so far, [rows, columns] of the block, where a product is deeper than a block.
    sums: Option<Shared<f32>>,
    is_first: bool,
    is_last: bool,
}

/// Multiplies the rows of `left` from `first_row` on, which are those of the block, and the block's panels.
///
/// # Safety
/// As for [`multiply`].
unsafe fn multiply_block<T: TileInstructions>(
    block: &Block,
    left: Mat<bf16>,
    first_row: usize,
    panels: &[RowPair],
    output: Output<'_>,
    threads: Threads,
) {
    let pairs = left.cols() / 2;
    let tiles = [block.rows.len().div_ceil(T::ROWS), block.cols.len().div_ceil(PANEL_COLUMNS)];
    let mut size = TASK_TILES;
    let tasks = |size: usize| tiles.map(|n| n.div_ceil(size));
    let min_tasks = threads.tasks(TASKS_PER_THREAD);
    while size > 1 && tasks(size)[0] * tasks(size)[1] < min_tasks {
        size /= 2;
    }
    let [down, across] = tasks(size);
    // Tasks that follow each other share panels.
    threads.for_each(down * across, |task| {
        let [i, j] = [task % down * size, task / down * size];
        let task = || {
            let mut sums = T::Sums::default();
            for panel in j..(j + size).min(tiles[1]) {
                let cols = panel * PANEL_COLUMNS..((panel + 1) * PANEL_COLUMNS).min(block.cols.len());
                let panel = &panels[panel * pairs..][..pairs];
                for tile in i..(i + size).min(tiles[0]) {
                    let rows = tile * T::ROWS..((tile + 1) * T::ROWS).min(block.rows.len());
                    // A tile at the end begins earlier, and computes rows again that are not stored again.
                    let from = (first_row + rows.start).min(left.rows() - T::ROWS);
                    let skipped = first_row + rows.start - from;
                    let tile_rows =
                        Mat::strided(&left.data()[from * left.row_stride()..], T::ROWS, left.cols(), left.row_stride());
                    // SAFETY: the caller's promise; `run_task` runs this closure; no other task stores these rows and columns.
                    unsafe {
                        T::sum_tile(tile_rows, panel, &mut sums);
                        store_tile(&sums.as_mut()[skipped..], rows, cols.clone(), block, output);
                    }
                }
            }
        };
        // SAFETY: the caller's promise.
        unsafe { T::run_task(task) };
    });
}

/// Stores the sums of `rows` and `cols`, which are counted from those of the block.
///
/// # Safety
/// As for [`multiply_block`]; no other task may have these rows and columns.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn store_tile(
    sums: &[[f32; PANEL_COLUMNS]],
    rows: Range<usize>,
    cols: Range<usize>,
    block: &Block,
    output: Output<'_>,
) {
    let destination = output.destination.for_depth_block(output.is_first);
    for (row, sums) in rows.zip(sums) {
        for (half, sums) in sums.as_chunks::<REGISTER_LANES>().0.iter().enumerate() {
            let column = cols.start + half * REGISTER_LANES;
            let mask = lane_mask(cols.end.saturating_sub(column));
            // SAFETY: the caller's promise; the mask selects columns of the output, and no others are read or written.
            unsafe {
                let mut sums = _mm512_loadu_ps(sums.as_ptr());
                if let Some(kept) = output.sums {
                    let kept = kept.pointer(row * block.cols.len() + column);
                    if !output.is_first {
                        sums = _mm512_add_ps(sums, _mm512_maskz_loadu_ps(mask, kept));
                    }
                    if !output.is_last {
                        _mm512_mask_storeu_ps(kept, mask, sums);
                        continue;
                    }
                }
                let [row, column] = [block.rows.start + row, block.cols.start + column];
                store_sums(sums, mask, row * output.cols + column, column, destination);
            }
        }
    }
}

/// Stores the sums that `mask` selects, of columns from `column` on, in the elements of the destination from `first` on.
///
/// # Safety
/// The selected elements exist, and belong to the calling task alone; a bias has the selected columns.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn store_sums(sums: __m512, mask: u16, first: usize, column: usize, destination: Destination<'_>) {
    // SAFETY: the caller's promise; elements outside of the mask are neither read nor written.
    unsafe {
        match destination {
            Destination::Rounded(to, bias) => {
                let bias = bias.map(|bias| {
                    let bias = _mm256_maskz_loadu_epi16(mask, bias.as_ptr().wrapping_add(column).cast());
                    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bias)))
                });
                let sums = bias.map_or(sums, |bias| _mm512_add_ps(sums, bias));
                // Rounds as `bf16::store`, but for magnitudes below 2^-126, which become 0, as in the products' instructions.
                let rounded = transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(sums));
                _mm256_mask_storeu_epi16(to.pointer(first).cast(), mask, rounded);
            }
            Destination::Scaled { to, scale, adds } => {
                let (to, scale) = (to.pointer(first), _mm512_set1_ps(scale));
                let scaled = if adds {
                    _mm512_fmadd_ps(sums, scale, _mm512_maskz_loadu_ps(mask, to))
                } else {
                    _mm512_mul_ps(sums, scale)
                };
                _mm512_mask_storeu_ps(to, mask, scaled);
            }
        }
    }
}
