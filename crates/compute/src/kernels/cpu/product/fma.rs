//! Products of bf16 matrices with multiply-adds of f32: both matrices are converted as they are packed.
//!
//! An element is the sum of its products in the order of the inner dimension, each added with one rounding where the processor has fused
//! multiply-adds. So its bits depend neither on the width of vectors nor on blocks and threads.
//!
//! The right matrix is packed in blocks of at most 1 MiB, which fit in the second-level cache of recent server cores. A task packs some tiles
//! of rows of the left one, and multiplies each with one panel of the block after another; the tile stays in the first-level cache.

use std::mem::MaybeUninit;
use std::ops::Range;

use half::bf16;
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;
use runner_threads::work_stealing;

use super::panels::{PanelRow, each, pack_panel, padded, sum_tile};
use super::{Destination, FreeBuffers, PANEL_COLUMNS, SUM_BYTES, TASKS_PER_THREAD, grow_to, split_range};
use crate::kernels::cpu::Stored;
use crate::kernels::cpu::gemm::Mat;
use crate::kernels::cpu::pieces::{Pieces, task_count};
use crate::kernels::cpu::simd::{Shared, inlined};

/// The most bytes of a block of the right matrix.
const BLOCK_BYTES: usize = 1 << 20;
/// The depth of the deepest block.
const MAX_DEPTH: usize = 512;
/// Blocks are not made shallower than this to hold more panels. Equal parts of a deeper product may have half of it.
const MIN_DEPTH: usize = 256;
/// The depth of a part of a tile's copy: in rows of so many numbers, the distance of rows is a constant.
const PART_DEPTH: usize = 128;
const PARTS: usize = MAX_DEPTH / PART_DEPTH;
/// The distance of the rows of a part: it keeps them from competing for the same lines of a cache.
const ROW_STRIDE: usize = PART_DEPTH + 16;
/// The distance of the columns of a part of a matrix with contiguous columns.
const COLUMN_STRIDE: usize = 16;

/// A task computes at most this many tiles downwards.
const TASK_TILES: usize = 4;
/// Panels that one task packs.
const PACKED_PANELS: usize = 4;

/// The most rows of a tile.
const MAX_TILE_ROWS: usize = 14;

static BUFFERS: FreeBuffers<Buffers> = FreeBuffers::new();

#[derive(Default)]
struct Buffers {
    panels: Vec<PanelRow>,
    /// Sums over the blocks so far, where a product is deeper than a block: rows of a tile for each panel of each tile.
    sums: Vec<PanelRow>,
}

/// # Safety
/// That of [`super::multiply_with`].
pub(super) unsafe fn multiply(a: Mat<bf16>, b: Mat<bf16>, destination: Destination<'_>) {
    let (rows, inner, cols) = (a.rows(), a.cols(), b.cols());
    let tile_rows = tile_rows();
    let (depth, block_panels) = block_shape(inner, cols.div_ceil(PANEL_COLUMNS));
    let keeps_sums = depth < inner;
    let block_tiles =
        if keeps_sums { SUM_BYTES / (size_of::<PanelRow>() * block_panels * tile_rows) } else { usize::MAX };
    let block_rows = block_tiles.min(rows.div_ceil(tile_rows)) * tile_rows;
    let mut buffers = BUFFERS.take();
    for row_range in split_range(rows, block_rows) {
        for columns in split_range(cols, block_panels * PANEL_COLUMNS) {
            let tiles = row_range.len().div_ceil(tile_rows);
            let count = columns.len().div_ceil(PANEL_COLUMNS);
            let sums = keeps_sums.then(|| Shared::new(grow_to(&mut buffers.sums, tiles * count * tile_rows)));
            for depth in split_range(inner, depth) {
                let (a, b) = (a.t().rows_of(&depth).t(), b.rows_of(&depth));
                let panels = grow_to(&mut buffers.panels, count * depth.len());
                let tasks_of_packing = panels.par_chunks_mut(PACKED_PANELS * depth.len()).enumerate();
                tasks_of_packing.for_each_piece(|(task, panels)| {
                    let first = columns.start + task * PACKED_PANELS * PANEL_COLUMNS;
                    pack_panels(b, first..columns.end, panels);
                });
                let [down, across] = task_size(tiles, count);
                let tasks_down = tiles.div_ceil(down);
                // Tasks that follow each other share panels.
                work_stealing::for_each_piece(tasks_down * count.div_ceil(across), |task| {
                    let [tile, panel] = [task % tasks_down * down, task / tasks_down * across];
                    let first_row = row_range.start + tile * tile_rows;
                    let task = Task {
                        a,
                        rows: first_row..(first_row + down * tile_rows).min(row_range.end),
                        panels: &panels[panel * depth.len()..(panel + across).min(count) * depth.len()],
                        columns: columns.start + panel * PANEL_COLUMNS..columns.end,
                        sums: sums.map(|sums| sums.pointer((tile * count + panel) * tile_rows)),
                        sums_of_tile: count * tile_rows,
                        is_first: depth.start == 0,
                        is_last: depth.end == inner,
                        width: cols,
                        tile_rows,
                        destination,
                    };
                    Arch::new().dispatch(task);
                });
            }
        }
    }
    BUFFERS.put_back(buffers);
}

/// The depth of blocks, and their panels: all of the panels if such blocks are deep enough. Blocks have about the same size.
fn block_shape(inner: usize, panels: usize) -> (usize, usize) {
    let bytes_per_panel_row = size_of::<PanelRow>();
    let max_depth = (BLOCK_BYTES / (bytes_per_panel_row * panels)).clamp(MIN_DEPTH, MAX_DEPTH);
    let depth = inner.div_ceil(inner.div_ceil(max_depth));
    let max_panels = BLOCK_BYTES / (bytes_per_panel_row * depth);
    (depth, panels.div_ceil(panels.div_ceil(max_panels)))
}

/// The tiles downwards and the panels across of a task, in a block of so many.
fn task_size(tiles: usize, panels: usize) -> [usize; 2] {
    let [mut down, mut across] = [TASK_TILES, panels];
    let min_tasks = task_count(TASKS_PER_THREAD);
    while down * across > 1 && tiles.div_ceil(down) * panels.div_ceil(across) < min_tasks {
        let longer = if across > down { &mut across } else { &mut down };
        *longer = longer.div_ceil(2);
    }
    [down, across]
}

/// The rows of a tile, whose sums fill the processor's registers.
fn tile_rows() -> usize {
    struct Rows;
    impl WithSimd for Rows {
        type Output = usize;

        fn with_simd<S: Simd>(self, _: S) -> usize {
            match S::F32_LANES {
                16 => 14,
                8 => 6,
                4 => 12,
                _ => 4,
            }
        }
    }
    Arch::new().dispatch(Rows)
}

/// Packs the columns `columns` of `matrix` into panels, one after another, as many as fit.
fn pack_panels(matrix: Mat<bf16>, columns: Range<usize>, panels: &mut [PanelRow]) {
    let firsts = columns.clone().step_by(PANEL_COLUMNS);
    for (first, panel) in firsts.zip(panels.chunks_exact_mut(matrix.rows())) {
        pack_panel(matrix, first..(first + PANEL_COLUMNS).min(columns.end), panel);
    }
}

/// What a task computes: `rows` of the left matrix times panels of the right one, whose columns begin with `columns`.
struct Task<'a> {
    a: Mat<'a, bf16>,
    rows: Range<usize>,
    panels: &'a [PanelRow],
    columns: Range<usize>,
    /// Where sums are kept from block to block: those of the task's first tile and panel. The panels of a tile follow each other.
    sums: Option<*mut PanelRow>,
    /// The distance from one tile's sums to the next one's.
    sums_of_tile: usize,
    is_first: bool,
    is_last: bool,
    /// Columns of the whole product.
    width: usize,
    /// Rows of a tile, for which `sums` has places.
    tile_rows: usize,
    destination: Destination<'a>,
}

/// A part of the copy of a tile's rows in f32: element (i, k) at i·[`ROW_STRIDE`] + k, or at i + k·[`COLUMN_STRIDE`].
#[repr(C, align(64))]
struct LeftPart([f32; LEFT_PART]);

const LEFT_PART: usize = if MAX_TILE_ROWS * ROW_STRIDE > PART_DEPTH * COLUMN_STRIDE {
    MAX_TILE_ROWS * ROW_STRIDE
} else {
    PART_DEPTH * COLUMN_STRIDE
};

/// A task's numbers: copies of its tiles, and the sums of one.
struct Scratch {
    left: [[LeftPart; PARTS]; TASK_TILES],
    sums: [PanelRow; MAX_TILE_ROWS],
}

impl WithSimd for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match (S::F32_LANES, self.a.col_stride() == 1) {
            (16, true) => self.run::<S, 14, 8, ROW_STRIDE, 1>(simd),
            (16, false) => self.run::<S, 14, 8, 1, COLUMN_STRIDE>(simd),
            (8, true) => self.run::<S, 6, 4, ROW_STRIDE, 1>(simd),
            (8, false) => self.run::<S, 6, 4, 1, COLUMN_STRIDE>(simd),
            (4, true) => self.run::<S, 12, 8, ROW_STRIDE, 1>(simd),
            (4, false) => self.run::<S, 12, 8, 1, COLUMN_STRIDE>(simd),
            (_, true) => self.run::<S, 4, 4, ROW_STRIDE, 1>(simd),
            (_, false) => self.run::<S, 4, 4, 1, COLUMN_STRIDE>(simd),
        }
    }
}

impl Task<'_> {
    /// Computes tiles of `ROWS` rows, or of `FEWER` if the last one has at most as many. Element (i, k) of a part of a tile's copy is at
    /// i·`ROW` + k·`COLUMN`.
    #[inline(always)]
    fn run<S: Simd, const ROWS: usize, const FEWER: usize, const ROW: usize, const COLUMN: usize>(self, simd: S) {
        let Self { a, rows, panels, columns, .. } = &self;
        let depth = a.cols();
        assert!(
            depth <= MAX_DEPTH && rows.len() <= TASK_TILES * ROWS && self.tile_rows == ROWS,
            "a task that is too large"
        );
        let mut scratch = MaybeUninit::<Scratch>::uninit();
        let scratch = scratch.as_mut_ptr();
        // SAFETY: only addresses are taken.
        let (left, tile_sums) = unsafe { (&raw mut (*scratch).left, &raw mut (*scratch).sums) };
        let left = |tile: usize| left.cast::<[LeftPart; PARTS]>().wrapping_add(tile).cast::<LeftPart>();
        let tiles =
            || split_range(rows.len(), ROWS).map(|tile| rows.start + tile.start..rows.start + tile.end).enumerate();
        // Without sums to keep, one place serves all tiles and panels.
        let (sums, tile_distance, panel_distance) =
            self.sums.map_or((tile_sums.cast::<PanelRow>(), 0, 0), |sums| (sums, self.sums_of_tile, ROWS));
        if COLUMN != 1 {
            // A line of a cache has numbers of several tiles.
            for k in 0..depth {
                for (t, tile) in tiles() {
                    let part = left(t).wrapping_add(k / PART_DEPTH).cast::<f32>();
                    // SAFETY: a task has at most `TASK_TILES` tiles, and a tile's copy has room for the depth of a block.
                    unsafe { self.copy_column::<COLUMN>(tile, k, part.add(k % PART_DEPTH * COLUMN)) };
                }
            }
        }
        for (t, tile) in tiles() {
            let left = left(if COLUMN == 1 { 0 } else { t });
            if COLUMN == 1 {
                // SAFETY: as above.
                unsafe { self.copy_rows::<ROWS, ROW>(tile.clone(), left) };
            }
            let left = left.cast::<f32>();
            for (p, panel) in panels.chunks_exact(depth).enumerate() {
                let column = columns.start + p * PANEL_COLUMNS;
                let tile_columns = column..(column + PANEL_COLUMNS).min(columns.end);
                let sums = sums.wrapping_add(t * tile_distance + p * panel_distance);
                // SAFETY: the rows of the tile are written. Sums that are kept have a place for this tile and panel, and are there if
                // this block is not the first.
                unsafe {
                    if tile.len() <= FEWER {
                        sum_tile::<S, FEWER, ROW, COLUMN, PART_DEPTH>(
                            simd,
                            left,
                            LEFT_PART,
                            panel,
                            sums,
                            self.is_first,
                        );
                    } else {
                        sum_tile::<S, ROWS, ROW, COLUMN, PART_DEPTH>(simd, left, LEFT_PART, panel, sums, self.is_first);
                    }
                    if self.is_last {
                        let sums = std::slice::from_raw_parts(sums, tile.len());
                        for (row, sums) in tile.clone().zip(sums) {
                            let first = row * self.width + column;
                            store_row(&sums.0, first, tile_columns.clone(), self.destination);
                        }
                    }
                }
            }
        }
    }

    /// Copies the rows `tile` to parts whose rows are `ROW` elements apart; rows that a tile of `ROWS` lacks become 0.
    ///
    /// # Safety
    /// `parts` must be valid for the rows.
    #[inline(always)]
    unsafe fn copy_rows<const ROWS: usize, const ROW: usize>(&self, tile: Range<usize>, parts: *mut LeftPart) {
        for i in 0..ROWS {
            for (part, depth) in split_range(self.a.cols(), PART_DEPTH).enumerate() {
                // SAFETY: the caller's promise.
                let to = unsafe {
                    let row = parts.add(part).cast::<MaybeUninit<f32>>().add(i * ROW);
                    std::slice::from_raw_parts_mut(row, depth.len())
                };
                if i < tile.len() {
                    let numbers = &self.a.data()[(tile.start + i) * self.a.row_stride()..][depth];
                    for (to, number) in to.iter_mut().zip(numbers) {
                        to.write(number.load());
                    }
                } else {
                    to.fill(MaybeUninit::new(0.0));
                }
            }
        }
    }

    /// Copies a column of the rows `tile` to an array of `LEN` numbers; behind the rows are any numbers.
    ///
    /// # Safety
    /// `to` must be valid for the array.
    #[inline(always)]
    unsafe fn copy_column<const LEN: usize>(&self, tile: Range<usize>, column: usize, to: *mut f32) {
        let numbers = &self.a.data()[column * self.a.col_stride() + tile.start..];
        let mut padded = [bf16::store(0.0); LEN];
        let numbers = if let Some(numbers) = numbers.first_chunk::<LEN>() {
            numbers
        } else {
            padded[..tile.len()].copy_from_slice(&numbers[..tile.len()]);
            &padded
        };
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[f32; LEN]>().write(each(inlined!(|i: usize| numbers[i].load()))) };
    }
}

/// Stores `sums`, as many as there are `columns`, in the elements of the destination from `first` on.
///
/// # Safety
/// These elements exist, and belong to the calling task alone.
#[inline(always)]
unsafe fn store_row(sums: &[f32; PANEL_COLUMNS], first: usize, columns: Range<usize>, destination: Destination<'_>) {
    let len = columns.len();
    // SAFETY: the caller's promise.
    unsafe {
        match destination {
            Destination::Rounded(to, Some(bias)) => {
                let bias = padded(&bias[columns]);
                write_first(to.pointer(first), len, inlined!(|i: usize| bf16::store(sums[i] + bias[i].load())));
            }
            Destination::Rounded(to, None) => {
                write_first(to.pointer(first), len, inlined!(|i: usize| bf16::store(sums[i])));
            }
            Destination::Added(to) => {
                let old = padded(to.slice(first, len));
                write_first(to.pointer(first), len, inlined!(|i: usize| sums[i] + old[i]));
            }
        }
    }
}

/// Writes `f` of each number below `len`.
///
/// # Safety
/// `to` must be valid for them.
#[inline(always)]
unsafe fn write_first<T: Copy>(to: *mut T, len: usize, f: impl Fn(usize) -> T) {
    // SAFETY: the caller's promise.
    unsafe {
        // Two calls of `each`: the first one's result is not copied from memory.
        if len == PANEL_COLUMNS {
            to.cast::<[T; PANEL_COLUMNS]>().write(each(f));
        } else {
            to.copy_from_nonoverlapping(each::<T, PANEL_COLUMNS>(f).as_ptr(), len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_tasks_keep_their_limits() {
        for inner in [1, 255, 256, 257, 512, 513, 768, 3072, 50_304] {
            for panels in [1, 2, 15, 16, 17, 32, 33, 96, 1572] {
                let (depth, block_panels) = block_shape(inner, panels);
                assert!((1..=MAX_DEPTH.min(inner)).contains(&depth), "{inner}, {panels}: depth {depth}");
                assert!((1..=panels).contains(&block_panels), "{inner}, {panels}: {block_panels} panels");
                assert!(depth * block_panels * size_of::<PanelRow>() <= BLOCK_BYTES, "{inner}, {panels}: too large");
                for tiles in [1, 3, 4, 5, 100] {
                    let [down, across] = task_size(tiles, block_panels);
                    assert!((1..=TASK_TILES).contains(&down) && (1..=block_panels).contains(&across));
                }
            }
        }
    }
}
