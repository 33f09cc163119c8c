//! The cores that threads may run on, and what the kernel reports of threads.

use std::cell::Cell;

const WORD_BITS: usize = u64::BITS as usize;
/// The kernel's sets of cores have 1,024 bits, unless a machine has more cores. Threads of such a machine are not moved.
pub(crate) const WORDS: usize = 1024 / WORD_BITS;

/// A set of cores, as the kernel stores it: a bit for each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Cores(pub(crate) [u64; WORDS]);

impl Cores {
    /// The set of `cores`, without numbers for which it has no bits.
    pub(crate) fn of(cores: &[usize]) -> Self {
        let mut words = [0; WORDS];
        for core in cores {
            if let Some(word) = words.get_mut(core / WORD_BITS) {
                *word |= 1 << (core % WORD_BITS);
            }
        }
        Self(words)
    }

    pub(crate) fn contains(&self, core: usize) -> bool {
        self.0.get(core / WORD_BITS).is_some_and(|word| word >> (core % WORD_BITS) & 1 == 1)
    }

    pub(crate) fn is_one(&self) -> bool {
        self.0.iter().map(|word| word.count_ones()).sum::<u32>() == 1
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// A number that differs between sets; not 0.
    fn digest(&self) -> u64 {
        let mix = |digest: u64, word: &u64| (digest ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        self.0.iter().fold(1, mix).max(1)
    }
}

/// The cores that a thread may run on while it is not bound.
///
/// The process may be given other cores while it runs (`taskset -ap`, a control group). The system's set of a thread does not show whether
/// that happened, because threads are bound by other threads. But the main thread is never bound: its set is the set of the process.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OwnCores {
    pub(crate) cores: Cores,
    /// The digest of the set of the process when `cores` were chosen; 0 where the system does not say it.
    pub(crate) of_process: u64,
}

impl OwnCores {
    fn new(cores: Cores) -> Self {
        let process = system::own_thread().process;
        Self { cores, of_process: system::allowed_cores(process).map_or(0, |cores| cores.digest()) }
    }

    /// These cores, or the cores of the thread's process `process` if that was given other cores since.
    pub(crate) fn now(self, process: i32) -> Self {
        match system::allowed_cores(process) {
            Some(cores) if cores.digest() != self.of_process => Self { cores, of_process: cores.digest() },
            _ => self,
        }
    }
}

thread_local! {
    /// The cores of this thread; none where the system does not show them.
    static OWN_CORES: Cell<OwnCores> =
        Cell::new(OwnCores::new(system::allowed_cores(system::own_thread().thread).unwrap_or_default()));
}

/// The cores that the calling thread, and those that it starts, may run on while they are not bound.
pub(crate) fn own_cores() -> OwnCores {
    let own = OWN_CORES.get().now(system::own_thread().process);
    OWN_CORES.set(own);
    own
}

/// Lets the calling thread run on `cores`, the [`own_cores`] of the thread that started it: if that is bound to one core, the system gives
/// a new thread only this core, for good.
pub(crate) fn start_on(cores: Cores) {
    let own = system::own_thread();
    if !cores.is_empty() && system::allowed_cores(own.thread) != Some(cores) {
        let _ = system::bind(own, &cores);
    }
    OWN_CORES.set(OwnCores::new(cores));
}

/// A thread and its process, by the numbers that the system gave them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ThreadId {
    pub(crate) process: i32,
    pub(crate) thread: i32,
}

impl ThreadId {
    /// True for a thread of this process.
    pub(crate) fn is_own(self) -> bool {
        self.process == system::own_thread().process
    }
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "FFI")]
pub(crate) mod system {
    use std::io;
    use std::time::Duration;

    use super::{Cores, ThreadId, WORDS};

    pub(crate) fn own_thread() -> ThreadId {
        // SAFETY: the calls have no arguments and cannot fail.
        unsafe { ThreadId { process: libc::getpid(), thread: libc::gettid() } }
    }

    pub(crate) fn current_core() -> Option<usize> {
        // SAFETY: the call has no arguments.
        usize::try_from(unsafe { libc::sched_getcpu() }).ok()
    }

    pub(crate) fn allowed_cores(thread: i32) -> Option<Cores> {
        let mut words = [0; WORDS];
        // SAFETY: the kernel writes at most as many bytes as the set has.
        let result = unsafe { libc::sched_getaffinity(thread, size_of_val(&words), words.as_mut_ptr().cast()) };
        (result == 0).then_some(Cores(words))
    }

    pub(crate) fn bind(id: ThreadId, cores: &Cores) -> io::Result<()> {
        // SAFETY: the kernel reads as many bytes as the set has.
        let result = unsafe { libc::sched_setaffinity(id.thread, size_of_val(&cores.0), cores.0.as_ptr().cast()) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// The CPU time of a thread of this process.
    pub(crate) fn cpu_time(id: ThreadId) -> Option<Duration> {
        // The kernel's number of the thread's clock: the inverted number of the thread, then 4 for a thread, plus 2 for the time that the
        // scheduler gave (linux/posix-timers.h).
        let clock = (!id.thread << 3) | 6;
        read_clock(clock)
    }

    /// Nanoseconds of the clock that all processes of this machine share.
    pub(crate) fn now() -> u64 {
        read_clock(libc::CLOCK_MONOTONIC).map_or(1, |time| time.as_nanos() as u64)
    }

    fn read_clock(clock: libc::clockid_t) -> Option<Duration> {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel writes one `timespec`.
        let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
        (result == 0).then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    }

    /// How long a thread has waited for cores, in nanoseconds.
    pub(crate) fn wait_for_cores(id: ThreadId) -> Option<u64> {
        let path = format!("/proc/{}/task/{}/schedstat", id.process, id.thread);
        std::fs::read_to_string(path).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
    }

    /// The state of a thread, "R" if it runs or waits for a core, and the core that it ran on last or waits for.
    pub(crate) fn last_core(id: ThreadId) -> Option<(String, usize)> {
        let stat = std::fs::read_to_string(format!("/proc/{}/task/{}/stat", id.process, id.thread)).ok()?;
        // The name, in parentheses, may hold anything. The state follows it, and 36 fields later the core (man 5 proc_pid_stat).
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        Some((fields.first()?.to_string(), fields.get(36)?.parse().ok()?))
    }
}

/// Other systems do not say which thread waits for a core.
#[cfg(not(target_os = "linux"))]
pub(crate) mod system {
    use std::io;
    use std::time::Duration;

    use super::{Cores, ThreadId};

    pub(crate) fn own_thread() -> ThreadId {
        ThreadId { process: 0, thread: 0 }
    }

    pub(crate) fn current_core() -> Option<usize> {
        None
    }

    pub(crate) fn allowed_cores(_thread: i32) -> Option<Cores> {
        None
    }

    pub(crate) fn bind(_id: ThreadId, _cores: &Cores) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn cpu_time(_id: ThreadId) -> Option<Duration> {
        None
    }

    pub(crate) fn wait_for_cores(_id: ThreadId) -> Option<u64> {
        None
    }

    pub(crate) fn last_core(_id: ThreadId) -> Option<(String, usize)> {
        None
    }

    pub(crate) fn now() -> u64 {
        1
    }
}

#[cfg(all(test, target_os = "linux"))]
pub(crate) mod tests {
    use std::io;
    use std::thread;

    use super::*;

    /// Lets the calling thread, and the threads that it starts later, run only on `cores`.
    ///
    /// # Errors
    /// If the system refuses, or has no such call.
    pub(crate) fn bind_current_thread(cores: &[usize]) -> io::Result<()> {
        let cores = Cores::of(cores);
        system::bind(system::own_thread(), &cores)?;
        OWN_CORES.set(OwnCores::new(cores));
        Ok(())
    }

    #[test]
    fn a_thread_is_bound_and_the_threads_that_it_starts() {
        let allowed = || system::allowed_cores(system::own_thread().thread).unwrap();
        let last = (0..WORDS * WORD_BITS).rfind(|core| allowed().contains(*core)).unwrap();
        let work = move || {
            bind_current_thread(&[last]).unwrap();
            assert_eq!(allowed(), Cores::of(&[last]));
            assert_eq!(thread::spawn(allowed).join().unwrap(), Cores::of(&[last]));
            assert!(bind_current_thread(&[]).is_err(), "no core to run on");
        };
        thread::spawn(work).join().unwrap();
    }
}
