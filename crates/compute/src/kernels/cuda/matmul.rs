//! Matrix products of linear layers, by cuBLASLt, and gradients of biases.

use candle_core::{DType, Result, Tensor, bail};

use super::launch::{AddColumns, ColumnSums, Launch, LaunchDims, PIECE, int, whole_warps};
use super::pointwise;
use crate::gpu::{Epilogue, Gpu, MatmulOperand, MatmulRequest, address, address_of_rows, gpu_of};
use runner_spec::experiment::Activation;

/// cuBLASLt's fast kernels need rows and sizes of multiples of 16 bytes: 8 numbers of bf16.
const ALIGNED: usize = 8;

/// A matrix of f32 or bf16, whose rows are columns to cuBLASLt.
fn operand(x: &Tensor, transposed: bool) -> Result<MatmulOperand> {
    let (address, stride) = address_of_rows(x)?;
    Ok(MatmulOperand { address, stride, dtype: x.dtype(), transposed })
}

/// The columns of `y` in parts, each its start and number: if there are gaps between rows, the columns up to a multiple of 8, and the rest.
fn column_parts(y: &Tensor) -> Result<Vec<(usize, usize)>> {
    let (_, width) = y.dims2()?;
    let aligned = if y.is_contiguous() { width } else { width / ALIGNED * ALIGNED };
    Ok([(0, aligned), (aligned, width - aligned)].into_iter().filter(|(_, columns)| *columns > 0).collect())
}

/// The product out (m × n) = a (m × k) · b (k × n), column-major.
fn request([m, n, k]: [usize; 3], a: MatmulOperand, b: MatmulOperand, out: &Tensor) -> Result<MatmulRequest> {
    Ok(MatmulRequest { m, n, k, a, b, out: operand(out, false)?, addend: None, epilogue: Epilogue::None })
}

/// y = x·wᵀ, row-major: `[rows, in]` and `[out, in]` give `[rows, out]`. To cuBLASLt, which counts columns first, that is w·x of the
/// transposes. `false`, and nothing done, if it has no algorithm with this epilogue.
fn product(x: &Tensor, w: &Tensor, y: &Tensor, epilogue: Epilogue) -> Result<bool> {
    product_and_sum(x, w, None, y, epilogue)
}

/// [`product`] plus `addend`, `[rows, out]`.
fn product_and_sum(x: &Tensor, w: &Tensor, addend: Option<&Tensor>, y: &Tensor, epilogue: Epilogue) -> Result<bool> {
    let ((rows, inner), (out, width)) = (x.dims2()?, w.dims2()?);
    if inner != width || x.dtype() != w.dtype() {
        bail!("a product of {:?} {:?} and {:?} {:?}", x.dims(), x.dtype(), w.dims(), w.dtype())
    }
    let addend = addend.map(address).transpose()?;
    let request =
        MatmulRequest { addend, epilogue, ..request([out, rows, inner], operand(w, true)?, operand(x, false)?, y)? };
    // SAFETY: w is [out, in], x [rows, in], y and addend [rows, out], as checked here or made or checked by the callers.
    unsafe { gpu_of(x)?.multiply(&request) }
}

/// `add_bias` with a bias of f32 or bf16.
fn add_any_bias(x: &Tensor, bias: &Tensor, activated: bool) -> Result<Option<Tensor>> {
    let bias = if bias.dtype() == DType::F32 { bias } else { &pointwise::cast(bias)? };
    pointwise::add_bias(x, bias, activated)
}

/// The product's epilogue adds a bias of the output's type. A second pass adds an f32 bias to bf16 outputs, which cuBLASLt cannot do,
/// and any bias where cuBLASLt finds no algorithm.
pub fn linear(x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let ((rows, _), (out, _)) = (x.dims2()?, w.dims2()?);
    let y = gpu_of(x)?.empty(x.dtype(), (rows, out))?;
    match bias {
        Some(bias) if bias.elem_count() != out => bail!("a bias of {} for {out} columns", bias.elem_count()),
        Some(bias) if bias.dtype() == x.dtype() && product(x, w, &y, Epilogue::Bias(address(bias)?))? => {}
        Some(bias) => {
            product(x, w, &y, Epilogue::None)?;
            add_any_bias(&y, bias, false)?;
        }
        None => {
            product(x, w, &y, Epilogue::None)?;
        }
    }
    Ok(y)
}

/// `linear`, with a gap after each row of the result if rows are not whole multiples of 16 bytes otherwise.
pub fn linear_aligned(x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let ((rows, _), (out, _)) = (x.dims2()?, w.dims2()?);
    if bias.is_some() || out < ALIGNED || out.is_multiple_of(ALIGNED) {
        return linear(x, w, bias);
    }
    let y = gpu_of(x)?.empty(x.dtype(), (rows, out.next_multiple_of(ALIGNED)))?.narrow(1, 0, out)?;
    for (start, columns) in column_parts(&y)? {
        product(x, &w.narrow(0, start, columns)?, &y.narrow(1, start, columns)?, Epilogue::None)?;
    }
    Ok(y)
}

/// `linear` plus `residual`, `[rows, out]`. The product adds it before it is rounded, unless the bias needs a separate pass.
pub fn linear_sum(x: &Tensor, w: &Tensor, bias: Option<&Tensor>, residual: &Tensor) -> Result<Tensor> {
    let shape = (x.dim(0)?, w.dim(0)?);
    if residual.dims2()? != shape || residual.dtype() != x.dtype() {
        bail!("{:?} {:?} is added to {shape:?} {:?}", residual.dims(), residual.dtype(), x.dtype())
    }
    let epilogue = match bias {
        None => Some(Epilogue::None),
        Some(bias) if bias.dtype() == x.dtype() && bias.elem_count() == shape.1 => Some(Epilogue::Bias(address(bias)?)),
        Some(_) => None,
    };
    if let Some(epilogue) = epilogue {
        let y = gpu_of(x)?.empty(x.dtype(), shape)?;
        if product_and_sum(x, w, Some(residual), &y, epilogue)? {
            return Ok(y);
        }
    }
    let y = linear(x, w, bias)?;
    pointwise::add_assign(&y, residual)?;
    Ok(y)
}

/// Returns x·wᵀ + bias and its GELU. The product's epilogue computes them if the bias has the output's type and rows are whole vectors.
pub fn linear_gelu(x: &Tensor, w: &Tensor, bias: &Tensor) -> Result<(Tensor, Tensor)> {
    let ((rows, _), (out, _)) = (x.dims2()?, w.dims2()?);
    if bias.elem_count() != out {
        bail!("a bias of {} for {out} columns", bias.elem_count())
    }
    if bias.dtype() == x.dtype() && !out.is_multiple_of(8) {
        let before = linear(x, w, Some(bias))?;
        let after = pointwise::activate(&before, Activation::Gelu)?;
        return Ok((before, after));
    }
    let before = gpu_of(x)?.empty(x.dtype(), (rows, out))?;
    if bias.dtype() == x.dtype() {
        let after = gpu_of(x)?.empty(x.dtype(), (rows, out))?;
        let epilogue = Epilogue::GeluAux { bias: address(bias)?, before: address(&before)? };
        if product(x, w, &after, epilogue)? {
            return Ok((before, after));
        }
    }
    product(x, w, &before, Epilogue::None)?;
    match add_any_bias(&before, bias, true)? {
        Some(after) => Ok((before, after)),
        None => bail!("an activation without its output"),
    }
}

/// dx = dy·w, or dx += dy·w if `adds`. `false`, and nothing done, if cuBLASLt has no algorithm with this epilogue.
fn product_for_input(dx: &Tensor, dy: &Tensor, w: &Tensor, adds: bool, epilogue: Epilogue) -> Result<bool> {
    let ((rows, out), (height, inner)) = (dy.dims2()?, w.dims2()?);
    if out != height || dy.dtype() != w.dtype() {
        bail!("a product of {:?} {:?} and {:?} {:?}", dy.dims(), dy.dtype(), w.dims(), w.dtype())
    }
    let addend = adds.then(|| address(dx)).transpose()?;
    let request = request([inner, rows, out], operand(w, false)?, operand(dy, false)?, dx)?;
    let request = MatmulRequest { addend, epilogue, ..request };
    // SAFETY: w is [out, in], dy [rows, out], as checked here, and dx [rows, in], as made by the callers.
    unsafe { gpu_of(dy)?.multiply(&request) }
}

/// dL/dx = dy·w: `[rows, out]` and `[out, in]` give `[rows, in]`.
pub fn linear_backward_input(dy: &Tensor, w: &Tensor) -> Result<Tensor> {
    if dy.dim(1)? != w.dim(0)? {
        bail!("a product of {:?} and {:?}", dy.dims(), w.dims())
    }
    let dx = gpu_of(dy)?.empty(dy.dtype(), (dy.dim(0)?, w.dim(1)?))?;
    // The rest first, whose rounded sum is the smaller one.
    for (i, (start, columns)) in column_parts(dy)?.into_iter().rev().enumerate() {
        let (dy, w) = (dy.narrow(1, start, columns)?, w.narrow(0, start, columns)?);
        product_for_input(&dx, &dy, &w, i > 0, Epilogue::None)?;
    }
    Ok(dx)
}

/// (dy·w)·gelu'(before), `before` `[rows, in]`. The product's epilogue multiplies by the slope, before the result is rounded, if that is bf16
/// and rows are whole vectors. cuBLASLt's slope is 1e-5 off, too far for f32 (H100, cuBLASLt 13.1).
pub fn linear_backward_gelu(dy: &Tensor, w: &Tensor, before: &Tensor) -> Result<Tensor> {
    let (rows, inner) = (dy.dim(0)?, w.dim(1)?);
    if before.dims2()? != (rows, inner) || before.dtype() != dy.dtype() {
        bail!("values before GELU are {:?} {:?}, not [{rows}, {inner}]", before.dims(), before.dtype())
    }
    let dx = gpu_of(dy)?.empty(dy.dtype(), (rows, inner))?;
    let epilogue = Epilogue::GeluSlope { before: address(before)? };
    let fits = dy.dtype() == DType::BF16 && inner.is_multiple_of(8);
    if !fits || !product_for_input(&dx, dy, w, false, epilogue)? {
        product_for_input(&dx, dy, w, false, Epilogue::None)?;
        pointwise::activate_backward(&dx, before, Activation::Gelu)?;
    }
    Ok(dx)
}

/// dw += dyᵀ·x, or without `adds` dw = dyᵀ·x; dw f32, `[out, in]`.
pub fn linear_backward_weight(dw: &Tensor, dy: &Tensor, x: &Tensor, adds: bool) -> Result<()> {
    let ((rows, out), (height, inner)) = (dy.dims2()?, x.dims2()?);
    if rows != height || dy.dtype() != x.dtype() || dw.dims2()? != (out, inner) || dw.dtype() != DType::F32 {
        let (a, b, c) = (dy.dims(), x.dims(), dw.dims());
        bail!("a product of {a:?} {:?} and {b:?} {:?} into {c:?} {:?}", dy.dtype(), x.dtype(), dw.dtype())
    }
    for (start, columns) in column_parts(dy)? {
        let (dw, dy) = (dw.narrow(0, start, columns)?, dy.narrow(1, start, columns)?);
        let request = request([inner, columns, rows], operand(x, false)?, operand(&dy, true)?, &dw)?;
        let request = MatmulRequest { addend: adds.then_some(request.out.address), ..request };
        // SAFETY: x is [rows, in], dy [rows, columns], dw [columns, in].
        unsafe { gpu_of(&dy)?.multiply(&request)? };
    }
    Ok(())
}

/// The parts in which `rows` rows of `width` numbers are summed, and the threads of a part, each for eight numbers of a row. Part p has the rows p,
/// p + parts, ... They are enough to keep memory busy; more would only make more partial sums.
pub(super) fn row_parts(gpu: &Gpu, rows: usize, width: usize) -> (usize, usize) {
    let threads = whole_warps(width.div_ceil(PIECE)).min(1024);
    ((gpu.multiprocessors() * (768 / threads).clamp(1, 8)).min(rows).max(1), threads)
}

/// dbias (f32) += the column sums of dy, whose kernel may have made `row_sums`.
pub fn bias_backward(dbias: &Tensor, dy: &Tensor, row_sums: Option<&Tensor>) -> Result<()> {
    if let Some(row_sums) = row_sums {
        return add_columns(dbias, None, row_sums);
    }
    let (rows, width) = dy.dims2()?;
    let launch = Launch::for_tensor(dy)?;
    let (parts, threads) = row_parts(&launch.gpu, rows, width);
    let threads = threads.min(256);
    let partial = launch.gpu.empty(DType::F32, (parts, width))?;
    let parameters = ColumnSums {
        partial: launch.array("partial", &partial, parts * width)?,
        x: launch.array("dy", dy, rows * width)?,
        rows: rows as i64,
        width: int(width)?,
    };
    let grid = [width.div_ceil(threads * PIECE).max(1) as u32, parts as u32, 1];
    // SAFETY: a thread for each eight columns of a part.
    unsafe { launch.run(&parameters, LaunchDims { grid, block: [threads as u32, 1, 1], shared: 0 })? }
    add_columns(dbias, None, &partial)
}

/// Adds the column sums of `partial` to `out`, and those of the columns after `out`'s to `other`.
pub(super) fn add_columns(out: &Tensor, other: Option<&Tensor>, partial: &Tensor) -> Result<()> {
    let (rows, width) = partial.dims2()?;
    let first = out.elem_count();
    if first > width || (other.is_none() && first != width) {
        bail!("{first} sums of {width} columns")
    }
    let launch = Launch::for_tensor(out)?;
    let parameters = AddColumns {
        out: launch.array("sums", out, first)?,
        other: launch.array("sums", other, width - first)?,
        partial: launch.array("partial", partial, rows * width)?,
        rows: int(rows)?,
        width: int(width)?,
        split: int(first)?,
    };
    // SAFETY: blocks of 32 columns.
    unsafe { launch.run(&parameters, LaunchDims::linear(width.div_ceil(32), 512)) }
}
