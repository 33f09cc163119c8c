//! Sweeps: one file to many points, which of them to train how far, and what came out. Pure: running them is others' work.

pub mod allocate;
pub mod ending;
mod exclude;
mod expand;
pub mod frozen;
mod importance;
mod key_path;
mod overlay;
mod point;
pub mod problems;
mod random;
mod read;
mod read_axes;
mod reader;
mod results;
mod schedule;
pub mod slurm;
mod spec;
pub mod standing;

pub use expand::{Expanded, expand};
pub use importance::{Importance, importance};
pub use overlay::{flow, options, text};
pub use point::{ExpandedPoint, PointValues};
pub use random::{Distribution, RandomDraws};
pub use read::{from_str, load};
pub use results::{PointStatus, Results, ResultsRow};
pub use schedule::{PointTask, PromotionRule, ScheduleDecision, SegmentResult, TrainingSegment, decide, rungs};
pub use spec::{
    AshaSettings, Dimension, ExcludeExpression, Goal, ListAxis, MAX_POINTS, MeasurementChoice, Objective,
    ObjectiveMetric, SCHEMA, SweepBase, SweepSpec,
};
