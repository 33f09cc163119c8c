//! Embedding of token ids, with positions where the model has them.

use candle_core::{Result, Tensor, WithDType, bail};

use super::access::{copied, table, tensor, write};
use super::cpu::{Real, embedding};

/// `[rows]` ids and a `[vocab, d]` table give `[rows, d]`, the table's rows times `scale` plus those of `positions`; row r is at
/// position `start + r mod seq`.
pub fn embed(
    ids: &Tensor,
    table: &Tensor,
    scale: Option<f64>,
    positions: Option<&Tensor>,
    seq: usize,
    start: usize,
) -> Result<Tensor> {
    on_gpu!(table => super::cuda::embedding::embed(ids, table, scale, positions, seq, start));
    let (vocab, d) = table.dims2()?;
    let rows = ids.elem_count();
    if let Some(p) = positions
        && start + seq > p.dims2()?.0
    {
        bail!("position {} is beyond the context length {}", start + seq - 1, p.dims2()?.0)
    }
    let positions = positions.map(|positions| positions.narrow(0, start, seq)).transpose()?;
    let positions = positions.as_ref();
    with_type!(table, S => {
        // Fixed positions are f32 beside a bf16 table.
        let is_stored = positions.is_none_or(|positions| positions.dtype() == S::DTYPE);
        let (stored, real) = if is_stored { (copied::<S>(positions)?, None) } else { (None, copied::<real!(S)>(positions)?) };
        read!(S; table = table);
        read!(u32; ids = ids);
        if let Some(id) = ids.iter().find(|&&id| id as usize >= vocab) {
            bail!("token id {id} is beyond the vocabulary of {vocab}")
        }
        let scale = scale.map(<real!(S)>::real);
        let y = match real {
            Some(positions) => embedding::embed(ids, table, scale, Some(&positions), d, seq),
            None => embedding::embed(ids, table, scale, stored.as_deref(), d, seq),
        };
        tensor(y, (rows, d))
    })
}

/// The table of sinusoidal positions, `[positions, d]`, on the device of `like`: f64 where `like` is, otherwise f32.
pub fn sinusoids(positions: usize, d: usize, like: &Tensor) -> Result<Tensor> {
    table(embedding::sinusoids(positions, d), (positions, d), like)
}

/// `dtable[ids[r]] += scale·dy[r]`.
pub fn embed_backward(dtable: &Tensor, ids: &Tensor, scale: Option<f64>, dy: &Tensor) -> Result<()> {
    on_gpu!(dy => super::cuda::embedding::embed_backward(dtable, ids, scale, dy));
    let (_, d) = dy.dims2()?;
    with_type!(dy, S; dy = dy => {
        read!(u32; ids = ids);
        write::<real!(S)>(dtable, "embed_backward", |dt| {
            embedding::scatter_add::<S>(dy, d, Real::real(scale.unwrap_or(1.0)), dt, |r| ids[r] as usize);
        })
    })
}

/// `dpositions[r mod seq] += dy[r]`.
pub fn position_backward(dpositions: &Tensor, seq: usize, dy: &Tensor) -> Result<()> {
    on_gpu!(dy => super::cuda::embedding::position_backward(dpositions, seq, dy));
    let (_, d) = dy.dims2()?;
    with_type!(dy, S; dy = dy => {
        write::<real!(S)>(dpositions, "position_backward", |dp| {
            embedding::scatter_add::<S>(dy, d, Real::ONE, dp, |r| r % seq);
        })
    })
}

/// Returns the rows `rows` of `x`, in order: `[rows.len(), d]`.
pub fn take_rows(x: &Tensor, rows: &[usize]) -> Result<Tensor> {
    on_gpu!(x => super::cuda::embedding::take_rows(x, rows));
    let (_, d) = x.dims2()?;
    with_type!(x, S; x = x => {
        let mut out: Vec<S> = Vec::with_capacity(rows.len() * d);
        for &r in rows {
            out.extend_from_slice(&x[r * d..][..d]);
        }
        tensor(out, (rows.len(), d))
    })
}
