//! Which points of a sweep are trained, and how far. Decisions depend on results alone.

mod asha;
mod tasks;

pub use asha::{PointTask, PromotionRule, RunLength, ScheduleDecision, SegmentResult, TrainingSegment, decide, rungs};
pub use tasks::SweepTasks;
