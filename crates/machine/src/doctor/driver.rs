//! Asks NVIDIA's driver for the GPUs that it shows to this process. Nothing is computed on them.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::{fs, ptr};

use serde::Serialize;

use super::library::{DRIVER, LoadedLibrary, text_in};
use crate::gpu_facts::GpuFacts;
use runner_spec::cluster::ComputeCapability;
use runner_spec::error::PlainError;

/// Facts that the driver reports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DriverFacts {
    /// The version of the kernel module: `580.65.06`.
    pub version: Option<String>,
    /// The newest CUDA that it runs: `13.0`.
    pub cuda: Option<String>,
    pub gpus: Vec<GpuFacts>,
    /// The reason why there are no GPUs.
    pub error: Option<String>,
}

impl DriverFacts {
    /// Asks the driver of this machine.
    pub(super) fn collect() -> Self {
        let mut facts = Self { version: module_version(), cuda: DRIVER.facts().version, ..Self::default() };
        match visible_gpus() {
            Ok(gpus) => facts.gpus = gpus,
            Err(error) => facts.error = Some(error.text),
        }
        facts
    }
}

/// The GPUs that this process can use, by the numbers that the driver gives them.
///
/// # Errors
/// If there is no driver, or it does not work.
pub(crate) fn visible_gpus() -> Result<Vec<GpuFacts>, PlainError> {
    let driver = DriverLibrary::start(DRIVER.open()?)?;
    (0..driver.count()?).map(|index| driver.gpu(index)).collect()
}

/// Reads the driver's version from the kernel: `NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue ...`, or `... Open Kernel Module for x86_64  580.65.06`.
pub(super) fn module_version() -> Option<String> {
    version_in(&fs::read_to_string("/proc/driver/nvidia/version").ok()?)
}

fn version_in(text: &str) -> Option<String> {
    let number = |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    text.lines().find(|line| line.starts_with("NVRM"))?.split_whitespace().find(number).map(str::to_owned)
}

type Status = c_int;

/// Functions of libcuda, which has been started.
struct DriverLibrary {
    error_name: Option<unsafe extern "C" fn(Status, *mut *const c_char) -> Status>,
    count: unsafe extern "C" fn(*mut c_int) -> Status,
    get: unsafe extern "C" fn(*mut c_int, c_int) -> Status,
    name: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> Status,
    memory: unsafe extern "C" fn(*mut usize, c_int) -> Status,
    attribute: unsafe extern "C" fn(*mut c_int, c_int, c_int) -> Status,
}

// `CUdevice_attribute` of cuda.h.
const CLOCK_RATE: c_int = 13;
const MULTIPROCESSOR_COUNT: c_int = 16;
const MEMORY_CLOCK_RATE: c_int = 36;
const GLOBAL_MEMORY_BUS_WIDTH: c_int = 37;
const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
const COMPUTE_CAPABILITY_MINOR: c_int = 76;

#[expect(unsafe_code, reason = "FFI")]
impl DriverLibrary {
    fn start(library: LoadedLibrary) -> Result<Self, PlainError> {
        let lacks = |name: &CStr| PlainError::failure(format!("libcuda.so.1 has no {}", name.to_string_lossy()));
        // SAFETY: the signatures are those of cuda.h, the same in all versions; cuInit may be called any number of times.
        unsafe {
            macro_rules! function {
                ($name:literal) => {
                    library.function($name).ok_or_else(|| lacks($name))?
                };
            }
            let driver = Self {
                error_name: library.function(c"cuGetErrorName"),
                count: function!(c"cuDeviceGetCount"),
                get: function!(c"cuDeviceGet"),
                name: function!(c"cuDeviceGetName"),
                memory: function!(c"cuDeviceTotalMem_v2"),
                attribute: function!(c"cuDeviceGetAttribute"),
            };
            let init: unsafe extern "C" fn(c_uint) -> Status = function!(c"cuInit");
            driver.check("cuInit", init(0))?;
            Ok(driver)
        }
    }

    fn check(&self, what: &str, status: Status) -> Result<(), PlainError> {
        if status == 0 {
            return Ok(());
        }
        let mut name: *const c_char = ptr::null();
        // SAFETY: it writes the address of a text that lives as long as the library.
        let known = self.error_name.is_some_and(|f| unsafe { f(status, &raw mut name) } == 0) && !name.is_null();
        // SAFETY: the driver wrote a valid address of such a text.
        let name = if known { unsafe { CStr::from_ptr(name) }.to_string_lossy() } else { "an unknown error".into() };
        Err(PlainError::failure(format!("the driver's {what} returned {name} ({status})")))
    }

    fn count(&self) -> Result<usize, PlainError> {
        let mut count = 0;
        // SAFETY: writes to a number that outlives the call.
        self.check("cuDeviceGetCount", unsafe { (self.count)(&raw mut count) })?;
        Ok(count.max(0) as usize)
    }

    /// What the driver reports about the device number `index` without work on it.
    fn gpu(&self, index: usize) -> Result<GpuFacts, PlainError> {
        let (mut device, mut memory, mut name) = (0, 0_usize, [0 as c_char; 256]);
        // SAFETY: each function writes to memory that outlives the call, and at most as many bytes as its argument allows.
        unsafe {
            self.check("cuDeviceGet", (self.get)(&raw mut device, index as c_int))?;
            self.check("cuDeviceGetName", (self.name)(name.as_mut_ptr(), 255, device))?;
            self.check("cuDeviceTotalMem", (self.memory)(&raw mut memory, device))?;
        }
        let attribute = |which| {
            let mut value = 0;
            // SAFETY: writes to a number that outlives the call.
            self.check("cuDeviceGetAttribute", unsafe { (self.attribute)(&raw mut value, which, device) })?;
            Ok::<u32, PlainError>(value.unsigned_abs())
        };
        // Newer drivers may stop reporting clocks; GpuFacts has 0 for an unknown number.
        let optional = |which| attribute(which).unwrap_or(0);
        Ok(GpuFacts {
            index,
            name: text_in(&name),
            memory_bytes: memory as u64,
            compute_capability: ComputeCapability {
                major: attribute(COMPUTE_CAPABILITY_MAJOR)?,
                minor: attribute(COMPUTE_CAPABILITY_MINOR)?,
            },
            sms: optional(MULTIPROCESSOR_COUNT),
            clock_khz: optional(CLOCK_RATE),
            memory_clock_khz: optional(MEMORY_CLOCK_RATE),
            bus_width: optional(GLOBAL_MEMORY_BUS_WIDTH),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::version_in;

    #[test]
    fn the_kernel_modules_version_is_read() {
        let old = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version: 12.2.0\n";
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n";
        assert_eq!(version_in(old).as_deref(), Some("550.54.15"));
        assert_eq!(version_in(open).as_deref(), Some("580.65.06"));
        assert_eq!(version_in("GCC version: 12.2.0"), None);
    }
}
