//! Tensors as bytes, for communication, hashes and checkpoints. A tensor's lock is held while a closure reads or changes its bytes.

use bytemuck::{cast_slice, cast_slice_mut};
use candle_core::{CpuStorage, DType, Result, Tensor, bail};
use half::bf16;

use super::access::{elements, in_place};

/// Runs `f` on the bytes of a contiguous f32, f64, bf16 or u32 tensor.
///
/// # Errors
/// If it is strided, of another type or on another device.
pub fn read<R>(tensor: &Tensor, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    Ok(match tensor.dtype() {
        DType::F32 => f(cast_slice(elements::<f32>(&storage, layout)?)),
        DType::F64 => f(cast_slice(elements::<f64>(&storage, layout)?)),
        DType::U32 => f(cast_slice(elements::<u32>(&storage, layout)?)),
        DType::BF16 => f(cast_slice(elements::<bf16>(&storage, layout)?)),
        other => bail!("bytes of f32, f64, bf16 and u32 can be read, not of {other:?}"),
    })
}

/// Runs `f` on the bytes of a contiguous f32, f64, bf16 or u32 tensor, to change them in place.
///
/// # Errors
/// If it is strided, of another type or on another device.
pub fn write(tensor: &Tensor, f: impl Fn(&mut [u8])) -> Result<()> {
    in_place(tensor, "copy bytes", |storage, range| {
        f(match storage {
            CpuStorage::F32(v) => cast_slice_mut(&mut v[range]),
            CpuStorage::F64(v) => cast_slice_mut(&mut v[range]),
            CpuStorage::U32(v) => cast_slice_mut(&mut v[range]),
            CpuStorage::BF16(v) => cast_slice_mut(&mut v[range]),
            _ => bail!("bytes of f32, f64, bf16 and u32 can be written, not of this type"),
        });
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn bytes_of_a_view_come_back_as_its_elements() {
        let x = Tensor::new(&[1.0_f32, 2.0, 3.0, 4.0], &Device::Cpu).unwrap();
        let view = x.narrow(0, 1, 2).unwrap();
        let copied = read(&view, <[u8]>::to_vec).unwrap();
        let back = Tensor::from_raw_buffer(&copied, DType::F32, &[2, 1], &Device::Cpu).unwrap();
        assert_eq!(back.to_vec2::<f32>().unwrap(), [[2.0], [3.0]]);
        write(&view, |bytes| bytes.fill(0)).unwrap();
        assert_eq!(x.to_vec1::<f32>().unwrap(), [1.0, 0.0, 0.0, 4.0]);
        assert!(read(&x.reshape((2, 2)).unwrap().t().unwrap(), |_| ()).is_err(), "strided");
    }
}
