//! Seeds that an earlier sweep has judged.

use serde::{Deserialize, Serialize};

use crate::points::{PointValues, ordered};

/// Seeds whose results an earlier sweep has shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenSeeds {
    pub sweep: String,
    /// The number of settings of that sweep that are not among the settings here.
    pub other_settings: usize,
    /// The number of seeds that the sweep showed of these settings.
    pub seed_count: usize,
    /// The seeds among them that this sweep has, too.
    pub seeds: Vec<SeenSeed>,
}

/// The names of what varies here and changes nothing but the seed, with their values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SeenSeed(#[serde(with = "ordered")] pub PointValues);

impl SeenSeeds {
    #[must_use]
    pub(crate) fn contains(&self, seed: &PointValues) -> bool {
        self.seeds.iter().any(|seen| seen.0 == *seed)
    }
}
