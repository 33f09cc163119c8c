//! Sweeps, from their file to their best point. Each module uses only those before it in this list:
//!
//! 1. `spec`: what the file says; `points`: the points that follow from it; `read`: the file, checked.
//! 2. [`record`]: the sweep's folder, fixed when it starts; `schedule`: which points are trained how far; `rows`: the results of a run by row;
//!    [`progress`]: how far the points are, as their run directories show, and [`needed_runs`], the runs that nobody may remove.
//! 3. `results`: a row for each point; [`verdict`]: what the rows show; [`ladder`]: scaling laws of ladders; [`summary`]: all of it, with
//!    reasons for doubt.
//! 4. [`run`]: plans the points, and trains them in processes or jobs.

#![forbid(unsafe_code)]

pub mod ladder;
mod points;
pub mod progress;
mod read;
pub mod record;
mod results;
mod rows;
pub mod run;
mod schedule;
mod spec;
pub mod summary;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod verdict;

pub use points::expand::{Expanded, expand, load_options, point_settings};
pub use points::{ExpandedPoint, PointValues, describe_points, names_of, value_text};
pub use progress::{needed_runs, stopped_points};
pub use read::group::{ONE_RUN, group_size, makes_group};
pub use read::{from_file, from_str, load};
pub use record::file_changes::changed_keys;
pub use record::sweep_dir;
pub use results::{PointStatus, ResultsRow, SweepResults};
pub use rows::rows_of;
pub use schedule::{
    PointTask, PromotionRule, RunLength, ScheduleDecision, SegmentResult, SweepTasks, TrainingSegment, decide, rungs,
};
pub use spec::{
    AshaSettings, Budget, BudgetKind, Dimension, Distribution, ExcludeExpression, Goal, ListAxis, MAX_POINTS,
    MeasurementChoice, MilestoneUnit, Objective, RandomDraws, SCHEMA, SettingRule, SweepSpec,
};
pub use summary::{PickedSettings, SweptRun};
