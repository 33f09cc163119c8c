//! Tensors as bytes: what communication copies in and out. A tensor's lock is held for one such copy and no longer.

use candle_core::{CpuStorage, DType, Device, InplaceOp1, Layout, Result, Storage, Tensor, bail};

/// Types that are nothing but their bits: any bytes are a value, and a value has no padding.
trait Plain: Copy {}
impl Plain for f32 {}
impl Plain for f64 {}
impl Plain for u32 {}
impl Plain for half::bf16 {}

#[expect(unsafe_code, reason = "numbers as bytes")]
fn bytes<T: Plain>(x: &[T]) -> &[u8] {
    // SAFETY: the same memory under the same borrow; `Plain` has no padding.
    unsafe { std::slice::from_raw_parts(x.as_ptr().cast(), size_of_val(x)) }
}

#[expect(unsafe_code, reason = "numbers as bytes")]
fn bytes_mut<T: Plain>(x: &mut [T]) -> &mut [u8] {
    // SAFETY: the same memory under the same borrow; `Plain` has no padding and takes any bits.
    unsafe { std::slice::from_raw_parts_mut(x.as_mut_ptr().cast(), size_of_val(x)) }
}

/// Runs `f` on the bytes of a contiguous f32, f64, bf16 or u32 tensor.
///
/// # Errors
/// If it is strided, of another type or on another device.
pub fn read<R>(tensor: &Tensor, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(cpu) = &*storage else { bail!("only tensors on the CPU are sent through memory") };
    let (start, end) = range(layout)?;
    Ok(match cpu {
        CpuStorage::F32(v) => f(bytes(&v[start..end])),
        CpuStorage::F64(v) => f(bytes(&v[start..end])),
        CpuStorage::U32(v) => f(bytes(&v[start..end])),
        CpuStorage::BF16(v) => f(bytes(&v[start..end])),
        _ => return unsupported(tensor.dtype()),
    })
}

/// As `read`, to change them in place.
///
/// # Errors
/// As `read`.
pub fn write(tensor: &Tensor, f: impl Fn(&mut [u8])) -> Result<()> {
    tensor.inplace_op1(&Write(f))
}

/// A new CPU tensor of `shape` whose elements are `bytes`.
///
/// # Errors
/// If the bytes are not as many as the shape has, or the type is none of the four.
pub fn tensor(dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Tensor> {
    match dtype {
        DType::F32 => Tensor::from_vec(elements::<f32>(bytes), shape, &Device::Cpu),
        DType::F64 => Tensor::from_vec(elements::<f64>(bytes), shape, &Device::Cpu),
        DType::U32 => Tensor::from_vec(elements::<u32>(bytes), shape, &Device::Cpu),
        DType::BF16 => Tensor::from_vec(elements::<half::bf16>(bytes), shape, &Device::Cpu),
        other => unsupported(other),
    }
}

fn range(layout: &Layout) -> Result<(usize, usize)> {
    let Some(range) = layout.contiguous_offsets() else { bail!("a strided tensor cannot be sent") };
    Ok(range)
}

fn unsupported<T>(dtype: DType) -> Result<T> {
    bail!("f32, f64, bf16 and u32 can be sent, not {dtype:?}")
}

#[expect(unsafe_code, reason = "numbers from bytes")]
fn elements<T: Plain>(bytes: &[u8]) -> Vec<T> {
    let count = bytes.len() / size_of::<T>();
    let mut out: Vec<T> = Vec::with_capacity(count);
    // SAFETY: `out` has room for `count` elements, and `bytes` has at least as many bytes; any bits are a `Plain` value.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), out.as_mut_ptr().cast::<u8>(), count * size_of::<T>());
        out.set_len(count);
    }
    out
}

struct Write<F>(F);

impl<F: Fn(&mut [u8])> InplaceOp1 for Write<F> {
    fn name(&self) -> &'static str {
        "copy bytes"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (start, end) = range(layout)?;
        match storage {
            CpuStorage::F32(v) => (self.0)(bytes_mut(&mut v[start..end])),
            CpuStorage::F64(v) => (self.0)(bytes_mut(&mut v[start..end])),
            CpuStorage::U32(v) => (self.0)(bytes_mut(&mut v[start..end])),
            CpuStorage::BF16(v) => (self.0)(bytes_mut(&mut v[start..end])),
            _ => bail!("f32, f64, bf16 and u32 can be received, not this type"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_view_come_back_as_its_elements() {
        let x = Tensor::new(&[1.0_f32, 2.0, 3.0, 4.0], &Device::Cpu).unwrap();
        let view = x.narrow(0, 1, 2).unwrap();
        let copied = read(&view, <[u8]>::to_vec).unwrap();
        let back = tensor(DType::F32, &[2, 1], &copied).unwrap();
        assert_eq!(back.to_vec2::<f32>().unwrap(), [[2.0], [3.0]]);
        write(&view, |bytes| bytes.fill(0)).unwrap();
        assert_eq!(x.to_vec1::<f32>().unwrap(), [1.0, 0.0, 0.0, 4.0]);
        assert!(read(&x.reshape((2, 2)).unwrap().t().unwrap(), |_| ()).is_err(), "strided");
    }
}
