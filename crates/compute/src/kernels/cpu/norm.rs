//! LayerNorm (Ba et al. 2016) and RMSNorm (Zhang and Sennrich 2019) over rows.

use std::mem::MaybeUninit;

use rayon::prelude::*;

use super::elementwise::written;
use super::pieces::Pieces;
use super::simd::{self, LANES, dot, inlined, rows_per_task, sum_by, vectorize};
use super::{Real, Stored};

/// Returns y and the statistics of each row. LayerNorm where there is a `bias`: y = (x − mean)·rstd·weight + bias, and the statistics are
/// (mean, rstd) pairs, `[rows, 2]`. Otherwise RMSNorm: y = x·rstd·weight with rstd = 1/sqrt(mean(x²) + eps), and the statistics are rstd,
/// `[rows]`.
pub fn normalize<S: Stored>(x: &[S], weight: &[S::Real], bias: Option<&[S::Real]>, eps: f64) -> (Vec<S>, Vec<S::Real>) {
    assert!(
        x.len().is_multiple_of(weight.len()) && bias.is_none_or(|bias| bias.len() == weight.len()),
        "shapes differ"
    );
    let (d, width) = (weight.len(), statistics_per_row(bias.is_some()));
    let (n, one) = (S::Real::real(d as f64), S::Real::ONE);
    let rows = rows_per_task(d);
    let mut stats = S::Real::zeros(x.len() / d * width);
    let write = |y: &mut [MaybeUninit<S>]| {
        y.par_chunks_mut(rows * d).zip(stats.par_chunks_mut(rows * width)).zip(x.par_chunks(rows * d)).for_each_piece(
            |((y, stats), x)| {
                vectorize(inlined!(|| {
                    for ((y, s), x) in y.chunks_exact_mut(d).zip(stats.chunks_exact_mut(width)).zip(x.chunks_exact(d)) {
                        if let Some(bias) = bias {
                            let mean = sum_by(x, inlined!(|v: S| v.load())) / n;
                            let variance = sum_by(x, inlined!(|v: S| (v.load() - mean) * (v.load() - mean))) / n;
                            let rstd = one / (variance + Real::real(eps)).root();
                            for (((y, &x), &w), &b) in y.iter_mut().zip(x).zip(weight).zip(bias) {
                                y.write(S::store(((x.load() - mean) * rstd).fma(w, b)));
                            }
                            s.copy_from_slice(&[mean, rstd]);
                        } else {
                            let rstd =
                                one / (sum_by(x, inlined!(|v: S| v.load() * v.load())) / n + Real::real(eps)).root();
                            for ((y, &x), &w) in y.iter_mut().zip(x).zip(weight) {
                                y.write(S::store(x.load() * rstd * w));
                            }
                            s[0] = rstd;
                        }
                    }
                }));
            },
        );
    };
    // SAFETY: all rows are written.
    let y = unsafe { written(x.len(), write) };
    (y, stats)
}

/// The number of statistics of each row.
pub fn statistics_per_row(has_bias: bool) -> usize {
    if has_bias { 2 } else { 1 }
}

/// Adds to the gradient of the weight, and to `dbias` where the norm is LayerNorm; returns dL/dx, plus `skip` (the gradient that bypassed the
/// norm) if given.
pub fn normalize_backward<S: Stored>(
    x: &[S],
    weight: &[S::Real],
    stats: &[S::Real],
    dy: &[S],
    skip: Option<&[S]>,
    dweight: &mut [S::Real],
    mut dbias: Option<&mut [S::Real]>,
) -> Vec<S> {
    assert!(x.len().is_multiple_of(weight.len()), "rows of another width");
    let (d, has_bias) = (weight.len(), dbias.is_some());
    let width = statistics_per_row(has_bias);
    let n = S::Real::real(d as f64);
    let rows = rows_per_task(d);
    let tasks = x.len().div_ceil(rows * d);
    let mut partial = S::Real::zeros(tasks * width * d);
    let write = |dx: &mut [MaybeUninit<S>]| {
        dx.par_chunks_mut(rows * d).zip(partial.par_chunks_mut(width * d)).enumerate().for_each_piece(
            |(task, (dx, partial))| {
                let (dw, db) = partial.split_at_mut(d);
                vectorize(inlined!(|| {
                    for (i, dx) in dx.chunks_exact_mut(d).enumerate() {
                        let row = task * rows + i;
                        let (x, dy) = (&x[row * d..][..d], &dy[row * d..][..d]);
                        let skip = skip.map(|skip| &skip[row * d..][..d]);
                        if has_bias {
                            let (mean, rstd) = (stats[2 * row], stats[2 * row + 1]);
                            let hat = inlined!(|x: S| (x.load() - mean) * rstd);
                            for (((dw, db), &x), &dy) in dw.iter_mut().zip(db.iter_mut()).zip(x).zip(dy) {
                                *dw = dy.load().fma(hat(x), *dw);
                                *db += dy.load();
                            }
                            // With g = dy·weight: dx = rstd·(g − mean(g) − hat·mean(g·hat)).
                            let mean_g = dot(dy, weight) / n;
                            let mean_gh = dot3(dy, weight, x, hat) / n;
                            let one_dx = inlined!(|x: S, dy: S, w| rstd * (dy.load() * w - mean_g - hat(x) * mean_gh));
                            store_sum(dx, x, dy, weight, skip, one_dx);
                        } else {
                            let rstd = stats[row];
                            for ((dw, &x), &dy) in dw.iter_mut().zip(x).zip(dy) {
                                *dw = dy.load().fma(x.load() * rstd, *dw);
                            }
                            // With g = dy·weight and hat = x·rstd: dx = rstd·(g − hat·mean(g·hat)).
                            let mean_gh = dot3(dy, weight, x, inlined!(|x: S| x.load())) * rstd / n;
                            let one_dx = inlined!(|x: S, dy: S, w| rstd * (dy.load() * w - x.load() * rstd * mean_gh));
                            store_sum(dx, x, dy, weight, skip, one_dx);
                        }
                    }
                }));
            },
        );
    };
    // SAFETY: all rows are written.
    let dx = unsafe { written(x.len(), write) };
    for p in partial.chunks_exact(width * d) {
        simd::add_rows(dweight, &p[..d]);
        if let Some(dbias) = &mut dbias {
            simd::add_rows(dbias, &p[d..]);
        }
    }
    dx
}

/// Σ x·y·f(z).
#[inline(always)]
fn dot3<S: Stored>(x: &[S], y: &[S::Real], z: &[S], f: impl Fn(S) -> S::Real) -> S::Real {
    let mut acc = [S::Real::ZERO; LANES];
    let n = x.len() / LANES * LANES;
    for ((x, y), z) in x.chunks_exact(LANES).zip(y.chunks_exact(LANES)).zip(z.chunks_exact(LANES)) {
        for i in 0..LANES {
            acc[i] = (x[i].load() * y[i]).fma(f(z[i]), acc[i]);
        }
    }
    let rest: S::Real = x[n..].iter().zip(&y[n..]).zip(&z[n..]).map(|((&x, &y), &z)| x.load() * y * f(z)).sum();
    acc.iter().copied().sum::<S::Real>() + rest
}

/// dx = f(x, dy, weight), plus `skip`.
#[inline(always)]
fn store_sum<S: Stored>(
    dx: &mut [MaybeUninit<S>],
    x: &[S],
    dy: &[S],
    weight: &[S::Real],
    skip: Option<&[S]>,
    f: impl Fn(S, S, S::Real) -> S::Real,
) {
    let inputs = x.iter().zip(dy).zip(weight);
    match skip {
        Some(skip) => {
            for ((dx, ((&x, &dy), &w)), &skip) in dx.iter_mut().zip(inputs).zip(skip) {
                dx.write(S::store(f(x, dy, w) + skip.load()));
            }
        }
        None => {
            for (dx, ((&x, &dy), &w)) in dx.iter_mut().zip(inputs) {
                dx.write(S::store(f(x, dy, w)));
            }
        }
    }
}
