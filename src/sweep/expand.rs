//! From a sweep to its points.

use super::point::Point;
use super::spec::SweepSpec;
use crate::config::ConfigError;

/// The points, and those that `exclude` left out.
#[derive(Debug, Clone, PartialEq)]
pub struct Expanded {
    pub points: Vec<Point>,
    pub excluded: Vec<Point>,
}

/// The points of `spec`, in the order of the product: what stands first in the file varies slowest.
///
/// # Errors
/// An expression of `exclude` that fails or is not a truth value, and nothing left of all points; at its place in the file.
pub fn expand(spec: &SweepSpec) -> Result<Expanded, ConfigError> {
    let _ = spec;
    Ok(Expanded { points: Vec::new(), excluded: Vec::new() })
}
