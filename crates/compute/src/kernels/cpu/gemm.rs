//! Matrix products, on the `gemm` crate.

use std::ops::Range;

use runner_threads::work_stealing;

use super::Real;
use super::elementwise::written;
use super::pieces::task_count;
use super::simd::{Shared, inlined, vectorize};

/// Pieces of a product for each thread: more would pack the same numbers more often.
const PIECES_PER_THREAD: usize = 1;
/// A piece multiplies at least so many numbers.
const PIECE_PRODUCTS: usize = 1 << 20;
/// Rows and columns of `gemm`'s largest tile. Parts end between tiles.
const ROWS: usize = 12;
const COLUMNS: usize = 64;
/// Rows of `a` that a thread packs at a time, at most: otherwise `gemm` packs as many as a machine's last cache holds, for each thread.
pub(crate) const PACKED_ROWS: usize = 170 * ROWS;
/// Columns of `a` that `gemm` packs at a time, at most.
pub(crate) const PACKED_DEPTH: usize = 512;
/// Rows or columns of a part, at least. `gemm` divides sums of matrices with at most 64 rows and columns in another way, so a part must
/// not be so small if the whole is not.
const MIN_PART: usize = 128;
/// A product with at most so many rows or columns is not divided: `gemm` also sums products of at most 256 numbers in another way, which a
/// part of it might be if the whole is not.
const MAX_UNDIVIDED: usize = 256 / MIN_PART;

/// A matrix in a slice: `rows` × `cols`, row r starting at r·`stride`, or its transpose.
#[derive(Clone, Copy)]
pub struct Mat<'a, T> {
    data: &'a [T],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a, T> Mat<'a, T> {
    /// Rows of `cols` elements, `stride` apart.
    ///
    /// # Panics
    /// If `data` is too short: an invariant of the callers.
    pub fn strided(data: &'a [T], rows: usize, cols: usize, stride: usize) -> Self {
        assert!(rows == 0 || (cols <= stride && (rows - 1) * stride + cols <= data.len()), "matrix beyond its slice");
        Self { data, rows, cols, row_stride: stride, col_stride: 1 }
    }

    /// Contiguous rows.
    pub fn new(data: &'a [T], rows: usize, cols: usize) -> Self {
        Self::strided(data, rows, cols, cols)
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The distance between an element and the next of its column.
    pub fn row_stride(&self) -> usize {
        self.row_stride
    }

    /// The distance between an element and the next of its row.
    pub fn col_stride(&self) -> usize {
        self.col_stride
    }

    /// The slice, from the first element on.
    pub fn data(&self) -> &'a [T] {
        self.data
    }

    /// Some of the rows.
    ///
    /// # Panics
    /// If it has fewer: an invariant of the callers.
    pub(super) fn rows_of(self, rows: &Range<usize>) -> Self {
        assert!(rows.end <= self.rows, "rows beyond a matrix");
        Self { data: &self.data[(rows.start * self.row_stride).min(self.data.len())..], rows: rows.len(), ..self }
    }

    /// The transpose, a view.
    #[must_use]
    pub fn t(self) -> Self {
        let Self { data, rows, cols, row_stride, col_stride } = self;
        Self { data, rows: cols, cols: rows, row_stride: col_stride, col_stride: row_stride }
    }
}

/// a·b, plus `bias` in each row if given, row by row.
///
/// # Panics
/// If the shapes do not fit: an invariant of the callers.
pub fn product<T: Real>(a: Mat<T>, b: Mat<T>, bias: Option<&[T]>) -> Vec<T> {
    assert_eq!(a.cols, b.rows, "inner dimensions differ");
    assert!(bias.is_none_or(|bias| bias.len() == b.cols), "a bias of another width");
    // SAFETY: there are a.rows rows of b.cols elements. The product writes them all, and reads none of them.
    unsafe {
        written(a.rows * b.cols, |out| {
            multiply(Shared::unwritten(out), T::ZERO, a, b, bias);
        })
    }
}

/// Adds a·b to `sum`, row by row.
///
/// # Panics
/// If the shapes do not fit: an invariant of the callers.
pub fn add_product<T: Real>(sum: &mut [T], a: Mat<T>, b: Mat<T>) {
    assert_eq!(a.cols, b.rows, "inner dimensions differ");
    assert!(a.rows * b.cols <= sum.len(), "product beyond its slice");
    // SAFETY: `sum` holds a.rows rows of b.cols elements, and the exclusive borrow keeps others out.
    unsafe { multiply(Shared::new(sum), T::ONE, a, b, None) }
}

/// out = keep·out + a·b, to each row of which `bias` is added. `keep` 0 does not read `out`, which may then be uninitialized.
///
/// # Safety
/// `out` must be valid for `a.rows` rows of `b.cols` elements, and no other thread may touch those.
unsafe fn multiply<T: Real>(out: Shared<T>, keep: T, a: Mat<T>, b: Mat<T>, bias: Option<&[T]>) {
    let width = b.cols;
    let [row_pieces, column_pieces] = split(a, b, task_count(PIECES_PER_THREAD));
    work_stealing::for_each_piece(row_pieces * column_pieces, |piece| {
        let rows = part(a.rows, ROWS, row_pieces, piece / column_pieces);
        let columns = part(width, COLUMNS, column_pieces, piece % column_pieces);
        let (a, b) = (a.rows_of(&rows), b.t().rows_of(&columns).t());
        let blocks = rows.len().div_ceil(PACKED_ROWS).max(1);
        for block in 0..blocks {
            let block = part(rows.len(), ROWS, blocks, block);
            let place = out.pointer((rows.start + block.start) * width + columns.start);
            // SAFETY: the caller answers for `out`, in which blocks of pieces do not overlap.
            unsafe { gemm_raw(place, width, keep, a.rows_of(&block), b) };
        }
        if let Some(bias) = bias {
            vectorize(inlined!(|| {
                for row in rows.clone() {
                    // SAFETY: as above, and the product has written them.
                    let y = unsafe { out.slice(row * width + columns.start, columns.len()) };
                    for (y, &bias) in y.iter_mut().zip(&bias[columns.clone()]) {
                        *y += bias;
                    }
                }
            }));
        }
    });
}

/// The numbers of parts into which the rows and the columns of a·b are divided, for about `wanted` pieces.
///
/// Each piece packs its rows of `a` and its columns of `b` again, so what is divided first follows from measurements: columns, unless there
/// are many more rows; in the gradient of weights, where `a` is a transpose, the longer of both.
fn split<T: Real>(a: Mat<T>, b: Mat<T>, wanted: usize) -> [usize; 2] {
    if a.rows.min(b.cols) <= MAX_UNDIVIDED {
        return [1, 1];
    }
    let wanted = wanted.min(a.rows * a.cols * b.cols / PIECE_PRODUCTS).max(1);
    let most = [(a.rows / MIN_PART).max(1), (b.cols / MIN_PART).max(1)];
    let columns_first = if a.row_stride == 1 { b.cols > a.rows } else { 3 * b.cols >= 2 * a.rows };
    let first = usize::from(columns_first);
    let mut parts = [1, 1];
    parts[first] = wanted.min(most[first]);
    parts[1 - first] = wanted.div_ceil(parts[first]).min(most[1 - first]);
    parts
}

/// Part `part` of `parts` of `0..len`. All but the last end at a multiple of `unit`.
fn part(len: usize, unit: usize, parts: usize, part: usize) -> Range<usize> {
    let bound = |part: usize| if part == parts { len } else { part * (len / unit) / parts * unit };
    bound(part)..bound(part + 1)
}

/// out = keep·out + a·b, on the calling thread.
///
/// # Safety
/// `out` must be valid for `a.rows` rows of `b.cols` elements, `stride` apart, and no other thread may touch those.
unsafe fn gemm_raw<T: Real>(out: *mut T, stride: usize, keep: T, a: Mat<T>, b: Mat<T>) {
    // SAFETY: `Mat` checked that a and b lie in their slices; the caller answers for `out`.
    unsafe {
        gemm::gemm(
            a.rows,
            b.cols,
            a.cols,
            out,
            1,
            stride as isize,
            keep != T::ZERO,
            a.data.as_ptr(),
            a.col_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.col_stride as isize,
            b.row_stride as isize,
            keep,
            T::ONE,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bits of a product do not depend on the number of threads, so not on its pieces either.
    #[test]
    fn any_number_of_threads_gives_the_same_bits() {
        let numbers = |len: usize| (0..len).map(|i| ((i * 7919 % 1009) as f32 - 504.0) / 504.0).collect::<Vec<_>>();
        let shapes = [(64, 1500, 300), (1030, 70, 140), (257, 1100, 513), (2 * PACKED_ROWS + 5, 600, 130)];
        let narrow = [(300, 8192, 1), (256, 4096, 2), (400, 6000, 3), (1, 6000, 900), (2, 6000, 400), (3, 6000, 400)];
        for (rows, inner, cols) in shapes.into_iter().chain(narrow) {
            let (a, b, bias) = (numbers(rows * inner), numbers(inner * cols), numbers(cols));
            let products = |threads: usize| {
                let a = [Mat::new(&a, rows, inner), Mat::new(&a, inner, rows).t()];
                let b = [Mat::new(&b, inner, cols), Mat::new(&b, cols, inner).t()];
                runner_threads::threads::thread_pool(threads).unwrap().install(|| {
                    let mut sum = numbers(rows * cols);
                    add_product(&mut sum, a[0], b[0]);
                    let all = a.iter().flat_map(|a| b.iter().map(|b| product(*a, *b, Some(&bias))));
                    all.chain([sum]).collect::<Vec<_>>()
                })
            };
            let expected = products(1);
            for threads in [2, 3, 8] {
                assert!(products(threads) == expected, "{rows} x {inner} x {cols} with {threads} threads");
            }
        }
    }

    #[test]
    fn parts_cover_all_and_none_is_small() {
        for (len, unit) in [(128, ROWS), (300, COLUMNS), (1000, ROWS), (50_257, COLUMNS), (2048, ROWS)] {
            for parts in 1..=len / MIN_PART {
                let ranges: Vec<_> = (0..parts).map(|number| part(len, unit, parts, number)).collect();
                assert!(ranges.iter().all(|range| range.len() > 64), "{len} in {parts}: {ranges:?}");
                assert_eq!(ranges.into_iter().flatten().collect::<Vec<_>>(), (0..len).collect::<Vec<_>>());
            }
        }
    }
}
