//! What varies in a sweep.

use std::path::PathBuf;

use serde_json::Value;

use super::random::RandomDraws;

/// One factor of the product that the points are.
#[derive(Debug, Clone, PartialEq)]
pub enum Dimension {
    /// An axis of `grid`.
    Grid(ListAxis),
    /// An axis of `files`: names of files, each of which has a value of the key; and their paths.
    Files(ListAxis, Vec<PathBuf>),
    /// The key `seeds`: values of the experiment's key `seed`. It varies fastest.
    Seeds(ListAxis),
    /// The key `tune` of a ladder: factors that its rules may use. It varies at two sizes, and is 1 at the others.
    Tune(ListAxis),
    /// The axes of `zip`: equally long, and varied together.
    Zip(Vec<ListAxis>),
    /// The draws of `random`. They are the same for every combination of the other dimensions.
    Random(RandomDraws),
}

impl Dimension {
    /// The number of values.
    #[must_use]
    pub fn value_count(&self) -> usize {
        match self {
            Self::Grid(axis) | Self::Files(axis, _) | Self::Seeds(axis) | Self::Tune(axis) => axis.values.len(),
            Self::Zip(axes) => axes.first().map_or(0, |a| a.values.len()),
            Self::Random(random) => random.samples,
        }
    }

    /// The names of everything that varies in the dimension.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        match self {
            Self::Grid(axis) | Self::Files(axis, _) | Self::Seeds(axis) | Self::Tune(axis) => vec![&axis.name],
            Self::Zip(axes) => axes.iter().map(|a| a.name.as_str()).collect(),
            Self::Random(random) => random.space.iter().map(|(name, _)| name.as_str()).collect(),
        }
    }
}

/// A variable or key path with its values, at least one.
#[derive(Debug, Clone, PartialEq)]
pub struct ListAxis {
    pub name: String,
    pub values: Vec<Value>,
}
