//! Ctrl-C, SIGTERM and SIGHUP: the first finishes the step and saves, the second ends the process. While a finished run waits for a
//! server, a signal ends the wait.

use std::fs;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use runner_engine::launched::LaunchedRank;
use runner_machine::stop::{SignalMeaning, StopSwitch};
use runner_machine::threads;

use super::exit::{Exit, Result};
use super::output::print_to_stderr;
use super::repeated_command::{given_command, repeated_command};

/// The signals that a child gets when its parent dies arrive within this time. The kernel sends one for each thread of the parent.
const PARENT_DEATH_INTERVAL: Duration = Duration::from_millis(500);

/// A launcher passes a signal on within this time, because it polls its processes every few seconds.
const LAUNCHER_INTERVAL: Duration = Duration::from_secs(5);

/// The longest that a process waits until its last message is written.
const LAST_MESSAGE_TIMEOUT: Duration = Duration::from_millis(200);

/// The reaction of this process to signals.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interrupt {
    stop: StopSwitch,
    /// A signal that arrives within this time after the first one counts as the same signal.
    repeat_interval: Duration,
    first: Arc<Mutex<Option<Instant>>>,
}

/// Takes over the signals of this process, which is one of the ranks that a launcher started, or starts ranks itself.
///
/// # Errors
/// If the process already has a handler.
pub(crate) fn install_for(launched: Option<&LaunchedRank>) -> Result<Interrupt> {
    match launched {
        None => Interrupt::install(),
        // A launcher passes on a signal that a terminal has sent to all of its processes already. Rank 0 reports for all.
        Some(launched) => Interrupt::install_with(LAUNCHER_INTERVAL, launched.assigned.rank == 0),
    }
}

impl Interrupt {
    /// Takes over the signals of this process. Before there is something to save, a signal ends the process.
    ///
    /// # Errors
    /// If the process already has a handler.
    pub(crate) fn install() -> Result<Self> {
        Self::install_with(Duration::ZERO, true)
    }

    /// Takes over the signals of a process that gets a signal when the process that started it ends.
    ///
    /// # Errors
    /// If the process already has a handler.
    pub(crate) fn install_as_child() -> Result<Self> {
        Self::install_with(PARENT_DEATH_INTERVAL, true)
    }

    fn install_with(repeat_interval: Duration, is_reporting: bool) -> Result<Self> {
        let interrupt = Self { repeat_interval, ..Self::default() };
        let hangup_ignored = is_ignored(libc::SIGHUP);
        let seen = interrupt.clone();
        ctrlc::set_handler(move || {
            match seen.interpret_signal(Instant::now()) {
                Some(SignalMeaning::FinishStep) if is_reporting => {}
                // The session reports the end of its wait.
                None | Some(SignalMeaning::FinishStep | SignalMeaning::EndWait) => return,
                Some(SignalMeaning::EndUnstarted) if is_reporting => {
                    let text = "\ninterrupted before training; nothing is lost";
                    report(format!("{text}\nnext:\n  {}", given_command()), LAST_MESSAGE_TIMEOUT);
                    std::process::exit(Exit::Interrupted as i32)
                }
                Some(SignalMeaning::EndNow) if is_reporting && seen.stop.is_working() => {
                    report(format!("\nstopped immediately\nnext:\n  {}", repeated_command()), LAST_MESSAGE_TIMEOUT);
                    std::process::exit(Exit::Interrupted as i32)
                }
                Some(SignalMeaning::EndUnstarted | SignalMeaning::EndNow) => {
                    std::process::exit(Exit::Interrupted as i32)
                }
            }
            let text = "\nfinishing the step, then saving; a second signal stops this command immediately";
            report(text.to_owned(), Duration::ZERO);
        })
        .map_err(|error| match error {
            ctrlc::Error::System(error) => threads::explain_start_error("the thread that receives signals", &error),
            other => std::io::Error::other(other),
        })?;
        // The handler is for all three signals at once; under nohup a hangup must stay ignored.
        if hangup_ignored {
            ignore_signal(libc::SIGHUP);
        }
        Ok(interrupt)
    }

    /// What a signal at `now` means; `None`: it is the first one again.
    fn interpret_signal(&self, now: Instant) -> Option<SignalMeaning> {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        if first.is_some_and(|first| now.duration_since(first) < self.repeat_interval) {
            return None;
        }
        let meaning = self.stop.signal();
        if matches!(meaning, SignalMeaning::FinishStep | SignalMeaning::EndWait) {
            *first = Some(now);
        }
        Some(meaning)
    }

    /// Does `work`, which the first signal asks to stop. After it everything is saved, so a signal ends the process.
    pub(crate) fn stoppable<T>(&self, work: impl FnOnce(&StopSwitch) -> T) -> T {
        self.stop.begin();
        let result = work(&self.stop);
        self.stop.end();
        result
    }
}

/// Writes `text` to standard error, and waits at most `timeout` for it. Another thread writes, because a blocked terminal must not
/// delay the next signal or the exit.
fn report(text: String, timeout: Duration) {
    let (written, is_written) = mpsc::channel();
    let text = Arc::<str>::from(text);
    let shared = Arc::clone(&text);
    let write = move || {
        print_to_stderr(&shared);
        // The receiver stops waiting after `timeout`.
        let _ = written.send(());
    };
    match threads::spawn("interrupt", write) {
        Ok(_) => _ = is_written.recv_timeout(timeout),
        // Then this thread writes, even if it has to wait.
        Err(_) => print_to_stderr(&text),
    }
}

/// True if this process was started with `signal` ignored, for example by nohup; false where the kernel does not report it.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignored_in(&status, signal)
}

fn ignored_in(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|m| u64::from_str_radix(m.trim(), 16).ok()).is_some_and(|m| m >> (signal - 1) & 1 == 1)
}

/// Makes this process, and those that it starts, ignore `signal`.
pub(crate) fn ignore_signal(signal: libc::c_int) {
    #[expect(unsafe_code, reason = "FFI")]
    // SAFETY: SIG_IGN runs no code of ours.
    unsafe {
        libc::signal(signal, libc::SIG_IGN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_signal_counts_and_an_echo_does_not() {
        let now = Instant::now();
        let after = |ms| now + Duration::from_millis(ms);
        let one = Interrupt::default();
        assert_eq!(one.interpret_signal(now), Some(SignalMeaning::EndNow), "nothing to save yet");
        one.stop.arm();
        assert_eq!(
            [one.interpret_signal(now), one.interpret_signal(now)],
            [Some(SignalMeaning::FinishStep), Some(SignalMeaning::EndNow)]
        );
        let child = Interrupt { repeat_interval: PARENT_DEATH_INTERVAL, ..Interrupt::default() };
        child.stop.arm();
        let heard = [now, after(1), after(499), after(500)].map(|at| child.interpret_signal(at));
        assert_eq!(heard, [Some(SignalMeaning::FinishStep), None, None, Some(SignalMeaning::EndNow)]);
        assert!(child.stop.is_stop_requested());
    }

    #[test]
    fn the_first_signal_after_the_work_ends_the_process() {
        let now = Instant::now();
        let done = Interrupt::default();
        done.stoppable(StopSwitch::arm);
        assert_eq!(done.interpret_signal(now), Some(SignalMeaning::EndNow));
        // The echo of a signal during the work is still the same signal.
        let child = Interrupt { repeat_interval: PARENT_DEATH_INTERVAL, ..Interrupt::default() };
        child.stoppable(|stop| {
            stop.arm();
            assert_eq!(child.interpret_signal(now), Some(SignalMeaning::FinishStep));
        });
        assert_eq!(child.interpret_signal(now + Duration::from_millis(1)), None);
    }

    #[test]
    fn a_signal_before_there_is_something_to_save_is_early() {
        let early = Interrupt::default();
        early.stoppable(|stop| {
            assert_eq!(early.interpret_signal(Instant::now()), Some(SignalMeaning::EndUnstarted));
            stop.arm();
            let meanings = [(); 2].map(|()| early.interpret_signal(Instant::now()));
            assert_eq!(meanings, [Some(SignalMeaning::FinishStep), Some(SignalMeaning::EndNow)]);
        });
    }

    #[test]
    fn the_kernels_mask_is_read() {
        let status = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        assert!(ignored_in(status, 1) && ignored_in(status, 13));
        assert!(!ignored_in(status, 2) && !ignored_in("", 1));
    }
}
