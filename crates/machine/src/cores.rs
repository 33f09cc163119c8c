//! Cores that threads may run on, and threads that wait for their core because other programs use it: they get the core of a thread that
//! has nothing to do.
//!
//! Linux moves threads between cores too, but not one that ran within the last half millisecond, nor to a core that has been idle for less.
//! Pauses in a training step are shorter, so Linux never moves its threads in time.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A thread that was looked at so long ago, and has had a core for less than a fifth of it since, may wait for one.
const MIN_LOOK: Duration = Duration::from_micros(50);
/// A thread that has waited for cores for longer than this, and for more than a fifth of the time, shares its own with other programs. The
/// waits that a rank's own threads cause are shorter.
const NOTICED_WAIT: Duration = Duration::from_millis(1);
const NOTICED_DIVISOR: u64 = 5;
/// How long a thread stays bound to one core. Other programs may have ended after it.
const BINDING: Duration = Duration::from_secs(1);

const WORD_BITS: usize = u64::BITS as usize;
/// The kernel's sets of cores have 1,024 bits, unless a machine has more cores. Threads of such a machine are not moved.
const WORDS: usize = 1024 / WORD_BITS;

/// The value of [`MovableThread::returns_to`] or [`MovableThread::bound_since`] where there is none: memory that processes share is 0.
const NONE: u64 = 0;

/// A set of cores, as the kernel stores it: a bit for each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cores([u64; WORDS]);

impl Cores {
    /// Those of `cores` for which the set has bits.
    pub fn of(cores: &[usize]) -> Self {
        let mut words = [0; WORDS];
        for core in cores {
            if let Some(word) = words.get_mut(core / WORD_BITS) {
                *word |= 1 << (core % WORD_BITS);
            }
        }
        Self(words)
    }

    fn is_one(&self) -> bool {
        self.0.iter().map(|word| word.count_ones()).sum::<u32>() == 1
    }

    fn is_empty(&self) -> bool {
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
/// Somebody may give the process other cores while it runs (`taskset -ap`, a control group). The system's set of a thread does not show
/// whether that happened, because threads are bound by other threads. But the main thread is never bound: its set is the set of the process.
#[derive(Debug, Clone, Copy, Default)]
struct OwnCores {
    cores: Cores,
    /// The digest of the set of the process when `cores` were chosen; 0 where the system does not say it.
    of_process: u64,
}

impl OwnCores {
    fn new(cores: Cores) -> Self {
        let process = system::own_thread().process;
        Self { cores, of_process: system::allowed_cores(process).map_or(0, |cores| cores.digest()) }
    }

    /// These cores, or the cores of the thread's process `process` if that was given other cores since.
    fn now(self, process: i32) -> Self {
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
pub(crate) fn own_cores() -> Cores {
    let own = OWN_CORES.get().now(system::own_thread().process);
    OWN_CORES.set(own);
    own.cores
}

/// Lets the calling thread run on `cores`, the [`own_cores`] of the thread that started it: if that is bound to one core, the system gives
/// a new thread this core alone, for good.
pub(crate) fn start_on(cores: Cores) {
    let own = system::own_thread();
    if !cores.is_empty() && system::allowed_cores(own.thread) != Some(cores) {
        let _ = system::bind(own, &cores);
    }
    OWN_CORES.set(OwnCores::new(cores));
}

/// A slot for a thread that may be bound to one core for a while; at first for nobody. It may be in memory that processes of one user share.
#[derive(Debug, Default)]
#[repr(C)]
pub struct MovableThread {
    /// The process and the thread, in the upper and the lower half; 0 for nobody.
    id: AtomicU64,
    /// Its [`OwnCores`].
    own: [AtomicU64; WORDS],
    of_process: AtomicU64,
    /// Nanoseconds of the system's clock since which it is bound, or [`NONE`].
    bound_since: AtomicU64,
    /// The number after that of the core to which it returns from one that was lent, or [`NONE`].
    returns_to: AtomicU64,
    /// How long it had waited for cores when another process last asked, and when that was on the system's clock, in nanoseconds.
    seen_wait: AtomicU64,
    seen_at: AtomicU64,
    /// Until when other processes take it for one that shares its core, in nanoseconds of the system's clock.
    shares_until: AtomicU64,
}

/// A thread and its process, by the numbers that the system gave them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ThreadId {
    process: i32,
    thread: i32,
}

impl ThreadId {
    /// True for a thread of this process.
    fn is_own(self) -> bool {
        self.process == system::own_thread().process
    }
}

/// The time that a thread had had cores when somebody began to look at it.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    start: Instant,
    time: Option<Duration>,
}

impl MovableThread {
    /// Makes this the calling thread, if it is not that already. The main thread, which is never bound, stays nobody.
    pub fn enter(&self) {
        let own = system::own_thread();
        if self.id() == Some(own) || own.thread == own.process {
            return;
        }
        let cores = own_cores();
        for (word, own) in self.own.iter().zip(cores.0) {
            word.store(own, Ordering::Relaxed);
        }
        self.of_process.store(OWN_CORES.get().of_process, Ordering::Relaxed);
        self.bound_since.store(NONE, Ordering::Relaxed);
        self.returns_to.store(NONE, Ordering::Relaxed);
        self.seen_at.store(NONE, Ordering::Relaxed);
        self.shares_until.store(NONE, Ordering::Relaxed);
        // Somebody may have bound the thread while it left.
        if system::allowed_cores(own.thread).is_some_and(|found| found.is_one() && found != cores) {
            let _ = self.unbind(own);
        }
        let ThreadId { process, thread } = own;
        self.id.store(u64::from(process as u32) << 32 | u64::from(thread as u32), Ordering::Release);
    }

    /// Makes this nobody. The thread that it was may run on all its cores again.
    pub fn leave(&self) {
        let id = self.id();
        self.id.store(0, Ordering::Release);
        self.returns_to.store(NONE, Ordering::Relaxed);
        if self.bound_since.swap(NONE, Ordering::AcqRel) != NONE {
            let _ = id.map(|id| self.unbind(id));
        }
    }

    fn id(&self) -> Option<ThreadId> {
        let id = self.id.load(Ordering::Acquire);
        (id != 0).then_some(ThreadId { process: (id >> 32) as i32, thread: id as u32 as i32 })
    }

    /// The cores that the thread, which is `id`, may run on while it is not bound.
    fn allowed(&self, id: ThreadId) -> Cores {
        let cores = Cores(std::array::from_fn(|word| self.own[word].load(Ordering::Relaxed)));
        OwnCores { cores, of_process: self.of_process.load(Ordering::Relaxed) }.now(id.process).cores
    }

    /// Begins to look whether the thread has a core.
    pub fn look(&self) -> Look {
        Look { start: Instant::now(), time: self.id().filter(|id| id.is_own()).and_then(system::cpu_time) }
    }

    /// The core that the thread waits for; `None` if it had a core for a fifth of the time since `look`, or sleeps. A thread of another
    /// process, of which the system does not say how long it has run, may run too if it shared its core a short time ago.
    fn awaited_core(&self, look: &Look) -> Option<usize> {
        let id = self.id()?;
        let waits = if id.is_own() {
            let elapsed = look.start.elapsed();
            elapsed > MIN_LOOK && system::cpu_time(id)?.checked_sub(look.time?)? < elapsed / 5
        } else {
            self.shares_core(id)?
        };
        if !waits {
            return None;
        }
        let (state, core) = system::last_core(id)?;
        (state == "R").then_some(core)
    }

    /// True if the thread has waited for cores for a fifth of the time since the last call, or had in a call shortly before.
    fn shares_core(&self, id: ThreadId) -> Option<bool> {
        let (now, wait) = (system::now(), system::wait_for_cores(id)?);
        let (seen_at, seen_wait) =
            (self.seen_at.swap(now, Ordering::Relaxed), self.seen_wait.swap(wait, Ordering::Relaxed));
        let (elapsed, waited) = (now.saturating_sub(seen_at), wait.saturating_sub(seen_wait));
        if seen_at != NONE && waited > (elapsed / NOTICED_DIVISOR).max(NOTICED_WAIT.as_nanos() as u64) {
            self.shares_until.store(now + BINDING.as_nanos() as u64, Ordering::Relaxed);
        }
        Some(now < self.shares_until.load(Ordering::Relaxed))
    }

    /// Lets the thread run on the core of the calling thread, which has nothing to do and must sleep now, if it has waited for its own core
    /// since `look`. It must call [`Self::return_core`] when it has nothing to do itself. Returns true if so.
    pub fn lend_core(&self, look: &Look) -> bool {
        let lent = system::current_core().zip(self.awaited_core(look)).filter(|(own, awaited)| own != awaited);
        lent.is_some_and(|(own, awaited)| {
            self.returns_to.store(awaited as u64 + 1, Ordering::Release);
            let is_bound = self.bind_to(own);
            if !is_bound {
                self.returns_to.store(NONE, Ordering::Release);
            }
            is_bound
        })
    }

    /// Moves the thread back from a core that was lent to it, and ends a binding that has lasted for a while.
    pub fn return_core(&self) {
        if self.returns_to.load(Ordering::Relaxed) != NONE
            && let Some(core) = self.returns_to.swap(NONE, Ordering::AcqRel).checked_sub(1)
        {
            self.bind_to(core as usize);
        }
        let since = self.bound_since.load(Ordering::Relaxed);
        if since != NONE && system::now().saturating_sub(since) > BINDING.as_nanos() as u64 {
            self.bound_since.store(NONE, Ordering::Relaxed);
            let _ = self.id().map(|id| self.unbind(id));
        }
    }

    /// Swaps cores with `other`, if that has waited for its core since `look`. This thread has nothing to do: it sleeps, or will now.
    /// Returns true if so.
    pub fn swap_cores_with(&self, other: &Self, look: &Look) -> bool {
        let changed = || {
            let (id, awaited) = (other.id()?, other.awaited_core(look)?);
            let own = system::last_core(self.id()?)?.1;
            if own == awaited || !other.may_run_on(id, own) || !self.may_run_on(self.id()?, awaited) {
                return None;
            }
            system::bind(id, &Cores::of(&[own])).ok()?;
            let _ = other.unbind(id);
            // Woken without a binding, this thread would run on the other's new core.
            self.bind_to(awaited);
            Some(())
        };
        changed().is_some()
    }

    fn may_run_on(&self, id: ThreadId, core: usize) -> bool {
        self.allowed(id).0.iter().zip(Cores::of(&[core]).0).any(|(allowed, one)| allowed & one != 0)
    }

    /// True while the thread is bound to one core, because other programs use the cores too.
    pub fn is_bound(&self) -> bool {
        self.bound_since.load(Ordering::Relaxed) != NONE
    }

    /// Binds the thread to one of its cores for a while. Returns true if that was possible.
    fn bind_to(&self, core: usize) -> bool {
        let Some(id) = self.id().filter(|id| self.may_run_on(*id, core)) else { return false };
        let before = self.bound_since.swap(system::now(), Ordering::AcqRel);
        let is_bound = system::bind(id, &Cores::of(&[core])).is_ok();
        if !is_bound {
            self.bound_since.store(before, Ordering::Release);
        }
        is_bound
    }

    fn unbind(&self, id: ThreadId) -> io::Result<()> {
        let allowed = self.allowed(id);
        if allowed.is_empty() { Ok(()) } else { system::bind(id, &allowed) }
    }
}

/// Lets the calling thread, and those that it starts later, run on `cores` alone.
///
/// # Errors
/// If the system refuses, or has no such call.
pub fn bind_current_thread(cores: &[usize]) -> io::Result<()> {
    let cores = Cores::of(cores);
    system::bind(system::own_thread(), &cores)?;
    OWN_CORES.set(OwnCores::new(cores));
    Ok(())
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "FFI")]
mod system {
    use std::io;
    use std::time::Duration;

    use super::{Cores, ThreadId, WORDS};

    pub(super) fn own_thread() -> ThreadId {
        // SAFETY: the calls have no arguments and cannot fail.
        unsafe { ThreadId { process: libc::getpid(), thread: libc::gettid() } }
    }

    pub(super) fn current_core() -> Option<usize> {
        // SAFETY: the call has no arguments.
        usize::try_from(unsafe { libc::sched_getcpu() }).ok()
    }

    pub(super) fn allowed_cores(thread: i32) -> Option<Cores> {
        let mut words = [0; WORDS];
        // SAFETY: the kernel writes at most as many bytes as the set has.
        let result = unsafe { libc::sched_getaffinity(thread, size_of_val(&words), words.as_mut_ptr().cast()) };
        (result == 0).then_some(Cores(words))
    }

    pub(super) fn bind(id: ThreadId, cores: &Cores) -> io::Result<()> {
        // SAFETY: the kernel reads as many bytes as the set has.
        let result = unsafe { libc::sched_setaffinity(id.thread, size_of_val(&cores.0), cores.0.as_ptr().cast()) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// The time that a thread of this process has had cores.
    pub(super) fn cpu_time(id: ThreadId) -> Option<Duration> {
        // The kernel's number of the thread's clock: the inverted number of the thread, then 4 for a thread, plus 2 for the time that the
        // scheduler gave (linux/posix-timers.h).
        let clock = (!id.thread << 3) | 6;
        read_clock(clock)
    }

    /// Nanoseconds of the clock that all processes of this machine share.
    pub(super) fn now() -> u64 {
        read_clock(libc::CLOCK_MONOTONIC).map_or(1, |time| time.as_nanos() as u64)
    }

    fn read_clock(clock: libc::clockid_t) -> Option<Duration> {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel writes one `timespec`.
        let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
        (result == 0).then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    }

    /// How long a thread has waited for cores, in nanoseconds.
    pub(super) fn wait_for_cores(id: ThreadId) -> Option<u64> {
        let path = format!("/proc/{}/task/{}/schedstat", id.process, id.thread);
        std::fs::read_to_string(path).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
    }

    /// The state of a thread, "R" if it runs or waits for a core, and the core that it ran on last or waits for.
    pub(super) fn last_core(id: ThreadId) -> Option<(String, usize)> {
        let stat = std::fs::read_to_string(format!("/proc/{}/task/{}/stat", id.process, id.thread)).ok()?;
        // The name, in parentheses, may hold anything. The state follows it, and 36 fields later the core (man 5 proc_pid_stat).
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        Some((fields.first()?.to_string(), fields.get(36)?.parse().ok()?))
    }
}

/// Other systems do not say which thread waits for a core.
#[cfg(not(target_os = "linux"))]
mod system {
    use std::io;
    use std::time::Duration;

    use super::{Cores, ThreadId};

    pub(super) fn own_thread() -> ThreadId {
        ThreadId { process: 0, thread: 0 }
    }

    pub(super) fn current_core() -> Option<usize> {
        None
    }

    pub(super) fn allowed_cores(_thread: i32) -> Option<Cores> {
        None
    }

    pub(super) fn bind(_id: ThreadId, _cores: &Cores) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn cpu_time(_id: ThreadId) -> Option<Duration> {
        None
    }

    pub(super) fn wait_for_cores(_id: ThreadId) -> Option<u64> {
        None
    }

    pub(super) fn last_core(_id: ThreadId) -> Option<(String, usize)> {
        None
    }

    pub(super) fn now() -> u64 {
        1
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;
    use crate::threads;

    /// One test changes the cores of this process.
    static AFFINITY: Mutex<()> = Mutex::new(());

    fn allowed_cores() -> Option<Cores> {
        system::allowed_cores(system::own_thread().thread)
    }

    /// Two threads share a core. The one that waits is found, and runs on another core until it returns.
    #[test]
    fn a_thread_that_waits_runs_on_a_core_that_is_lent() {
        let _alone = AFFINITY.lock().unwrap();
        let waiting = MovableThread::default();
        let (entered, moved, ended) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
        let allowed: Vec<usize> =
            (0..1024).filter(|core| own_cores().0[core / WORD_BITS] >> (core % WORD_BITS) & 1 == 1).collect();
        let (shared, lent) = (allowed[0], *allowed.last().unwrap());
        let spin_until = |flag: &AtomicBool| {
            while !flag.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
        };
        thread::scope(|scope| {
            // Takes the core from the thread that waits for it.
            scope.spawn(|| {
                bind_current_thread(&[shared]).unwrap();
                spin_until(&ended);
            });
            scope.spawn(|| {
                waiting.enter();
                waiting.bind_to(shared);
                entered.store(true, Ordering::Release);
                spin_until(&moved);
                if shared != lent {
                    assert_eq!(allowed_cores(), Some(Cores::of(&[lent])));
                    waiting.return_core();
                }
                assert_eq!(allowed_cores(), Some(Cores::of(&[shared])));
                waiting.return_core();
                assert_eq!(allowed_cores(), Some(Cores::of(&[shared])), "the binding is not old");
                waiting.leave();
                assert_eq!(allowed_cores(), Some(own_cores()));
                assert!(!waiting.bind_to(shared), "nobody");
                ended.store(true, Ordering::Release);
            });
            scope.spawn(|| {
                bind_current_thread(&[lent]).unwrap();
                let start = Instant::now();
                let mut look = waiting.look();
                while !waiting.lend_core(&look) && waiting.awaited_core(&look) != Some(lent) {
                    if !entered.load(Ordering::Acquire) || look.start.elapsed() > 2 * MIN_LOOK {
                        look = waiting.look();
                    }
                    assert!(start.elapsed() < Duration::from_secs(20), "the thread never waits");
                }
                moved.store(true, Ordering::Release);
            });
        });
    }

    #[test]
    fn threads_of_a_bound_thread_may_run_on_all_its_cores() {
        let _alone = AFFINITY.lock().unwrap();
        let thread = MovableThread::default();
        thread.enter();
        let (all, last) =
            (own_cores(), (0..1024).rfind(|core| thread.may_run_on(thread.id().unwrap(), *core)).unwrap());
        assert!(thread.bind_to(last));
        assert_eq!(allowed_cores(), Some(Cores::of(&[last])));
        let spawned = threads::spawn("test", || (allowed_cores(), own_cores())).unwrap().join().unwrap();
        assert_eq!(spawned, (Some(all), all));
        assert_eq!(threads::thread_pool(1).unwrap().install(allowed_cores), Some(all));
        let together = threads::run_together("test", vec![allowed_cores]).unwrap();
        assert_eq!(together, [Some(Some(all))]);
        thread.leave();
        // Cores to which a thread is bound for good are those of the threads that it starts.
        threads::spawn("test", move || {
            bind_current_thread(&[last]).unwrap();
            let spawned = threads::spawn("test", allowed_cores).unwrap().join().unwrap();
            assert_eq!(spawned, Some(Cores::of(&[last])));
        })
        .unwrap()
        .join()
        .unwrap();
    }

    /// `taskset -ap` gives all threads of a process other cores, while one of them is bound.
    #[test]
    fn threads_keep_to_the_cores_that_a_process_is_given_meanwhile() {
        let _alone = AFFINITY.lock().unwrap();
        let ThreadId { process, .. } = system::own_thread();
        let main = ThreadId { process, thread: process };
        let all = system::allowed_cores(process).unwrap();
        let cores: Vec<usize> =
            (0..1024).filter(|core| all.0[core / WORD_BITS] >> (core % WORD_BITS) & 1 == 1).collect();
        let (first, last) = (cores[0], *cores.last().unwrap());
        let thread = MovableThread::default();
        thread.enter();
        assert!(thread.bind_to(last));
        let given = Cores::of(&[first]);
        system::bind(main, &given).unwrap();
        let is_refused = first == last || !thread.bind_to(last);
        thread.leave();
        let found = (allowed_cores(), own_cores());
        let spawned = threads::spawn("test", allowed_cores).unwrap().join().unwrap();
        system::bind(main, &all).unwrap();
        assert!(is_refused, "the thread is not bound to a core that was taken away");
        assert_eq!((found, spawned), ((Some(given), given), Some(given)));
        assert_eq!(own_cores(), all);
    }

    #[test]
    fn a_thread_that_sleeps_waits_for_no_core() {
        let thread = &MovableThread::default();
        assert_eq!(thread.awaited_core(&thread.look()), None, "nobody");
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                thread.enter();
                thread::park();
            });
            while thread.id().is_none() {
                thread::yield_now();
            }
            let look = thread.look();
            thread::sleep(Duration::from_millis(20));
            assert_eq!(thread.awaited_core(&look), None);
            sleeper.thread().unpark();
        });
    }
}
