//! Finds out what a run can use on this machine: processor, NVIDIA driver and GPUs, CUDA's libraries, and what each feature lacks.
//! It works in every build: libraries are loaded on demand, by `dlopen`.

mod availability;
mod build_facts;
mod driver;
mod environment;
mod features;
mod library;
mod report;

pub use availability::{GpuLibraries, check_gpus, check_nccl, gpu_libraries};
pub use build_facts::{BuildFacts, CpuInstructions};
pub use driver::DriverFacts;
pub use environment::{is_computing_variable, is_gpu_variable, is_shown_variable, shown_variables};
pub use features::{Feature, Missing};
pub use library::{LIBRARY_FOLDERS, LibraryFacts};
pub use report::DoctorReport;
