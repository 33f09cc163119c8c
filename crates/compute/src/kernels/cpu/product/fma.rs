//! Products of bf16 matrices with multiply-adds of f32: both matrices are converted as they are packed.
//!
//! An element is the sum of its products in the order of the inner dimension, each added with one rounding where the processor has fused
//! multiply-adds. So its bits depend neither on the width of vectors nor on blocks and threads.
//!
//! The right matrix is packed in blocks that fit in the second-level cache of each core. A task packs some tiles of rows of the left one,
//! and multiplies each with one panel of the block after another; the tile stays in the first-level cache.

use std::mem::MaybeUninit;
use std::ops::Range;

use half::bf16;
use pulp::{Arch, Simd, WithSimd};

#[cfg(target_arch = "x86_64")]
use super::packing::pack_widened_columns;
use super::{Destination, FreeBuffers, PANEL_COLUMNS, SUM_BYTES, TASKS_PER_THREAD, Threads, split_range};
use crate::kernels::cpu::Stored;
use crate::kernels::cpu::gemm::Mat;
use crate::kernels::cpu::simd::{Shared, inlined, vectorize};

/// The most bytes of a block of the right matrix, unless one panel is larger.
const BLOCK_BYTES: usize = 1 << 20;
/// The depth of the deepest block.
const MAX_DEPTH: usize = 512;
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

/// Rows of a panel that the processor is asked for ahead of their use.
const ROWS_AHEAD: usize = 24;

/// A row of a panel of the right matrix, or of a tile's sums.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct PanelRow(pub [f32; PANEL_COLUMNS]);

static BUFFERS: FreeBuffers<Buffers> = FreeBuffers::new();

#[derive(Default)]
struct Buffers {
    panels: Vec<PanelRow>,
    /// Sums over the blocks so far, where a product is deeper than a block: rows of a tile for each panel of each tile.
    sums: Vec<PanelRow>,
}

/// The first `len` rows of the buffer, which grows to hold them. They may hold numbers of an earlier product.
fn grow_to(buffer: &mut Vec<PanelRow>, len: usize) -> &mut [PanelRow] {
    if buffer.len() < len {
        buffer.resize(len, PanelRow([0.0; PANEL_COLUMNS]));
    }
    &mut buffer[..len]
}

/// # Safety
/// That of [`super::multiply`].
pub(super) unsafe fn multiply(a: Mat<bf16>, b: Mat<bf16>, destination: Destination<'_>, threads: Threads) {
    let (rows, inner, cols) = (a.rows(), a.cols(), b.cols());
    let tile_rows = tile_rows();
    let depth = inner.div_ceil(inner.div_ceil(MAX_DEPTH));
    let block_panels = (BLOCK_BYTES / (size_of::<PanelRow>() * depth)).max(1).min(cols.div_ceil(PANEL_COLUMNS));
    let keeps_sums = depth < inner;
    let block_tiles =
        if keeps_sums { SUM_BYTES / (size_of::<PanelRow>() * block_panels * tile_rows) } else { usize::MAX };
    let block_rows = block_tiles.min(rows.div_ceil(tile_rows)) * tile_rows;
    let mut buffers = BUFFERS.take(threads);
    for row_range in split_range(rows, block_rows) {
        for columns in split_range(cols, block_panels * PANEL_COLUMNS) {
            let tiles = row_range.len().div_ceil(tile_rows);
            let count = columns.len().div_ceil(PANEL_COLUMNS);
            let sums = keeps_sums.then(|| Shared::new(grow_to(&mut buffers.sums, tiles * count * tile_rows)));
            for depth in split_range(inner, depth) {
                let (a, b) = (a.t().rows_of(&depth).t(), b.rows_of(&depth));
                let panels = grow_to(&mut buffers.panels, count * depth.len());
                threads.for_each_chunk(panels, PACKED_PANELS * depth.len(), |task, panels| {
                    let first = columns.start + task * PACKED_PANELS * PANEL_COLUMNS;
                    pack_panels(b, first..columns.end, panels);
                });
                let [down, across] = task_size(tiles, count, threads);
                let tasks_down = tiles.div_ceil(down);
                // Tasks that follow each other share panels.
                threads.for_each(tasks_down * count.div_ceil(across), |task| {
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
                        destination,
                    };
                    Arch::new().dispatch(task);
                });
            }
        }
    }
    BUFFERS.put_back(buffers, threads);
}

/// The tiles downwards and the panels across of a task, in a block of so many.
fn task_size(tiles: usize, panels: usize, threads: Threads) -> [usize; 2] {
    let [mut down, mut across] = [TASK_TILES, panels];
    let min_tasks = threads.tasks(TASKS_PER_THREAD);
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

/// Packs the columns `columns` of `matrix` into panels, one after another, as many as fit. What is beyond the columns is 0.
fn pack_panels(matrix: Mat<bf16>, columns: Range<usize>, panels: &mut [PanelRow]) {
    let inner = matrix.rows();
    let firsts = columns.clone().step_by(PANEL_COLUMNS);
    for (first, panel) in firsts.zip(panels.chunks_exact_mut(inner)) {
        let columns = first..(first + PANEL_COLUMNS).min(columns.end);
        if matrix.col_stride() == 1 {
            vectorize(inlined!(|| {
                for (k, row) in panel.iter_mut().enumerate() {
                    widen(&matrix.data()[k * matrix.row_stride() + columns.start..][..columns.len()], &mut row.0);
                }
            }));
            continue;
        }
        #[cfg(target_arch = "x86_64")]
        if let Arch::V4(_) = Arch::new() {
            // SAFETY: the processor has AVX-512 with its extensions BW and VL.
            unsafe { pack_widened_columns(matrix, columns, panel) };
            continue;
        }
        if columns.len() < PANEL_COLUMNS {
            panel.fill(PanelRow([0.0; PANEL_COLUMNS]));
        }
        vectorize(inlined!(|| {
            for (block, rows) in panel.chunks_mut(COLUMN_STRIDE).enumerate() {
                for (c, column) in columns.clone().enumerate() {
                    let from = column * matrix.col_stride() + block * COLUMN_STRIDE;
                    for (row, number) in rows.iter_mut().zip(&matrix.data()[from..]) {
                        row.0[c] = number.load();
                    }
                }
            }
        }));
    }
}

/// Copies `numbers` to the beginning of `to`; what is behind them becomes 0.
#[inline(always)]
fn widen(numbers: &[bf16], to: &mut [f32; PANEL_COLUMNS]) {
    let numbers = padded(numbers);
    *to = each(inlined!(|i: usize| numbers[i].load()));
}

/// `f` of each number below `N`. All are computed before any is stored, so that a compiler may use vectors.
#[inline(always)]
fn each<T: Copy, const N: usize>(f: impl Fn(usize) -> T) -> [T; N] {
    let mut elements = [MaybeUninit::<T>::uninit(); N];
    for (i, element) in elements.iter_mut().enumerate() {
        element.write(f(i));
    }
    // SAFETY: all elements are written.
    unsafe { (&raw const elements).cast::<[T; N]>().read() }
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
            for (p, panel) in panels.chunks_exact(depth).enumerate() {
                let column = columns.start + p * PANEL_COLUMNS;
                let tile_columns = column..(column + PANEL_COLUMNS).min(columns.end);
                let sums = sums.wrapping_add(t * tile_distance + p * panel_distance);
                // SAFETY: the rows of the tile are written. Sums that are kept have a place for this tile and panel, and are there if
                // this block is not the first.
                unsafe {
                    if tile.len() <= FEWER {
                        sum_tile::<S, FEWER, ROW, COLUMN>(simd, left, panel, sums, self.is_first);
                    } else {
                        sum_tile::<S, ROWS, ROW, COLUMN>(simd, left, panel, sums, self.is_first);
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

/// Asks for the line of a cache at `address`.
#[inline(always)]
fn prefetch(address: *const f32) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: an address without memory is ignored.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Adds the product of `ROWS` rows, whose copy begins with `parts`, and a panel to `sums`, or stores it there.
///
/// # Safety
/// `parts` must hold the rows, and `sums` a row for each of them, with sums unless `is_first`.
#[inline(always)]
unsafe fn sum_tile<S: Simd, const ROWS: usize, const ROW: usize, const COLUMN: usize>(
    simd: S,
    parts: *const LeftPart,
    panel: &[PanelRow],
    sums: *mut PanelRow,
    is_first: bool,
) {
    /// Registers across a tile.
    const ACROSS: usize = 2;
    for first in (0..PANEL_COLUMNS).step_by(ACROSS * S::F32_LANES) {
        // SAFETY: the caller's promise; `first` and the registers from there on are inside of a row.
        unsafe {
            let address = |row: usize, i: usize| sums.cast::<f32>().add(row * PANEL_COLUMNS + first + i * S::F32_LANES);
            let mut totals = [[simd.splat_f32s(0.0); ACROSS]; ROWS];
            if !is_first {
                for (row, totals) in totals.iter_mut().enumerate() {
                    for (i, total) in totals.iter_mut().enumerate() {
                        *total = address(row, i).cast::<S::f32s>().read_unaligned();
                    }
                }
            }
            for (part, panel) in panel.chunks(PART_DEPTH).enumerate() {
                let mut left = parts.add(part).cast::<f32>();
                for right in panel {
                    let right = right.0.as_ptr().add(first);
                    for i in 0..ACROSS {
                        prefetch(right.wrapping_add(ROWS_AHEAD * PANEL_COLUMNS + i * S::F32_LANES));
                    }
                    let right: [S::f32s; ACROSS] =
                        std::array::from_fn(|i| right.add(i * S::F32_LANES).cast::<S::f32s>().read_unaligned());
                    for (row, totals) in totals.iter_mut().enumerate() {
                        let number = simd.splat_f32s(*left.add(row * ROW));
                        for (total, right) in totals.iter_mut().zip(right) {
                            *total = simd.mul_add_e_f32s(number, right, *total);
                        }
                    }
                    left = left.add(COLUMN);
                }
            }
            for (row, totals) in totals.iter().enumerate() {
                for (i, total) in totals.iter().enumerate() {
                    address(row, i).cast::<S::f32s>().write_unaligned(*total);
                }
            }
        }
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
            Destination::Scaled { to, scale, adds: true } => {
                let old = padded(to.slice(first, len));
                write_first(to.pointer(first), len, inlined!(|i: usize| sums[i].mul_add(scale, old[i])));
            }
            Destination::Scaled { to, scale, adds: false } => {
                write_first(to.pointer(first), len, inlined!(|i: usize| sums[i] * scale));
            }
        }
    }
}

/// `numbers`, and zeros behind them.
#[inline(always)]
fn padded<T: Copy + Default>(numbers: &[T]) -> [T; PANEL_COLUMNS] {
    if let Ok(all) = numbers.try_into() {
        return all;
    }
    let mut padded = [T::default(); PANEL_COLUMNS];
    padded[..numbers.len()].copy_from_slice(numbers);
    padded
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
