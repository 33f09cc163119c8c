//! Sweeps: reading the sweep file, expanding it to points, deciding which points to train how far, and reading the results. Running
//! the points is the engine's part.

mod caveat;
mod exclude;
mod expand;
mod file_changes;
mod importance;
mod point;
pub mod progress;
mod random;
mod read;
pub mod record;
mod results;
mod schedule;
mod spec;
pub mod summary;

pub use caveat::BestPointCaveat;
pub use expand::{Expanded, expand, load_options, point_settings};
pub use file_changes::describe_changes;
pub use importance::{DivergedValue, Importance, importance};
pub use point::{ExpandedPoint, PointValues, value_text};
pub use random::{Distribution, RandomDraws};
pub use read::{from_str, is_sweep_file, load};
pub use results::{PointStatus, ResultsRow, SweepResults};
pub use schedule::{PointTask, PromotionRule, ScheduleDecision, SegmentResult, TrainingSegment, decide, rungs};
pub use spec::{
    AshaSettings, Dimension, ExcludeExpression, Goal, ListAxis, MAX_POINTS, MeasurementChoice, Objective,
    ObjectiveMetric, SCHEMA, SweepSpec,
};
