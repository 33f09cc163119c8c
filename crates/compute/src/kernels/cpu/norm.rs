//! LayerNorm (Ba et al. 2016) and RMSNorm (Zhang and Sennrich 2019) over rows.

use rayon::prelude::*;

use super::simd::{self, dot, inlined, rows_per_task, sum_by, vectorize};
use super::{Real, elementwise::round_if};

/// y = (x − mean)·rstd·weight + bias per row; `stats` receives (mean, rstd) pairs, [rows, 2].
pub fn layer_norm<T: Real>(x: &[T], weight: &[T], bias: &[T], eps: f64, y: &mut [T], stats: &mut [T], bf16: bool) {
    let d = weight.len();
    let n = T::real(d as f64);
    let rows = rows_per_task(d);
    y.par_chunks_mut(rows * d).zip(stats.par_chunks_mut(rows * 2)).zip(x.par_chunks(rows * d)).for_each(
        |((y, stats), x)| {
            vectorize(inlined!(|| {
                for ((y, s), x) in y.chunks_exact_mut(d).zip(stats.chunks_exact_mut(2)).zip(x.chunks_exact(d)) {
                    let mean = sum_by(x, inlined!(|v| v)) / n;
                    let variance = sum_by(x, inlined!(|v| (v - mean) * (v - mean))) / n;
                    let rstd = T::ONE / (variance + T::real(eps)).root();
                    for (((y, &x), &w), &b) in y.iter_mut().zip(x).zip(weight).zip(bias) {
                        *y = round_if(((x - mean) * rstd).fma(w, b), bf16);
                    }
                    s[0] = mean;
                    s[1] = rstd;
                }
            }));
        },
    );
}

/// Adds to the weight and bias gradients; writes dL/dx, plus `skip` (the gradient that bypassed the norm) if given.
pub fn layer_norm_backward<T: Real>(
    x: &[T],
    weight: &[T],
    stats: &[T],
    dy: &[T],
    skip: Option<&[T]>,
    dx: &mut [T],
    dweight: &mut [T],
    dbias: &mut [T],
    bf16: bool,
) {
    let d = weight.len();
    let n = T::real(d as f64);
    let rows = rows_per_task(d);
    let tasks = x.len().div_ceil(rows * d);
    let mut partial = vec![T::ZERO; tasks * 2 * d];
    dx.par_chunks_mut(rows * d).zip(partial.par_chunks_mut(2 * d)).enumerate().for_each(|(task, (dx, partial))| {
        let (dw, db) = partial.split_at_mut(d);
        vectorize(inlined!(|| {
            for (i, dx) in dx.chunks_exact_mut(d).enumerate() {
                let row = task * rows + i;
                let (x, dy) = (&x[row * d..][..d], &dy[row * d..][..d]);
                let (mean, rstd) = (stats[2 * row], stats[2 * row + 1]);
                for ((((dx, dw), db), &x), &dy) in dx.iter_mut().zip(dw.iter_mut()).zip(db.iter_mut()).zip(x).zip(dy) {
                    let hat = (x - mean) * rstd;
                    *dw = dy.fma(hat, *dw);
                    *db += dy;
                    *dx = hat;
                }
                // With g = dy·weight: dx = rstd·(g − mean(g) − hat·mean(g·hat)).
                let mean_g = dot(dy, weight) / n;
                let mean_gh = dot3(dy, weight, dx) / n;
                for ((dx, &dy), &w) in dx.iter_mut().zip(dy).zip(weight) {
                    *dx = rstd * (dy * w - mean_g - *dx * mean_gh);
                }
                finish(dx, skip.map(|s| &s[row * d..][..d]), bf16);
            }
        }));
    });
    for p in partial.chunks_exact(2 * d) {
        simd::add_rows(dweight, &p[..d]);
        simd::add_rows(dbias, &p[d..]);
    }
}

/// y = x·rstd·weight per row, rstd = 1/sqrt(mean(x²) + eps); `stats` receives rstd, [rows].
pub fn rms_norm<T: Real>(x: &[T], weight: &[T], eps: f64, y: &mut [T], stats: &mut [T], bf16: bool) {
    let d = weight.len();
    let n = T::real(d as f64);
    let rows = rows_per_task(d);
    y.par_chunks_mut(rows * d).zip(stats.par_chunks_mut(rows)).zip(x.par_chunks(rows * d)).for_each(
        |((y, stats), x)| {
            vectorize(inlined!(|| {
                for ((y, s), x) in y.chunks_exact_mut(d).zip(stats.iter_mut()).zip(x.chunks_exact(d)) {
                    let rstd = T::ONE / (sum_by(x, inlined!(|v| v * v)) / n + T::real(eps)).root();
                    for ((y, &x), &w) in y.iter_mut().zip(x).zip(weight) {
                        *y = round_if(x * rstd * w, bf16);
                    }
                    *s = rstd;
                }
            }));
        },
    );
}

/// Adds to the weight gradient; writes dL/dx, plus `skip` if given.
pub fn rms_norm_backward<T: Real>(
    x: &[T],
    weight: &[T],
    stats: &[T],
    dy: &[T],
    skip: Option<&[T]>,
    dx: &mut [T],
    dweight: &mut [T],
    bf16: bool,
) {
    let d = weight.len();
    let n = T::real(d as f64);
    let rows = rows_per_task(d);
    let tasks = x.len().div_ceil(rows * d);
    let mut partial = vec![T::ZERO; tasks * d];
    dx.par_chunks_mut(rows * d).zip(partial.par_chunks_mut(d)).enumerate().for_each(|(task, (dx, dw))| {
        vectorize(inlined!(|| {
            for (i, dx) in dx.chunks_exact_mut(d).enumerate() {
                let row = task * rows + i;
                let (x, dy, rstd) = (&x[row * d..][..d], &dy[row * d..][..d], stats[row]);
                for ((dw, &x), &dy) in dw.iter_mut().zip(x).zip(dy) {
                    *dw = dy.fma(x * rstd, *dw);
                }
                // With g = dy·weight and hat = x·rstd: dx = rstd·(g − hat·mean(g·hat)).
                let mean_gh = dot3(dy, weight, x) * rstd / n;
                for (((dx, &x), &dy), &w) in dx.iter_mut().zip(x).zip(dy).zip(weight) {
                    *dx = rstd * (dy * w - x * rstd * mean_gh);
                }
                finish(dx, skip.map(|s| &s[row * d..][..d]), bf16);
            }
        }));
    });
    simd::add_rows(dweight, &partial);
}

#[inline(always)]
fn dot3<T: Real>(x: &[T], y: &[T], z: &[T]) -> T {
    const LANES: usize = 16;
    let mut acc = [T::ZERO; LANES];
    let n = x.len() / LANES * LANES;
    for ((x, y), z) in x.chunks_exact(LANES).zip(y.chunks_exact(LANES)).zip(z.chunks_exact(LANES)) {
        for i in 0..LANES {
            acc[i] = (x[i] * y[i]).fma(z[i], acc[i]);
        }
    }
    let rest: T = x[n..].iter().zip(&y[n..]).zip(&z[n..]).map(|((&x, &y), &z)| x * y * z).sum();
    acc.iter().copied().sum::<T>() + rest
}

#[inline(always)]
fn finish<T: Real>(dx: &mut [T], skip: Option<&[T]>, bf16: bool) {
    match skip {
        Some(skip) => {
            for (dx, &s) in dx.iter_mut().zip(skip) {
                *dx = round_if(*dx + s, bf16);
            }
        }
        None if bf16 => dx.iter_mut().for_each(|v| *v = v.round_bf16()),
        None => {}
    }
}
