//! What of this machine a run can use: processor, NVIDIA driver and GPUs, CUDA's libraries, and what is missing for which feature.
//! In every build: libraries are loaded when asked for, by `dlopen`.

mod driver;
mod environment;
mod features;
mod library;
mod notes;
pub mod report;
mod usable;

pub use driver::{DriverFacts, Gpu};
pub use features::{Feature, Missing};
pub use library::{LIBRARY_FOLDERS, LibraryFacts};
pub use report::{Build, Report};
pub use usable::{usable, usable_nccl};
