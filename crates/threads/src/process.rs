//! This process and its children: a clock that all processes of a machine share, what a child process inherits, and whether a process
//! is stopped.

use std::fs;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::process::{CommandExt, parent_id};
use std::path::PathBuf;
use std::process::Command;

/// Milliseconds of the monotonic clock, which all processes of a machine share.
pub fn monotonic_milliseconds() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    #[expect(unsafe_code, reason = "FFI")]
    // SAFETY: writes to `now`, which outlives the call.
    unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now);
    }
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// A command that runs this very program, even if its file was replaced since it was started.
pub fn own_command() -> io::Result<Command> {
    let name = std::env::current_exe()?;
    let mut command =
        Command::new(if cfg!(target_os = "linux") { PathBuf::from("/proc/self/exe") } else { name.clone() });
    command.arg0(name);
    Ok(command)
}

/// Sends SIGTERM to the child `pid` of this process, which must not be reaped yet.
pub fn terminate_child(pid: u32) {
    #[expect(unsafe_code, reason = "FFI")]
    // SAFETY: takes two numbers; the process is a child that was not reaped yet, so the number is still its own.
    unsafe {
        libc::kill(pid as libc::pid_t, libc::SIGTERM);
    }
}

/// Makes the process that `command` starts get SIGTERM when the thread that starts it ends (on Linux).
pub fn terminate_at_end_of_thread(command: &mut Command) {
    signal_at_end_of_thread(command, libc::SIGTERM);
}

/// Makes the process that `command` starts get `signal` when the thread that starts it ends (on Linux).
fn signal_at_end_of_thread(command: &mut Command, signal: i32) {
    let parent = std::process::id();
    #[expect(unsafe_code, reason = "FFI")]
    // SAFETY: what runs between fork and exec makes system calls that are safe there, and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            #[cfg(target_os = "linux")]
            if libc::prctl(libc::PR_SET_PDEATHSIG, signal) == -1 {
                return Err(io::Error::last_os_error());
            }
            // The thread may have ended before that.
            if parent_id() == parent { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
        });
    }
    #[cfg(not(target_os = "linux"))]
    let _ = signal;
}

/// Makes the process that `command` starts inherit only `descriptor`, leave Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 to this process, and be killed
/// when the thread that starts it ends (on Linux).
pub fn prepare_rank_command(command: &mut Command, descriptor: RawFd) {
    #[expect(unsafe_code, reason = "FFI")]
    // SAFETY: what runs between fork and exec makes system calls that are safe there, and allocates nothing. The descriptor is open in
    // the parent, thus here; SIG_IGN runs no code.
    unsafe {
        command.pre_exec(move || {
            if libc::fcntl(descriptor, libc::F_SETFD, 0) == -1 {
                return Err(io::Error::last_os_error());
            }
            // Ignored signals stay ignored in the new program.
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1] {
                libc::signal(signal, libc::SIG_IGN);
            }
            Ok(())
        });
    }
    signal_at_end_of_thread(command, libc::SIGKILL);
}

/// Names this process `name`. The kernel shows the first 15 bytes.
pub fn name_process(name: &str) {
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

/// True if the process `pid` is stopped, as by SIGSTOP; false where the kernel does not report it.
pub fn is_stopped(pid: u32) -> bool {
    // The name before the last parenthesis may hold anything.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok();
    stat.as_deref().and_then(|stat| stat.rsplit_once(") ")).is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

/// The user that this process runs as.
pub fn user() -> u32 {
    #[expect(unsafe_code, reason = "FFI")]
    // SAFETY: reads a number of this process, and cannot fail.
    unsafe {
        libc::geteuid()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_runs_on() {
        let before = monotonic_milliseconds();
        assert!(before > 0 && monotonic_milliseconds() >= before);
    }

    #[test]
    fn this_process_is_not_stopped() {
        assert!(!is_stopped(std::process::id()));
    }
}
