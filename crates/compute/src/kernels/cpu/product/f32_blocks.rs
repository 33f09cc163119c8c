//! Products of bf16 matrices on processors without instructions for them: block by block, in f32.

use std::ops::Range;

use half::bf16;

use super::{BLOCK, BLOCK_DEPTH, Destination, Threads, split_range};
use crate::kernels::cpu::Stored;
use crate::kernels::cpu::gemm::{Mat, calling_thread, gemm, pool};
use crate::kernels::cpu::simd::{inlined, rows_per_task, vectorize};

/// # Safety
/// As for [`super::multiply`].
pub(super) unsafe fn multiply(a: Mat<bf16>, b: Mat<bf16>, destination: Destination<'_>, threads: Threads) {
    let (rows, inner, cols) = (a.rows(), a.cols(), b.cols());
    for columns in split_range(cols, BLOCK) {
        for block_rows in split_range(rows, BLOCK) {
            let mut sum = vec![0.0; block_rows.len() * columns.len()];
            for depth in split_range(inner, BLOCK_DEPTH) {
                let part_of_a = Widened::new(a, block_rows.clone(), depth.clone(), threads);
                let part_of_b = Widened::new(b, depth, columns.clone(), threads);
                let parallelism = match threads {
                    Threads::Pool => pool(),
                    Threads::Caller => calling_thread(),
                };
                gemm(&mut sum, 1.0, 1.0, part_of_a.mat(), part_of_b.mat(), parallelism);
            }
            // SAFETY: the caller's promise.
            unsafe { store(&mut sum, block_rows, columns.clone(), cols, destination, threads) };
        }
    }
}

/// The f32 copy of a part of a matrix, in the order in which the matrix stores it.
struct Widened {
    numbers: Vec<f32>,
    rows: usize,
    cols: usize,
    is_transposed: bool,
}

impl Widened {
    fn new(matrix: Mat<bf16>, rows: Range<usize>, cols: Range<usize>, threads: Threads) -> Self {
        let is_transposed = matrix.col_stride() != 1;
        let (stored, lines, line) = if is_transposed { (matrix.t(), &cols, &rows) } else { (matrix, &rows, &cols) };
        let mut numbers = vec![0.0; rows.len() * cols.len()];
        let lines_per_task = rows_per_task(line.len());
        threads.for_each_chunk(&mut numbers, lines_per_task * line.len(), |task, numbers| {
            vectorize(inlined!(|| {
                for (i, numbers) in numbers.chunks_exact_mut(line.len()).enumerate() {
                    let from = (lines.start + task * lines_per_task + i) * stored.row_stride() + line.start;
                    for (number, stored) in numbers.iter_mut().zip(&stored.data()[from..]) {
                        *number = stored.load();
                    }
                }
            }));
        });
        Self { numbers, rows: rows.len(), cols: cols.len(), is_transposed }
    }

    fn mat(&self) -> Mat<'_, f32> {
        if self.is_transposed {
            Mat::new(&self.numbers, self.cols, self.rows).t()
        } else {
            Mat::new(&self.numbers, self.rows, self.cols)
        }
    }
}

/// Stores the sums of a block, [rows, columns], in a destination whose rows have `width` elements.
///
/// # Safety
/// As for [`super::multiply`].
unsafe fn store(
    sums: &mut [f32],
    rows: Range<usize>,
    columns: Range<usize>,
    width: usize,
    destination: Destination<'_>,
    threads: Threads,
) {
    let per_task = rows_per_task(columns.len());
    threads.for_each_chunk(sums, per_task * columns.len(), |task, sums| {
        vectorize(inlined!(|| {
            for (i, sums) in sums.chunks_exact(columns.len()).enumerate() {
                let from = (rows.start + task * per_task + i) * width + columns.start;
                // SAFETY: the caller's promise; a row belongs to one task.
                unsafe { store_row(sums, from, columns.start, destination) };
            }
        }));
    });
}

/// Stores `sums`, of columns from `column` on, in the elements of the destination from `first` on.
///
/// # Safety
/// These elements exist, and belong to the calling task alone.
#[inline(always)]
unsafe fn store_row(sums: &[f32], first: usize, column: usize, destination: Destination<'_>) {
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
