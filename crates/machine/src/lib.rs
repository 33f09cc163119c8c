//! Facts about machines: this one's CPU, GPUs and libraries, and described clusters.

pub mod cluster_description;
pub mod doctor;
pub mod gpu_facts;
pub mod host;
pub mod local_cluster;
pub mod memory_limit;
pub mod platform;
#[cfg(test)]
mod testing;
