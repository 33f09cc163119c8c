//! Matrix products, on the `gemm` crate.

use gemm::Parallelism;

use super::Real;
use super::elementwise::written;

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

    /// The transpose, a view.
    #[must_use]
    pub fn t(self) -> Self {
        let Self { data, rows, cols, row_stride, col_stride } = self;
        Self { data, rows: cols, cols: rows, row_stride: col_stride, col_stride: row_stride }
    }
}

/// Threads of the current pool, for products that may spread over it.
pub fn pool() -> Parallelism {
    match rayon::current_num_threads() {
        1 => Parallelism::None,
        n => Parallelism::Rayon(n),
    }
}

/// The calling thread alone, for small products of which many are computed at the same time.
pub fn calling_thread() -> Parallelism {
    Parallelism::None
}

/// a·b, row by row.
///
/// # Panics
/// If the shapes do not fit: an invariant of the callers.
pub fn product<T: Real>(a: Mat<T>, b: Mat<T>) -> Vec<T> {
    assert_eq!(a.cols, b.rows, "inner dimensions differ");
    // SAFETY: there are a.rows rows of b.cols elements. The product writes them all, and reads none of them.
    unsafe {
        written(a.rows * b.cols, |out| {
            gemm_raw(out.as_mut_ptr().cast(), T::ZERO, T::ONE, a, b, pool());
        })
    }
}

/// out = keep·out + scale·a·b, row by row. `keep` 0 does not read `out`.
///
/// # Panics
/// If the shapes do not fit: an invariant of the callers.
pub fn gemm<T: Real>(out: &mut [T], keep: T, scale: T, a: Mat<T>, b: Mat<T>, threads: Parallelism) {
    assert_eq!(a.cols, b.rows, "inner dimensions differ");
    assert!(a.rows * b.cols <= out.len(), "product beyond its slice");
    // SAFETY: `out` holds a.rows rows of b.cols elements, and the exclusive borrow keeps others out.
    unsafe { gemm_raw(out.as_mut_ptr(), keep, scale, a, b, threads) }
}

/// [`gemm`] into memory that may be uninitialized if `keep` is 0.
///
/// # Safety
/// `out` must be valid for `a.rows` rows of `b.cols` elements, and no other thread may touch those.
unsafe fn gemm_raw<T: Real>(out: *mut T, keep: T, scale: T, a: Mat<T>, b: Mat<T>, threads: Parallelism) {
    // SAFETY: `Mat` checked that a and b lie in their slices; the caller answers for `out`.
    unsafe {
        gemm::gemm(
            a.rows,
            b.cols,
            a.cols,
            out,
            1,
            b.cols as isize,
            keep != T::ZERO,
            a.data.as_ptr(),
            a.col_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.col_stride as isize,
            b.row_stride as isize,
            keep,
            scale,
            false,
            false,
            false,
            threads,
        );
    }
}
