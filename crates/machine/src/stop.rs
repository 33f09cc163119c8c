//! A request to stop a run, which a signal handler or another thread makes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// How far the work of a process has come, and whether it was asked to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum StopState {
    /// No work is being done.
    Idle,
    /// There is nothing to save yet.
    Preparing,
    /// There is something to save, which ending at once would lose.
    Running,
    /// The run was asked to finish its step, save and end.
    Finishing,
    /// The session has recorded its end, and only waits for a server.
    Waiting,
    /// The session was asked to end its wait.
    Abandoning,
}

impl StopState {
    const ALL: [Self; 6] =
        [Self::Idle, Self::Preparing, Self::Running, Self::Finishing, Self::Waiting, Self::Abandoning];
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
pub struct StopSwitch(Arc<AtomicU8>);

impl StopSwitch {
    fn state(&self) -> StopState {
        StopState::ALL[usize::from(self.0.load(Ordering::SeqCst))]
    }

    fn set(&self, state: StopState) {
        self.0.store(state as u8, Ordering::SeqCst);
    }

    /// Goes from one state to another. Returns false if the state is a different one.
    fn advance(&self, from: StopState, to: StopState) -> bool {
        self.0.compare_exchange(from as u8, to as u8, Ordering::SeqCst, Ordering::SeqCst).is_ok()
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

    /// Takes a signal, and returns what it means.
    pub fn signal(&self) -> SignalMeaning {
        loop {
            let state = self.state();
            let (next, meaning) = match state {
                StopState::Waiting => (StopState::Abandoning, SignalMeaning::EndWait),
                StopState::Running => (StopState::Finishing, SignalMeaning::FinishStep),
                StopState::Preparing => (state, SignalMeaning::EndUnstarted),
                StopState::Idle | StopState::Finishing | StopState::Abandoning => (state, SignalMeaning::EndNow),
            };
            // If the state has changed in the meantime, the signal may mean something else.
            if self.advance(state, next) {
                return meaning;
            }
        }
    }

    /// True once the run was asked to finish its step, save and end.
    pub fn is_stop_requested(&self) -> bool {
        self.state() == StopState::Finishing
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
        assert_eq!(stop.signal(), SignalMeaning::EndNow, "no work");
        stop.begin();
        assert_eq!(stop.signal(), SignalMeaning::EndUnstarted);
        stop.arm();
        assert!(!stop.is_stop_requested());
        assert_eq!([stop.signal(), stop.signal()], [SignalMeaning::FinishStep, SignalMeaning::EndNow]);
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
            assert_eq!(stop.signal(), SignalMeaning::EndWait);
            assert!(!keeps_waiting() && !stop.is_stop_requested());
            assert_eq!(stop.signal(), SignalMeaning::EndNow);
        });
        stop.arm();
        stop.wait(|_| ());
        assert_eq!(stop.signal(), SignalMeaning::FinishStep, "a signal has its usual meaning again");
        stop.wait(|_| ());
        assert!(stop.is_stop_requested());
    }
}
