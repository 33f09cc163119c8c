//! Which points of a sweep are trained, and how far. Decisions depend on results alone.

mod asha;
pub(crate) mod race;
mod tasks;

pub use asha::{PointTask, PromotionRule, RunLength, ScheduleDecision, SegmentResult, TrainingSegment, decide, rungs};
pub use race::DroppedSetting;
pub use tasks::SweepTasks;
