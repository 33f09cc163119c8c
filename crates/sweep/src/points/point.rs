//! A point of a sweep: a value for everything that varies.

use runner_spec::format::setting_text;
use serde_json::Value;

/// The largest number of points that are named in a sentence.
const MAX_NAMED_POINTS: usize = 3;

/// Names with their values, in the order of the sweep file.
pub type PointValues = Vec<(String, Value)>;

/// The name of the factor by which `tune` of a ladder varies what rules give.
pub(crate) const TUNE: &str = "tune";

/// The factor in the values of a ladder's point; 1 if `tune` does not vary.
pub(crate) fn tune_of(values: &PointValues) -> f64 {
    values.iter().find(|(name, _)| name == TUNE).and_then(|(_, factor)| factor.as_f64()).unwrap_or(1.0)
}

/// One point.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpandedPoint {
    /// The number of the point, from 1. Points that remain and points that are excluded are numbered separately.
    pub index: usize,
    pub values: PointValues,
}

/// The names that have a value in one of `all`, in the order in which they occur.
#[must_use]
pub fn names_of<'v>(all: impl IntoIterator<Item = &'v PointValues>) -> Vec<&'v str> {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in all.into_iter().flatten() {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names
}

/// `value` for a table, on one line: a text as it is, anything else as in a file.
#[must_use]
pub fn value_text(value: &Value) -> String {
    value.as_str().map_or_else(|| setting_text(value), str::to_owned)
}

/// `point 3`, `points 1, 3, 5 and 9 more`, `all 12 points`.
#[must_use]
pub fn describe_points(points: &[usize], total: usize) -> String {
    let list = |points: &[usize]| points.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match points {
        [one] => format!("point {one}"),
        all if all.len() == total => format!("all {total} points"),
        [few @ .., last] if few.len() <= MAX_NAMED_POINTS => format!("points {} and {last}", list(few)),
        many => {
            let named = many.get(..MAX_NAMED_POINTS).unwrap_or(many);
            format!("points {} and {} more", list(named), many.len() - named.len())
        }
    }
}

/// A list of pairs as a JSON mapping that keeps the order of its keys.
pub(crate) mod ordered {
    use std::fmt;

    use serde::de::{MapAccess, Visitor};
    use serde::{Deserializer, Serializer};
    use serde_json::Value;

    pub(crate) fn serialize<S: Serializer>(values: &[(String, Value)], to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(values.iter().map(|(name, value)| (name, value)))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(String, Value)>, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Vec<(String, Value)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping of names to values")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut out = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    out.push(pair);
                }
                Ok(out)
            }
        }
        from.deserialize_map(Pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_named_as_people_would() {
        assert_eq!(describe_points(&[3], 9), "point 3");
        assert_eq!(describe_points(&[1, 2], 9), "points 1 and 2");
        assert_eq!(describe_points(&[1, 2, 3, 7], 9), "points 1, 2, 3 and 7");
        assert_eq!(describe_points(&(1..=12).collect::<Vec<_>>(), 20), "points 1, 2, 3 and 9 more");
        assert_eq!(describe_points(&[1, 2, 3], 3), "all 3 points");
    }
}
