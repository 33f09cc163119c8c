//! The number of files, connections included, that a process may have open.

/// A higher limit is not set: some programs close all possible descriptors one by one when they start a process.
const ENOUGH: libc::rlim_t = 1 << 16;

/// Raises the number of files that this process and those that it starts may have open, as far as the system lets every process do that:
/// the usual 1,024 are too few for the connections of 1,000 ranks.
#[expect(unsafe_code, reason = "FFI")]
pub fn raise_open_file_limit() {
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes the struct.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limits) } != 0 {
        return;
    }
    let wanted = limits.rlim_max.min(ENOUGH);
    if limits.rlim_cur < wanted {
        limits.rlim_cur = wanted;
        // SAFETY: the kernel reads the struct. If it refuses, the limit stays.
        unsafe {
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limits);
        }
    }
}
