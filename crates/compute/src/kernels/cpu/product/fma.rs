//! Products of bf16 matrices with multiply-adds of f32: both matrices are converted as they are packed.
//!
//! An element is the sum of its products in the order of the inner dimension, each added with one rounding where the processor has fused
//! multiply-adds. So its bits depend neither on the width of vectors nor on blocks and threads.

use std::mem::MaybeUninit;
use std::ops::Range;

use half::bf16;
use parking_lot::{Mutex, MutexGuard};
use pulp::{Arch, Simd, WithSimd};

#[cfg(target_arch = "x86_64")]
use super::packing::pack_widened_columns;
use super::{Destination, OPERAND_BYTES, PANEL_COLUMNS, Threads, split_range};
use crate::kernels::cpu::Stored;
use crate::kernels::cpu::gemm::Mat;
use crate::kernels::cpu::simd::{inlined, vectorize};

/// The part of the inner dimension that a task sums at once. That of a panel and of a tile's rows fit in the first-level cache.
const DEPTH: usize = 128;
/// The distance of the rows of a task's copy: it keeps them from competing for the same lines of a cache.
const ROW_STRIDE: usize = DEPTH + 16;
/// The distance of the columns of a task's copy of a matrix with contiguous columns.
const COLUMN_STRIDE: usize = 16;

/// A task computes at most this many tiles downwards and panels across.
const TASK_TILES: usize = 4;
const TASK_PANELS: usize = 8;
/// Tasks of a pool are made smaller until a block has this many.
const MIN_TASKS: usize = 64;
/// Panels that one task packs.
const PACKED_PANELS: usize = 4;

/// The most rows of a tile.
const MAX_TILE_ROWS: usize = 14;

/// A row of a panel of the right matrix.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct PanelRow(pub [f32; PANEL_COLUMNS]);

/// Buffers that later products reuse: as many as products have run at the same time. Those of small products stay small.
static PANELS_OF_POOLS: Mutex<Vec<Vec<PanelRow>>> = Mutex::new(Vec::new());
static PANELS_OF_CALLERS: Mutex<Vec<Vec<PanelRow>>> = Mutex::new(Vec::new());

fn free_panels(threads: Threads) -> MutexGuard<'static, Vec<Vec<PanelRow>>> {
    match threads {
        Threads::Pool => PANELS_OF_POOLS.lock(),
        Threads::Caller => PANELS_OF_CALLERS.lock(),
    }
}

/// # Safety
/// That of [`super::multiply`].
pub(super) unsafe fn multiply(a: Mat<bf16>, b: Mat<bf16>, destination: Destination<'_>, threads: Threads) {
    let (rows, inner, cols) = (a.rows(), a.cols(), b.cols());
    let tile_rows = tile_rows();
    let block_cols = (OPERAND_BYTES / (size_of::<PanelRow>() * inner)).max(1) * PANEL_COLUMNS;
    let mut panels = free_panels(threads).pop().unwrap_or_default();
    for columns in split_range(cols, block_cols) {
        let count = columns.len().div_ceil(PANEL_COLUMNS);
        if panels.len() < count * inner {
            panels.resize(count * inner, PanelRow([0.0; PANEL_COLUMNS]));
        }
        let panels = &mut panels[..count * inner];
        threads.for_each_chunk(panels, PACKED_PANELS * inner, |task, panels| {
            let first = columns.start + task * PACKED_PANELS * PANEL_COLUMNS;
            pack_panels(b, first..columns.end, panels);
        });
        let tiles = rows.div_ceil(tile_rows);
        let [mut down, mut across] = [TASK_TILES, TASK_PANELS];
        let min_tasks = threads.min_tasks(MIN_TASKS);
        while down * across > 1 && tiles.div_ceil(down) * count.div_ceil(across) < min_tasks {
            *(if across > down { &mut across } else { &mut down }) /= 2;
        }
        let tasks_down = tiles.div_ceil(down);
        // Tasks that follow each other share panels.
        threads.for_each(tasks_down * count.div_ceil(across), |task| {
            let first_row = task % tasks_down * down * tile_rows;
            let first_panel = task / tasks_down * across;
            let task = Task {
                a,
                rows: first_row..(first_row + down * tile_rows).min(rows),
                panels: &panels[first_panel * inner..(first_panel + across).min(count) * inner],
                columns: columns.start + first_panel * PANEL_COLUMNS..columns.end,
                width: cols,
                destination,
            };
            Arch::new().dispatch(task);
        });
    }
    free_panels(threads).push(panels);
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
    if let Ok(numbers) = <&[bf16; PANEL_COLUMNS]>::try_from(numbers) {
        // SAFETY: `to` is this array.
        unsafe { write_each::<_, PANEL_COLUMNS>(to.as_mut_ptr(), inlined!(|i: usize| numbers[i].load())) };
        return;
    }
    let (to, beyond) = to.split_at_mut(numbers.len());
    for (to, number) in to.iter_mut().zip(numbers) {
        *to = number.load();
    }
    beyond.fill(0.0);
}

/// Writes `f` of each number below `N` to the element of this number. The array is written after all calls of `f`, so that those may read
/// what it replaces.
///
/// # Safety
/// `to` must be valid for the array.
#[inline(always)]
unsafe fn write_each<T: Copy, const N: usize>(to: *mut T, f: impl Fn(usize) -> T) {
    let mut elements = [MaybeUninit::<T>::uninit(); N];
    for (i, element) in elements.iter_mut().enumerate() {
        element.write(f(i));
    }
    // SAFETY: the caller's promise. All elements are written.
    unsafe { to.cast::<[MaybeUninit<T>; N]>().write_unaligned(elements) };
}

/// What a task computes: `rows` of the left matrix times panels of the right one, whose columns begin with `columns`.
struct Task<'a> {
    a: Mat<'a, bf16>,
    rows: Range<usize>,
    panels: &'a [PanelRow],
    columns: Range<usize>,
    /// Columns of the whole product.
    width: usize,
    destination: Destination<'a>,
}

/// The size of the copy of a tile's rows, in either order.
const LEFT: usize =
    if MAX_TILE_ROWS * ROW_STRIDE > DEPTH * COLUMN_STRIDE { MAX_TILE_ROWS * ROW_STRIDE } else { DEPTH * COLUMN_STRIDE };

/// A task's numbers: a part of the rows of the left matrix in f32, and sums, tile by tile.
struct Scratch {
    left: [[f32; LEFT]; TASK_TILES],
    sums: [[[PanelRow; MAX_TILE_ROWS]; TASK_PANELS]; TASK_TILES],
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
    /// Computes tiles of `ROWS` rows, or of `FEWER` if the last one has at most as many. Element (i, k) of the copy of a tile's rows is at
    /// i·`ROW` + k·`COLUMN`.
    #[inline(always)]
    fn run<S: Simd, const ROWS: usize, const FEWER: usize, const ROW: usize, const COLUMN: usize>(self, simd: S) {
        let Self { a, rows, panels, columns, .. } = &self;
        let inner = a.cols();
        let mut scratch = MaybeUninit::<Scratch>::uninit();
        let scratch = scratch.as_mut_ptr();
        // SAFETY: only addresses are taken.
        let (left, sums) = unsafe { (&raw mut (*scratch).left, &raw mut (*scratch).sums) };
        let (left, sums) = (left.cast::<[f32; LEFT]>(), sums.cast::<[[PanelRow; MAX_TILE_ROWS]; TASK_PANELS]>());
        for depth in split_range(inner, DEPTH) {
            let tiles = || split_range(rows.len(), ROWS).map(|tile| rows.start + tile.start..rows.start + tile.end);
            // A task has at most `TASK_TILES` tiles.
            let left = |t: usize| left.wrapping_add(t).cast::<f32>();
            if COLUMN == 1 {
                for (t, tile) in tiles().enumerate() {
                    // SAFETY: `left` holds a tile.
                    unsafe { self.copy_rows::<ROWS, ROW>(tile, depth.clone(), left(t)) };
                }
            } else {
                for (k, column) in depth.clone().enumerate() {
                    for (t, tile) in tiles().enumerate() {
                        // SAFETY: `left` holds a tile.
                        unsafe { self.copy_column::<COLUMN>(tile, column, left(t).add(k * COLUMN)) };
                    }
                }
            }
            for (p, panel) in panels.chunks_exact(inner).enumerate() {
                let column = columns.start + p * PANEL_COLUMNS;
                let tile_columns = column..(column + PANEL_COLUMNS).min(columns.end);
                let panel = &panel[depth.clone()];
                for (t, tile) in tiles().enumerate() {
                    if depth.end == inner {
                        self.prefetch_destination(&tile, column);
                    }
                    let next = depth.end..(depth.end + DEPTH).min(inner);
                    match (COLUMN, p, t) {
                        (1, 0, _) => self.prefetch_left(&tile, next),
                        (_, 0, 0) => self.prefetch_left(rows, next),
                        _ => {}
                    }
                    // SAFETY: the tiles and panels of a task fit in the scratch. The rows of the tile are written, and sums before
                    // this part of the depth are those of this tile and panel.
                    unsafe {
                        let left = left(t);
                        let sums = sums.add(t).cast::<[PanelRow; MAX_TILE_ROWS]>().add(p).cast();
                        let is_first = depth.start == 0;
                        if tile.len() <= FEWER {
                            sum_tile::<S, FEWER, ROW, COLUMN>(simd, left, panel, sums, is_first);
                        } else {
                            sum_tile::<S, ROWS, ROW, COLUMN>(simd, left, panel, sums, is_first);
                        }
                        if depth.end == inner {
                            self.store_tile(std::slice::from_raw_parts(sums, tile.len()), tile.start, &tile_columns);
                        }
                    }
                }
            }
        }
    }

    /// Copies the columns `depth` of the rows `tile` to rows that are `ROW` elements apart; rows that a tile of `ROWS` lacks become 0.
    ///
    /// # Safety
    /// `to` must be valid for the rows.
    #[inline(always)]
    unsafe fn copy_rows<const ROWS: usize, const ROW: usize>(
        &self,
        tile: Range<usize>,
        depth: Range<usize>,
        to: *mut f32,
    ) {
        for i in 0..ROWS {
            // SAFETY: the caller's promise.
            let to = unsafe { std::slice::from_raw_parts_mut(to.add(i * ROW).cast::<MaybeUninit<f32>>(), depth.len()) };
            if i < tile.len() {
                let numbers = &self.a.data()[(tile.start + i) * self.a.row_stride()..][depth.clone()];
                for (to, number) in to.iter_mut().zip(numbers) {
                    to.write(number.load());
                }
            } else {
                to.fill(MaybeUninit::new(0.0));
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
        unsafe { write_each::<_, LEN>(to, inlined!(|i: usize| numbers[i].load())) };
    }

    /// Asks for the columns `depth` of `rows`, which are copied next.
    #[inline(always)]
    fn prefetch_left(&self, rows: &Range<usize>, depth: Range<usize>) {
        const LINE: usize = 64;
        let a = self.a;
        let [lines, line] = if a.col_stride() == 1 { [rows.clone(), depth] } else { [depth, rows.clone()] };
        let stride = a.row_stride().max(a.col_stride());
        for number in lines {
            for offset in (0..line.len()).step_by(LINE / size_of::<bf16>()) {
                prefetch(a.data().as_ptr().wrapping_add(number * stride + line.start + offset).cast());
            }
        }
    }

    /// Asks for the lines of a cache to which the sums of a tile are about to be stored.
    #[inline(always)]
    fn prefetch_destination(&self, tile: &Range<usize>, column: usize) {
        for row in tile.clone() {
            let element = row * self.width + column;
            let (address, bytes) = match self.destination {
                Destination::Rounded(to, _) => (to.pointer(element).cast::<i8>(), PANEL_COLUMNS * size_of::<bf16>()),
                Destination::Scaled { to, .. } => (to.pointer(element).cast::<i8>(), PANEL_COLUMNS * size_of::<f32>()),
            };
            for offset in (0..bytes).step_by(64) {
                prefetch(address.wrapping_add(offset));
            }
        }
    }

    /// Stores the sums of the rows from `first_row` on.
    ///
    /// # Safety
    /// These rows and columns belong to this task alone.
    #[inline(always)]
    unsafe fn store_tile(&self, sums: &[PanelRow], first_row: usize, columns: &Range<usize>) {
        for (row, sums) in (first_row..).zip(sums) {
            let first = row * self.width + columns.start;
            // SAFETY: the caller's promise.
            unsafe { store_row(&sums.0[..columns.len()], first, columns.start, self.destination) };
        }
    }
}

/// Asks for the line of a cache at `address`.
#[inline(always)]
fn prefetch(address: *const i8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: an address without memory is ignored.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Adds the product of `ROWS` rows and a part of a panel to `sums`, or stores it there.
///
/// # Safety
/// `left` must hold the rows, and `sums` a row for each of them, with sums unless `is_first`.
#[inline(always)]
unsafe fn sum_tile<S: Simd, const ROWS: usize, const ROW: usize, const COLUMN: usize>(
    simd: S,
    left: *const f32,
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
            let mut left = left;
            for right in panel {
                let right = right.0.as_ptr().add(first);
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
            for (row, totals) in totals.iter().enumerate() {
                for (i, total) in totals.iter().enumerate() {
                    address(row, i).cast::<S::f32s>().write_unaligned(*total);
                }
            }
        }
    }
}

/// Stores `sums`, of columns from `column` on, in the elements of the destination from `first` on.
///
/// # Safety
/// These elements exist, and belong to the calling task alone.
#[inline(always)]
unsafe fn store_row(sums: &[f32], first: usize, column: usize, destination: Destination<'_>) {
    if let Ok(sums) = <&[f32; PANEL_COLUMNS]>::try_from(sums) {
        // SAFETY: the caller's promise.
        unsafe { store_panel(sums, first, column, destination) };
        return;
    }
    match destination {
        Destination::Rounded(out, bias) => {
            // SAFETY: the caller's promise. The elements may be uninitialized.
            let out = unsafe { out.uninitialized(first, sums.len()) };
            match bias {
                Some(bias) => {
                    for ((out, &sum), bias) in out.iter_mut().zip(sums).zip(&bias[column..]) {
                        out.write(bf16::store(sum + bias.load()));
                    }
                }
                None => {
                    for (out, &sum) in out.iter_mut().zip(sums) {
                        out.write(bf16::store(sum));
                    }
                }
            }
        }
        Destination::Scaled { to, scale, adds } => {
            // SAFETY: the caller's promise.
            let to = unsafe { to.slice(first, sums.len()) };
            for (to, &sum) in to.iter_mut().zip(sums) {
                *to = if adds { sum.mul_add(scale, *to) } else { sum * scale };
            }
        }
    }
}

/// [`store_row`] of a whole panel.
///
/// # Safety
/// As for [`store_row`].
#[inline(always)]
unsafe fn store_panel(sums: &[f32; PANEL_COLUMNS], first: usize, column: usize, destination: Destination<'_>) {
    match destination {
        Destination::Rounded(out, bias) => {
            let to = out.pointer(first);
            // SAFETY: the caller's promise.
            unsafe {
                match bias.map(|bias| &bias[column..][..PANEL_COLUMNS]) {
                    Some(bias) => {
                        write_each::<_, PANEL_COLUMNS>(to, inlined!(|i: usize| bf16::store(sums[i] + bias[i].load())));
                    }
                    None => write_each::<_, PANEL_COLUMNS>(to, inlined!(|i: usize| bf16::store(sums[i]))),
                }
            }
        }
        Destination::Scaled { to, scale, adds } => {
            let to = to.pointer(first);
            // SAFETY: the caller's promise.
            unsafe {
                if adds {
                    let old = to.cast::<[f32; PANEL_COLUMNS]>().read();
                    write_each::<_, PANEL_COLUMNS>(to, inlined!(|i: usize| sums[i].mul_add(scale, old[i])));
                } else {
                    write_each::<_, PANEL_COLUMNS>(to, inlined!(|i: usize| sums[i] * scale));
                }
            }
        }
    }
}
