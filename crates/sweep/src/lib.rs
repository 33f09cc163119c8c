//! Sweeps: the sweep file, its points, which of them are trained how far, and their results; and [`run`], which plans and trains the points.
//! [`needed_runs`] says which runs sweeps need, to those who remove runs.

#![forbid(unsafe_code)]

mod budget;
mod caveat;
mod exclude;
mod expand;
mod file_changes;
mod importance;
pub mod ladder;
pub mod needed_runs;
mod picked;
mod point;
pub mod progress;
mod race;
mod random;
mod read;
pub mod record;
mod results;
mod rules;
pub mod run;
mod schedule;
mod spec;
pub mod stopped_points;
pub mod summary;
pub mod sweep_dir;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod validation_use;
pub mod verdict;

pub use budget::{Budget, BudgetKind};
pub use caveat::BestPointCaveat;
pub use expand::{Expanded, expand, load_options, point_settings};
pub use file_changes::describe_changes;
pub use importance::{AxisNote, DivergedValue, Importance, axis_notes, importance};
pub use picked::{PickedFrom, PickedSettings};
pub use point::{ExpandedPoint, PointValues, value_text};
pub use race::{DroppedSetting, RaceSettings};
pub use random::{Distribution, RandomDraws};
pub use read::group::{ONE_RUN, group_size, makes_group};
pub use read::{from_file, from_str, load};
pub use results::{PointStatus, ResultsRow, SweepResults};
pub use rules::{PlanFigures, SettingRule};
pub use schedule::{
    PointTask, PromotionRule, RunLength, ScheduleDecision, SegmentResult, TrainingSegment, decide, rungs,
};
pub use spec::{
    AshaSettings, Dimension, ExcludeExpression, Goal, ListAxis, MAX_POINTS, MeasurementChoice, Milestone, Objective,
    SCHEMA, SweepSpec,
};
pub use validation_use::ValidationUse;
