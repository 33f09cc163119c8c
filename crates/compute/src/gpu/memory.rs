//! Memory of a GPU: new tensors, addresses of tensors, and how much memory is used and free.

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::cuda_backend::cudarc::driver::{CudaContext, DevicePtr, result, sys};
use candle_core::op::BackpropOp;
use candle_core::{CudaStorage, DType, Device, Result, Shape, Storage, Tensor, bail};

use super::{Gpu, driver_error};

/// Bytes of one device. `used` and `peak` are this process's tensors; `reserved` is what its pool holds of the device for them;
/// `free` and `total` are the device's, all processes together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceMemory {
    pub used: u64,
    pub peak: u64,
    pub reserved: u64,
    pub free: u64,
    pub total: u64,
}

/// The memory of a device; `None` if it is not a GPU, or the driver does not answer.
pub fn memory(device: &Device) -> Option<DeviceMemory> {
    use sys::CUmemPool_attribute as Attribute;
    let gpu = Gpu::of_device(device).ok()?;
    let context = gpu.stream().context();
    let (free, total) = context.mem_get_info().ok()?;
    let pool = |attribute| pool_attribute(context, attribute).ok();
    Some(DeviceMemory {
        used: pool(Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
        peak: pool(Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?,
        reserved: pool(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
        free: free as u64,
        total: total as u64,
    })
}

/// The pool from which `context`'s tensors are allocated.
#[expect(unsafe_code, reason = "FFI")]
fn default_pool(context: &CudaContext) -> Result<sys::CUmemoryPool> {
    // SAFETY: the device is the context's.
    unsafe { result::device::get_default_mem_pool(context.cu_device()).map_err(driver_error) }
}

#[expect(unsafe_code, reason = "FFI")]
fn pool_attribute(context: &CudaContext, attribute: sys::CUmemPool_attribute) -> Result<u64> {
    let (pool, mut value) = (default_pool(context)?, 0_u64);
    // SAFETY: these attributes are 64-bit numbers (cuMemPoolGetAttribute).
    unsafe { result::mem_pool::get_attribute(pool, attribute, (&raw mut value).cast()).map_err(driver_error)? }
    Ok(value)
}

#[expect(unsafe_code, reason = "FFI")]
fn set_pool_attribute(context: &CudaContext, attribute: sys::CUmemPool_attribute, mut value: u64) -> Result<()> {
    let pool = default_pool(context)?;
    // SAFETY: these attributes are 64-bit numbers (cuMemPoolSetAttribute).
    unsafe { result::mem_pool::set_attribute(pool, attribute, (&raw mut value).cast()).map_err(driver_error) }
}

/// The memory of the GPU `ordinal`, in bytes, which the driver knows without a context; `None` if it does not say.
#[expect(unsafe_code, reason = "FFI")]
pub fn total_memory(ordinal: usize) -> Option<u64> {
    use candle_core::cuda_backend::cudarc::driver::result::device;
    let gpu = device::get(i32::try_from(ordinal).ok()?).ok()?;
    // SAFETY: the driver has just returned `gpu`.
    Some(unsafe { device::total_mem(gpu) }.ok()? as u64)
}

/// Resets `DeviceMemory::peak` to the memory that is used now.
///
/// # Errors
/// If it is not a GPU, or the driver refuses.
pub fn reset_peak(device: &Device) -> Result<()> {
    let gpu = Gpu::of_device(device)?;
    // 0 is the only number that this attribute can be set to.
    set_pool_attribute(gpu.stream().context(), sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0)
}

/// Keeps freed memory in the pool, for the next step; by default every synchronization gives it back to the system.
pub(super) fn keep_freed_memory(context: &CudaContext) -> Result<()> {
    if !context.has_async_alloc() {
        bail!("this GPU's driver has no memory pools: CUDA 11.2 or newer is needed")
    }
    set_pool_attribute(context, sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, u64::MAX)
}

/// Has the pool of `device` hold `bytes` for tensors, those in use among them, at once and to the end of the process: it then grows only beyond
/// them.
///
/// # Errors
/// If the device has less, or is not a GPU.
#[expect(unsafe_code, reason = "FFI")]
pub fn reserve(device: &Device, bytes: u64) -> Result<()> {
    use sys::CUmemPool_attribute as Attribute;
    let gpu = Gpu::of_device(device)?;
    let context = gpu.stream().context();
    let used = pool_attribute(context, Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?;
    let held = pool_attribute(context, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
    let more = bytes.saturating_sub(used);
    if held - used >= more {
        return Ok(());
    }
    context.bind_to_thread().map_err(driver_error)?;
    // What is free in pieces goes back first: it would not be part of the one piece.
    gpu.synchronize()?;
    // SAFETY: nothing uses the address; what is freed stays in the pool (`keep_freed_memory`).
    unsafe {
        result::mem_pool::trim_to(default_pool(context)?, 0).map_err(driver_error)?;
        let address = result::malloc_async(gpu.stream().cu_stream(), more as usize).map_err(driver_error)?;
        result::free_async(address, gpu.stream().cu_stream()).map_err(driver_error)?;
    }
    reset_peak(device)
}

impl Gpu {
    /// A tensor whose elements are whatever the memory held.
    ///
    /// # Errors
    /// If memory is short, or the type is none of f32, bf16, u32 and f64.
    #[expect(unsafe_code, reason = "uninitialized device memory")]
    pub fn empty(&self, dtype: DType, shape: impl Into<Shape>) -> Result<Tensor> {
        let shape = shape.into();
        // The driver refuses an allocation of nothing.
        let len = shape.elem_count().max(1);
        // SAFETY: device memory, of types for which any bits are a value; kernels write it before anything reads it.
        let slice = unsafe {
            match dtype {
                DType::F32 => CudaStorageSlice::F32(self.device().alloc(len)?),
                DType::BF16 => CudaStorageSlice::BF16(self.device().alloc(len)?),
                DType::U32 => CudaStorageSlice::U32(self.device().alloc(len)?),
                DType::F64 => CudaStorageSlice::F64(self.device().alloc(len)?),
                other => bail!("GPU tensors are f32, bf16, u32 or f64, not {other:?}"),
            }
        };
        let storage = CudaStorage { slice, device: self.device().clone() };
        Ok(Tensor::from_storage(Storage::Cuda(storage), shape, BackpropOp::none(), false))
    }

    /// A tensor of zeros.
    ///
    /// # Errors
    /// If memory is short, or the type is none of f32, bf16, u32 and f64.
    pub fn zeros(&self, dtype: DType, shape: impl Into<Shape>) -> Result<Tensor> {
        let tensor = self.empty(dtype, shape)?;
        self.clear(&tensor)?;
        Ok(tensor)
    }

    /// Sets all bits of a tensor to zero.
    ///
    /// # Errors
    /// If it is strided, or not on this device.
    #[expect(unsafe_code, reason = "FFI")]
    pub fn clear(&self, tensor: &Tensor) -> Result<()> {
        let (start, bytes) = (address(tensor)?, tensor.elem_count() * tensor.dtype().size_in_bytes());
        if bytes == 0 {
            return Ok(());
        }
        self.stream().context().bind_to_thread().map_err(driver_error)?;
        // SAFETY: the range is the tensor's, which lives until its stream-ordered free, which comes after this.
        unsafe { result::memset_d8_async(start, 0, bytes, self.stream().cu_stream()).map_err(driver_error) }
    }

    /// Copies the elements of `from` to `to`, which has as many of the same type.
    ///
    /// # Errors
    /// If types or lengths differ, or one is strided or not on a GPU.
    #[expect(unsafe_code, reason = "FFI")]
    pub fn copy(&self, to: &Tensor, from: &Tensor) -> Result<()> {
        let (count, dtype) = (to.elem_count(), to.dtype());
        if (from.elem_count(), from.dtype()) != (count, dtype) {
            bail!("{} numbers of {:?} for a tensor of {count} of {dtype:?}", from.elem_count(), from.dtype())
        }
        if count == 0 {
            return Ok(());
        }
        let (target, source, bytes) = (address(to)?, address(from)?, count * dtype.size_in_bytes());
        self.stream().context().bind_to_thread().map_err(driver_error)?;
        // SAFETY: the ranges are the tensors', which live until their stream-ordered frees, which come after this.
        unsafe { result::memcpy_dtod_async(target, source, bytes, self.stream().cu_stream()).map_err(driver_error) }
    }
}

/// The address of the first element of a contiguous tensor on a GPU. The memory is freed, in the order of the stream, when the
/// tensor's last handle is dropped.
///
/// # Errors
/// If it is strided, or not on a GPU.
pub fn address(tensor: &Tensor) -> Result<u64> {
    if !tensor.is_contiguous() {
        bail!("a kernel was given a strided tensor")
    }
    first_element(tensor)
}

/// [`address`] of a matrix whose rows may have gaps between them, and the elements from the start of one row to the start of the next.
///
/// # Errors
/// If the elements of a row do not follow one another, or it is not on a GPU.
pub fn address_of_rows(matrix: &Tensor) -> Result<(u64, usize)> {
    match (matrix.dims(), matrix.stride()) {
        (&[_, width], _) if matrix.is_contiguous() => Ok((first_element(matrix)?, width)),
        (&[_, width], &[stride, 1]) if stride >= width => Ok((first_element(matrix)?, stride)),
        (dims, strides) => bail!("a kernel was given a matrix of shape {dims:?} with strides {strides:?}"),
    }
}

fn first_element(tensor: &Tensor) -> Result<u64> {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cuda(cuda) = &*storage else { bail!("a kernel for GPUs was given a tensor on the CPU") };
    let stream = cuda.device.cuda_stream();
    let base = match &cuda.slice {
        CudaStorageSlice::F32(slice) => slice.device_ptr(&stream).0,
        CudaStorageSlice::BF16(slice) => slice.device_ptr(&stream).0,
        CudaStorageSlice::U32(slice) => slice.device_ptr(&stream).0,
        CudaStorageSlice::F64(slice) => slice.device_ptr(&stream).0,
        _ => bail!("GPU tensors are f32, bf16, u32 or f64, not {:?}", cuda.dtype()),
    };
    Ok(base + (layout.start_offset() * cuda.dtype().size_in_bytes()) as u64)
}
