//! The points of a sweep, made from what its file says.

pub(crate) mod exclude;
pub(crate) mod expand;
mod point;
pub(crate) mod rules;

pub use point::{ExpandedPoint, PointValues, describe_points, names_of, value_text};
pub(crate) use point::{TUNE, ordered, tune_of};
