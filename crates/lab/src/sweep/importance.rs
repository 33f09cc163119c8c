//! The importance of parameters: for each, the share of the objective's variance that lies between its values.
//!
//! This is eta squared of a one-way analysis of variance (Fisher 1925, "Statistical methods for research workers", chapter
//! VII): with the results y in groups g by the parameter's value, η² = Σ_g n_g (ȳ_g − ȳ)² / Σ_i (y_i − ȳ)². It is 0 if the
//! means of all values are equal, and 1 if the value alone decides. Each parameter is looked at by itself, so shares need not
//! add up to 1, and a parameter that acts together with another shows less than it should. With few results a group it comes out
//! too high: k groups of n results that have nothing to do with each other give (k − 1)/(n − 1) on average.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::point::{PointValues, value_text};
use super::spec::{Dimension, Goal};

const BY_VALUE: &str = "eta squared";
const BY_QUARTILE: &str = "eta squared over quartiles";
/// The number of results below which no importance is computed.
const MIN_RESULTS: usize = 3;
/// Groups that a range is cut into.
const BINS: usize = 4;

/// The share of the objective's variance that goes with a parameter.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Importance {
    /// `lr`; of parameters that go together, `d_model+heads`.
    pub name: String,
    /// From 0 to 1.
    pub share: f64,
    /// `eta squared`; of a range, whose values are cut at their quartiles, `eta squared over quartiles`.
    pub how: &'static str,
    /// The value with the best mean; of a range the text `low to high`, of zipped parameters the values joined with `+`.
    pub best: Option<Value>,
}

/// The importance of what varies along `axes`, the greatest first, from `points` (values, objective). Results that are missing
/// or not finite do not count. A parameter with the same value in all other results is left out. With fewer than three results the
/// list is empty.
#[must_use]
pub fn importance(axes: &[Dimension], goal: Goal, points: &[(PointValues, Option<f64>)]) -> Vec<Importance> {
    let results: Vec<(&PointValues, f64)> =
        points.iter().filter_map(|(values, y)| Some((values, y.filter(|y| y.is_finite())?))).collect();
    if results.len() < MIN_RESULTS {
        return Vec::new();
    }
    let ys: Vec<f64> = results.iter().map(|&(_, y)| y).collect();
    let mut out: Vec<Importance> = parameters(axes)
        .into_iter()
        .filter_map(|(names, range)| {
            let column: Vec<Vec<&Value>> = results
                .iter()
                .map(|(values, _)| names.iter().filter_map(|name| value(values, name)).collect())
                .collect();
            let (groups, how) = if range {
                (quartiles(&column)?, BY_QUARTILE)
            } else {
                (column.iter().map(|values| joined(values)).collect(), BY_VALUE)
            };
            let (share, best) = eta_squared(&groups, &ys, goal)?;
            // A value by itself keeps its type.
            let best = match column.iter().zip(&groups).find(|(_, group)| **group == best) {
                Some((values, _)) if !range && values.len() == 1 => values[0].clone(),
                _ => Value::String(best),
            };
            Some(Importance { name: names.join("+"), share, how, best: Some(best) })
        })
        .collect();
    out.sort_by(|a, b| b.share.total_cmp(&a.share));
    out
}

/// The names that vary together, and true if they are drawn from a range.
fn parameters(axes: &[Dimension]) -> Vec<(Vec<&str>, bool)> {
    let mut out = Vec::new();
    for axis in axes {
        match axis {
            Dimension::Grid(_) | Dimension::Zip(_) => out.push((axis.names(), false)),
            Dimension::Random(random) => {
                out.extend(random.space.iter().map(|(name, draw)| (vec![name.as_str()], draw.is_range())));
            }
        }
    }
    out
}

fn value<'v>(values: &'v PointValues, name: &str) -> Option<&'v Value> {
    values.iter().find(|(n, _)| n == name).map(|(_, value)| value)
}

fn joined(values: &[&Value]) -> String {
    values.iter().map(|v| value_text(v)).collect::<Vec<_>>().join("+")
}

/// The quartile that each number is in, named by its bounds; equal numbers are in the same one.
fn quartiles(column: &[Vec<&Value>]) -> Option<Vec<String>> {
    let numbers: Vec<(f64, &Value)> =
        column.iter().map(|values| values.first().and_then(|v| Some((v.as_f64()?, *v)))).collect::<Option<_>>()?;
    let mut sorted = numbers.clone();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let bin = |x: f64| sorted.partition_point(|&(y, _)| y < x) * BINS / sorted.len();
    let name = |bin_of: usize| {
        let mut members = sorted.iter().filter(|&&(y, _)| bin(y) == bin_of).map(|(_, v)| value_text(v));
        let first = members.next().unwrap_or_default();
        let last = members.next_back().unwrap_or_else(|| first.clone());
        if first == last { first } else { format!("{first} to {last}") }
    };
    let names: Vec<String> = (0..BINS).map(name).collect();
    Some(numbers.iter().map(|&(x, _)| names[bin(x).min(BINS - 1)].clone()).collect())
}

/// η² of `ys` in `groups`, and the group with the best mean, the first of equals; `None` for one group, and for groups of one result each,
/// whose η² is always 1.
fn eta_squared(groups: &[String], ys: &[f64], goal: Goal) -> Option<(f64, String)> {
    let mut by: BTreeMap<&str, (usize, f64, usize)> = BTreeMap::new();
    for (i, (group, &y)) in groups.iter().zip(ys).enumerate() {
        let (n, sum, _) = by.entry(group).or_insert((0, 0.0, i));
        *n += 1;
        *sum += y;
    }
    if by.len() < 2 || by.len() == ys.len() {
        return None;
    }
    let mean = ys.iter().sum::<f64>() / ys.len() as f64;
    let total: f64 = ys.iter().map(|y| (y - mean).powi(2)).sum();
    let between: f64 = by.values().map(|&(n, sum, _)| n as f64 * (sum / n as f64 - mean).powi(2)).sum();
    let means = by.iter().map(|(group, &(n, sum, first))| (*group, sum / n as f64, first));
    let best = means.min_by(|a, b| goal.order(a.1, b.1).then(a.2.cmp(&b.2)))?.0.to_owned();
    // Results that are all equal depend on nothing; a share outside of 0 to 1 is rounding, or overflow.
    let share = between / total;
    Some((if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }, best))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::random::{Distribution, RandomDraws};
    use super::super::spec::ListAxis;
    use super::*;

    fn axis(name: &str, values: &[Value]) -> ListAxis {
        ListAxis { name: name.to_owned(), values: values.to_vec() }
    }

    fn point(values: &[(&str, Value)], y: f64) -> (PointValues, Option<f64>) {
        (values.iter().map(|(n, v)| ((*n).to_owned(), v.clone())).collect(), Some(y))
    }

    #[test]
    fn a_table_by_hand() {
        let axes = [
            Dimension::Grid(axis("lr", &[json!(0.1), json!(0.2)])),
            Dimension::Grid(axis("layers", &[json!(2), json!(4)])),
            Dimension::Grid(axis("same", &[json!("x")])),
        ];
        let points: Vec<_> = [(0.1, 2, 1.0), (0.1, 4, 2.0), (0.2, 2, 5.0), (0.2, 4, 6.0)]
            .into_iter()
            .map(|(lr, layers, y)| point(&[("lr", json!(lr)), ("layers", json!(layers)), ("same", json!("x"))], y))
            .collect();
        // Mean 3.5, total 6.25+2.25+2.25+6.25 = 17; between the rates 4·2² = 16, between the depths 4·0.5² = 1.
        let found = importance(&axes, Goal::Minimize, &points);
        let short: Vec<_> = found.iter().map(|i| (i.name.as_str(), i.share, i.best.clone().unwrap())).collect();
        assert_eq!(short, [("lr", 16.0 / 17.0, json!(0.1)), ("layers", 1.0 / 17.0, json!(2))]);
        assert_eq!(importance(&axes, Goal::Maximize, &points)[0].best, Some(json!(0.2)));

        // Points without a result do not count, and two results give no importance.
        let mut more = points.clone();
        more.push((points[0].0.clone(), None));
        more.push((points[0].0.clone(), Some(f64::NAN)));
        more.push((points[0].0.clone(), Some(f64::INFINITY)));
        assert_eq!(importance(&axes, Goal::Minimize, &more), found);
        assert_eq!(importance(&axes, Goal::Minimize, &points[..2]), []);
        let flat: Vec<_> = points.iter().map(|(values, _)| (values.clone(), Some(1.0))).collect();
        assert!(importance(&axes, Goal::Minimize, &flat).iter().all(|i| i.share == 0.0));
    }

    #[test]
    fn what_is_zipped_is_one_parameter_and_ranges_are_cut_into_quartiles() {
        let random = RandomDraws {
            samples: 8,
            seed: 0,
            space: vec![
                ("lr".to_owned(), Distribution::Uniform(0.0, 8.0)),
                ("decay".to_owned(), Distribution::Choice(vec![json!("cosine"), json!("linear")])),
            ],
        };
        let axes = [
            Dimension::Zip(vec![axis("d_model", &[json!(8), json!(16)]), axis("heads", &[json!(1), json!(2)])]),
            Dimension::Random(random),
        ];
        let points: Vec<_> = (0..8)
            .map(|i| {
                let wide = i % 2;
                let values = [
                    ("d_model", json!(8 << wide)),
                    ("heads", json!(1 + wide)),
                    ("lr", json!(f64::from(i))),
                    ("decay", json!(if i < 4 { "cosine" } else { "linear" })),
                ];
                // Quartiles are {0, 1}, {2, 3}, {4, 5}, {6, 7}.
                point(&values, f64::from(i / 2))
            })
            .collect();
        let found = importance(&axes, Goal::Minimize, &points);
        let short: Vec<_> = found.iter().map(|i| (i.name.as_str(), i.share, i.how)).collect();
        // By quartile 0 0 1 1 2 2 3 3: total 10, between halves 8·1² = 8.
        assert_eq!(short, [("lr", 1.0, BY_QUARTILE), ("decay", 0.8, BY_VALUE), ("d_model+heads", 0.0, BY_VALUE)]);
        assert_eq!(found[0].best, Some(json!("0.0 to 1.0")));
        assert_eq!(found[1].best, Some(json!("cosine")));
        assert_eq!(found[2].best, Some(json!("8+1")));
    }
}
