//! Copies of bf16 matrices in the order in which products read them. They need AVX-512.

use std::arch::x86_64::{
    __m512i, _mm256_maskz_loadu_epi16, _mm512_cvtepu16_epi32, _mm512_mask_storeu_epi16, _mm512_maskz_loadu_epi16,
    _mm512_maskz_loadu_epi32, _mm512_or_si512, _mm512_setzero_si512, _mm512_shuffle_i32x4, _mm512_slli_epi32,
    _mm512_storeu_si512, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};
use std::ops::Range;

use half::bf16;
use rayon::prelude::*;

use super::panel_row::PanelRow;
use super::{PANEL_COLUMNS, grow_to};
use crate::kernels::cpu::Stored;
use crate::kernels::cpu::gemm::Mat;
use crate::kernels::cpu::pieces::Pieces;

/// The numbers of two rows of a matrix, column by column: element c is the first row's number of column c in the low half, the second
/// row's in the high half.
#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
pub(super) struct RowPair(pub [u32; PANEL_COLUMNS]);

/// Panels that one task packs: their columns lie next to each other in memory.
const PANELS_PER_TASK: usize = 8;

/// Rows that one task copies.
const ROWS_PER_TASK: usize = 128;

/// Elements of 32 bits in a register: sums, or pairs of bf16 numbers.
pub(super) const REGISTER_LANES: usize = 16;

/// Packs the rows `depth` of the columns `columns` of `matrix` into panels of [`PANEL_COLUMNS`] columns and `padded_depth` / 2 rows, one
/// after another. What is beyond the ranges is 0.
///
/// # Safety
/// The processor must have AVX-512 with its extensions BW and VL.
pub(super) unsafe fn pack_panels<'a>(
    matrix: Mat<bf16>,
    depth: Range<usize>,
    columns: Range<usize>,
    padded_depth: usize,
    panels: &'a mut Vec<RowPair>,
) -> &'a [RowPair] {
    let pairs = padded_depth / 2;
    let len = columns.len().div_ceil(PANEL_COLUMNS) * pairs;
    let panels = grow_to(panels, len);
    panels.par_chunks_mut(PANELS_PER_TASK * pairs).enumerate().for_each_piece(|(task, panels)| {
        let first = columns.start + task * PANELS_PER_TASK * PANEL_COLUMNS;
        let columns = first..(first + PANELS_PER_TASK * PANEL_COLUMNS).min(columns.end);
        // SAFETY: the caller's promise.
        unsafe { pack_some_panels(matrix, depth.clone(), columns, pairs, panels) };
    });
    panels
}

/// [`pack_panels`] of `pairs` rows each, on the calling thread.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn pack_some_panels(
    matrix: Mat<bf16>,
    depth: Range<usize>,
    columns: Range<usize>,
    pairs: usize,
    panels: &mut [RowPair],
) {
    if matrix.col_stride() == 1 {
        pack_rows(matrix, depth, columns, pairs, panels);
    } else {
        pack_columns(matrix, depth, columns, pairs, panels);
    }
}

/// [`pack_some_panels`] of a matrix with contiguous rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn pack_rows(matrix: Mat<bf16>, depth: Range<usize>, columns: Range<usize>, pairs: usize, panels: &mut [RowPair]) {
    for pair in 0..pairs {
        for (index, panel) in panels.chunks_exact_mut(pairs).enumerate() {
            for (half, to) in panel[pair].0.as_chunks_mut().0.iter_mut().enumerate() {
                store(to, load_pairs(matrix, &depth, &columns, pair, index * PANEL_COLUMNS + half * REGISTER_LANES));
            }
        }
    }
}

/// [`pack_some_panels`] of a matrix with contiguous columns.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn pack_columns(matrix: Mat<bf16>, depth: Range<usize>, columns: Range<usize>, pairs: usize, panels: &mut [RowPair]) {
    for (index, panel) in panels.chunks_exact_mut(pairs).enumerate() {
        for half in 0..PANEL_COLUMNS / REGISTER_LANES {
            let first = columns.start + index * PANEL_COLUMNS + half * REGISTER_LANES;
            for (block, rows) in panel.chunks_mut(REGISTER_LANES).enumerate() {
                let mut numbers = [_mm512_setzero_si512(); REGISTER_LANES];
                for (column, numbers) in (first..columns.end).zip(&mut numbers) {
                    let column = &matrix.data()[column * matrix.col_stride()..][depth.clone()];
                    *numbers = load_numbers(column.get(block * 2 * REGISTER_LANES..).unwrap_or(&[]));
                }
                for (row, numbers) in rows.iter_mut().zip(transposed(&numbers)) {
                    store(&mut row.0.as_chunks_mut().0[half], numbers);
                }
            }
        }
    }
}

/// Packs the columns `columns` of a matrix with contiguous columns into a panel of f32 numbers. What is beyond the columns is 0.
///
/// # Safety
/// The processor must have AVX-512 with its extensions BW and VL.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn pack_widened_columns<S: Stored>(matrix: Mat<S>, columns: Range<usize>, panel: &mut [PanelRow]) {
    let inner = matrix.rows();
    for half in 0..PANEL_COLUMNS / REGISTER_LANES {
        let first = columns.start + half * REGISTER_LANES;
        for (block, rows) in panel.chunks_mut(REGISTER_LANES).enumerate() {
            let mut numbers = [_mm512_setzero_si512(); REGISTER_LANES];
            for (column, numbers) in (first..columns.end).zip(&mut numbers) {
                let column = &matrix.data()[column * matrix.col_stride()..][..inner];
                *numbers = load_widened(&column[block * REGISTER_LANES..]);
            }
            for (row, numbers) in rows.iter_mut().zip(transposed(&numbers)) {
                let to = &mut row.0.as_chunks_mut::<REGISTER_LANES>().0[half];
                // SAFETY: the array has the size of the register.
                unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), numbers) };
            }
        }
    }
}

/// The first 16 of `numbers`, in f32; those that lack are 0.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn load_widened<S: Stored>(numbers: &[S]) -> __m512i {
    let mask = lane_mask(numbers.len());
    // SAFETY: the mask selects numbers of the slice, and no others are read.
    unsafe {
        if S::IS_BF16 {
            assert_eq!(size_of::<S>(), size_of::<u16>(), "not bf16");
            _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, numbers.as_ptr().cast())))
        } else {
            assert_eq!(size_of::<S>(), size_of::<f32>(), "neither bf16 nor f32");
            _mm512_maskz_loadu_epi32(mask, numbers.as_ptr().cast())
        }
    }
}

/// Copies the columns `depth` of the rows `rows` of `matrix` to rows of `stride` numbers. What is beyond the ranges is 0, up to
/// `copied_rows` rows.
///
/// # Safety
/// The processor must have AVX-512 with its extensions BW and VL.
pub(super) unsafe fn copy_rows(
    matrix: Mat<bf16>,
    rows: Range<usize>,
    depth: Range<usize>,
    stride: usize,
    copied_rows: usize,
    copies: &mut Vec<bf16>,
) {
    let copies = grow_to(copies, copied_rows * stride);
    copies.par_chunks_mut(ROWS_PER_TASK * stride).enumerate().for_each_piece(|(task, copies)| {
        let first = (rows.start + task * ROWS_PER_TASK).min(rows.end);
        let rows = first..(first + ROWS_PER_TASK).min(rows.end);
        // SAFETY: the caller's promise.
        unsafe { copy_some_rows(matrix, rows, depth.clone(), stride, copies) };
    });
}

/// [`copy_rows`] on the calling thread; `copies` is as long as all rows that are copied.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn copy_some_rows(
    matrix: Mat<bf16>,
    rows: Range<usize>,
    depth: Range<usize>,
    stride: usize,
    copies: &mut [bf16],
) {
    let (copies, beyond) = copies.split_at_mut(rows.len() * stride);
    beyond.fill(bf16::ZERO);
    if matrix.col_stride() == 1 {
        for (row, copy) in rows.zip(copies.chunks_exact_mut(stride)) {
            let (copy, beyond) = copy.split_at_mut(depth.len());
            copy.copy_from_slice(&matrix.data()[row * matrix.row_stride()..][depth.clone()]);
            beyond.fill(bf16::ZERO);
        }
    } else {
        copy_columns(matrix.t(), depth, rows, stride, copies);
    }
}

/// Copies the rows `depth` of the columns `columns` of a matrix with contiguous rows: each column becomes a row of `stride` numbers.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn copy_columns(matrix: Mat<bf16>, depth: Range<usize>, columns: Range<usize>, stride: usize, copies: &mut [bf16]) {
    for from in (0..stride).step_by(2 * REGISTER_LANES) {
        for (index, copies) in copies.chunks_mut(REGISTER_LANES * stride).enumerate() {
            let mut pairs = [_mm512_setzero_si512(); REGISTER_LANES];
            for (p, pairs) in pairs.iter_mut().enumerate() {
                *pairs = load_pairs(matrix, &depth, &columns, from / 2 + p, index * REGISTER_LANES);
            }
            for (copy, numbers) in copies.chunks_exact_mut(stride).zip(transposed(&pairs)) {
                let to = from..(from + 2 * REGISTER_LANES).min(stride);
                store_numbers(&mut copy[to], numbers);
            }
        }
    }
}

/// Pairs of numbers of the rows 2·`pair` and 2·`pair` + 1 of `depth`, in 16 columns of `columns` from `from` on. `matrix` has contiguous
/// rows. What is beyond the ranges is 0.
///
/// # Panics
/// If the ranges are not inside of the matrix: an invariant of the callers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn load_pairs(matrix: Mat<bf16>, depth: &Range<usize>, columns: &Range<usize>, pair: usize, from: usize) -> __m512i {
    assert!(
        depth.end <= matrix.rows() && columns.end <= matrix.cols() && matrix.col_stride() == 1,
        "ranges beyond a matrix, or rows that are not contiguous"
    );
    let mask = lane_mask(columns.len().saturating_sub(from));
    let [row, column] = [depth.start + 2 * pair, columns.start + from];
    let [low_mask, high_mask] = [if row < depth.end { mask } else { 0 }, if row + 1 < depth.end { mask } else { 0 }];
    let low = matrix.data().as_ptr().wrapping_add(row * matrix.row_stride() + column);
    let high = low.wrapping_add(matrix.row_stride());
    // SAFETY: no other numbers than those that the masks select are read. They are inside of the ranges, these inside of the matrix (the
    // assertion), and the matrix inside of its slice (`Mat`).
    let [low, high] =
        unsafe { [_mm256_maskz_loadu_epi16(low_mask, low.cast()), _mm256_maskz_loadu_epi16(high_mask, high.cast())] };
    _mm512_or_si512(_mm512_cvtepu16_epi32(low), _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(high)))
}

/// The mask of the first `count` elements of a register of 16; of all, if there are more.
pub(super) fn lane_mask(count: usize) -> u16 {
    ((1_u32 << count.min(REGISTER_LANES)) - 1) as u16
}

/// The first 32 of `numbers`; those that lack are 0.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn load_numbers(numbers: &[bf16]) -> __m512i {
    // SAFETY: the mask selects numbers of the slice, and no others are read.
    unsafe { _mm512_maskz_loadu_epi16(number_mask(numbers.len()), numbers.as_ptr().cast()) }
}

/// The mask of the first `count` numbers of a register of 32; of all, if there are more.
fn number_mask(count: usize) -> u32 {
    ((1_u64 << count.min(2 * REGISTER_LANES)) - 1) as u32
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn store(to: &mut [u32; REGISTER_LANES], pairs: __m512i) {
    // SAFETY: the array has the size of the register.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), pairs) };
}

/// Stores the first numbers, as many as there are elements.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn store_numbers(to: &mut [bf16], numbers: __m512i) {
    // SAFETY: the mask selects elements of the slice, and no others are written.
    unsafe { _mm512_mask_storeu_epi16(to.as_mut_ptr().cast(), number_mask(to.len()), numbers) };
}

/// The transpose of 16 × 16 elements of 32 bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn transposed(rows: &[__m512i; REGISTER_LANES]) -> [__m512i; REGISTER_LANES] {
    // In each quarter of a register: two rows of two columns, then four rows of one column.
    let mut twos = *rows;
    for i in (0..REGISTER_LANES).step_by(2) {
        twos[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        twos[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    let mut fours = twos;
    for i in (0..REGISTER_LANES).step_by(4) {
        fours[i] = _mm512_unpacklo_epi64(twos[i], twos[i + 2]);
        fours[i + 1] = _mm512_unpackhi_epi64(twos[i], twos[i + 2]);
        fours[i + 2] = _mm512_unpacklo_epi64(twos[i + 1], twos[i + 3]);
        fours[i + 3] = _mm512_unpackhi_epi64(twos[i + 1], twos[i + 3]);
    }
    // Quarter q of fours[4i + j] has column 4q + j of the rows from 4i on.
    let mut columns = fours;
    for j in 0..4 {
        let even = |i: usize| _mm512_shuffle_i32x4::<0x88>(fours[i + j], fours[i + 4 + j]);
        let odd = |i: usize| _mm512_shuffle_i32x4::<0xDD>(fours[i + j], fours[i + 4 + j]);
        columns[j] = _mm512_shuffle_i32x4::<0x88>(even(0), even(8));
        columns[8 + j] = _mm512_shuffle_i32x4::<0xDD>(even(0), even(8));
        columns[4 + j] = _mm512_shuffle_i32x4::<0x88>(odd(0), odd(8));
        columns[12 + j] = _mm512_shuffle_i32x4::<0xDD>(odd(0), odd(8));
    }
    columns
}
