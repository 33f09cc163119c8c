//! New buffers, copies, and conversions between f32 and bf16.

use candle_core::{DType, Device, Result, Tensor, bail};
use half::bf16;

use super::access::{tensor, write};
use super::cpu::simd::inlined;
use super::cpu::{Stored, elementwise};

/// Zeros of type `dtype` on `device`, `[len]`.
///
/// # Errors
/// If memory is short, or a GPU's kernels do not know the type.
pub fn zeros(len: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if device.is_cuda() {
        return crate::gpu::Gpu::of_device(device)?.zeros(dtype, len);
    }
    Tensor::zeros(len, dtype, device)
}

/// Overwrites `dst` with the numbers of `src`, which has the same length and is a different buffer; f32 and bf16 are converted.
///
/// # Errors
/// If lengths differ, or the types are neither equal nor these two.
pub fn copy(dst: &Tensor, src: &Tensor) -> Result<()> {
    if dst.dtype() != src.dtype() {
        return convert(dst, src);
    }
    on_gpu!(dst => crate::gpu::gpu_of(dst)?.copy(dst, src));
    dst.slice_set(src, 0, 0)
}

/// A copy of `x` in the other of the two types. bf16 numbers are rounded to nearest, ties to even.
///
/// # Errors
/// If `x` is of another type, or memory is short.
pub fn converted(x: &Tensor) -> Result<Tensor> {
    on_gpu!(x => super::cuda::pointwise::cast(x));
    match x.dtype() {
        DType::F32 => {
            read!(f32; numbers = x);
            tensor(elementwise::map(numbers, inlined!(|v| bf16::store(v))), x.shape())
        }
        DType::BF16 => {
            read!(bf16; numbers = x);
            tensor(elementwise::map(numbers, inlined!(|v: bf16| v.load())), x.shape())
        }
        other => bail!("f32 and bf16 are converted, not {other:?}"),
    }
}

/// Overwrites `dst` with the numbers of `src`, which has the same length and is of the other type.
///
/// # Errors
/// If types or lengths differ from this.
pub fn convert(dst: &Tensor, src: &Tensor) -> Result<()> {
    if dst.elem_count() != src.elem_count() {
        bail!("{} numbers for a tensor of {}", src.elem_count(), dst.elem_count())
    }
    on_gpu!(dst => super::cuda::pointwise::cast_into(dst, src));
    match (dst.dtype(), src.dtype()) {
        (DType::BF16, DType::F32) => {
            read!(f32; src = src);
            let store = |dst: &mut [bf16]| elementwise::zip(dst, src, inlined!(|d, s| *d = bf16::store(s)));
            write(dst, "convert", store)
        }
        (DType::F32, DType::BF16) => {
            read!(bf16; src = src);
            write(dst, "convert", |dst: &mut [f32]| elementwise::zip(dst, src, inlined!(|d, s| *d = s.load())))
        }
        (dst, src) => bail!("f32 and bf16 are converted, not {src:?} to {dst:?}"),
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    /// Against candle's own conversion, over more than one task.
    #[test]
    fn numbers_are_rounded_once_and_come_back() {
        let values = (0..40_001_u32).map(|i| f32::from_bits(i.wrapping_mul(0x0001_9661))).filter(|v| v.is_finite());
        let x = Tensor::new(values.collect::<Vec<f32>>(), &Device::Cpu).unwrap();
        let rounded = converted(&x).unwrap();
        assert_eq!(rounded.dtype(), DType::BF16);
        let bits = |x: &Tensor| -> Vec<u16> { x.to_vec1::<bf16>().unwrap().into_iter().map(bf16::to_bits).collect() };
        assert_eq!(bits(&rounded), bits(&x.to_dtype(DType::BF16).unwrap()));
        let back = converted(&rounded).unwrap();
        assert_eq!(back.to_vec1::<f32>().unwrap(), rounded.to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap());
        let part = rounded.narrow(0, 1, 2).unwrap();
        convert(&part, &Tensor::new(&[1.0_f32, 2.0], &Device::Cpu).unwrap()).unwrap();
        assert_eq!(bits(&rounded)[1..3], [0x3f80, 0x4000]);
        assert!(convert(&part, &x).is_err() && convert(&part, &part).is_err());
    }
}
