//! Of the operating system: a clock that processes agree on, what a rank's process inherits, and names of signals.

use std::io;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Milliseconds of the monotonic clock, which all processes of a machine share.
pub(super) fn milliseconds() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    #[expect(unsafe_code, reason = "FFI")]
    // SAFETY: writes to `now`, which outlives the call.
    unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now);
    }
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// Makes of `command` one that inherits `fd` alone, leaves Ctrl-C, SIGTERM and SIGHUP to this process, and does not outlive
/// the thread that starts it (on Linux).
pub(super) fn as_rank(command: &mut Command, fd: RawFd) {
    let parent = std::process::id();
    #[expect(unsafe_code, reason = "FFI")]
    // SAFETY: what runs between fork and exec makes system calls that are safe there, and allocates nothing.
    unsafe {
        command.pre_exec(move || before_exec(fd, parent));
    }
}

fn before_exec(fd: RawFd, parent: u32) -> io::Result<()> {
    #[expect(unsafe_code, reason = "FFI")]
    // SAFETY: the descriptor is open in the parent, thus here; SIG_IGN runs no code.
    unsafe {
        if libc::fcntl(fd, libc::F_SETFD, 0) == -1 {
            return Err(io::Error::last_os_error());
        }
        // Ignored signals stay ignored in the new program.
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            libc::signal(signal, libc::SIG_IGN);
        }
    }
    #[cfg(target_os = "linux")]
    {
        #[expect(unsafe_code, reason = "FFI")]
        // SAFETY: takes two numbers.
        let status = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        if status == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    // It may have ended before that.
    if std::os::unix::process::parent_id() == parent { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
}

/// Calls this process `name`, of which a system's tables show 15 bytes.
pub(super) fn name_process(name: &str) {
    #[cfg(target_os = "linux")]
    if let Ok(name) = std::ffi::CString::new(name) {
        #[expect(unsafe_code, reason = "FFI")]
        // SAFETY: reads a C string that outlives the call.
        unsafe {
            libc::prctl(libc::PR_SET_NAME, name.as_ptr());
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = name;
}

/// Whether the process `pid` is stopped, as by SIGSTOP. Where the kernel does not say: no.
pub(super) fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name before it may hold anything.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

/// The machine that this process runs on, by name and by when it was started; two may have one name.
pub(super) fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let boot: String = read("/proc/sys/kernel/random/boot_id").chars().take(8).collect();
    let name = match read("/proc/sys/kernel/hostname") {
        name if name.is_empty() => std::env::var("HOSTNAME").unwrap_or_default(),
        name => name,
    };
    format!("{name} {boot}")
}

/// The cores that this process may use, such as `0-3,8`; nothing where the kernel does not say.
pub(super) fn cores() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_runs_on() {
        let before = milliseconds();
        assert!(before > 0 && milliseconds() >= before);
    }

    #[test]
    fn this_process_is_not_stopped() {
        assert!(!is_stopped(std::process::id()));
    }
}
