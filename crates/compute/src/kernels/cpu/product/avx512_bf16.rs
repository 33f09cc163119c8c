//! Products of bf16 matrices with the instruction VDPBF16PS, which adds the products of two pairs of bf16 numbers to an f32 number.
//!
//! The right matrix is packed into panels of [`COLUMNS`] columns, in which the two numbers of a pair follow each other. The left one is
//! read in place where its rows are contiguous, otherwise packed into panels of [`ROWS`] rows. A tile of [`ROWS`] × [`COLUMNS`] sums
//! stays in registers over the whole depth of a block.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_dpbf16_ps, _mm512_loadu_si512, _mm512_set1_epi32, _mm512_setzero_ps,
    _mm512_storeu_ps,
};
use std::mem::{MaybeUninit, transmute};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use half::bf16;
use rayon::prelude::*;
use runner_spec::program::{PRODUCT_OPERAND_BYTES, PRODUCT_SUM_BYTES};

use super::{Destination, store_row};
use crate::kernels::cpu::gemm::Mat;
use crate::kernels::cpu::simd::Shared;

/// Rows of a tile: with [`COLUMNS`], 28 of the 32 vector registers hold sums.
const ROWS: usize = 14;
/// Columns of a tile: two registers of 16 numbers.
const COLUMNS: usize = 32;

/// The depth of the deepest block, whose panels fit in the second-level cache. Deeper products consist of blocks of half this depth.
const MAX_DEPTH: usize = 4096;

/// Rows of the left matrix that are this many elements apart, a page, compete for the same lines of the first-level cache.
const PAGE_ELEMENTS: usize = 2048;

/// A task computes at most so many tiles in each direction, and fewer where a block would have fewer tasks than this.
const TASK_TILES: usize = 4;
const MIN_TASKS: usize = 64;

/// Panels that one task packs: their columns lie next to each other in memory.
const PANELS_PER_TASK: usize = 8;

pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512bw")
}

/// Memory that later products use again: that of as many products as have run at the same time.
static FREE_BUFFERS: Mutex<Vec<Buffers>> = Mutex::new(Vec::new());

#[derive(Default)]
struct Buffers {
    /// Panels of the matrices.
    left: Vec<u32>,
    right: Vec<u32>,
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
/// As for [`super::multiply`]; the processor must have the instructions.
pub(super) unsafe fn multiply(a: Mat<bf16>, b: Mat<bf16>, destination: Destination<'_>) {
    let (rows, inner, cols) = (a.rows(), a.cols(), b.cols());
    let packs_left = a.col_stride() != 1 || a.row_stride().is_multiple_of(PAGE_ELEMENTS);
    let depth = if inner <= MAX_DEPTH { inner.max(1) } else { MAX_DEPTH / 2 };
    let lines = PRODUCT_OPERAND_BYTES / (size_of::<u32>() * depth.div_ceil(2));
    let block_cols = (lines / COLUMNS * COLUMNS).clamp(COLUMNS, cols.next_multiple_of(COLUMNS).max(COLUMNS));
    let keeps_sums = matches!(destination, Destination::Rounded(..)) && depth < inner;
    let most_rows = [
        if packs_left { lines } else { usize::MAX },
        if keeps_sums { PRODUCT_SUM_BYTES / (size_of::<f32>() * block_cols) } else { usize::MAX },
    ];
    let block_rows = rows.min(most_rows[0]).min(most_rows[1]).max(ROWS);
    let mut buffers = lock_free_buffers().pop().unwrap_or_default();
    for these in parts(0..rows, block_rows) {
        for columns in parts(0..cols, block_cols) {
            if keeps_sums {
                let len = buffers.sums.len().max(these.len() * columns.len());
                buffers.sums.resize(len, 0.0);
            }
            for depth in parts(0..inner, depth) {
                let block = Block { rows: these.clone(), cols: columns.clone(), depth };
                pack::<COLUMNS>(b, block.depth.clone(), block.cols.clone(), &mut buffers.right);
                if packs_left {
                    pack::<ROWS>(a.t(), block.depth.clone(), block.rows.clone(), &mut buffers.left);
                }
                let left = if packs_left { Left::Packed(&buffers.left) } else { Left::InPlace(a) };
                let sums = keeps_sums.then(|| Shared::new(&mut buffers.sums));
                let output = Output {
                    destination,
                    cols,
                    sums,
                    is_first: block.depth.start == 0,
                    is_last: block.depth.end == inner,
                };
                // SAFETY: the caller's promise; the panels are those of this block.
                unsafe { multiply_block(&block, left, &buffers.right, output) };
            }
        }
    }
    lock_free_buffers().push(buffers);
}

/// The lock's holders do not panic, and any list of buffers is valid.
fn lock_free_buffers() -> MutexGuard<'static, Vec<Buffers>> {
    FREE_BUFFERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Parts of `size` elements, and the rest.
fn parts(range: Range<usize>, size: usize) -> impl Iterator<Item = Range<usize>> {
    range.clone().step_by(size).map(move |from| from..(from + size).min(range.end))
}

/// Packs the rows `depth` of the columns `columns` of `matrix` into panels of `WIDTH` columns. Element (p, c) of a panel, at
/// p·`WIDTH` + c, is the pair of the rows 2p and 2p + 1 of column c. What is beyond the matrix is 0.
fn pack<const WIDTH: usize>(matrix: Mat<bf16>, depth: Range<usize>, columns: Range<usize>, panels: &mut Vec<u32>) {
    let pairs = depth.len().div_ceil(2);
    let panel_len = pairs * WIDTH;
    let len = columns.len().div_ceil(WIDTH) * panel_len;
    panels.clear();
    panels.reserve(len);
    panels.spare_capacity_mut()[..len].par_chunks_mut(PANELS_PER_TASK * panel_len).enumerate().for_each(
        |(task, panels)| {
            let first = columns.start + task * PANELS_PER_TASK * WIDTH;
            let columns = first..(first + PANELS_PER_TASK * WIDTH).min(columns.end);
            // SAFETY: `multiply` is called on processors that have the instructions.
            unsafe {
                if matrix.col_stride() == 1 {
                    pack_rows::<WIDTH>(matrix, depth.clone(), columns, panels);
                } else {
                    pack_columns::<WIDTH>(matrix, depth.clone(), columns, panels);
                }
            }
        },
    );
    // SAFETY: every element of every panel was written.
    unsafe { panels.set_len(len) };
}

/// [`pack`] for one task and a matrix with contiguous rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn pack_rows<const WIDTH: usize>(
    matrix: Mat<bf16>,
    depth: Range<usize>,
    columns: Range<usize>,
    panels: &mut [MaybeUninit<u32>],
) {
    let pairs = depth.len().div_ceil(2);
    let zeros = [bf16::ZERO; PANELS_PER_TASK * COLUMNS];
    for pair in 0..pairs {
        let row = |k: usize| {
            if k < depth.end {
                &matrix.data()[k * matrix.row_stride()..][columns.clone()]
            } else {
                &zeros[..columns.len()]
            }
        };
        let (low, high) = (row(depth.start + 2 * pair), row(depth.start + 2 * pair + 1));
        let parts = low.chunks(WIDTH).zip(high.chunks(WIDTH));
        for (panel, (low, high)) in panels.chunks_exact_mut(pairs * WIDTH).zip(parts) {
            let panel = &mut panel[pair * WIDTH..][..WIDTH];
            if let (Ok(low), Ok(high)) = (<&[bf16; WIDTH]>::try_from(low), <&[bf16; WIDTH]>::try_from(high)) {
                for c in 0..WIDTH {
                    panel[c].write(pair_of(low[c], high[c]));
                }
            } else {
                for (c, element) in panel.iter_mut().enumerate() {
                    element.write(if c < low.len() { pair_of(low[c], high[c]) } else { 0 });
                }
            }
        }
    }
}

/// [`pack`] for one task and a matrix with contiguous columns.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn pack_columns<const WIDTH: usize>(
    matrix: Mat<bf16>,
    depth: Range<usize>,
    columns: Range<usize>,
    panels: &mut [MaybeUninit<u32>],
) {
    let pairs = depth.len().div_ceil(2);
    for (index, panel) in panels.chunks_exact_mut(pairs * WIDTH).enumerate() {
        for c in 0..WIDTH {
            let column = columns.start + index * WIDTH + c;
            let mut elements = panel[c..].iter_mut().step_by(WIDTH);
            if column >= columns.end {
                elements.for_each(|element| _ = element.write(0));
                continue;
            }
            let numbers = &matrix.data()[column * matrix.col_stride()..][depth.clone()];
            let (whole, rest) = numbers.as_chunks::<2>();
            for (&[low, high], element) in whole.iter().zip(&mut elements) {
                element.write(pair_of(low, high));
            }
            if let ([low], Some(element)) = (rest, elements.next()) {
                element.write(pair_of(*low, bf16::ZERO));
            }
        }
    }
}

#[inline(always)]
fn pair_of(low: bf16, high: bf16) -> u32 {
    u32::from(low.to_bits()) | u32::from(high.to_bits()) << 16
}

/// The left matrix of a block.
#[derive(Clone, Copy)]
enum Left<'a> {
    /// The whole matrix, with contiguous rows.
    InPlace(Mat<'a, bf16>),
    /// The panels of the block.
    Packed(&'a [u32]),
}

/// What becomes of the sums of a block.
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

/// # Safety
/// As for [`multiply`]. `right`, and `left` if it is packed, are the panels of the block.
unsafe fn multiply_block(block: &Block, left: Left<'_>, right: &[u32], output: Output<'_>) {
    let pairs = block.depth.len().div_ceil(2);
    let tiles = [block.rows.len().div_ceil(ROWS), block.cols.len().div_ceil(COLUMNS)];
    let mut size = TASK_TILES;
    let tasks = |size: usize| tiles.map(|n| n.div_ceil(size));
    while size > 1 && tasks(size)[0] * tasks(size)[1] < MIN_TASKS {
        size /= 2;
    }
    let [down, across] = tasks(size);
    // Tasks that follow each other share panels of the right matrix.
    (0..down * across).into_par_iter().for_each(|task| {
        let [i, j] = [task % down * size, task / down * size];
        for panel in j..(j + size).min(tiles[1]) {
            let right = &right[panel * pairs * COLUMNS..][..pairs * COLUMNS];
            for tile in i..(i + size).min(tiles[0]) {
                let rows = tile * ROWS..((tile + 1) * ROWS).min(block.rows.len());
                let cols = panel * COLUMNS..((panel + 1) * COLUMNS).min(block.cols.len());
                let left = TileLeft::new(left, block, &rows);
                // SAFETY: the operands have all elements that a tile reads; no other task has these rows and columns.
                unsafe { finish_tile(rows, cols, left, right, block, output) };
            }
        }
    });
}

/// The rows of the left matrix that a tile reads: element (i, p) of the pairs is at i·`row_stride` + p·`pair_stride` numbers.
#[derive(Clone, Copy)]
struct TileLeft {
    first: *const bf16,
    row_stride: usize,
    pair_stride: usize,
    /// Whole pairs. If `has_half_pair`, one number follows them.
    pairs: usize,
    has_half_pair: bool,
}

impl TileLeft {
    /// `rows` are counted from the first row of the block.
    fn new(left: Left<'_>, block: &Block, rows: &Range<usize>) -> Self {
        let depth = block.depth.len();
        match left {
            Left::InPlace(a) => {
                let from = (block.rows.start + rows.start) * a.row_stride() + block.depth.start;
                let needed = (rows.len() - 1) * a.row_stride() + depth;
                Self {
                    first: a.data()[from..][..needed].as_ptr(),
                    row_stride: a.row_stride(),
                    pair_stride: 2,
                    pairs: depth / 2,
                    has_half_pair: !depth.is_multiple_of(2),
                }
            }
            Left::Packed(panels) => {
                let pairs = depth.div_ceil(2);
                let panel = &panels[rows.start / ROWS * pairs * ROWS..][..pairs * ROWS];
                let first = panel.as_ptr().cast();
                Self { first, row_stride: 2, pair_stride: 2 * ROWS, pairs, has_half_pair: false }
            }
        }
    }
}

/// Computes the tile of `rows` and `cols`, which are counted from those of the block, and stores it.
///
/// # Safety
/// As for [`multiply_block`]; no other task may have the tile.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn finish_tile(
    rows: Range<usize>,
    cols: Range<usize>,
    left: TileLeft,
    right: &[u32],
    block: &Block,
    output: Output<'_>,
) {
    let mut sums = [[0.0; COLUMNS]; ROWS];
    // SAFETY: the caller's promise.
    unsafe {
        match rows.len() {
            1 => sum_tile::<1>(left, right, &mut sums),
            2 => sum_tile::<2>(left, right, &mut sums),
            3 => sum_tile::<3>(left, right, &mut sums),
            4 => sum_tile::<4>(left, right, &mut sums),
            5 => sum_tile::<5>(left, right, &mut sums),
            6 => sum_tile::<6>(left, right, &mut sums),
            7 => sum_tile::<7>(left, right, &mut sums),
            8 => sum_tile::<8>(left, right, &mut sums),
            9 => sum_tile::<9>(left, right, &mut sums),
            10 => sum_tile::<10>(left, right, &mut sums),
            11 => sum_tile::<11>(left, right, &mut sums),
            12 => sum_tile::<12>(left, right, &mut sums),
            13 => sum_tile::<13>(left, right, &mut sums),
            _ => sum_tile::<ROWS>(left, right, &mut sums),
        }
    }
    for (row, sums) in rows.zip(&mut sums) {
        let sums = &mut sums[..cols.len()];
        if let Some(kept) = output.sums {
            // SAFETY: this part of the kept sums belongs to this task alone.
            let kept = unsafe { kept.slice(row * block.cols.len() + cols.start, cols.len()) };
            if !output.is_first {
                sums.iter_mut().zip(&*kept).for_each(|(sum, kept)| *sum += kept);
            }
            if !output.is_last {
                kept.copy_from_slice(sums);
                continue;
            }
        }
        let column = block.cols.start + cols.start;
        // SAFETY: the caller's promise.
        unsafe { store_row(sums, (block.rows.start + row) * output.cols + column, column, output.destination) };
    }
}

/// sums[i][j] = Σₚ of the products of the two numbers of pair p of row i with those of column j, the second number's first.
///
/// # Safety
/// `left` has `R` rows of its pairs, and `right` as many pairs of [`COLUMNS`] columns.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn sum_tile<const R: usize>(left: TileLeft, right: &[u32], sums: &mut [[f32; COLUMNS]; ROWS]) {
    let mut acc = [[_mm512_setzero_ps(); 2]; R];
    let (mut a, mut b) = (left.first, right.as_ptr());
    // SAFETY: the caller's promise. A pair may lie at an odd address.
    unsafe {
        for _ in 0..left.pairs {
            let columns = [_mm512_loadu_si512(b.cast()), _mm512_loadu_si512(b.add(16).cast())];
            for (i, acc) in acc.iter_mut().enumerate() {
                let pair = a.add(i * left.row_stride).cast::<u32>().read_unaligned();
                *acc = [add_products(acc[0], pair, columns[0]), add_products(acc[1], pair, columns[1])];
            }
            a = a.add(left.pair_stride);
            b = b.add(COLUMNS);
        }
        if left.has_half_pair {
            let columns = [_mm512_loadu_si512(b.cast()), _mm512_loadu_si512(b.add(16).cast())];
            for (i, acc) in acc.iter_mut().enumerate() {
                let pair = pair_of(*a.add(i * left.row_stride), bf16::ZERO);
                *acc = [add_products(acc[0], pair, columns[0]), add_products(acc[1], pair, columns[1])];
            }
        }
        for (row, acc) in sums.iter_mut().zip(acc) {
            _mm512_storeu_ps(row.as_mut_ptr(), acc[0]);
            _mm512_storeu_ps(row.as_mut_ptr().add(16), acc[1]);
        }
    }
}

/// Adds to each of 16 sums the products of the numbers of `pair` with those of the sum's pair in `columns`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn add_products(sums: __m512, pair: u32, columns: __m512i) -> __m512 {
    let pair = _mm512_set1_epi32(pair.cast_signed());
    // SAFETY: both types are 512 bits, of which any are valid.
    let [pair, columns] = unsafe { [transmute::<__m512i, __m512bh>(pair), transmute::<__m512i, __m512bh>(columns)] };
    _mm512_dpbf16_ps(sums, pair, columns)
}
