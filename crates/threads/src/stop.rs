//! A request to stop a run, which a signal handler or another thread makes.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use runner_spec::exit::Exit;

/// The reason why a run is asked to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StopReason {
    /// A person ends the command.
    Interrupt,
    /// A scheduler is about to end the process, and starts it again if the exit code asks for it.
    Notice,
}

impl StopReason {
    /// The exit code of a command that stopped for this reason.
    #[must_use]
    pub fn exit(self) -> Exit {
        match self {
            Self::Interrupt => Exit::Interrupted,
            Self::Notice => Exit::TryAgain,
        }
    }

    /// The reason with this exit code.
    #[must_use]
    pub fn of_exit_code(code: u8) -> Option<Self> {
        [Self::Interrupt, Self::Notice].into_iter().find(|reason| reason.exit() as u8 == code)
    }
}

/// How far the work of a process has come, and whether it was asked to stop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, strum::FromRepr)]
#[repr(u8)]
enum StopState {
    /// No work is being done.
    #[default]
    Idle,
    /// There is nothing to save yet.
    Preparing,
    /// There is something to save, which ending at once would lose.
    Running,
    /// The run was asked to finish its step, save and end: by an interrupt, or by a notice.
    Finishing,
    Noticed,
    /// The session has recorded its end, and only waits for a server.
    Waiting,
    /// The session was asked to end its wait.
    Abandoning,
}

/// What a signal means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalMeaning {
    /// Finish the step, save and end.
    FinishStep,
    /// Stop waiting for a server: everything is saved.
    EndWait,
    /// End at once: there is nothing to save yet.
    EndUnstarted,
    /// End at once.
    EndNow,
}

/// The work of this process that can be asked to stop. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct StopSwitch(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: AtomicU8,
    at_early_end: Mutex<Option<EarlyEndNotice>>,
}

type EarlyEndNotice = Arc<dyn Fn(StopReason) + Send + Sync>;

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Shared").field(&self.state).finish_non_exhaustive()
    }
}

impl StopSwitch {
    fn state(&self) -> StopState {
        StopState::from_repr(self.0.state.load(Ordering::SeqCst)).unwrap_or_default()
    }

    fn set(&self, state: StopState) {
        self.0.state.store(state as u8, Ordering::SeqCst);
    }

    /// Goes from one state to another. Returns false if the state is a different one.
    fn advance(&self, from: StopState, to: StopState) -> bool {
        self.0.state.compare_exchange(from as u8, to as u8, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Declares that work begins, which has nothing to save yet.
    pub fn begin(&self) {
        self.set(StopState::Preparing);
    }

    /// Declares that from now on there is something to save.
    pub fn arm(&self) {
        self.set(StopState::Running);
    }

    /// Declares that everything is saved and the work is over.
    pub fn end(&self) {
        self.set(StopState::Idle);
    }

    /// True while work is being done.
    pub fn is_working(&self) -> bool {
        self.state() != StopState::Idle
    }

    /// Makes a signal that ends the process at once call `notify` first. Only the last call counts: ranks that join again have new
    /// connections.
    pub fn at_early_end(&self, notify: impl Fn(StopReason) + Send + Sync + 'static) {
        *self.0.at_early_end.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(notify));
    }

    /// Declares that the process ends at once.
    pub fn end_early(&self, reason: StopReason) {
        let notify = self.0.at_early_end.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(notify) = notify {
            notify(reason);
        }
    }

    /// Takes a signal, and returns what it means.
    pub fn signal(&self, reason: StopReason) -> SignalMeaning {
        loop {
            let state = self.state();
            let (next, meaning) = match state {
                StopState::Waiting => (StopState::Abandoning, SignalMeaning::EndWait),
                StopState::Running if reason == StopReason::Notice => (StopState::Noticed, SignalMeaning::FinishStep),
                StopState::Running => (StopState::Finishing, SignalMeaning::FinishStep),
                StopState::Preparing => (state, SignalMeaning::EndUnstarted),
                StopState::Idle | StopState::Finishing | StopState::Noticed | StopState::Abandoning => {
                    (state, SignalMeaning::EndNow)
                }
            };
            // If the state has changed in the meantime, the signal may mean something else.
            if self.advance(state, next) {
                return meaning;
            }
        }
    }

    /// True once the run was asked to finish its step, save and end.
    pub fn is_stop_requested(&self) -> bool {
        self.stop_reason().is_some()
    }

    /// The reason of the first request to finish the step, save and end; `None`: there was none.
    pub fn stop_reason(&self) -> Option<StopReason> {
        match self.state() {
            StopState::Finishing => Some(StopReason::Interrupt),
            StopState::Noticed => Some(StopReason::Notice),
            _ => None,
        }
    }

    /// Does `work`, which only waits for a server, as long as the function that it receives returns true.
    pub fn wait<T>(&self, work: impl FnOnce(&dyn Fn() -> bool) -> T) -> T {
        let before = loop {
            let state = self.state();
            // A signal in the meantime keeps its effect.
            if self.advance(state, StopState::Waiting) {
                break state;
            }
        };
        let result = work(&|| self.state() == StopState::Waiting);
        // After the wait, a signal has its usual meaning again.
        self.advance(StopState::Waiting, before);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_signal_is_the_last() {
        let stop = StopSwitch::default();
        assert_eq!(stop.signal(StopReason::Interrupt), SignalMeaning::EndNow, "no work");
        stop.begin();
        assert_eq!(stop.signal(StopReason::Interrupt), SignalMeaning::EndUnstarted);
        stop.arm();
        assert!(!stop.is_stop_requested());
        assert_eq!(
            [stop.signal(StopReason::Interrupt), stop.signal(StopReason::Interrupt)],
            [SignalMeaning::FinishStep, SignalMeaning::EndNow]
        );
        assert!(stop.is_stop_requested() && stop.is_working());
        stop.end();
        assert!(!stop.is_working());
    }

    #[test]
    fn a_wait_is_ended_once_and_not_after_it() {
        let stop = StopSwitch::default();
        stop.arm();
        stop.wait(|keeps_waiting| {
            assert!(keeps_waiting());
            assert_eq!(stop.signal(StopReason::Interrupt), SignalMeaning::EndWait);
            assert!(!keeps_waiting() && !stop.is_stop_requested());
            assert_eq!(stop.signal(StopReason::Interrupt), SignalMeaning::EndNow);
        });
        stop.arm();
        stop.wait(|_| ());
        assert_eq!(
            stop.signal(StopReason::Interrupt),
            SignalMeaning::FinishStep,
            "a signal has its usual meaning again"
        );
        stop.wait(|_| ());
        assert!(stop.is_stop_requested());
    }

    #[test]
    fn the_first_request_gives_the_reason() {
        for (first, second, code) in
            [(StopReason::Notice, StopReason::Interrupt, 75), (StopReason::Interrupt, StopReason::Notice, 130)]
        {
            let stop = StopSwitch::default();
            stop.arm();
            assert_eq!(
                [first, second].map(|reason| stop.signal(reason)),
                [SignalMeaning::FinishStep, SignalMeaning::EndNow]
            );
            assert_eq!(stop.stop_reason(), Some(first));
            assert_eq!((first.exit() as u8, StopReason::of_exit_code(code)), (code, Some(first)));
        }
        assert_eq!(StopReason::of_exit_code(1), None);
    }

    /// Ranks that join again have other connections than before.
    #[test]
    fn the_last_notice_of_an_early_end_is_sent() {
        let stop = StopSwitch::default();
        let sent = Arc::new(AtomicU8::new(0));
        for connection in [1, 2] {
            let sent = Arc::clone(&sent);
            stop.at_early_end(move |reason| _ = sent.fetch_add(connection * reason.exit() as u8, Ordering::SeqCst));
        }
        stop.end_early(StopReason::Notice);
        assert_eq!(sent.load(Ordering::SeqCst), 2 * StopReason::Notice.exit() as u8);
    }
}
