//! One `Gpu` per candle device: its stream, its kernels, and what they share.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use candle_core::cuda_backend::cudarc::driver::{CudaFunction, CudaModule, CudaStream, DriverError, sys};
use candle_core::cuda_backend::cudarc::nvrtc::Ptx;
use candle_core::{CudaDevice, Device, Result, Tensor, bail};

use super::blaslt::BlasLt;
use super::driver;
use super::memory::keep_freed_memory;
use super::upload::Uploads;

/// One image per source, each with code for several architectures: `IMAGES: &[(&str, &[u8])]`, by build.rs.
mod images {
    #![allow(unreachable_pub, reason = "generated")]
    include!(concat!(env!("OUT_DIR"), "/images.rs"));
}

/// A device as the kernels see it.
#[derive(Debug)]
pub struct Gpu {
    device: CudaDevice,
    stream: Arc<CudaStream>,
    modules: Vec<Arc<CudaModule>>,
    functions: Mutex<HashMap<&'static str, CudaFunction>>,
    multiprocessors: usize,
    compute_capability: (i32, i32),
    tf32: AtomicBool,
    pub(super) blaslt: BlasLt,
    pub(super) uploads: Mutex<Uploads>,
}

/// All that were opened. A process has a handful and keeps them to its end.
static OPENED: RwLock<Vec<Arc<Gpu>>> = RwLock::new(Vec::new());

thread_local! {
    /// By ordinal, what this thread opened: a rank is a thread, and has a GPU once.
    static HERE: RefCell<HashMap<usize, Device>> = RefCell::default();
}

/// GPU `ordinal` for one rank, which is the thread that calls: a stream of its own, the kernels loaded, freed memory kept. Again it
/// is the same.
///
/// # Errors
/// If there is no such GPU, a library is missing, or the GPU takes none of the kernels' images.
pub fn open(ordinal: usize) -> Result<Device> {
    if let Some(device) = opened_here(ordinal) {
        return Ok(device);
    }
    let device = opened(ordinal)?;
    HERE.with_borrow_mut(|here| here.insert(ordinal, device.clone()));
    Ok(device)
}

/// GPU `ordinal`, if this thread has opened it: a full one cannot be opened once more to be asked.
#[must_use]
pub fn opened_here(ordinal: usize) -> Option<Device> {
    HERE.with_borrow(|here| here.get(&ordinal).cloned())
}

fn opened(ordinal: usize) -> Result<Device> {
    runner_machine::doctor::check_gpus().map_err(candle_core::Error::msg)?;
    let device = CudaDevice::new_with_stream(ordinal)?;
    let stream = device.cuda_stream();
    let context = stream.context().clone();
    // Events would order streams that share tensors. A rank computes on one; what NCCL shares with it is ordered by events of
    // its own.
    #[expect(unsafe_code, reason = "candle's switch")]
    // SAFETY: all work on tensors of this device is on its stream, or joined to it by events (comm/nccl).
    unsafe {
        device.disable_event_tracking();
    }
    keep_freed_memory(&context)?;
    let load = |(name, image): &(&str, &[u8])| {
        let loaded = context.load_module(Ptx::from_binary(image.to_vec()));
        loaded.map_err(|e| driver(e).context(format!("loading the kernels `{name}`")))
    };
    let modules = images::IMAGES.iter().map(load).collect::<Result<Vec<_>>>()?;
    let count = context.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT).map_err(driver)?;
    let gpu = Gpu {
        stream,
        modules,
        functions: Mutex::default(),
        multiprocessors: count.max(1) as usize,
        compute_capability: context.compute_capability().map_err(driver)?,
        tf32: AtomicBool::new(false),
        blaslt: BlasLt::default(),
        uploads: Mutex::default(),
        device: device.clone(),
    };
    gpu.prepare_products()?;
    OPENED.write().unwrap_or_else(PoisonError::into_inner).push(Arc::new(gpu));
    Ok(Device::Cuda(device))
}

/// The GPU of a tensor.
///
/// # Errors
/// If the tensor is on none that was opened here.
pub fn of(tensor: &Tensor) -> Result<Arc<Gpu>> {
    Gpu::of(tensor.device())
}

impl Gpu {
    /// That of a candle device.
    ///
    /// # Errors
    /// If it was not opened by `open`.
    pub fn of(device: &Device) -> Result<Arc<Self>> {
        let Device::Cuda(cuda) = device else { bail!("a kernel for GPUs was given a tensor on the CPU") };
        let opened = OPENED.read().unwrap_or_else(PoisonError::into_inner);
        match opened.iter().find(|gpu| gpu.device.id() == cuda.id()) {
            Some(gpu) => Ok(gpu.clone()),
            None => bail!("a device that was not opened by `gpu::open`"),
        }
    }

    /// The device as candle knows it.
    #[must_use]
    pub fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// On which everything is computed, in order.
    #[must_use]
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    #[must_use]
    pub fn multiprocessors(&self) -> usize {
        self.multiprocessors
    }

    /// Major and minor.
    #[must_use]
    pub fn compute_capability(&self) -> (i32, i32) {
        self.compute_capability
    }

    /// Whether products of f32 matrices may use TF32: `precision: tf32`.
    #[must_use]
    pub fn tf32(&self) -> bool {
        self.tf32.load(Ordering::Relaxed)
    }

    pub fn set_tf32(&self, tf32: bool) {
        self.tf32.store(tf32, Ordering::Relaxed);
    }

    /// Returns when all that was launched is done.
    ///
    /// # Errors
    /// That of a kernel.
    pub fn synchronize(&self) -> Result<()> {
        self.stream.synchronize().map_err(driver)
    }

    pub(super) fn function(&self, kernel: &'static str) -> Result<CudaFunction> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = functions.get(kernel) {
            return Ok(function.clone());
        }
        self.stream.context().bind_to_thread().map_err(driver)?;
        for module in &self.modules {
            match module.load_function(kernel) {
                Ok(function) => {
                    functions.insert(kernel, function.clone());
                    return Ok(function);
                }
                Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_FOUND)) => {}
                Err(error) => return Err(driver(error).context(format!("loading the kernel `{kernel}`"))),
            }
        }
        bail!("there is no kernel `{kernel}`")
    }
}
