//! The status of each rank: written by the rank, read by the supervisor and by ranks that wait for it.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::wake_signal::WakeSignal;

/// The caller's own operations, and those that it started.
pub(crate) const OPERATION_QUEUES: usize = 2;
pub(crate) const FOREGROUND: usize = 0;
pub(crate) const BACKGROUND: usize = 1;

/// Where a rank is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum RankPhase {
    /// Nothing heard of it yet, or it makes its state.
    #[default]
    Starting,
    /// In the instructions of an optimizer step.
    Step,
    /// In those that come after it from time to time.
    Periodic,
    /// Writing its part of a checkpoint, which takes as long as its disk does.
    Saving,
    /// At the end of its program.
    Finished,
    /// Stopped before it, on request.
    Stopped,
    /// Stopped by an error.
    Failed,
}

const PHASES: [RankPhase; 7] = [
    RankPhase::Starting,
    RankPhase::Step,
    RankPhase::Periodic,
    RankPhase::Saving,
    RankPhase::Finished,
    RankPhase::Stopped,
    RankPhase::Failed,
];

impl RankPhase {
    pub fn from_code(code: u64) -> Option<Self> {
        PHASES.get(usize::try_from(code).ok()?).copied()
    }
}

/// Values of `occupancy`: the rank is taken, or its owner has left.
const TAKEN: u32 = 1;
const LEFT: u32 = 2;

/// Instead of a rank that is waited for: the process that keeps the run's record; an operation that this rank started.
const PARENT: u64 = u64::MAX;
const STARTED: u64 = u64::MAX - 1;

/// One rank's status. Its rank writes, everyone reads; each field by itself, so a view may mix two moments.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct RankStatus {
    heartbeat: AtomicU64,
    step: AtomicU64,
    /// List in the upper half, index in the lower.
    instruction: AtomicU64,
    progress: AtomicU64,
    /// Per queue, the rank waited for, plus 1; or one of the above.
    waiting: [AtomicU64; OPERATION_QUEUES],
    phase: AtomicU32,
    occupancy: AtomicU32,
    pub(super) wake_signals: [WakeSignal; OPERATION_QUEUES],
}

impl RankStatus {
    /// A sign of life at `milliseconds`, of whatever clock reader and writer agree on.
    pub fn record_heartbeat(&self, milliseconds: u64) {
        self.heartbeat.store(milliseconds, Ordering::Release);
    }

    pub fn set_step(&self, step: u64) {
        self.step.store(step, Ordering::Release);
    }

    /// Instruction `index` of the program's list `list`, by the caller's own numbering.
    pub fn set_instruction(&self, list: u32, index: u32) {
        self.instruction.store(u64::from(list) << 32 | u64::from(index), Ordering::Release);
    }

    pub fn set_phase(&self, phase: RankPhase) {
        self.phase.store(phase as u32, Ordering::Release);
    }

    /// Enters a phase, which is progress.
    pub fn enter_phase(&self, phase: RankPhase) {
        self.set_phase(phase);
        self.record_progress();
    }

    /// The rank made progress: it began an instruction, or a part of a long one. Between two of these calls it computes.
    pub fn record_progress(&self) {
        self.progress.fetch_add(1, Ordering::Release);
    }

    /// Set while the rank waits for the process that keeps the run's record.
    pub fn set_waiting_for_parent(&self, waits: bool) {
        self.waiting[FOREGROUND].store(if waits { PARENT } else { 0 }, Ordering::Release);
    }

    /// Set while the rank waits for an operation that it started.
    pub fn set_waiting_for_started_operation(&self, waits: bool) {
        self.waiting[FOREGROUND].store(if waits { STARTED } else { 0 }, Ordering::Release);
    }

    /// Takes the rank; false if it is taken.
    pub(super) fn claim(&self) -> bool {
        self.occupancy.swap(TAKEN, Ordering::AcqRel) != TAKEN
    }

    pub(super) fn release(&self) {
        self.occupancy.store(LEFT, Ordering::Release);
    }

    /// Whether its owner has gone; false if none has come yet. What it did before is seen by whoever sees this.
    pub(super) fn has_left(&self) -> bool {
        self.occupancy.load(Ordering::Acquire) == LEFT
    }

    pub fn set_waiting(&self, queue: usize, peer: Option<usize>) {
        self.waiting[queue].store(peer.map_or(0, |p| p as u64 + 1), Ordering::Release);
    }

    /// As it is now.
    #[must_use]
    pub fn snapshot(&self) -> RankSnapshot {
        let instruction = self.instruction.load(Ordering::Acquire);
        let waiting = |queue: usize| self.waiting[queue].load(Ordering::Acquire);
        let rank = |word: u64| word.checked_sub(1).map(|p| p as usize);
        let (own, background) = (waiting(FOREGROUND), rank(waiting(BACKGROUND)));
        RankSnapshot {
            heartbeat: self.heartbeat.load(Ordering::Acquire),
            step: self.step.load(Ordering::Acquire),
            list: (instruction >> 32) as u32,
            index: instruction as u32,
            phase: PHASES.get(self.phase.load(Ordering::Acquire) as usize).copied().unwrap_or_default(),
            progress: self.progress.load(Ordering::Acquire),
            waiting_for: match own {
                PARENT => None,
                STARTED => background,
                other => rank(other),
            },
            waiting_for_parent: own == PARENT,
            waiting_in_background: background,
        }
    }
}

/// A rank's status at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RankSnapshot {
    /// The time passed to `record_heartbeat`; 0 before the first.
    pub heartbeat: u64,
    pub step: u64,
    pub list: u32,
    pub index: u32,
    pub phase: RankPhase,
    /// Grows whenever the rank comes on.
    pub progress: u64,
    /// The rank that its own operation waits for, or one that it started and now needs.
    pub waiting_for: Option<usize>,
    /// True if it waits for the process that keeps the run's record.
    pub waiting_for_parent: bool,
    /// The rank that an operation which it started waits for.
    pub waiting_in_background: Option<usize>,
}

impl RankSnapshot {
    /// True if the rank waits for another rank or for the recorder. A rank that waits is not hung.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.waiting_for.is_some() || self.waiting_for_parent
    }
}

/// As in "which was last seen …".
impl fmt::Display for RankSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, list, index, .. } = self;
        match self.phase {
            RankPhase::Starting => f.write_str("starting")?,
            RankPhase::Step => write!(f, "in step {step}, list {list}, instruction {index}")?,
            RankPhase::Periodic => write!(f, "after step {step}, list {list}, instruction {index}")?,
            RankPhase::Saving => write!(f, "saving after step {step}")?,
            RankPhase::Finished => write!(f, "finished after step {step}")?,
            RankPhase::Stopped => write!(f, "stopped after step {step}")?,
            RankPhase::Failed => write!(f, "failed in step {step}, list {list}, instruction {index}")?,
        }
        if let Some(rank) = self.waiting_for.or(self.waiting_in_background) {
            write!(f, ", waiting for rank {rank}")?;
        } else if self.waiting_for_parent {
            f.write_str(", waiting for the record to be kept")?;
        }
        Ok(())
    }
}
