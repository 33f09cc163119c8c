//! The status of each rank: written by the rank, read by the supervisor and by ranks that wait for it.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use runner_threads::movable_thread::MovableThread;
use serde::{Deserialize, Serialize};
use strum::{Display, FromRepr};

use super::group::{BACKGROUND, FOREGROUND, OPERATION_QUEUES};
use super::waiting::WakeSignal;

/// The phases of a rank's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, Display, FromRepr)]
#[strum(serialize_all = "lowercase")]
#[repr(u8)]
pub enum RankPhase {
    /// The rank prepares its training state, or nothing is known of it yet.
    #[default]
    Starting = 0,
    /// The rank runs the instructions of an optimizer step.
    #[strum(to_string = "in a step")]
    Step = 1,
    /// The rank runs periodic instructions, after a step.
    #[strum(to_string = "after a step")]
    Periodic = 2,
    /// The rank writes its part of a checkpoint, which takes as long as its disk does.
    Saving = 3,
    /// The rank reached the end of its program.
    Finished = 4,
    /// The rank stopped before the end of its program, on request.
    Stopped = 5,
    /// The rank stopped because of an error.
    Failed = 6,
}

/// Values of `occupancy`: the rank is free, it is taken, or its owner has left.
const FREE: u32 = 0;
const TAKEN: u32 = 1;
const LEFT: u32 = 2;

/// Values of `waiting` that name no rank: the process that keeps the run's record, and an operation that this rank started.
const PARENT: u64 = u64::MAX;
const STARTED: u64 = u64::MAX - 1;

/// One rank's status. Its rank writes it, and all ranks read it. Each field is read separately, so a snapshot may mix two moments.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct RankStatus {
    heartbeat: AtomicU64,
    step: AtomicU64,
    /// The list in the upper half, the index in the lower half.
    instruction: AtomicU64,
    progress: AtomicU64,
    /// For each queue, the rank that is waited for, plus 1, or `PARENT` or `STARTED`.
    waiting: [AtomicU64; OPERATION_QUEUES],
    phase: AtomicU32,
    occupancy: AtomicU32,
    pub(crate) wake_signals: [WakeSignal; OPERATION_QUEUES],
    /// The thread that runs the rank's instructions.
    pub(crate) thread: MovableThread,
}

impl RankStatus {
    /// Records a heartbeat at `milliseconds` of a clock that reader and writer share.
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

    /// Runs `work`, in which the rank waits for the process that keeps the run's record.
    pub fn wait_for_parent<T>(&self, work: impl FnOnce() -> T) -> T {
        self.wait_for(FOREGROUND, PARENT, work)
    }

    /// Runs `work`, in which the rank waits for an operation that it started.
    pub(crate) fn wait_for_started_operation<T>(&self, work: impl FnOnce() -> T) -> T {
        self.wait_for(FOREGROUND, STARTED, work)
    }

    /// Runs `work`, in which an operation of `queue` waits for the rank `peer`.
    pub(crate) fn wait_for_rank<T>(&self, queue: usize, peer: usize, work: impl FnOnce() -> T) -> T {
        self.wait_for(queue, peer as u64 + 1, work)
    }

    /// Shows while `work` runs that the rank waits.
    fn wait_for<T>(&self, queue: usize, target: u64, work: impl FnOnce() -> T) -> T {
        if queue == FOREGROUND {
            self.thread.occupy();
            self.thread.return_core();
        }
        self.waiting[queue].store(target, Ordering::Release);
        let result = work();
        // Before the status shows that the rank no longer waits: the time until then was not its own.
        self.record_progress();
        self.waiting[queue].store(0, Ordering::Release);
        result
    }

    /// True if the thread that runs the rank's instructions waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting[FOREGROUND].load(Ordering::Acquire) != 0
    }

    /// Takes the rank. Returns false if it was taken before.
    pub(crate) fn claim(&self) -> bool {
        self.occupancy.compare_exchange(FREE, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    pub(crate) fn release(&self) {
        self.occupancy.store(LEFT, Ordering::Release);
    }

    /// True if the rank's owner has left; false if none has come yet. A thread that sees this also sees all that the owner did before.
    pub(crate) fn has_left(&self) -> bool {
        self.occupancy.load(Ordering::Acquire) == LEFT
    }

    /// The status at this moment.
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
            phase: RankPhase::from_repr(self.phase.load(Ordering::Acquire) as u8).unwrap_or_default(),
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RankSnapshot {
    /// The time passed to `record_heartbeat`; 0 before the first.
    pub heartbeat: u64,
    pub step: u64,
    pub list: u32,
    pub index: u32,
    pub phase: RankPhase,
    /// Grows whenever the rank makes progress.
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
    pub fn is_waiting(&self) -> bool {
        self.waiting_for.is_some() || self.waiting_for_parent
    }
}

/// The status as a phrase that completes "which was last seen …".
impl fmt::Display for RankSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, list, index, .. } = self;
        match self.phase {
            RankPhase::Starting => write!(f, "{}", self.phase)?,
            RankPhase::Step => write!(f, "in step {step}, list {list}, instruction {index}")?,
            RankPhase::Periodic => write!(f, "after step {step}, list {list}, instruction {index}")?,
            RankPhase::Saving | RankPhase::Finished | RankPhase::Stopped => {
                write!(f, "{} after step {step}", self.phase)?;
            }
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
