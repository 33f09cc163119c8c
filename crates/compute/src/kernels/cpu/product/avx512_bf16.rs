//! The instruction VDPBF16PS, which adds the products of two pairs of bf16 numbers to an f32 number.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_dpbf16_ps, _mm512_loadu_si512, _mm512_set1_epi32, _mm512_setzero_ps,
    _mm512_storeu_ps,
};
use std::mem::transmute;

use half::bf16;

use super::PANEL_COLUMNS;
use super::packing::RowPair;
use super::tiles::TileInstructions;
use crate::kernels::cpu::gemm::Mat;

/// Each sum adds the product of a pair's second numbers first.
pub(super) struct Avx512Bf16;

/// Rows of a tile: with two registers of columns, 28 of the 32 vector registers hold sums.
const ROWS: usize = 14;

pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx512bf16")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
}

impl TileInstructions for Avx512Bf16 {
    type Sums = [[f32; PANEL_COLUMNS]; ROWS];
    const ROWS: usize = ROWS;
    const DEPTH_STEP: usize = 2;

    unsafe fn run_task(task: impl FnOnce()) {
        task();
    }

    unsafe fn sum_tile(left: Mat<bf16>, right: &[RowPair], sums: &mut Self::Sums) {
        // SAFETY: the caller's promise.
        unsafe { sum_tile(left, right, sums) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn sum_tile(left: Mat<bf16>, right: &[RowPair], sums: &mut [[f32; PANEL_COLUMNS]; ROWS]) {
    assert_eq!((left.rows(), left.cols(), left.col_stride()), (ROWS, 2 * right.len(), 1), "operands of a tile");
    let mut acc = [[_mm512_setzero_ps(); 2]; ROWS];
    let (mut pairs, stride) = (left.data().as_ptr(), left.row_stride());
    for row in right {
        // SAFETY: the row is two registers; `left` has a pair in each row for each row of the panel. The pair is aligned as a bf16 number alone.
        unsafe {
            let columns = row.0.as_ptr();
            let columns = [_mm512_loadu_si512(columns.cast()), _mm512_loadu_si512(columns.add(16).cast())];
            for (i, acc) in acc.iter_mut().enumerate() {
                let pair = pairs.add(i * stride).cast::<i32>().read_unaligned();
                *acc = [add_products(acc[0], pair, columns[0]), add_products(acc[1], pair, columns[1])];
            }
            pairs = pairs.add(2);
        }
    }
    for (row, acc) in sums.iter_mut().zip(acc) {
        // SAFETY: the row is two registers.
        unsafe {
            _mm512_storeu_ps(row.as_mut_ptr(), acc[0]);
            _mm512_storeu_ps(row.as_mut_ptr().add(16), acc[1]);
        }
    }
}

/// Adds to each of 16 sums the products of the numbers of `pair` with those of the sum's pair in `columns`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn add_products(sums: __m512, pair: i32, columns: __m512i) -> __m512 {
    let pair = _mm512_set1_epi32(pair);
    // SAFETY: both types are 512 bits, of which any are valid.
    let [pair, columns] = unsafe { [transmute::<__m512i, __m512bh>(pair), transmute::<__m512i, __m512bh>(columns)] };
    _mm512_dpbf16_ps(sums, pair, columns)
}
