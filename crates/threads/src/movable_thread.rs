//! Moves a thread whose core is busy with another program onto the core of an idle thread.
//!
//! Linux moves threads between cores too, but not one that ran within the last half millisecond, nor to a core that has been idle for less.
//! Pauses in a training step are shorter, so Linux never moves its threads in time.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::cores::{Cores, OwnCores, ThreadId, WORDS, own_cores, system};

/// Minimum sampling interval. A thread that got less than a fifth of it as CPU time is assumed to be waiting for a core.
const MIN_SAMPLE_INTERVAL: Duration = Duration::from_micros(50);
/// A thread of another process that has waited for cores for longer than this, and for more than a fifth of the time, shares its core with
/// other programs. A rank's own threads cause shorter waits.
const NOTICED_WAIT: Duration = Duration::from_millis(1);
const NOTICED_DIVISOR: u64 = 5;
/// How long a thread stays bound to one core. Other programs may have ended after it.
const BINDING: Duration = Duration::from_secs(1);

/// The value of [`MovableThread::returns_to`] or [`MovableThread::bound_since`] where there is none: memory that processes share is 0.
const NONE: u64 = 0;

/// A slot for a thread that may be bound to one core for a while; empty at first. It may be in memory that processes of one user share.
#[derive(Debug, Default)]
#[repr(C)]
pub struct MovableThread {
    /// The process and the thread, in the upper and the lower half; 0 for an empty slot.
    id: AtomicU64,
    /// Its [`OwnCores`].
    own: [AtomicU64; WORDS],
    of_process: AtomicU64,
    /// Nanoseconds of the system's clock since which it is bound, or [`NONE`].
    bound_since: AtomicU64,
    /// The number after that of the core to which it returns from one that was lent, or [`NONE`].
    returns_to: AtomicU64,
    /// How long it had waited for cores when another process last sampled it, and when that was on the system's clock, in nanoseconds.
    seen_wait: AtomicU64,
    seen_at: AtomicU64,
    /// Until when other processes take it for one that shares its core, in nanoseconds of the system's clock.
    shares_until: AtomicU64,
}

/// A sample of a thread's CPU time. `None`: the slot was empty, or has a thread of another process.
#[derive(Debug, Clone, Copy)]
pub struct CpuTimeSample {
    taken: Instant,
    cpu_time: Option<Duration>,
}

impl MovableThread {
    /// Puts the calling thread into the slot. The main thread, which is never bound, leaves it empty.
    pub fn occupy(&self) {
        let own = system::own_thread();
        if self.id() == Some(own) || own.thread == own.process {
            return;
        }
        let OwnCores { cores, of_process } = own_cores();
        for (word, own) in self.own.iter().zip(cores.0) {
            word.store(own, Ordering::Relaxed);
        }
        self.of_process.store(of_process, Ordering::Relaxed);
        self.bound_since.store(NONE, Ordering::Relaxed);
        self.returns_to.store(NONE, Ordering::Relaxed);
        self.seen_at.store(NONE, Ordering::Relaxed);
        self.shares_until.store(NONE, Ordering::Relaxed);
        // Another thread may have bound this one while it vacated a slot.
        if system::allowed_cores(own.thread).is_some_and(|found| found.is_one() && found != cores) {
            let _ = self.unbind(own);
        }
        let ThreadId { process, thread } = own;
        self.id.store(u64::from(process as u32) << 32 | u64::from(thread as u32), Ordering::Release);
    }

    /// Vacates the slot and unbinds its thread.
    pub fn vacate(&self) {
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

    /// Samples the CPU time of the thread.
    pub fn sample_cpu_time(&self) -> CpuTimeSample {
        CpuTimeSample { taken: Instant::now(), cpu_time: self.id().filter(|id| id.is_own()).and_then(system::cpu_time) }
    }

    /// The core that the thread waits for; `None` if it had a core for a fifth of the time since `sample`, or sleeps. A thread of another
    /// process, whose CPU time the system does not report, may run too if it shared its core a short time ago.
    fn awaited_core(&self, sample: &CpuTimeSample) -> Option<usize> {
        let id = self.id()?;
        let waits = if id.is_own() {
            let elapsed = sample.taken.elapsed();
            elapsed > MIN_SAMPLE_INTERVAL && system::cpu_time(id)?.checked_sub(sample.cpu_time?)? < elapsed / 5
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
    /// since `sample`. It must call [`Self::return_core`] when it has nothing to do itself. Returns true if so.
    pub fn lend_core(&self, sample: &CpuTimeSample) -> bool {
        let lent = system::current_core().zip(self.awaited_core(sample)).filter(|(own, awaited)| own != awaited);
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

    /// Swaps cores with `other`, if that has waited for its core since `sample`. This thread has nothing to do: it sleeps, or will now.
    /// Returns true if so.
    pub fn swap_cores_with(&self, other: &Self, sample: &CpuTimeSample) -> bool {
        let changed = || {
            let (id, awaited) = (other.id()?, other.awaited_core(sample)?);
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
        self.allowed(id).contains(core)
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;
    use crate::cores::tests::bind_current_thread;
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
        let (occupied, moved, ended) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
        let allowed: Vec<usize> = (0..1024).filter(|core| own_cores().cores.contains(*core)).collect();
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
                waiting.occupy();
                waiting.bind_to(shared);
                occupied.store(true, Ordering::Release);
                spin_until(&moved);
                if shared != lent {
                    assert_eq!(allowed_cores(), Some(Cores::of(&[lent])));
                    waiting.return_core();
                }
                assert_eq!(allowed_cores(), Some(Cores::of(&[shared])));
                waiting.return_core();
                assert_eq!(allowed_cores(), Some(Cores::of(&[shared])), "the binding is not old");
                waiting.vacate();
                assert_eq!(allowed_cores(), Some(own_cores().cores));
                assert!(!waiting.bind_to(shared), "an empty slot");
                ended.store(true, Ordering::Release);
            });
            scope.spawn(|| {
                bind_current_thread(&[lent]).unwrap();
                let start = Instant::now();
                let mut sample = waiting.sample_cpu_time();
                while !waiting.lend_core(&sample) && waiting.awaited_core(&sample) != Some(lent) {
                    if !occupied.load(Ordering::Acquire) || sample.taken.elapsed() > 2 * MIN_SAMPLE_INTERVAL {
                        sample = waiting.sample_cpu_time();
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
        thread.occupy();
        let (all, last) =
            (own_cores().cores, (0..1024).rfind(|core| thread.may_run_on(thread.id().unwrap(), *core)).unwrap());
        assert!(thread.bind_to(last));
        assert_eq!(allowed_cores(), Some(Cores::of(&[last])));
        let spawned = threads::spawn("test", || (allowed_cores(), own_cores().cores)).unwrap().join().unwrap();
        assert_eq!(spawned, (Some(all), all));
        assert_eq!(threads::thread_pool(1).unwrap().install(allowed_cores), Some(all));
        let together = threads::run_together("test", vec![allowed_cores]).unwrap();
        assert_eq!(together, [Some(Some(all))]);
        thread.vacate();
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
        let cores: Vec<usize> = (0..1024).filter(|core| all.contains(*core)).collect();
        let (first, last) = (cores[0], *cores.last().unwrap());
        let thread = MovableThread::default();
        thread.occupy();
        assert!(thread.bind_to(last));
        let given = Cores::of(&[first]);
        system::bind(main, &given).unwrap();
        let is_refused = first == last || !thread.bind_to(last);
        thread.vacate();
        let found = (allowed_cores(), own_cores().cores);
        let spawned = threads::spawn("test", allowed_cores).unwrap().join().unwrap();
        system::bind(main, &all).unwrap();
        assert!(is_refused, "the thread is not bound to a core that was taken away");
        assert_eq!((found, spawned), ((Some(given), given), Some(given)));
        assert_eq!(own_cores().cores, all);
    }

    #[test]
    fn a_thread_that_sleeps_waits_for_no_core() {
        let thread = &MovableThread::default();
        assert_eq!(thread.awaited_core(&thread.sample_cpu_time()), None, "an empty slot");
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                thread.occupy();
                thread::park();
            });
            while thread.id().is_none() {
                thread::yield_now();
            }
            let sample = thread.sample_cpu_time();
            thread::sleep(Duration::from_millis(20));
            assert_eq!(thread.awaited_core(&sample), None);
            sleeper.thread().unpark();
        });
    }
}
