//! Starts threads. If the system refuses one, usually because a limit on processes is reached, the error gives advice. The functions of
//! the standard library and rayon's own pool panic instead.

use std::io::{self, ErrorKind};
use std::sync::OnceLock;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle, scope};

use rayon::{ThreadPool, ThreadPoolBuilder};
use runner_spec::format::counted;
use runner_spec::panics::CaughtPanic;

use crate::cores;

/// Bytes of the stack of each thread of a pool: deep models need them.
const STACK_BYTES: usize = 8 << 20;

/// Starts the thread `name`.
///
/// # Errors
/// If the system refuses.
pub fn spawn<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    let work = on_own_cores(work);
    Builder::new().name(name.to_owned()).spawn(work).map_err(|error| explain_start_error("a thread", &error))
}

/// Starts the thread `name`, which ends before `scope` does.
///
/// # Errors
/// If the system refuses.
pub fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    let builder = Builder::new().name(name.to_owned());
    builder.spawn_scoped(scope, on_own_cores(work)).map_err(|error| explain_start_error("a thread", &error))
}

/// `work` of a new thread, which may run on all the cores of the calling one.
fn on_own_cores<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let cores = cores::own_cores().cores;
    move || {
        cores::start_on(cores);
        work()
    }
}

/// Does all of `works` at the same time, each on a thread called `name`. Returns their results in order; `None` for one that panicked.
///
/// # Errors
/// If the system refuses a thread. Then none of `works` was started, because one may wait for the others.
pub fn run_together<T: Send>(name: &str, works: Vec<impl FnOnce() -> T + Send>) -> io::Result<Vec<Option<T>>> {
    let all_started: &OnceLock<bool> = &OnceLock::new();
    scope(|scope| {
        let start = |work| spawn_scoped(scope, name, move || all_started.wait().then(work));
        let threads: io::Result<Vec<_>> = works.into_iter().map(start).collect();
        let _ = all_started.set(threads.is_ok());
        Ok(threads?.into_iter().map(|thread| thread.join().ok().flatten()).collect())
    })
}

/// A pool of `count` threads, at least one.
///
/// # Errors
/// If the system refuses one of them.
pub fn thread_pool(count: usize) -> io::Result<ThreadPool> {
    let count = count.max(1);
    let cores = cores::own_cores().cores;
    let builder = ThreadPoolBuilder::new().num_threads(count).stack_size(STACK_BYTES);
    let builder = builder.start_handler(move |_| cores::start_on(cores));
    builder.build().map_err(|error| explain_start_error(&counted(count as u64, "thread"), &io::Error::other(error)))
}

/// Starts the pool that runs parallel iterators outside of any other pool.
///
/// # Errors
/// If the system refuses one of its threads.
pub fn start_global_pool() -> io::Result<()> {
    static STARTED: OnceLock<Result<(), String>> = OnceLock::new();
    let start = || {
        let started = ThreadPoolBuilder::new().build_global();
        // The error of a pool that is there already has no cause.
        let refused = started.err().filter(|error| std::error::Error::source(error).is_some());
        let explain = |error| explain_start_error("a thread for each core", &io::Error::other(error)).to_string();
        refused.map_or(Ok(()), |error| Err(explain(error)))
    };
    STARTED.get_or_init(start).clone().map_err(io::Error::other)
}

/// The error that the system refused to start `what`, threads or a process, with what to do if a limit is reached.
pub fn explain_start_error(what: &str, error: &io::Error) -> io::Error {
    let root = io_cause(error);
    let advice = match root.kind() {
        // EAGAIN.
        ErrorKind::WouldBlock => {
            "; raise the limit on processes (`ulimit -u`; in a container its `pids.max`), or use fewer threads (`--threads`)"
        }
        ErrorKind::OutOfMemory => "; free memory, or use fewer threads (`--threads`)",
        _ => "",
    };
    // Its kind must not be taken for that of a connection that timed out.
    io::Error::other(format!("cannot start {what}: {root}{advice}"))
}

/// The message `panic` of a library that panics if the system refuses a thread, with what to do then.
pub fn explain_panic(CaughtPanic(panic): CaughtPanic) -> String {
    if panic.contains("failed to spawn thread") {
        return explain_start_error("a thread", &ErrorKind::WouldBlock.into()).to_string();
    }
    panic
}

/// The error of the operating system in `error`, which a library may have wrapped.
fn io_cause(error: &io::Error) -> &io::Error {
    let causes = std::iter::successors(Some(error as &(dyn std::error::Error + 'static)), |&cause| cause.source());
    causes.filter_map(|cause| cause.downcast_ref::<io::Error>()).last().unwrap_or(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the library's pool failed")]
    struct Wrapped(#[source] io::Error);

    #[test]
    fn a_reached_limit_is_explained_whatever_wraps_it() {
        let reached = || io::Error::from_raw_os_error(libc::EAGAIN);
        for error in [reached(), io::Error::other(Wrapped(reached()))] {
            let text = explain_start_error("2 threads", &error).to_string();
            assert!(text.starts_with("cannot start 2 threads: Resource temporarily unavailable"), "{text}");
            assert!(text.contains("`ulimit -u`") && text.contains("`--threads`"), "{text}");
        }
        let other = explain_start_error("a thread", &ErrorKind::PermissionDenied.into());
        assert_eq!(other.to_string(), "cannot start a thread: permission denied");
    }

    #[test]
    fn works_run_at_the_same_time_and_keep_their_order() {
        let barrier = std::sync::Barrier::new(3);
        let work = |number: usize| {
            let barrier = &barrier;
            move || {
                barrier.wait();
                assert!(number != 1, "this one panics");
                number
            }
        };
        assert_eq!(run_together("test", (0..3).map(work).collect()).unwrap(), [Some(0), None, Some(2)]);
    }

    #[test]
    fn a_pool_has_the_threads_that_were_asked_for() {
        assert_eq!(thread_pool(3).unwrap().current_num_threads(), 3);
    }

    #[test]
    fn the_global_pool_can_be_started_again() {
        start_global_pool().unwrap();
        start_global_pool().unwrap();
        assert_eq!(thread_pool(0).unwrap().current_num_threads(), 1);
    }
}
