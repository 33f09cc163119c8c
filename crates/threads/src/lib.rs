//! What the program runs on: threads, the cores that they share, child processes, large blocks of memory, and the request to stop.

pub mod cores;
pub mod heap;
pub mod large_blocks;
pub mod movable_thread;
pub mod open_files;
pub mod process;
pub mod signal;
pub mod stop;
pub mod threads;
pub mod work_stealing;
