//! Tensors as bytes, which communication copies in and out. A tensor's lock is held for one such copy and no longer.

use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Storage, Tensor, bail};

/// Runs `f` on the bytes of a contiguous f32, f64, bf16 or u32 tensor.
///
/// # Errors
/// If it is strided, of another type or on another device.
pub fn read<R>(tensor: &Tensor, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(cpu) = &*storage else { bail!("only tensors on the CPU are sent through memory") };
    let (start, end) = range(layout)?;
    Ok(match cpu {
        CpuStorage::F32(v) => f(bytemuck::cast_slice(&v[start..end])),
        CpuStorage::F64(v) => f(bytemuck::cast_slice(&v[start..end])),
        CpuStorage::U32(v) => f(bytemuck::cast_slice(&v[start..end])),
        CpuStorage::BF16(v) => f(bytemuck::cast_slice(&v[start..end])),
        _ => bail!("f32, f64, bf16 and u32 can be sent, not {:?}", tensor.dtype()),
    })
}

/// Runs `f` on the bytes of a contiguous f32, f64, bf16 or u32 tensor, to change them in place.
///
/// # Errors
/// If it is strided, of another type or on another device.
pub fn write(tensor: &Tensor, f: impl Fn(&mut [u8])) -> Result<()> {
    tensor.inplace_op1(&Write(f))
}

fn range(layout: &Layout) -> Result<(usize, usize)> {
    let Some(range) = layout.contiguous_offsets() else { bail!("a strided tensor cannot be sent") };
    Ok(range)
}

struct Write<F>(F);

impl<F: Fn(&mut [u8])> InplaceOp1 for Write<F> {
    fn name(&self) -> &'static str {
        "copy bytes"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (start, end) = range(layout)?;
        match storage {
            CpuStorage::F32(v) => (self.0)(bytemuck::cast_slice_mut(&mut v[start..end])),
            CpuStorage::F64(v) => (self.0)(bytemuck::cast_slice_mut(&mut v[start..end])),
            CpuStorage::U32(v) => (self.0)(bytemuck::cast_slice_mut(&mut v[start..end])),
            CpuStorage::BF16(v) => (self.0)(bytemuck::cast_slice_mut(&mut v[start..end])),
            _ => bail!("f32, f64, bf16 and u32 can be received, not this type"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};

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
