//! Elements of tensors as slices: typed reads, in-place writes through candle's `InplaceOp`, new tensors.

use std::marker::PhantomData;

use candle_core::{CpuStorage, Device, InplaceOp1, Layout, Result, Shape, Storage, Tensor, WithDType, bail};

use super::cpu::Real;

/// The precision of the numbers that kernels store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoredPrecision {
    /// Activations and the matrices that multiply them are bf16 values. On the CPU they stay in f32 or f64, rounded wherever a GPU
    /// would store bf16.
    pub bf16: bool,
}

/// Evaluates an expression with `$T` bound to the tensor's element type.
macro_rules! with_type {
    ($tensor:expr, $T:ident => $body:expr) => {
        match $tensor.dtype() {
            candle_core::DType::F32 => {
                type $T = f32;
                $body
            }
            candle_core::DType::F64 => {
                type $T = f64;
                $body
            }
            other => candle_core::bail!("kernels take f32 or f64, not {other:?}"),
        }
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

/// Binds names to the elements of tensors for the rest of the scope.
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

/// The elements of a contiguous tensor on the CPU.
///
/// # Errors
/// If it is on another device, of another type or not contiguous.
pub(super) fn elements<'a, T: WithDType>(storage: &'a Storage, layout: &Layout) -> Result<&'a [T]> {
    let Storage::Cpu(cpu) = storage else { bail!("a CPU kernel was given a tensor on another device") };
    let Some((start, end)) = layout.contiguous_offsets() else { bail!("a kernel was given a strided tensor") };
    Ok(&T::cpu_storage_as_slice(cpu)?[start..end])
}

struct Write<T, F> {
    name: &'static str,
    f: F,
    element: PhantomData<T>,
}

impl<T: Real, F: Fn(&mut [T])> InplaceOp1 for Write<T, F> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let Some((start, end)) = layout.contiguous_offsets() else { bail!("{}: strided destination", self.name) };
        (self.f)(&mut T::elements_mut(storage)?[start..end]);
        Ok(())
    }
}

/// Runs `f` on the elements of `tensor`, in place; the tensors that `f` reads must not share its buffer.
pub(super) fn write<T: Real>(tensor: &Tensor, name: &'static str, f: impl Fn(&mut [T])) -> Result<()> {
    tensor.inplace_op1(&Write { name, f, element: PhantomData })
}

/// A new CPU tensor.
pub(super) fn tensor<T: Real>(data: Vec<T>, shape: impl Into<Shape>) -> Result<Tensor> {
    Tensor::from_vec(data, shape.into(), &Device::Cpu)
}
