//! LayerNorm (Ba et al. 2016) and RMSNorm (Zhang and Sennrich 2019) over rows.

use rayon::prelude::*;

use super::simd::{self, dot, inlined, rows_per_task, sum_by, vectorize};
use super::{Real, elementwise::round_if};

/// LayerNorm where there is a `bias`: y = (x − mean)·rstd·weight + bias per row, and `stats` receives (mean, rstd) pairs, [rows, 2].
/// Otherwise RMSNorm: y = x·rstd·weight with rstd = 1/sqrt(mean(x²) + eps), and `stats` receives rstd, [rows].
pub fn normalize<T: Real>(
    x: &[T],
    weight: &[T],
    bias: Option<&[T]>,
    eps: f64,
    y: &mut [T],
    stats: &mut [T],
    bf16: bool,
) {
    let (d, width) = (weight.len(), statistics_per_row(bias.is_some()));
    let n = T::real(d as f64);
    let rows = rows_per_task(d);
    y.par_chunks_mut(rows * d).zip(stats.par_chunks_mut(rows * width)).zip(x.par_chunks(rows * d)).for_each(
        |((y, stats), x)| {
            vectorize(inlined!(|| {
                for ((y, s), x) in y.chunks_exact_mut(d).zip(stats.chunks_exact_mut(width)).zip(x.chunks_exact(d)) {
                    if let Some(bias) = bias {
                        let mean = sum_by(x, inlined!(|v| v)) / n;
                        let variance = sum_by(x, inlined!(|v| (v - mean) * (v - mean))) / n;
                        let rstd = T::ONE / (variance + T::real(eps)).root();
                        for (((y, &x), &w), &b) in y.iter_mut().zip(x).zip(weight).zip(bias) {
                            *y = round_if(((x - mean) * rstd).fma(w, b), bf16);
                        }
                        s.copy_from_slice(&[mean, rstd]);
                    } else {
                        let rstd = T::ONE / (sum_by(x, inlined!(|v| v * v)) / n + T::real(eps)).root();
                        for ((y, &x), &w) in y.iter_mut().zip(x).zip(weight) {
                            *y = round_if(x * rstd * w, bf16);
                        }
                        s[0] = rstd;
                    }
                }
            }));
        },
    );
}

/// Numbers in `stats` for each row.
pub fn statistics_per_row(has_bias: bool) -> usize {
    if has_bias { 2 } else { 1 }
}

/// Adds to the gradient of the weight, and to `dbias` where the norm is LayerNorm; writes dL/dx, plus `skip` (the gradient that bypassed the
/// norm) if given.
pub fn normalize_backward<T: Real>(
    x: &[T],
    weight: &[T],
    stats: &[T],
    dy: &[T],
    skip: Option<&[T]>,
    dx: &mut [T],
    dweight: &mut [T],
    mut dbias: Option<&mut [T]>,
    bf16: bool,
) {
    let (d, has_bias) = (weight.len(), dbias.is_some());
    let width = statistics_per_row(has_bias);
    let n = T::real(d as f64);
    let rows = rows_per_task(d);
    let tasks = x.len().div_ceil(rows * d);
    let mut partial = vec![T::ZERO; tasks * width * d];
    dx.par_chunks_mut(rows * d).zip(partial.par_chunks_mut(width * d)).enumerate().for_each(|(task, (dx, partial))| {
        let (dw, db) = partial.split_at_mut(d);
        vectorize(inlined!(|| {
            for (i, dx) in dx.chunks_exact_mut(d).enumerate() {
                let row = task * rows + i;
                let (x, dy) = (&x[row * d..][..d], &dy[row * d..][..d]);
                if has_bias {
                    let (mean, rstd) = (stats[2 * row], stats[2 * row + 1]);
                    for ((((dx, dw), db), &x), &dy) in
                        dx.iter_mut().zip(dw.iter_mut()).zip(db.iter_mut()).zip(x).zip(dy)
                    {
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
                } else {
                    let rstd = stats[row];
                    for ((dw, &x), &dy) in dw.iter_mut().zip(x).zip(dy) {
                        *dw = dy.fma(x * rstd, *dw);
                    }
                    // With g = dy·weight and hat = x·rstd: dx = rstd·(g − hat·mean(g·hat)).
                    let mean_gh = dot3(dy, weight, x) * rstd / n;
                    for (((dx, &x), &dy), &w) in dx.iter_mut().zip(x).zip(dy).zip(weight) {
                        *dx = rstd * (dy * w - x * rstd * mean_gh);
                    }
                }
                add_skip_and_round(dx, skip.map(|s| &s[row * d..][..d]), bf16);
            }
        }));
    });
    for p in partial.chunks_exact(width * d) {
        simd::add_rows(dweight, &p[..d]);
        if let Some(dbias) = &mut dbias {
            simd::add_rows(dbias, &p[d..]);
        }
    }
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
fn add_skip_and_round<T: Real>(dx: &mut [T], skip: Option<&[T]>, bf16: bool) {
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
