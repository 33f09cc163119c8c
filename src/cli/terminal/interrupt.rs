//! Ctrl-C, SIGHUP, SIGTERM and SIGUSR1: the first finishes the step and saves, the second ends the process. While a finished run waits for
//! a server, a signal ends the wait. SIGTERM and SIGUSR1 are a scheduler's notice, after which the exit code asks to be started again.

use std::fs;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use runner_threads::stop::{SignalMeaning, StopReason, StopSwitch};
use runner_threads::threads;
use runner_workflows::launched::LaunchedRank;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use crate::cli::terminal::exit::{CommandError, Result};
use crate::cli::terminal::output::print_to_stderr;
use crate::cli::terminal::repeated_command::{given_command, repeated_command};

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
/// If signals cannot be received.
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
    /// If signals cannot be received.
    pub(crate) fn install() -> Result<Self> {
        Self::install_with(Duration::ZERO, true)
    }

    /// Takes over the signals of a process that gets a signal when the process that started it ends.
    ///
    /// # Errors
    /// If signals cannot be received.
    pub(crate) fn install_as_child() -> Result<Self> {
        Self::install_with(PARENT_DEATH_INTERVAL, true)
    }

    fn install_with(repeat_interval: Duration, is_reporting: bool) -> Result<Self> {
        let interrupt = Self { repeat_interval, ..Self::default() };
        let seen = interrupt.clone();
        // Under nohup a hangup must stay ignored.
        let received =
            [SIGINT, SIGTERM, SIGUSR1, SIGHUP].into_iter().filter(|signal| *signal != SIGHUP || !is_ignored(SIGHUP));
        let mut signals = Signals::new(received).map_err(CommandError::io("cannot receive signals"))?;
        threads::spawn("signals", move || {
            for signal in signals.forever() {
                seen.handle(reason_of(signal), is_reporting);
            }
        })?;
        Ok(interrupt)
    }

    /// Does what a signal for `reason` asks for. Only a process that `is_reporting` shows it.
    fn handle(&self, reason: StopReason, is_reporting: bool) {
        let Some(meaning) = self.interpret_signal(reason, Instant::now()) else { return };
        let end = |text: Option<String>| {
            if let Some(text) = text.filter(|_| is_reporting) {
                report(text, LAST_MESSAGE_TIMEOUT);
            }
            // The first request gives the code.
            std::process::exit(self.stop.stop_reason().unwrap_or(reason).exit() as i32)
        };
        match meaning {
            SignalMeaning::FinishStep if is_reporting => {
                let text = "\nfinishing the step, then saving; a second signal stops this command immediately";
                report(text.to_owned(), Duration::ZERO);
            }
            // The session reports the end of its wait.
            SignalMeaning::FinishStep | SignalMeaning::EndWait => {}
            SignalMeaning::EndUnstarted => {
                self.stop.end_early(reason);
                let text = "\ninterrupted before training; nothing is lost";
                end(Some(format!("{text}\nnext:\n  {}", given_command())));
            }
            SignalMeaning::EndNow => {
                let is_working = self.stop.is_working();
                self.stop.end_early(self.stop.stop_reason().unwrap_or(reason));
                end(is_working.then(|| format!("\nstopped immediately\nnext:\n  {}", repeated_command())));
            }
        }
    }

    /// What a signal at `now` means; `None`: it is the first one again.
    fn interpret_signal(&self, reason: StopReason, now: Instant) -> Option<SignalMeaning> {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        if first.is_some_and(|first| now.duration_since(first) < self.repeat_interval) {
            return None;
        }
        let meaning = self.stop.signal(reason);
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

/// The reason for which a process gets `signal`.
fn reason_of(signal: i32) -> StopReason {
    match signal {
        SIGTERM | SIGUSR1 => StopReason::Notice,
        _ => StopReason::Interrupt,
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
        assert_eq!(
            one.interpret_signal(StopReason::Interrupt, now),
            Some(SignalMeaning::EndNow),
            "nothing to save yet"
        );
        one.stop.arm();
        assert_eq!(
            [one.interpret_signal(StopReason::Interrupt, now), one.interpret_signal(StopReason::Interrupt, now)],
            [Some(SignalMeaning::FinishStep), Some(SignalMeaning::EndNow)]
        );
        let child = Interrupt { repeat_interval: PARENT_DEATH_INTERVAL, ..Interrupt::default() };
        child.stop.arm();
        let heard = [now, after(1), after(499), after(500)].map(|at| child.interpret_signal(StopReason::Interrupt, at));
        assert_eq!(heard, [Some(SignalMeaning::FinishStep), None, None, Some(SignalMeaning::EndNow)]);
        assert!(child.stop.is_stop_requested());
    }

    #[test]
    fn the_first_signal_after_the_work_ends_the_process() {
        let now = Instant::now();
        let done = Interrupt::default();
        done.stoppable(StopSwitch::arm);
        assert_eq!(done.interpret_signal(StopReason::Interrupt, now), Some(SignalMeaning::EndNow));
        // The echo of a signal during the work is still the same signal.
        let child = Interrupt { repeat_interval: PARENT_DEATH_INTERVAL, ..Interrupt::default() };
        child.stoppable(|stop| {
            stop.arm();
            assert_eq!(child.interpret_signal(StopReason::Interrupt, now), Some(SignalMeaning::FinishStep));
        });
        assert_eq!(child.interpret_signal(StopReason::Interrupt, now + Duration::from_millis(1)), None);
    }

    #[test]
    fn a_signal_before_there_is_something_to_save_is_early() {
        let early = Interrupt::default();
        early.stoppable(|stop| {
            assert_eq!(
                early.interpret_signal(StopReason::Interrupt, Instant::now()),
                Some(SignalMeaning::EndUnstarted)
            );
            stop.arm();
            let meanings = [(); 2].map(|()| early.interpret_signal(StopReason::Interrupt, Instant::now()));
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
