//! Elements of tensors as slices: typed reads, in-place writes through candle's `InplaceOp`, new tensors, copies to the host.

use std::ops::Range;

use candle_core::{CpuStorage, DType, Device, InplaceOp1, Layout, Result, Shape, Storage, Tensor, WithDType, bail};

use super::cpu::Stored;

/// Evaluates an expression with `$S` bound to the tensor's element type, and names bound to the elements of tensors of that type.
macro_rules! with_type {
    ($tensor:expr, $S:ident $(; $($name:ident = $read:expr),+)? => $body:expr) => {
        match $tensor.dtype() {
            candle_core::DType::F32 => {
                type $S = f32;
                $(read!($S; $($name = $read),+);)?
                $body
            }
            candle_core::DType::BF16 => {
                type $S = half::bf16;
                $(read!($S; $($name = $read),+);)?
                $body
            }
            candle_core::DType::F64 => {
                type $S = f64;
                $(read!($S; $($name = $read),+);)?
                $body
            }
            other => candle_core::bail!("kernels take f32, bf16 or f64, not {other:?}"),
        }
    };
}

/// The type in which kernels compute with numbers that are stored as `$S`.
macro_rules! real {
    ($S:ty) => {
        <$S as $crate::kernels::cpu::Stored>::Real
    };
}

/// Returns from the function with the result of a GPU's kernel, if the tensor is on a GPU.
macro_rules! on_gpu {
    ($tensor:expr => $call:expr) => {
        #[cfg(feature = "cuda")]
        if $tensor.device().is_cuda() {
            return $call;
        }
    };
}

/// Binds names to the elements of tensors for the rest of the scope. They lie in different buffers: another thread that waits to write
/// to a buffer which is read here lets nobody read it a second time ([`copied`]).
macro_rules! read {
    ($T:ty; $($name:ident = $tensor:expr),+ $(,)?) => {
        $(
            let guard = $tensor.storage_and_layout();
            let $name = $crate::kernels::access::elements::<$T>(&guard.0, guard.1)?;
        )+
    };
}

/// Binds a name to the elements of an `Option<&Tensor>` for the rest of the scope.
macro_rules! read_optional {
    ($T:ty; $name:ident = $tensor:expr) => {
        let guard = $tensor.map(candle_core::Tensor::storage_and_layout);
        let $name = match &guard {
            Some(guard) => Some($crate::kernels::access::elements::<$T>(&guard.0, guard.1)?),
            None => None,
        };
    };
}

/// A copy of the elements of a tensor that may lie in the buffer of one that is read afterwards, as a bias does in that of its matrix.
///
/// # Errors
/// Those of [`elements`].
pub(super) fn copied<T: WithDType>(tensor: Option<&Tensor>) -> Result<Option<Vec<T>>> {
    let copy = |tensor: &Tensor| {
        read!(T; values = tensor);
        Ok(values.to_vec())
    };
    tensor.map(copy).transpose()
}

/// The elements of a contiguous tensor on the CPU.
///
/// # Errors
/// If it is on another device, of another type or not contiguous.
pub(super) fn elements<'a, T: WithDType>(storage: &'a Storage, layout: &Layout) -> Result<&'a [T]> {
    let Storage::Cpu(cpu) = storage else { bail!("a CPU kernel was given a tensor on another device") };
    let Some((start, end)) = layout.contiguous_offsets() else { bail!("a kernel was given a strided tensor") };
    Ok(&T::cpu_storage_as_slice(cpu)?[start..end])
}

/// An operation that changes the elements of a range of a storage.
struct InPlace<F> {
    name: &'static str,
    operation: F,
}

impl<F: Fn(&mut CpuStorage, Range<usize>) -> Result<()>> InplaceOp1 for InPlace<F> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let Some((start, end)) = layout.contiguous_offsets() else { bail!("{}: strided destination", self.name) };
        (self.operation)(storage, start..end)
    }
}

/// Runs `operation` on the storage of `tensor`, a contiguous tensor on the CPU, and the range of its elements.
pub(super) fn in_place(
    tensor: &Tensor,
    name: &'static str,
    operation: impl Fn(&mut CpuStorage, Range<usize>) -> Result<()>,
) -> Result<()> {
    tensor.inplace_op1(&InPlace { name, operation })
}

/// Runs `f` on the elements of `tensor`, in place; the tensors that `f` reads must not share its buffer.
pub(super) fn write<T: Stored>(tensor: &Tensor, name: &'static str, f: impl Fn(&mut [T])) -> Result<()> {
    in_place(tensor, name, |storage, range| {
        f(&mut T::elements_mut(storage)?[range]);
        Ok(())
    })
}

/// A table of constants on the device of `like`: f64 where `like` is f64, otherwise f32.
pub(crate) fn table(values: Vec<f64>, shape: impl Into<Shape>, like: &Tensor) -> Result<Tensor> {
    let dtype = if like.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    tensor(values, shape)?.to_dtype(dtype)?.to_device(like.device())
}

/// A new CPU tensor.
pub(super) fn tensor<T: Stored>(data: Vec<T>, shape: impl Into<Shape>) -> Result<Tensor> {
    Tensor::from_vec(data, shape.into(), &Device::Cpu)
}

/// Copies `tensor` to the host's memory, and waits until the copy is done: the driver need not wait for the end of a copy to memory
/// that is not pinned, though it does so on most machines.
///
/// # Errors
/// If a kernel before it failed.
pub fn on_host(tensor: &Tensor) -> Result<Tensor> {
    let host = tensor.to_device(&Device::Cpu)?;
    #[cfg(feature = "cuda")]
    if tensor.device().is_cuda() {
        crate::gpu::gpu_of(tensor)?.synchronize()?;
    }
    Ok(host)
}
