//! One `Gpu` per candle device: its stream, its kernels, and the resources that they share.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use candle_core::cuda_backend::cudarc::driver::{CudaFunction, CudaModule, CudaStream, sys};
use candle_core::cuda_backend::cudarc::nvrtc::Ptx;
use candle_core::{CudaDevice, Device, Result, Tensor, bail};
use parking_lot::{Mutex, RwLock};

use super::blaslt::BlasLt;
use super::driver_error;
use super::memory::keep_freed_memory;
use super::upload::PinnedBuffers;

/// A kernel of one of the images. Its name is its family's and the rest.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) family: &'static str,
    pub(crate) rest: &'static str,
    pub(crate) image: usize,
    /// One after the other through all images.
    pub(crate) number: usize,
}

impl Kernel {
    /// True if the rest of its name is `words`, joined by `_`. Empty ones do not count.
    pub(crate) fn is_named(&self, words: &[&str]) -> bool {
        let mut rest = Some(self.rest);
        for word in words.iter().filter(|word| !word.is_empty()) {
            rest = rest.and_then(|rest| rest.strip_prefix(word));
            rest =
                rest.filter(|rest| rest.is_empty() || rest.starts_with('_')).map(|rest| rest.trim_start_matches('_'));
        }
        rest == Some("")
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let between = if self.rest.is_empty() { "" } else { "_" };
        write!(f, "{}{between}{}", self.family, self.rest)
    }
}

/// One image per source, each with code for several architectures: `IMAGES: &[(&str, &[u8])]`, written by build/kernels.rs.
mod images {
    #![allow(unreachable_pub, reason = "generated")]
    include!(concat!(env!("OUT_DIR"), "/images.rs"));
}

/// An opened GPU: its stream, its kernels, its uploads and its matmul plans.
#[derive(Debug)]
pub struct Gpu {
    device: CudaDevice,
    stream: Arc<CudaStream>,
    modules: Vec<Arc<CudaModule>>,
    /// By the kernels' numbers, each loaded when it is first used.
    functions: Box<[OnceLock<CudaFunction>]>,
    multiprocessors: usize,
    compute_capability: (i32, i32),
    tf32: AtomicBool,
    pub(super) blaslt: Mutex<BlasLt>,
    pub(super) uploads: Mutex<PinnedBuffers>,
}

/// All GPUs that were opened. A process has a handful and keeps them to its end.
static OPEN_GPUS: RwLock<Vec<Arc<Gpu>>> = RwLock::new(Vec::new());

thread_local! {
    /// The devices that this thread opened, by ordinal: a rank is a thread, and opens its GPU once.
    static OPENED_BY_THREAD: RefCell<HashMap<usize, Device>> = RefCell::default();
}

/// Opens GPU `ordinal` for the calling thread, which is one rank: with a separate stream, loaded kernels, and freed memory kept in
/// the pool. Further calls return the same device.
///
/// # Errors
/// If there is no such GPU, a library is missing, or the GPU takes none of the kernels' images.
pub fn open(ordinal: usize) -> Result<Device> {
    if let Some(device) = opened_by_this_thread(ordinal) {
        return Ok(device);
    }
    let device = open_anew(ordinal)?;
    OPENED_BY_THREAD.with_borrow_mut(|here| here.insert(ordinal, device.clone()));
    Ok(device)
}

/// GPU `ordinal`, if this thread has opened it. A GPU whose memory is full cannot be opened once more.
pub fn opened_by_this_thread(ordinal: usize) -> Option<Device> {
    OPENED_BY_THREAD.with_borrow(|here| here.get(&ordinal).cloned())
}

fn open_anew(ordinal: usize) -> Result<Device> {
    runner_machine::doctor::check_gpus().map_err(candle_core::Error::msg)?;
    let device = CudaDevice::new_with_stream(ordinal)?;
    let stream = device.cuda_stream();
    let context = stream.context().clone();
    // Events would order streams that share tensors. A rank computes on one stream; comm/nccl orders the tensors that it shares with
    // NCCL's stream by separate events.
    #[expect(unsafe_code, reason = "candle's switch")]
    // SAFETY: all work on tensors of this device is on its stream, or joined to it by events (comm/nccl).
    unsafe {
        device.disable_event_tracking();
    }
    keep_freed_memory(&context)?;
    let load = |(name, image): &(&str, &[u8])| {
        let loaded = context.load_module(Ptx::from_binary(image.to_vec()));
        loaded.map_err(|e| driver_error(e).context(format!("loading the kernels `{name}`")))
    };
    let modules = images::IMAGES.iter().map(load).collect::<Result<Vec<_>>>()?;
    let count =
        context.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT).map_err(driver_error)?;
    let compute_capability = context.compute_capability().map_err(driver_error)?;
    let gpu = Gpu {
        stream,
        modules,
        functions: (0..images::KERNELS).map(|_| OnceLock::new()).collect(),
        multiprocessors: count.max(1) as usize,
        compute_capability,
        tf32: AtomicBool::new(false),
        blaslt: Mutex::new(BlasLt::new(&device, compute_capability)?),
        uploads: Mutex::default(),
        device: device.clone(),
    };
    OPEN_GPUS.write().push(Arc::new(gpu));
    Ok(Device::Cuda(device))
}

/// The GPU that holds a tensor.
///
/// # Errors
/// If `open` has not opened the tensor's device.
pub fn gpu_of(tensor: &Tensor) -> Result<Arc<Gpu>> {
    Gpu::of_device(tensor.device())
}

impl Gpu {
    /// The GPU of a candle device.
    ///
    /// # Errors
    /// If it was not opened by `open`.
    pub fn of_device(device: &Device) -> Result<Arc<Self>> {
        let Device::Cuda(cuda) = device else { bail!("a kernel for GPUs was given a tensor on the CPU") };
        let opened = OPEN_GPUS.read();
        match opened.iter().find(|gpu| gpu.device.id() == cuda.id()) {
            Some(gpu) => Ok(gpu.clone()),
            None => bail!("a device that was not opened by `gpu::open`"),
        }
    }

    /// The device as candle knows it.
    pub fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// The stream on which everything is computed, in order.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    pub fn multiprocessors(&self) -> usize {
        self.multiprocessors
    }

    /// Major and minor.
    pub fn compute_capability(&self) -> (i32, i32) {
        self.compute_capability
    }

    /// True if products of f32 matrices may use TF32 (`precision: tf32`).
    pub fn tf32(&self) -> bool {
        self.tf32.load(Ordering::Relaxed)
    }

    pub fn set_tf32(&self, tf32: bool) {
        self.tf32.store(tf32, Ordering::Relaxed);
    }

    /// Waits until everything that was launched is done.
    ///
    /// # Errors
    /// If a kernel failed.
    pub fn synchronize(&self) -> Result<()> {
        self.stream.synchronize().map_err(driver_error)
    }

    /// A kernel, in the context that is current.
    ///
    /// # Errors
    /// If it cannot be loaded.
    pub(crate) fn function(&self, kernel: &Kernel) -> Result<&CudaFunction> {
        let place = &self.functions[kernel.number];
        if let Some(function) = place.get() {
            return Ok(function);
        }
        let loaded = self.modules[kernel.image].load_function(&kernel.to_string());
        let loaded = loaded.map_err(|e| driver_error(e).context(format!("loading the kernel {kernel}")))?;
        Ok(place.get_or_init(|| loaded))
    }
}
