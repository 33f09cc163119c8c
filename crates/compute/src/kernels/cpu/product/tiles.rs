//! Products of bf16 matrices with instructions that sum a tile in registers.
//!
//! The right matrix is packed into panels. The left one is read in place where its rows are contiguous, not whole pages apart, and fill
//! tiles; otherwise they are copied. The sums of a tile stay in registers over the whole depth of a block.

use std::arch::x86_64::{
    __m256bh, __m256i, __m512, _mm256_mask_storeu_epi16, _mm256_maskz_loadu_epi16, _mm512_add_ps, _mm512_castsi512_ps,
    _mm512_cvtepu16_epi32, _mm512_cvtneps_pbh, _mm512_loadu_ps, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps,
    _mm512_slli_epi32,
};
use std::mem::transmute;
use std::ops::Range;

use half::bf16;
use runner_threads::work_stealing;

use super::packing::{REGISTER_LANES, RowPair, copy_rows, copy_some_rows, lane_mask, pack_panels, pack_some_panels};
use super::panels::{Left, Panels, each};
use super::{
    Destination, FreeBuffers, OPERAND_BYTES, PANEL_COLUMNS, SUM_BYTES, TASKS_PER_THREAD, grow_to, split_range,
};
use crate::kernels::cpu::Stored;
use crate::kernels::cpu::gemm::Mat;
use crate::kernels::cpu::pieces::task_count;
use crate::kernels::cpu::simd::{Shared, inlined, vectorize};

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
/// That of [`super::multiply_with`]. The processor must have the instructions, and AVX-512 with its extensions BF16, BW and VL.
pub(super) unsafe fn multiply<T: TileInstructions>(a: Mat<bf16>, b: Mat<bf16>, destination: Destination<'_>) {
    let (rows, inner, cols) = (a.rows(), a.cols(), b.cols());
    let is_read_in_place = is_read_in_place::<T>(a);
    let depth = if inner <= MAX_DEPTH { inner } else { MAX_DEPTH / 2 };
    let lines = OPERAND_BYTES / (size_of::<bf16>() * depth.next_multiple_of(T::DEPTH_STEP));
    let block_cols = (lines / PANEL_COLUMNS * PANEL_COLUMNS).clamp(PANEL_COLUMNS, cols.next_multiple_of(PANEL_COLUMNS));
    let keeps_sums = matches!(destination, Destination::Rounded(..)) && depth < inner;
    let most_rows = [
        if is_read_in_place { usize::MAX } else { lines },
        if keeps_sums { SUM_BYTES / (size_of::<f32>() * block_cols) } else { usize::MAX },
    ];
    let block_rows = rows.min(most_rows[0]).min(most_rows[1]).max(T::ROWS);
    let mut buffers = BUFFERS.take();
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
                let panels = unsafe { pack_panels(b, block.depth.clone(), block.cols.clone(), padded, right) };
                let (left, first_row) = if is_read_in_place {
                    (Mat::strided(&a.data()[block.depth.start..], rows, padded, a.row_stride()), block.rows.start)
                } else {
                    let stride = stride_of_copies(padded);
                    let copied = block.rows.len().max(T::ROWS);
                    // SAFETY: the caller's promise.
                    unsafe { copy_rows(a, block.rows.clone(), block.depth.clone(), stride, copied, left) };
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
                unsafe { multiply_block::<T>(&block, left, first_row, panels, output) };
            }
        }
    }
    BUFFERS.put_back(buffers);
}

/// True if the instructions read the rows of `a` where they are.
fn is_read_in_place<T: TileInstructions>(a: Mat<bf16>) -> bool {
    a.col_stride() == 1
        && !a.row_stride().is_multiple_of(PAGE_ELEMENTS)
        && a.cols().is_multiple_of(T::DEPTH_STEP)
        && a.rows() >= T::ROWS
}

/// The distance of rows of `len` numbers that are copied.
fn stride_of_copies(len: usize) -> usize {
    if len.is_multiple_of(PAGE_ELEMENTS) { len + PANEL_COLUMNS } else { len }
}

/// The destination of the sums of a block.
#[derive(Clone, Copy)]
struct Output<'a> {
    destination: Destination<'a>,
    /// Columns of the whole product.
    cols: usize,
    /// The sums over the blocks so far, `[rows, columns]` of the block, where a product is deeper than a block.
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
) {
    let pairs = left.cols() / 2;
    let tiles = [block.rows.len().div_ceil(T::ROWS), block.cols.len().div_ceil(PANEL_COLUMNS)];
    let mut size = TASK_TILES;
    let tasks_of = |size: usize| tiles.map(|n| n.div_ceil(size));
    let min_tasks = task_count(TASKS_PER_THREAD);
    while size > 1 && tasks_of(size)[0] * tasks_of(size)[1] < min_tasks {
        size /= 2;
    }
    let [down, across] = tasks_of(size);
    // Tasks that follow each other share panels.
    work_stealing::for_each_piece(down * across, |task| {
        let [i, j] = [task % down * size, task / down * size];
        let task = || {
            let mut sums = T::Sums::default();
            for panel in j..(j + size).min(tiles[1]) {
                let cols = panel * PANEL_COLUMNS..((panel + 1) * PANEL_COLUMNS).min(block.cols.len());
                let panel = &panels[panel * pairs..][..pairs];
                for tile in i..(i + size).min(tiles[0]) {
                    let rows = tile * T::ROWS..((tile + 1) * T::ROWS).min(block.rows.len());
                    // SAFETY: the caller's promise; `run_task` runs this closure; no other task stores these rows and columns.
                    unsafe {
                        let sums = sum_rows::<T>(left, first_row + rows.start, panel, &mut sums);
                        store_tile(sums, rows, cols.clone(), block, output);
                    }
                }
            }
        };
        // SAFETY: the caller's promise.
        unsafe { T::run_task(task) };
    });
}

/// The product of the rows from `first` on, of at most a tile, and a panel; `left` has at least the rows of a tile.
///
/// # Safety
/// As for [`TileInstructions::sum_tile`].
unsafe fn sum_rows<'a, T: TileInstructions>(
    left: Mat<bf16>,
    first: usize,
    panel: &[RowPair],
    sums: &'a mut T::Sums,
) -> &'a [[f32; PANEL_COLUMNS]] {
    // A tile at the end begins earlier, and computes rows again that are not stored again.
    let from = first.min(left.rows() - T::ROWS);
    let rows = Mat::strided(&left.data()[from * left.row_stride()..], T::ROWS, left.cols(), left.row_stride());
    // SAFETY: the caller's promise.
    unsafe { T::sum_tile(rows, panel, sums) };
    &sums.as_mut()[first - from..]
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
                store_sums(sums, mask, row * output.cols + column, column, output.destination);
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
            Destination::Added(to) => {
                let to = to.pointer(first);
                _mm512_mask_storeu_ps(to, mask, _mm512_add_ps(sums, _mm512_maskz_loadu_ps(mask, to)));
            }
        }
    }
}

/// The right matrix of a product inside attention, and buffers for the left one.
#[derive(Default)]
pub(super) struct Operand {
    panels: Vec<RowPair>,
    /// The rows of a panel.
    pairs: usize,
    rows: usize,
    columns: usize,
    rounded: Vec<bf16>,
    copied: Vec<bf16>,
}

impl Operand {
    /// # Safety
    /// The processor must have AVX-512 with its extensions BW and VL.
    pub(super) unsafe fn pack<T: TileInstructions>(&mut self, b: Mat<bf16>) {
        (self.rows, self.columns) = (b.rows(), b.cols());
        self.pairs = b.rows().next_multiple_of(T::DEPTH_STEP) / 2;
        let panels = grow_to(&mut self.panels, b.cols().div_ceil(PANEL_COLUMNS) * self.pairs);
        // SAFETY: the caller's promise.
        unsafe { pack_some_panels(b, 0..b.rows(), 0..b.cols(), self.pairs, panels) };
    }

    /// See [`Stored::multiply_panels`]; `self` is the right matrix, and `first_key` the first key of queries.
    ///
    /// # Safety
    /// The processor must have the instructions, and AVX-512 with its extensions BW and VL.
    pub(super) unsafe fn multiply<T: TileInstructions>(
        &self,
        sums: &mut Panels<f32>,
        left: Left<'_, bf16>,
        first_key: usize,
        buffer: &mut Self,
    ) {
        let Self { rounded, copied, .. } = buffer;
        let adds = matches!(left, Left::KeysByQueries(_));
        // Where keys begin, in the columns and the rows of the right matrix, and in the rows of the sums.
        let (left, [first_column, first_depth, first_row]) = match left {
            Left::QueriesByFeatures(matrix) => (matrix, [first_key, 0, 0]),
            Left::QueriesByKeys(panels) => (round_panels(panels, rounded), [0, first_key, 0]),
            Left::KeysByQueries(panels) => (round_panels(panels, rounded).t(), [0, 0, first_key]),
        };
        // Whole panels, and whole steps of the depth.
        assert!(
            first_key.is_multiple_of(PANEL_COLUMNS) && PANEL_COLUMNS.is_multiple_of(T::DEPTH_STEP),
            "keys in steps"
        );
        let (rows, padded) = (left.rows(), left.cols().next_multiple_of(T::DEPTH_STEP));
        assert!(
            first_row + rows <= sums.rows()
                && first_depth + left.cols() <= self.rows
                && first_column + sums.columns() <= self.columns,
            "shapes of a product"
        );
        let left = if is_read_in_place::<T>(left) {
            left
        } else {
            let (stride, all) = (stride_of_copies(padded), rows.max(T::ROWS));
            let copies = grow_to(copied, all * stride);
            // SAFETY: the caller's promise.
            unsafe { copy_some_rows(left, 0..rows, 0..left.cols(), stride, copies) };
            Mat::strided(copies, all, padded, stride)
        };
        let task = || {
            let mut tile = T::Sums::default();
            for panel in 0..sums.panels() {
                let packed = panel + first_column / PANEL_COLUMNS;
                let pairs = &self.panels[packed * self.pairs + first_depth / 2..][..padded / 2];
                for rows in split_range(rows, T::ROWS) {
                    // SAFETY: the caller's promise; `run_task` runs this closure.
                    let tile = unsafe { sum_rows::<T>(left, rows.start, pairs, &mut tile) };
                    for (row, tile) in rows.zip(tile) {
                        let sums = sums.row_mut(panel, first_row + row);
                        *sums = if adds { each(inlined!(|i: usize| sums[i] + tile[i])) } else { *tile };
                    }
                }
            }
        };
        // SAFETY: the caller's promise.
        unsafe { T::run_task(task) };
    }
}

/// The matrix with its numbers rounded, row by row.
fn round_panels<'a>(panels: &Panels<f32>, rounded: &'a mut Vec<bf16>) -> Mat<'a, bf16> {
    let stride = panels.panels() * PANEL_COLUMNS;
    let numbers = grow_to(rounded, panels.rows() * stride);
    vectorize(inlined!(|| {
        for (row, numbers) in numbers.chunks_exact_mut(stride).enumerate() {
            for (panel, numbers) in numbers.as_chunks_mut().0.iter_mut().enumerate() {
                let sums = panels.row(panel, row);
                *numbers = each::<bf16, PANEL_COLUMNS>(inlined!(|i: usize| bf16::store(sums[i])));
            }
        }
    }));
    Mat::strided(numbers, panels.rows(), panels.columns(), stride)
}
