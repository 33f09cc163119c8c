//! Seeds that an earlier sweep has judged.

use serde::{Deserialize, Serialize};

use crate::points::PointValues;

/// Seeds whose results an earlier sweep has shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenSeeds {
    pub sweep: String,
    /// The number of settings that the sweep compared.
    pub settings: usize,
    /// The seeds, by the names of what varies here.
    #[serde(with = "seed_values")]
    pub seeds: Vec<PointValues>,
}

/// Seeds as objects: the names of what varies, with their values.
mod seed_values {
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};
    use serde_json::{Map, Value};

    use crate::points::PointValues;

    pub(super) fn serialize<S: Serializer>(seeds: &[PointValues], to: S) -> Result<S::Ok, S::Error> {
        let maps: Vec<Map<String, Value>> = seeds.iter().map(|seed| seed.iter().cloned().collect()).collect();
        maps.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<PointValues>, D::Error> {
        Vec::<Map<String, Value>>::deserialize(from)
            .map(|maps| maps.into_iter().map(|map| map.into_iter().collect()).collect())
    }
}
