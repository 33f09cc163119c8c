//! Self-attention with grouped key-value heads: in blocks of queries, and of new tokens over a key-value cache, for generation.
//!
//! A task is one (sample, key-value head). It holds one `[queries, keys]` tile of probabilities at a time, so scores never
//! exist for a whole head, and the backward recomputes them from the saved log-sum-exp (Dao et al. 2022). With AMX_BF16 and AVX512_BF16,
//! products read probabilities, and the gradients of scores, rounded to bf16.
//!
//! Panels of keys before those that a tile of queries sees are left out of all products: a window costs what it shows,
//! and so do documents.

use std::ops::Range;

use rayon::prelude::*;

use super::dropout::DropoutMask;
use super::elementwise::written;
use super::gemm::Mat;
use super::pieces::Pieces;
use super::product::panels::{Left, MAX_QUERIES, Panels, TileKeys};
use super::product::{FreeBuffers, PANEL_COLUMNS};
use super::simd::{Shared, axpy, dot, inlined, max, sum_by, vectorize};
use super::{Real, Stored};
use crate::kernels::attention_shape::{AttentionMasks, AttentionShape};

/// Queries whose probabilities a thread holds at a time.
pub(crate) const TILE_QUERIES: usize = MAX_QUERIES;
/// The backward holds probabilities and their gradient for a tile of queries, and products a rounded copy of one, stored in two orders.
pub(crate) const TILES: u64 = 3;
/// It also holds the keys of one head in two orders, the values in one, and the gradients of both.
pub(crate) const HEAD_BUFFERS: u64 = 5;

/// What a task holds. Later tasks of the same call use it again.
#[derive(Default)]
struct Buffers<S: Stored> {
    scores: Panels<S::Real>,
    gradients: Panels<S::Real>,
    /// The output of a tile, or the gradient of its queries.
    rows: Panels<S::Real>,
    /// Keys and values as the right matrix of products, and their transposes.
    keys: S::Operand,
    values: S::Operand,
    keys_t: S::Operand,
    values_t: S::Operand,
    /// The queries of a tile, and the gradient of its output.
    q_rows: S::Operand,
    dy_rows: S::Operand,
    left: S::Operand,
    dkeys: Panels<S::Real>,
    dvalues: Panels<S::Real>,
}

impl AttentionShape {
    /// Calls `f(sample, kv_head, buffers)` for every task, in parallel.
    ///
    /// # Panics
    /// If the heads are not divided evenly among key-value heads, so that tasks would not cover them: an invariant of the callers.
    fn for_each_task<S: Stored>(&self, f: impl Fn(usize, usize, &mut Buffers<S>) + Sync + Send) {
        assert!(self.heads.queries.is_multiple_of(self.heads.kv), "heads without a key-value head");
        let free = FreeBuffers::new();
        (0..self.batch * self.heads.kv).into_par_iter().for_each_piece(|t| {
            let mut buffers = free.take();
            f(t / self.heads.kv, t % self.heads.kv, &mut buffers);
            free.put_back(buffers);
        });
    }

    /// Calls `f(queries)` for every tile of queries.
    fn for_each_tile(&self, mut f: impl FnMut(Range<usize>)) {
        for from in (0..self.seq).step_by(TILE_QUERIES) {
            f(from..(from + TILE_QUERIES).min(self.seq));
        }
    }

    /// What a tile of queries of sample `b` sees.
    fn sight<'a>(&self, queries: &Range<usize>, masks: AttentionMasks<'a>, b: usize) -> Sight<'a> {
        let earlier = self.earlier_keys();
        let documents = masks.documents.map(|documents| &documents.host[b * self.seq..][queries.clone()]);
        // The first query's is the first of all, and panels are whole.
        let first = first_key(queries.start, earlier, documents, 0) / PANEL_COLUMNS * PANEL_COLUMNS;
        let end = (queries.end + self.later_keys()).min(self.seq);
        Sight {
            keys: TileKeys { first, before: queries.start + self.later_keys() - first },
            width: end - first,
            visible: masks.visible_keys(b).min(end).saturating_sub(first),
            query: queries.start,
            earlier,
            documents,
        }
    }

    /// The `head_dim` columns from `column` on, of the rows `rows` of sample `b`. Rows of `data` have `width` columns.
    fn head<'a, S>(&self, data: &'a [S], width: usize, b: usize, column: usize, rows: Range<usize>) -> Mat<'a, S> {
        Mat::strided(&data[(b * self.seq + rows.start) * width + column..], rows.len(), self.heads.width, width)
    }

    /// Copies the rows of `part`, each times its `factor`, to the `head_dim` columns from `column` on, of the rows of sample `b` from position
    /// `first` on.
    ///
    /// # Safety
    /// These columns of these rows lie in `data`, whose rows have `width` columns, and belong to the calling task alone.
    #[expect(clippy::too_many_arguments, reason = "one place among rows, heads and samples")]
    unsafe fn store_rows<S: Stored>(
        &self,
        part: &Panels<S::Real>,
        factor: impl Fn(usize) -> S::Real,
        first: usize,
        data: Shared<S>,
        width: usize,
        b: usize,
        column: usize,
    ) {
        vectorize(inlined!(|| {
            for i in 0..part.rows() {
                let factor = factor(i);
                // SAFETY: the caller's promise.
                let row = unsafe { data.uninitialized((b * self.seq + first + i) * width + column, self.heads.width) };
                for (panel, row) in row.chunks_mut(PANEL_COLUMNS).enumerate() {
                    for (stored, &number) in row.iter_mut().zip(part.row(panel, i)) {
                        stored.write(S::store(number * factor));
                    }
                }
            }
        }));
    }
}

/// The keys of a tile of queries, counted from `keys.first` on.
#[derive(Clone, Copy)]
struct Sight<'a> {
    keys: TileKeys,
    /// The number of keys up to the last that a query sees: the width of the tile.
    width: usize,
    /// The keys of these that lie before the padding.
    visible: usize,
    /// The position of the first query, and how many keys before its own a query sees.
    query: usize,
    earlier: usize,
    /// Where the documents of the queries start.
    documents: Option<&'a [u32]>,
}

/// The first key that query `i` of a tile sees; it is at `position`.
#[inline(always)]
fn first_key(position: usize, earlier: usize, documents: Option<&[u32]>, i: usize) -> usize {
    let first = position.saturating_sub(earlier);
    documents.map_or(first, |starts| first.max(starts[i] as usize))
}

impl Sight<'_> {
    /// The keys that query `i` of the tile sees; none where they are all padding.
    #[inline(always)]
    fn of_query(&self, i: usize) -> Range<usize> {
        let first = first_key(self.query + i, self.earlier, self.documents, i);
        first.saturating_sub(self.keys.first)..(self.keys.before + i + 1).min(self.visible)
    }
}

/// The keys of `seen` that panel `panel` has, counted from its first.
#[inline(always)]
fn in_panel(seen: &Range<usize>, panel: usize) -> Range<usize> {
    let from = panel * PANEL_COLUMNS;
    seen.start.saturating_sub(from)..seen.end.saturating_sub(from).min(PANEL_COLUMNS)
}

/// Returns softmax(scale·q·kᵀ)·v over the keys that each query sees, and the log-sum-exp of each query's scores, `[batch, heads, seq]`.
/// Both are 0 for a query that sees no key.
pub fn forward<S: Stored>(s: AttentionShape, qkv: &[S], masks: AttentionMasks<'_>) -> (Vec<S>, Vec<S::Real>) {
    let (width, out_width, hd) = (s.qkv_width(), s.out_width(), s.heads.width);
    let group = s.heads.group();
    let mut lse = S::Real::zeros(s.batch * s.heads.queries * s.seq);
    let shared_lse = Shared::new(&mut lse);
    let attend = |shared_out: Shared<S>| {
        s.for_each_task::<S>(|b, kv, buffers| {
            let Buffers { scores, rows, values, keys_t, left, .. } = buffers;
            let mut inverse_totals = [S::Real::ZERO; TILE_QUERIES];
            S::pack(keys_t, s.head(qkv, width, b, (s.heads.queries + kv) * hd, 0..s.seq).t());
            S::pack(values, s.head(qkv, width, b, (s.heads.queries + s.heads.kv + kv) * hd, 0..s.seq));
            for head in kv * group..(kv + 1) * group {
                s.for_each_tile(|queries| {
                    let (from, n, sight) = (queries.start, queries.len(), s.sight(&queries, masks, b));
                    let q = s.head(qkv, width, b, head * hd, queries);
                    scores.reshape(n, sight.width);
                    S::multiply_panels(scores, Left::QueriesByFeatures(q), keys_t, sight.keys, left);
                    // SAFETY: these queries of this head belong to this task alone.
                    let lse = unsafe { shared_lse.slice((b * s.heads.queries + head) * s.seq + from, n) };
                    exponentials_of_visible(scores, s.scale, sight, lse, &mut inverse_totals);
                    drop_probabilities(scores, s, b, head, sight, masks.dropout);
                    rows.reshape(n, hd);
                    S::multiply_panels(rows, Left::QueriesByKeys(scores), values, sight.keys, left);
                    // SAFETY: the columns of this head belong to this task alone.
                    unsafe { s.store_rows(rows, |i| inverse_totals[i], from, shared_out, out_width, b, head * hd) };
                });
            }
        });
    };
    // SAFETY: all rows of all heads are written.
    let out = unsafe { written(s.batch * s.seq * out_width, |out| attend(Shared::unwritten(out))) };
    (out, lse)
}

/// Rows of scores, which are multiplied by `scale`, become the exponentials of their differences from the largest, and 0 for keys that the
/// row's query does not see. `lse` becomes the log-sum-exp of each row's scores, and `inverse_totals` 1 / the sum of its exponentials; both
/// are 0 for a query that sees no key.
fn exponentials_of_visible<T: Real>(
    scores: &mut Panels<T>,
    scale: f64,
    sight: Sight<'_>,
    lse: &mut [T],
    inverse_totals: &mut [T],
) {
    let scale = T::real(scale);
    vectorize(inlined!(|| {
        for (i, (lse, inverse)) in lse.iter_mut().zip(inverse_totals).enumerate() {
            let seen = sight.of_query(i);
            let mut largest = [T::LOWEST; PANEL_COLUMNS];
            for panel in seen.start / PANEL_COLUMNS..seen.end.div_ceil(PANEL_COLUMNS) {
                let (row, columns) = (scores.row(panel, i), in_panel(&seen, panel));
                if columns.start == 0 {
                    keep_largest(&mut largest, row, inlined!(|c: usize| c < columns.end));
                } else {
                    keep_largest(&mut largest, row, inlined!(|c: usize| columns.contains(&c)));
                }
            }
            let top = max(&largest) * scale;
            let mut totals = [T::ZERO; PANEL_COLUMNS];
            for panel in 0..scores.panels() {
                let (row, columns) = (scores.row_mut(panel, i), in_panel(&seen, panel));
                if columns.is_empty() {
                    row.fill(T::ZERO);
                } else if columns.start == 0 {
                    exponentiate(row, &mut totals, scale, top, inlined!(|c: usize| c < columns.end));
                } else {
                    exponentiate(row, &mut totals, scale, top, inlined!(|c: usize| columns.contains(&c)));
                }
            }
            let total = sum_by(&totals, inlined!(|v: T| v));
            (*inverse, *lse) = if seen.is_empty() { (T::ZERO, T::ZERO) } else { (T::ONE / total, top + total.log()) };
        }
    }));
}

/// `largest` become the larger of themselves and of the scores that are seen.
#[inline(always)]
fn keep_largest<T: Real>(
    largest: &mut [T; PANEL_COLUMNS],
    scores: &[T; PANEL_COLUMNS],
    is_seen: impl Fn(usize) -> bool,
) {
    for c in 0..PANEL_COLUMNS {
        let score = if is_seen(c) { scores[c] } else { T::LOWEST };
        largest[c] = score.larger(largest[c]);
    }
}

/// Scores that are seen become the exponentials of `scale` times them less `top`, the others 0. Adds them to `totals`.
#[inline(always)]
fn exponentiate<T: Real>(
    scores: &mut [T; PANEL_COLUMNS],
    totals: &mut [T; PANEL_COLUMNS],
    scale: T,
    top: T,
    is_seen: impl Fn(usize) -> bool,
) {
    for c in 0..PANEL_COLUMNS {
        let exponential = scores[c].fma(scale, -top).fast_exp();
        scores[c] = if is_seen(c) { exponential } else { T::ZERO };
        totals[c] += scores[c];
    }
}

/// Applies dropout to a tile of probabilities or of their gradients.
fn drop_probabilities<T: Real>(
    p: &mut Panels<T>,
    s: AttentionShape,
    b: usize,
    head: usize,
    sight: Sight<'_>,
    dropout: Option<&DropoutMask>,
) {
    if let Some(dropout) = dropout {
        for i in 0..p.rows() {
            let first = (head * s.seq + sight.query + i) * s.seq + sight.keys.first;
            for panel in 0..p.panels() {
                dropout.apply(p.row_mut(panel, i), b, first + panel * PANEL_COLUMNS);
            }
        }
    }
}

/// dL/d(qkv) from dL/d(out).
pub fn backward<S: Stored>(
    s: AttentionShape,
    qkv: &[S],
    out: &[S],
    lse: &[S::Real],
    masks: AttentionMasks<'_>,
    dout: &[S],
) -> Vec<S> {
    let (width, out_width, hd) = (s.qkv_width(), s.out_width(), s.heads.width);
    let scale = S::Real::real(s.scale);
    let group = s.heads.group();
    let write = |shared: Shared<S>| {
        s.for_each_task::<S>(|b, kv, buffers| {
            let Buffers {
                scores,
                gradients,
                rows,
                keys,
                keys_t,
                values_t,
                q_rows,
                dy_rows,
                left,
                dkeys,
                dvalues,
                values: _,
            } = buffers;
            let k = s.head(qkv, width, b, (s.heads.queries + kv) * hd, 0..s.seq);
            let v = s.head(qkv, width, b, (s.heads.queries + s.heads.kv + kv) * hd, 0..s.seq);
            S::pack(keys, k);
            S::pack(keys_t, k.t());
            S::pack(values_t, v.t());
            dkeys.reshape_to_zeros(s.seq, hd);
            dvalues.reshape_to_zeros(s.seq, hd);
            for head in kv * group..(kv + 1) * group {
                s.for_each_tile(|queries| {
                    let (from, n, sight) = (queries.start, queries.len(), s.sight(&queries, masks, b));
                    let q = s.head(qkv, width, b, head * hd, queries.clone());
                    let dy = s.head(dout, out_width, b, head * hd, queries);
                    S::pack(q_rows, q);
                    S::pack(dy_rows, dy);
                    scores.reshape(n, sight.width);
                    S::multiply_panels(scores, Left::QueriesByFeatures(q), keys_t, sight.keys, left);
                    gradients.reshape(n, sight.width);
                    S::multiply_panels(gradients, Left::QueriesByFeatures(dy), values_t, sight.keys, left);
                    drop_probabilities(gradients, s, b, head, sight, masks.dropout);
                    let lse = &lse[(b * s.heads.queries + head) * s.seq + from..][..n];
                    // Σⱼ pⱼ·dpⱼ of a query, which is the output's row times its gradient.
                    let delta = inlined!(|i: usize| {
                        let row = (b * s.seq + from + i) * out_width + head * hd;
                        dot(&out[row..row + hd], &dout[row..row + hd])
                    });
                    gradients_of_scores(scores, gradients, scale, sight, lse, delta);
                    drop_probabilities(scores, s, b, head, sight, masks.dropout);
                    S::multiply_panels(dvalues, Left::KeysByQueries(scores), dy_rows, sight.keys, left);
                    S::multiply_panels(dkeys, Left::KeysByQueries(gradients), q_rows, sight.keys, left);
                    rows.reshape(n, hd);
                    S::multiply_panels(rows, Left::QueriesByKeys(gradients), keys, sight.keys, left);
                    // SAFETY: the columns of this head belong to this task alone.
                    unsafe { s.store_rows(rows, |_| scale, from, shared, width, b, head * hd) };
                });
            }
            // SAFETY: the columns of this key-value head belong to this task alone.
            unsafe {
                s.store_rows(dkeys, |_| scale, 0, shared, width, b, (s.heads.queries + kv) * hd);
                s.store_rows(dvalues, |_| Real::ONE, 0, shared, width, b, (s.heads.queries + s.heads.kv + kv) * hd);
            }
        });
    };
    // SAFETY: all rows of all heads are written.
    unsafe { written(s.batch * s.seq * width, |dqkv| write(Shared::unwritten(dqkv))) }
}

/// Rows of scores become probabilities p, as [`exponentials_of_visible`] and the known log-sum-exps make them; the gradients dp of
/// probabilities become those of scores, p·(dp − `delta`(row)).
fn gradients_of_scores<T: Real>(
    scores: &mut Panels<T>,
    gradients: &mut Panels<T>,
    scale: T,
    sight: Sight<'_>,
    lse: &[T],
    delta: impl Fn(usize) -> T,
) {
    vectorize(inlined!(|| {
        for (i, &lse) in lse.iter().enumerate() {
            let (seen, delta) = (sight.of_query(i), delta(i));
            for panel in 0..scores.panels() {
                let (p, dp) = (scores.row_mut(panel, i), gradients.row_mut(panel, i));
                let columns = in_panel(&seen, panel);
                if columns.is_empty() {
                    p.fill(T::ZERO);
                    dp.fill(T::ZERO);
                } else if columns.start == 0 {
                    differentiate(p, dp, scale, lse, delta, inlined!(|c: usize| c < columns.end));
                } else {
                    differentiate(p, dp, scale, lse, delta, inlined!(|c: usize| columns.contains(&c)));
                }
            }
        }
    }));
}

/// [`gradients_of_scores`] for a row of a panel.
#[inline(always)]
fn differentiate<T: Real>(
    p: &mut [T; PANEL_COLUMNS],
    dp: &mut [T; PANEL_COLUMNS],
    scale: T,
    lse: T,
    delta: T,
    is_seen: impl Fn(usize) -> bool,
) {
    for c in 0..PANEL_COLUMNS {
        let probability = p[c].fma(scale, -lse).fast_exp();
        p[c] = if is_seen(c) { probability } else { T::ZERO };
        dp[c] = if is_seen(c) { p[c] * (dp[c] - delta) } else { T::ZERO };
    }
}

/// Appends the keys and values of `s.seq` new tokens per sample to a cache at position `start`, and attends with each token's query over
/// the cached tokens that its mask shows, up to the token itself. `keys_values` is the cache: first the keys, then the values, [batch,
/// heads of keys, capacity, width of a head] each, with space for the new tokens. `qkv` and `out` have the rows that [`AttentionShape`] describes.
pub fn attend_with_cache<S: Stored>(
    s: AttentionShape,
    qkv: &[S],
    start: usize,
    keys_values: &mut [S],
    capacity: usize,
    out: &mut [S],
) {
    let (width, out_width, hd) = (s.qkv_width(), s.out_width(), s.heads.width);
    let group = s.heads.group();
    let scale = S::Real::real(s.scale);
    let shared = Shared::new(out);
    let block = capacity * hd;
    let [earlier, _] = s.mask.reach(start + s.seq);
    let (keys, values) = keys_values.split_at_mut(s.batch * s.heads.kv * block);
    keys.par_chunks_mut(block).zip(values.par_chunks_mut(block)).enumerate().for_each_piece(
        |(task, (keys, values))| {
            let (b, kv) = (task / s.heads.kv, task % s.heads.kv);
            let mut p = S::Real::zeros(start + s.seq);
            let mut sum = S::Real::zeros(hd);
            for i in 0..s.seq {
                let row = &qkv[(b * s.seq + i) * width..][..width];
                keys[(start + i) * hd..][..hd].copy_from_slice(&row[(s.heads.queries + kv) * hd..][..hd]);
                values[(start + i) * hd..][..hd]
                    .copy_from_slice(&row[(s.heads.queries + s.heads.kv + kv) * hd..][..hd]);
                let first = (start + i).saturating_sub(earlier);
                let p = &mut p[first..=start + i];
                for head in kv * group..(kv + 1) * group {
                    // SAFETY: this head's columns of this row belong to this task alone.
                    let out = unsafe { shared.slice((b * s.seq + i) * out_width + head * hd, hd) };
                    vectorize(inlined!(|| {
                        let q = &row[head * hd..][..hd];
                        for (p, k) in p.iter_mut().zip(keys[first * hd..].chunks_exact(hd)) {
                            *p = dot(q, k) * scale;
                        }
                        let top = max(p);
                        for p in p.iter_mut() {
                            *p = (*p - top).fast_exp();
                        }
                        let inverse = S::Real::ONE / sum_by(p, inlined!(|v| v));
                        sum.fill(Real::ZERO);
                        for (&p, v) in p.iter().zip(values[first * hd..].chunks_exact(hd)) {
                            axpy(S::rounded(p * inverse), v, &mut sum);
                        }
                        for (out, &sum) in out.iter_mut().zip(&sum) {
                            *out = S::store(sum);
                        }
                    }));
                }
            }
        },
    );
}
