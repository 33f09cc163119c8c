//! Facts about machines: this one's CPU, GPUs and libraries, described clusters, and the memory that this program has allocated. Also
//! starts threads, prepares child processes, and keeps the request to stop.

pub mod cluster_description;
pub mod cores;
pub mod doctor;
pub mod gpu_facts;
pub mod heap;
pub mod host;
pub mod large_blocks;
pub mod local_cluster;
pub mod memory_limit;
pub mod numa;
pub mod open_files;
pub mod platform;
pub mod process;
pub mod signal;
pub mod stop;
pub mod team;
pub mod threads;
