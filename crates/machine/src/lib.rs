//! Facts about machines: this one's CPU, GPUs and libraries, named and described clusters, the memory that the program has allocated.

pub mod described;
pub mod doctor;
pub mod gpu;
pub mod heap;
pub mod host;
pub mod local;
pub mod signal;
