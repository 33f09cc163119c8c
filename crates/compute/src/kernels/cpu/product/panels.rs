//! Matrices in panels, and products of them on the calling thread: those inside attention.
//!
//! An element of a product is the sum of its terms in the order of the inner dimension, each added with one rounding where the processor has
//! fused multiply-adds.

use std::mem::MaybeUninit;
use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

#[cfg(target_arch = "x86_64")]
use super::packing::pack_widened_columns;
pub use super::panel_row::PanelRow;
use super::{PANEL_COLUMNS, grow_to, split_range};
use crate::kernels::cpu::gemm::Mat;
use crate::kernels::cpu::simd::{inlined, vectorize};
use crate::kernels::cpu::{Real, Stored};

/// Panels are padded to a multiple of this many rows, so that every tile, of 8 or 4 rows, is whole. It divides [`PANEL_COLUMNS`].
const ROW_UNIT: usize = 8;

/// Rows that are packed together if columns are contiguous.
const PACKED_ROWS: usize = 16;

/// The most rows of the left matrix in [`Left::KeysByQueries`].
pub const MAX_QUERIES: usize = 64;

/// A matrix in panels of 32 columns: the first 32 numbers of each row, then the next 32. Padding, of rows to a multiple of 8 and of columns
/// to a multiple of 32, holds any numbers.
#[derive(Debug, Default)]
pub struct Panels<T> {
    numbers: Vec<PanelRow<T>>,
    rows: usize,
    columns: usize,
}

impl<T: Real> Panels<T> {
    /// Gives the matrix another shape; its elements become any numbers.
    pub fn reshape(&mut self, rows: usize, columns: usize) {
        (self.rows, self.columns) = (rows, columns);
        let len = self.panels() * self.height();
        grow_to(&mut self.numbers, len);
    }

    /// [`Self::reshape`], with zeros.
    pub fn reshape_to_zeros(&mut self, rows: usize, columns: usize) {
        self.reshape(rows, columns);
        let len = self.panels() * self.height();
        self.numbers[..len].fill(PanelRow([T::ZERO; PANEL_COLUMNS]));
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn columns(&self) -> usize {
        self.columns
    }

    pub fn panels(&self) -> usize {
        self.columns.div_ceil(PANEL_COLUMNS)
    }

    fn height(&self) -> usize {
        self.rows.next_multiple_of(ROW_UNIT)
    }

    /// The numbers of row `row` in panel `panel`.
    #[inline(always)]
    pub fn row(&self, panel: usize, row: usize) -> &[T; PANEL_COLUMNS] {
        &self.numbers[panel * self.height() + row].0
    }

    #[inline(always)]
    pub fn row_mut(&mut self, panel: usize, row: usize) -> &mut [T; PANEL_COLUMNS] {
        let height = self.height();
        &mut self.numbers[panel * height + row].0
    }

    /// Becomes a copy of `matrix`; what is beyond its columns is 0.
    pub fn pack<S: Stored<Real = T>>(&mut self, matrix: Mat<S>) {
        self.reshape(matrix.rows(), matrix.cols());
        let (rows, height) = (self.rows, self.height());
        for (columns, panel) in split_range(self.columns, PANEL_COLUMNS).zip(self.numbers.chunks_exact_mut(height)) {
            pack_panel(matrix, columns, &mut panel[..rows]);
        }
    }
}

/// Packs the columns `columns` of `matrix` into a panel. What is beyond the columns is 0.
pub(super) fn pack_panel<S: Stored>(matrix: Mat<S>, columns: Range<usize>, panel: &mut [PanelRow<S::Real>]) {
    if matrix.col_stride() == 1 {
        vectorize(inlined!(|| {
            for (k, row) in panel.iter_mut().enumerate() {
                let numbers = padded(&matrix.data()[k * matrix.row_stride() + columns.start..][..columns.len()]);
                row.0 = each(inlined!(|i: usize| numbers[i].load()));
            }
        }));
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if let (Arch::V4(_), Some(panel)) = (Arch::new(), S::Real::f32_rows(panel)) {
        // SAFETY: the processor has AVX-512 with its extensions BW and VL.
        unsafe { pack_widened_columns(matrix, columns, panel) };
        return;
    }
    if columns.len() < PANEL_COLUMNS {
        panel.fill(PanelRow([Real::ZERO; PANEL_COLUMNS]));
    }
    vectorize(inlined!(|| {
        for (block, rows) in panel.chunks_mut(PACKED_ROWS).enumerate() {
            for (c, column) in columns.clone().enumerate() {
                let from = column * matrix.col_stride() + block * PACKED_ROWS;
                for (row, number) in rows.iter_mut().zip(&matrix.data()[from..]) {
                    row.0[c] = number.load();
                }
            }
        }
    }));
}

/// `numbers`, and zeros behind them.
#[inline(always)]
pub(super) fn padded<T: Copy + Default>(numbers: &[T]) -> [T; PANEL_COLUMNS] {
    if let Ok(all) = numbers.try_into() {
        return all;
    }
    let mut padded = [T::default(); PANEL_COLUMNS];
    padded[..numbers.len()].copy_from_slice(numbers);
    padded
}

/// `f` of each number below `N`. All are computed before any is stored, so that a compiler may use vectors.
#[inline(always)]
pub(super) fn each<T: Copy, const N: usize>(f: impl Fn(usize) -> T) -> [T; N] {
    let mut elements = [MaybeUninit::<T>::uninit(); N];
    for (i, element) in elements.iter_mut().enumerate() {
        element.write(f(i));
    }
    // SAFETY: all elements are written.
    unsafe { (&raw const elements).cast::<[T; N]>().read() }
}

/// The keys of a product for queries: those from `first` on, which is a multiple of `PANEL_COLUMNS`. Query i sees at most `before` + i +
/// 1 of them.
#[derive(Debug, Clone, Copy)]
pub struct TileKeys {
    pub first: usize,
    pub before: usize,
}

/// The left matrix of a product for queries, which see the keys of a [`TileKeys`].
#[derive(Clone, Copy)]
pub enum Left<'a, S: Stored> {
    /// A row for each query; columns of the product are keys. What a query does not see is any number.
    QueriesByFeatures(Mat<'a, S>),
    /// A row for each query, a column for each key; keys that a query does not see are 0.
    QueriesByKeys(&'a Panels<S::Real>),
    /// The transpose of such a matrix of at most [`MAX_QUERIES`] queries. The product is added to the sums, which have a row for each key of
    /// the sample.
    KeysByQueries(&'a Panels<S::Real>),
}

/// A product of matrices in panels.
pub struct PanelProduct<'a, T> {
    left: &'a Panels<T>,
    kind: Kind,
    right: &'a Panels<T>,
    keys: TileKeys,
    sums: &'a mut Panels<T>,
}

/// The form of [`Left`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    QueriesByFeatures,
    QueriesByKeys,
    KeysByQueries,
}

impl<'a, T: Real> PanelProduct<'a, T> {
    /// The product of `left` and `right`. `packed` is for a copy of `left`.
    pub fn new<S: Stored<Real = T>>(
        sums: &'a mut Panels<T>,
        left: Left<'a, S>,
        right: &'a Panels<T>,
        keys: TileKeys,
        packed: &'a mut Panels<T>,
    ) -> Self {
        let (kind, left) = match left {
            Left::QueriesByFeatures(matrix) => {
                packed.pack(matrix);
                (Kind::QueriesByFeatures, &*packed)
            }
            Left::QueriesByKeys(panels) => (Kind::QueriesByKeys, panels),
            Left::KeysByQueries(panels) => (Kind::KeysByQueries, panels),
        };
        let [rows, depth] = match kind {
            Kind::QueriesByFeatures | Kind::QueriesByKeys => [left.rows, left.columns],
            Kind::KeysByQueries => [left.columns, left.rows],
        };
        assert!(keys.first.is_multiple_of(PANEL_COLUMNS), "keys that begin inside of a panel");
        let first = |of: Kind| if kind == of { keys.first } else { 0 };
        // The last tile computes rows of padding, which must not be others of `sums`.
        let end = first(Kind::KeysByQueries) + rows;
        assert!(end == sums.rows || (end < sums.rows && rows.is_multiple_of(ROW_UNIT)), "rows of a product");
        assert!(first(Kind::QueriesByKeys) + depth <= right.rows, "the inner dimension of a product");
        assert!(first(Kind::QueriesByFeatures) + sums.columns <= right.columns, "columns of a product");
        assert!(kind != Kind::KeysByQueries || depth <= MAX_QUERIES, "too many queries");
        Self { left, kind, right, keys, sums }
    }

    /// Calls `f` with the first row of each tile of `tile` rows, the panel, and the part of the inner dimension that the tile needs.
    #[inline(always)]
    fn for_each_tile(&self, tile: usize, mut f: impl FnMut(usize, usize, Range<usize>)) {
        let (queries, keys, before) = (self.left.rows, self.left.columns, self.keys.before);
        for panel in 0..self.sums.panels() {
            match self.kind {
                Kind::QueriesByFeatures => {
                    for row in (0..queries).step_by(tile) {
                        if panel * PANEL_COLUMNS < before + row + tile {
                            f(row, panel, 0..keys);
                        }
                    }
                }
                Kind::QueriesByKeys => {
                    for row in (0..queries).step_by(tile) {
                        f(row, panel, 0..keys.min(before + row + tile));
                    }
                }
                Kind::KeysByQueries => {
                    for row in (0..keys).step_by(tile) {
                        f(row, panel, row.saturating_sub(before).min(queries)..queries);
                    }
                }
            }
        }
    }

    /// The rows of the right matrix that belong to a panel of the product, and to a part of the inner dimension.
    #[inline(always)]
    fn right_rows(&self, panel: usize, depth: &Range<usize>) -> &[PanelRow<T>] {
        let [panel, row] = match self.kind {
            Kind::QueriesByFeatures => [panel + self.keys.first / PANEL_COLUMNS, depth.start],
            Kind::QueriesByKeys => [panel, depth.start + self.keys.first],
            Kind::KeysByQueries => [panel, depth.start],
        };
        &self.right.numbers[panel * self.right.height() + row..][..depth.len()]
    }

    /// The row of the sums in which row `row` of the product is.
    #[inline(always)]
    fn row_of_sums(&self, row: usize) -> usize {
        if self.kind == Kind::KeysByQueries { self.keys.first + row } else { row }
    }

    pub fn multiply(self) {
        Real::multiply_panels(self);
    }

    /// Multiplies one number after another.
    pub fn multiply_scalar(self) {
        let mut tiles = Vec::new();
        self.for_each_tile(1, |row, panel, depth| tiles.push((row, panel, depth)));
        for (row, panel, depth) in tiles {
            let to = self.row_of_sums(row);
            let mut sums =
                if self.kind == Kind::KeysByQueries { *self.sums.row(panel, to) } else { [T::ZERO; PANEL_COLUMNS] };
            for (k, right) in depth.clone().zip(self.right_rows(panel, &depth)) {
                let [i, column] = if self.kind == Kind::KeysByQueries { [k, row] } else { [row, k] };
                let number = self.left.row(column / PANEL_COLUMNS, i)[column % PANEL_COLUMNS];
                for (sum, &right) in sums.iter_mut().zip(&right.0) {
                    *sum = number.fma(right, *sum);
                }
            }
            *self.sums.row_mut(panel, to) = sums;
        }
    }
}

impl WithSimd for PanelProduct<'_, f32> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // A row's sums take two registers at a time: 16 of 32 with AVX-512 or NEON, 8 of 16 with AVX2.
        match S::F32_LANES {
            4 | 16 => self.multiply_tiles::<S, 8>(simd),
            _ => self.multiply_tiles::<S, 4>(simd),
        }
    }
}

impl PanelProduct<'_, f32> {
    #[inline(always)]
    fn multiply_tiles<S: Simd, const ROWS: usize>(self, simd: S) {
        let (left, left_height) = (self.left.numbers.as_ptr().cast::<f32>(), self.left.height());
        let panel_len = left_height * PANEL_COLUMNS;
        let (sums, sums_height) = (self.sums.numbers.as_mut_ptr(), self.sums.height());
        self.for_each_tile(
            ROWS,
            inlined!(|row: usize, panel: usize, depth: Range<usize>| {
                let right = self.right_rows(panel, &depth);
                // SAFETY: `new` checked the shapes. The rows of `left` and `sums` are padded to whole tiles, and those of a transpose to whole
                // panels.
                unsafe {
                    let sums = sums.add(panel * sums_height + self.row_of_sums(row));
                    if self.kind == Kind::KeysByQueries {
                        let left = left
                            .add(row / PANEL_COLUMNS * panel_len + depth.start * PANEL_COLUMNS + row % PANEL_COLUMNS);
                        sum_tile::<S, ROWS, 1, PANEL_COLUMNS, MAX_QUERIES>(simd, left, panel_len, right, sums, false);
                    } else {
                        let left = left.add(row * PANEL_COLUMNS);
                        sum_tile::<S, ROWS, PANEL_COLUMNS, 1, PANEL_COLUMNS>(simd, left, panel_len, right, sums, true);
                    }
                }
            }),
        );
    }
}

/// Rows of a panel that the processor is asked for ahead of their use.
const ROWS_AHEAD: usize = 24;

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

/// Adds the product of `ROWS` rows and a panel to `sums`, or stores it there if it `is_first`. Element (i, k) of the rows is at
/// `left` + i·`ROW` + k·`COLUMN` for the k below `DEPTH`; the next `DEPTH` columns are `part` numbers further on, and so on.
///
/// # Safety
/// `left` must be valid for the elements of `ROWS` rows and of a column for each row of `panel`. `sums` must be valid for `ROWS` rows, which
/// hold numbers unless the product `is_first`.
#[inline(always)]
pub(super) unsafe fn sum_tile<S: Simd, const ROWS: usize, const ROW: usize, const COLUMN: usize, const DEPTH: usize>(
    simd: S,
    left: *const f32,
    part: usize,
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
            for (index, panel) in panel.chunks(DEPTH).enumerate() {
                let mut left = left.wrapping_add(index * part);
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
                    left = left.wrapping_add(COLUMN);
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
