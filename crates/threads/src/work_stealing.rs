//! Work stealing: the threads of a pool compute a region of work in pieces.
//!
//! Rayon divides the work of a parallel iterator in halves, wakes a thread for each, and sleeps until they are done. A training step has
//! hundreds of such regions, many shorter than waking a thread takes. Here threads stay awake between regions that follow each other. Each
//! starts with its own part of the pieces, so that it often finds in its cache what it wrote in the region before, and then steals pieces
//! from the others. Which thread computes a piece makes no difference to its result.
//!
//! Where other programs use the cores too, a thread may wait for its core while it holds a piece that the others wait for. They notice, and
//! let it run on one of their cores ([`crate::movable_thread`]).

use std::any::Any;
use std::cell::{Cell, OnceCell, UnsafeCell};
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::movable_thread::MovableThread;

/// How long a waiting thread spins before it sleeps: about the cost of sleeping and waking.
const SPIN: Duration = Duration::from_micros(50);
/// The same while other programs use the cores too.
const SHORT_SPIN: Duration = Duration::from_micros(10);
/// A thread returns to the pool after this time without a region.
const STAY: Duration = Duration::from_millis(2);
/// It returns after this time even if there are regions, because the pool may have other jobs.
const MAX_STAY: Duration = Duration::from_millis(100);
/// How often a thread that waits for others samples their CPU time.
const SAMPLE_INTERVAL: Duration = Duration::from_micros(100);

thread_local! {
    /// The pool that computes the regions of this thread.
    static POOL: OnceCell<Arc<WorkStealingPool>> = const { OnceCell::new() };
    /// True while this thread computes a piece.
    static IN_PIECE: Cell<bool> = const { Cell::new(false) };
}

/// Calls `work` with each number below `count`, on the threads of the current pool. Within a piece, the calling thread does all of it.
///
/// # Panics
/// If `work` does, after all threads have left it.
pub fn for_each_piece(count: usize, work: impl Fn(usize) + Sync) {
    let threads = if count < 2 || IN_PIECE.get() { 1 } else { rayon::current_num_threads() };
    if threads < 2 {
        return (0..count).for_each(work);
    }
    POOL.with(|pool| pool.get_or_init(|| Arc::new(WorkStealingPool::new(threads))).compute(count, threads, &work));
}

/// The pieces of a region.
#[derive(Clone, Copy)]
struct Region {
    count: usize,
    work: *const (dyn Fn(usize) + Sync),
}

/// The threads that compute the regions of one thread, its owner. The other threads are jobs of the owner's rayon pool.
struct WorkStealingPool {
    /// The region, valid from the opening of its generation until no worker is inside.
    region: UnsafeCell<Option<Region>>,
    state: AtomicU64,
    /// For the owner, then each worker: the next of its pieces, which are a range of the region's.
    next_pieces: Box<[NextPiece]>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    owner: Thread,
    owner_sleeps: AtomicBool,
    owner_on_cores: MovableThread,
    /// The number of workers that the rayon pool was given as jobs, and that have not ended.
    jobs: AtomicUsize,
    workers: Box<[Worker]>,
    /// Workers that sleep, woken through `opened`.
    sleeping: AtomicUsize,
    sleep: Mutex<()>,
    opened: Condvar,
}

/// Alone in its lines of a cache.
#[derive(Default)]
#[repr(align(128))]
struct NextPiece(AtomicUsize);

#[derive(Default)]
struct Worker {
    is_taken: AtomicBool,
    is_inside: AtomicBool,
    thread: MovableThread,
}

// SAFETY: `region` is written by the owner alone, while no worker is inside; `work` is `Sync`.
#[expect(unsafe_code, reason = "shares the region's closure, which outlives it")]
unsafe impl Send for WorkStealingPool {}
// SAFETY: as for `Send`.
#[expect(unsafe_code, reason = "shares the region's closure, which outlives it")]
unsafe impl Sync for WorkStealingPool {}

/// The parts of [`WorkStealingPool::state`]: the number of workers inside, whether more may enter, and the number of the region.
const OPEN: u64 = 1 << 31;
const GENERATION: u64 = 1 << 32;

fn inside(state: u64) -> u64 {
    state % OPEN
}

impl WorkStealingPool {
    fn new(threads: usize) -> Self {
        let owner_on_cores = MovableThread::default();
        owner_on_cores.occupy();
        Self {
            region: UnsafeCell::new(None),
            state: AtomicU64::new(0),
            next_pieces: (0..threads).map(|_| NextPiece::default()).collect(),
            panic: Mutex::new(None),
            owner: thread::current(),
            owner_sleeps: AtomicBool::new(false),
            owner_on_cores,
            jobs: AtomicUsize::new(0),
            workers: (1..threads).map(|_| Worker::default()).collect(),
            sleeping: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            opened: Condvar::new(),
        }
    }

    fn compute(self: &Arc<Self>, count: usize, threads: usize, work: &(dyn Fn(usize) + Sync)) {
        // SAFETY: only the lifetime is changed, and this function does not return before all workers have left the region.
        #[expect(unsafe_code, reason = "the closure outlives the region")]
        let work = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(work) };
        // SAFETY: the region is closed, and no worker is inside.
        #[expect(unsafe_code, reason = "shares the region")]
        unsafe {
            *self.region.get() = Some(Region { count, work });
        }
        for (number, next) in self.next_pieces.iter().enumerate() {
            next.0.store(self.first_piece(number, count), Ordering::Relaxed);
        }
        let closed = self.state.load(Ordering::Relaxed);
        self.state.store(((closed / GENERATION + 1) * GENERATION) | OPEN, Ordering::SeqCst);
        self.wake_workers((threads - 1).min(count - 1));
        let own = catch_unwind(AssertUnwindSafe(|| self.compute_pieces(0)));
        let state = self.state.fetch_and(!OPEN, Ordering::SeqCst);
        if inside(state) > 0 {
            self.wait_until_empty();
        }
        let panic = lock(&self.panic).take();
        if let Some(panic) = own.err().or(panic) {
            resume_unwind(panic);
        }
    }

    /// Wakes or adds workers, so that there are `wanted`.
    fn wake_workers(self: &Arc<Self>, wanted: usize) {
        let sleeping = self.sleeping.load(Ordering::SeqCst);
        if sleeping > 0 {
            let _sleep = lock(&self.sleep);
            (0..wanted.min(sleeping)).for_each(|_| self.opened.notify_one());
        }
        for _ in self.jobs.load(Ordering::Relaxed)..wanted {
            self.jobs.fetch_add(1, Ordering::Relaxed);
            let pool = Arc::clone(self);
            rayon::spawn(move || {
                pool.run_worker();
                pool.jobs.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }

    /// The first of the pieces of thread `number`, of `count`.
    fn first_piece(&self, number: usize, count: usize) -> usize {
        number * count / self.next_pieces.len()
    }

    /// Computes the pieces of thread `me`, then steals pieces from the other threads. The caller is the owner, or inside.
    fn compute_pieces(&self, me: usize) {
        // SAFETY: the owner does not change the region while it is open or a worker is inside.
        #[expect(unsafe_code, reason = "shares the region")]
        let region = unsafe { *self.region.get() };
        let Some(Region { count, work }) = region else { return };
        // SAFETY: as above, so the closure is there.
        #[expect(unsafe_code, reason = "the closure outlives the region")]
        let work = unsafe { &*work };
        let outer = IN_PIECE.replace(true);
        let guard = OnDrop(|| IN_PIECE.set(outer));
        for number in (me..self.next_pieces.len()).chain(0..me) {
            let (next, end) = (&self.next_pieces[number].0, self.first_piece(number + 1, count));
            while next.load(Ordering::Relaxed) < end {
                let piece = next.fetch_add(1, Ordering::Relaxed);
                if piece < end {
                    work(piece);
                }
            }
        }
        drop(guard);
    }

    /// The job of a worker: computes pieces of one region after another, until there is none for a while.
    fn run_worker(&self) {
        let free = |worker: &Worker| {
            worker.is_taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let Some((number, me)) = self.workers.iter().enumerate().find(|(_, worker)| free(worker)) else { return };
        me.thread.occupy();
        let (start, mut seen) = (Instant::now(), 0);
        while start.elapsed() < MAX_STAY
            && let Some(generation) = self.enter(seen, &me.thread)
        {
            seen = generation;
            me.is_inside.store(true, Ordering::Relaxed);
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.compute_pieces(number + 1))) {
                lock(&self.panic).get_or_insert(panic);
            }
            me.is_inside.store(false, Ordering::Relaxed);
            let before = self.state.fetch_sub(1, Ordering::SeqCst);
            if inside(before) == 1 && before & OPEN == 0 && self.owner_sleeps.load(Ordering::SeqCst) {
                self.owner.unpark();
            }
            me.thread.return_core();
        }
        me.thread.vacate();
        me.is_taken.store(false, Ordering::Release);
    }

    /// Waits for a region of a generation other than `seen`, and enters it. Returns its generation; `None` if there is none for a while.
    fn enter(&self, seen: u64, me: &MovableThread) -> Option<u64> {
        let is_new = |state: u64| state & OPEN != 0 && state / GENERATION != seen;
        let try_enter = |state: u64| {
            let entered = self.state.compare_exchange_weak(state, state + 1, Ordering::SeqCst, Ordering::Relaxed);
            entered.is_ok().then_some(state / GENERATION)
        };
        let spin = if me.is_bound() { SHORT_SPIN } else { SPIN };
        let start = Instant::now();
        let mut owner = None;
        loop {
            let state = self.state.load(Ordering::Relaxed);
            if is_new(state) {
                if let Some(generation) = try_enter(state) {
                    return Some(generation);
                }
            } else if start.elapsed() < spin {
                (0..8).for_each(|_| spin_loop());
            } else if start.elapsed() > STAY {
                return None;
            } else {
                let is_first = owner.is_none();
                let sample = owner.get_or_insert_with(|| self.owner_on_cores.sample_cpu_time());
                if !is_first {
                    me.swap_cores_with(&self.owner_on_cores, sample);
                }
                let sleep = lock(&self.sleep);
                self.sleeping.fetch_add(1, Ordering::SeqCst);
                if !is_new(self.state.load(Ordering::SeqCst)) {
                    drop(self.opened.wait_timeout(sleep, if is_first { SAMPLE_INTERVAL } else { STAY }));
                }
                self.sleeping.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// Waits until all workers have left the closed region. A worker that waits for its core runs on the owner's core meanwhile.
    fn wait_until_empty(&self) {
        let is_empty = || inside(self.state.load(Ordering::SeqCst)) == 0;
        let spin = if self.workers.iter().any(|worker| worker.thread.is_bound()) { SHORT_SPIN } else { SPIN };
        let start = Instant::now();
        while start.elapsed() < spin {
            if is_empty() {
                return;
            }
            (0..8).for_each(|_| spin_loop());
        }
        self.owner_sleeps.store(true, Ordering::SeqCst);
        let mut is_lent = false;
        while !is_empty() {
            let samples: Vec<_> = self.workers.iter().map(|worker| worker.thread.sample_cpu_time()).collect();
            thread::park_timeout(SAMPLE_INTERVAL);
            let mut inside =
                self.workers.iter().zip(&samples).filter(|(worker, _)| worker.is_inside.load(Ordering::Relaxed));
            is_lent = is_lent || inside.any(|(worker, sample)| worker.thread.lend_core(sample));
        }
        self.owner_sleeps.store(false, Ordering::SeqCst);
    }
}

/// The data of a mutex whose holders do not panic halfway.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls a function at the end of a block, however it ends.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::threads::thread_pool;

    /// How often each of `count` pieces was computed.
    fn times_computed(count: usize) -> Vec<usize> {
        let times: Vec<_> = (0..count).map(|_| AtomicUsize::new(0)).collect();
        for_each_piece(count, |piece| {
            times[piece].fetch_add(1, Ordering::Relaxed);
        });
        times.into_iter().map(AtomicUsize::into_inner).collect()
    }

    #[test]
    fn each_piece_is_computed_once_whatever_the_threads() {
        for threads in [1, 2, 3, 8] {
            let pool = thread_pool(threads).unwrap();
            for round in 0..2_000 {
                let count = round % 40;
                assert_eq!(pool.install(|| times_computed(count)), vec![1; count], "{threads} threads");
            }
        }
        assert_eq!(times_computed(5), [1; 5], "outside of a pool");
    }

    #[test]
    fn a_thread_takes_its_own_pieces_first() {
        let pool = thread_pool(3).unwrap();
        pool.install(|| {
            let (firsts, met) = (Mutex::new(Vec::new()), std::sync::Barrier::new(3));
            for_each_piece(6, |piece| {
                let own = thread::current().id();
                let is_first = lock(&firsts).iter().all(|(thread, _)| *thread != own);
                if is_first {
                    lock(&firsts).push((own, piece));
                    met.wait();
                }
            });
            let mut pieces: Vec<usize> = lock(&firsts).iter().map(|(_, piece)| *piece).collect();
            pieces.sort_unstable();
            assert_eq!(pieces, [0, 2, 4]);
        });
    }

    #[test]
    fn threads_that_have_slept_or_left_come_again() {
        let pool = thread_pool(3).unwrap();
        pool.install(|| {
            for pause in [0, 1, 100, 1_000, 5_000, 0, 20_000] {
                thread::sleep(Duration::from_micros(pause));
                let start = Instant::now();
                // A worker that is leaving takes no piece, and is replaced for the next region.
                let three_met = || {
                    let met = Mutex::new(HashSet::new());
                    for_each_piece(3, |_| {
                        lock(&met).insert(thread::current().id());
                        let arrived = Instant::now();
                        while lock(&met).len() < 3 && arrived.elapsed() < Duration::from_millis(20) {
                            thread::yield_now();
                        }
                    });
                    lock(&met).len() == 3
                };
                while !three_met() {
                    assert!(start.elapsed() < Duration::from_secs(20), "three threads never meet after {pause} µs");
                }
            }
        });
    }

    #[test]
    fn owners_of_one_pool_do_not_disturb_each_other() {
        let pool = &thread_pool(4).unwrap();
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for count in 0..500 {
                        assert_eq!(pool.install(|| times_computed(count % 20)), vec![1; count % 20]);
                    }
                });
            }
        });
    }

    #[test]
    fn a_pool_has_time_for_other_jobs() {
        let pool = &thread_pool(2).unwrap();
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                pool.install(|| {
                    while !ended.load(Ordering::Relaxed) {
                        times_computed(2);
                    }
                });
            });
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(5));
                pool.install(|| ended.store(true, Ordering::Relaxed));
            });
        });
    }

    #[test]
    fn a_region_within_a_piece_belongs_to_its_thread() {
        thread_pool(2).unwrap().install(|| {
            for_each_piece(4, |_| {
                let own = thread::current().id();
                for_each_piece(4, |_| assert_eq!(thread::current().id(), own));
            });
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_after_all_pieces_have_ended() {
        let pool = thread_pool(3).unwrap();
        for panics in 0..6 {
            let ended = AtomicUsize::new(0);
            let work = |piece| {
                assert_ne!(piece, panics, "this one panics");
                thread::sleep(Duration::from_micros(200));
                ended.fetch_add(1, Ordering::Relaxed);
            };
            let caught = catch_unwind(AssertUnwindSafe(|| pool.install(|| for_each_piece(6, work)))).unwrap_err();
            assert!(caught.downcast_ref::<String>().unwrap().contains("this one panics"));
            let ended_before = ended.load(Ordering::Relaxed);
            thread::sleep(Duration::from_millis(1));
            assert_eq!(ended.into_inner(), ended_before, "a piece that outlived its region");
            assert_eq!(pool.install(|| times_computed(9)), [1; 9]);
        }
    }
}
