//! The ranks of a large plan in JSON. Replicas differ in little: a rank that is like an earlier one names that in `like`, and has only the
//! values that differ. Smaller plans have every rank whole.

use std::collections::{HashMap, HashSet};

use serde::de::{Deserialize, Deserializer, Error as _};
use serde::ser::{Error as _, Serialize, SerializeSeq as _, Serializer};
use serde_json::{Map, Value};

use super::plan::RankPlan;

/// Plans of at most this many ranks have every rank whole.
pub const MAX_WHOLE_RANKS: usize = 256;
/// The key with the number of the rank that a rank is like.
const LIKE: &str = "like";
/// The most ranks of a stage that others are compared with.
const MAX_MODELS: usize = 4;

type Fields = Map<String, Value>;

/// # Errors
/// Those of `serializer`.
pub fn serialize<S: Serializer>(ranks: &[RankPlan], serializer: S) -> Result<S::Ok, S::Error> {
    if ranks.len() <= MAX_WHOLE_RANKS {
        return ranks.serialize(serializer);
    }
    // For each stage, ranks that are written whole, and their numbers.
    let mut models: HashMap<usize, Vec<(usize, Fields)>> = HashMap::new();
    let mut out = serializer.serialize_seq(Some(ranks.len()))?;
    for (number, rank) in ranks.iter().enumerate() {
        let Value::Object(fields) = serde_json::to_value(rank).map_err(S::Error::custom)? else {
            return Err(S::Error::custom("a rank is an object"));
        };
        let known = models.entry(rank.stage).or_default();
        let is_small = |changes: &Fields| 4 * size(changes) < size(&fields);
        let folded = known.iter().find_map(|(model, whole)| {
            let changes = changes(whole, &fields).filter(is_small)?;
            Some([(LIKE.to_owned(), (*model).into())].into_iter().chain(changes).collect::<Fields>())
        });
        if let Some(folded) = folded {
            out.serialize_element(&folded)?;
            continue;
        }
        out.serialize_element(&fields)?;
        if known.len() < MAX_MODELS {
            known.push((number, fields));
        }
    }
    out.end()
}

/// # Errors
/// Those of `deserializer`; a rank that is like none before it.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<RankPlan>, D::Error> {
    let mut read: Vec<Fields> = Vec::deserialize(deserializer)?;
    let like = |fields: &Fields| fields.get(LIKE).and_then(|like| usize::try_from(like.as_u64()?).ok());
    let models: HashSet<usize> = read.iter().filter_map(like).collect();
    let mut ranks = Vec::with_capacity(read.len());
    for number in 0..read.len() {
        if let Some(named) = read[number].remove(LIKE) {
            let (before, rest) = read.split_at_mut(number);
            let model = named.as_u64().and_then(|like| before.get(usize::try_from(like).ok()?));
            let model = model
                .ok_or_else(|| D::Error::custom(format!("rank {number} is like {named}, which is none before it")))?;
            let changes = std::mem::replace(&mut rest[0], model.clone());
            change(&mut rest[0], changes);
        }
        let is_model = models.contains(&number);
        let fields = if is_model { read[number].clone() } else { std::mem::take(&mut read[number]) };
        ranks.push(serde_json::from_value(Value::Object(fields)).map_err(D::Error::custom)?);
    }
    Ok(ranks)
}

/// The number of values.
fn size(fields: &Fields) -> usize {
    fn count(value: &Value) -> usize {
        match value {
            Value::Array(items) => items.iter().map(count).sum(),
            Value::Object(fields) => size(fields),
            _ => 1,
        }
    }
    fields.values().map(count).sum()
}

/// The fields by which `fields` differs from `model`, objects within objects; `None` if it lacks one.
fn changes(model: &Fields, fields: &Fields) -> Option<Fields> {
    let mut out = Map::new();
    for key in model.keys() {
        fields.get(key)?;
    }
    for (key, value) in fields {
        match (model.get(key), value) {
            (Some(same), _) if same == value => {}
            (Some(Value::Object(model)), Value::Object(fields)) => {
                out.insert(key.clone(), Value::Object(changes(model, fields)?));
            }
            _ => {
                out.insert(key.clone(), value.clone());
            }
        }
    }
    Some(out)
}

/// Makes the `changes` to `fields`.
fn change(fields: &mut Fields, changes: Fields) {
    for (key, value) in changes {
        match (fields.get_mut(&key), value) {
            (Some(Value::Object(inner)), Value::Object(changes)) => change(inner, changes),
            (_, value) => {
                fields.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(value: Value) -> Fields {
        let Value::Object(fields) = value else { panic!("an object") };
        fields
    }

    #[test]
    fn what_was_left_out_comes_back() {
        let model = fields(json!({"rank": 0, "batch": {"rows": 8, "first": 0}, "list": [1, 2], "none": null}));
        for other in [
            json!({"rank": 1, "batch": {"rows": 8, "first": 8}, "list": [1, 2], "none": null}),
            json!({"rank": 1, "batch": null, "list": [], "none": {"a": 1}, "more": {}}),
            json!({"rank": 0, "batch": {"rows": 8, "first": 0}, "list": [1, 2], "none": null}),
        ] {
            let other = fields(other);
            let mut again = model.clone();
            change(&mut again, changes(&model, &other).unwrap());
            assert_eq!(again, other);
        }
        assert_eq!(changes(&model, &fields(json!({"rank": 0}))), None);
    }
}
