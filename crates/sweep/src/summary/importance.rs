//! The importance of parameters: for each, the share of the objective's variance that lies between its values.
//!
//! This is eta squared of a one-way analysis of variance (Fisher 1925, "Statistical methods for research workers", chapter
//! VII): with the results y in groups g by the parameter's value, η² = Σ_g n_g (ȳ_g − ȳ)² / Σ_i (y_i − ȳ)². It is 0 if the
//! means of all values are equal, and 1 if the value alone decides. Each parameter is looked at separately, so shares need not
//! add up to 1, and a parameter that acts together with another shows less than it should. With few results a group it comes out
//! too high: k groups of n results that have nothing to do with each other give (k − 1)/(n − 1) on average.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use crate::points::{PointValues, value_text};
use crate::spec::{Dimension, Goal};

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
    /// `eta squared`; of a range, whose values are cut at their quartiles, `eta squared over quartiles`; if a point diverged, `eta squared
    /// of ranks`.
    pub how: &'static str,
    /// The value with the best mean; of a range the text `low to high`, of zipped parameters the values joined with `+`. `None` if all means
    /// are equal, or all points of the best value diverged.
    pub best: Option<Value>,
    /// The values whose points diverged, in the order of the points.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub diverged: Vec<DivergedValue>,
}

/// A value of a parameter with which points diverged.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DivergedValue {
    pub value: Value,
    /// The points that diverged.
    pub diverged: usize,
    /// All points that have the value and a result.
    pub points: usize,
}

/// The importance of what varies along `axes`, the greatest first, from `points` (values, objective). Missing results do not count. A
/// result that is not finite is that of a point that diverged, and worse than any number; if there is one, results are compared by their
/// ranks. A parameter with the same value in all results is left out, as are the parameters `seeds`: what they change is noise. With fewer
/// than three results the list is empty.
#[must_use]
pub fn importance(
    axes: &[Dimension],
    goal: Goal,
    points: &[(PointValues, Option<f64>)],
    seeds: &[&str],
) -> Vec<Importance> {
    let results: Vec<(&PointValues, f64)> = points.iter().filter_map(|(values, y)| Some((values, (*y)?))).collect();
    if results.len() < MIN_RESULTS {
        return Vec::new();
    }
    let measured: Vec<f64> = results.iter().map(|&(_, y)| if y.is_finite() { y } else { f64::NAN }).collect();
    let by_rank = measured.iter().any(|y| y.is_nan());
    let (ys, goal) = if by_rank { (ranks(&measured, goal), Goal::Minimize) } else { (measured.clone(), goal) };
    let mut out: Vec<Importance> = parameters(axes, seeds)
        .into_iter()
        .filter_map(|(names, range)| {
            let column: Vec<Vec<&Value>> = results
                .iter()
                .map(|(values, _)| names.iter().filter_map(|name| value(values, name)).collect())
                .collect();
            let groups = if range { quartiles(&column)? } else { column.iter().map(|values| joined(values)).collect() };
            let (share, best) = eta_squared(&groups, &ys, goal)?;
            // A single value keeps its type.
            let typed = |group: &str| match column.iter().zip(&groups).find(|(_, other)| **other == group) {
                Some((values, _)) if !range && values.len() == 1 => values[0].clone(),
                _ => Value::String(group.to_owned()),
            };
            let diverged = diverged_groups(&groups, &measured);
            let is_known = |best: &str| diverged.iter().all(|(group, n, all)| *group != best || n < all);
            Some(Importance {
                name: names.join("+"),
                share,
                how: match (by_rank, range) {
                    (false, false) => "eta squared",
                    (false, true) => "eta squared over quartiles",
                    (true, false) => "eta squared of ranks",
                    (true, true) => "eta squared of ranks over quartiles",
                },
                best: (is_known(&best) && share > 0.0).then(|| typed(&best)),
                diverged: diverged
                    .iter()
                    .map(|&(group, diverged, points)| DivergedValue { value: typed(group), diverged, points })
                    .collect(),
            })
        })
        .collect();
    out.sort_by(|a, b| b.share.total_cmp(&a.share));
    out
}

/// The rank of each result, 1 for the best. Equal results share the mean of their ranks, as NaNs do, which are the worst. η² of ranks is the
/// statistic of Kruskal and Wallis (1952, "Use of ranks in one-criterion variance analysis") divided by n − 1.
fn ranks(results: &[f64], goal: Goal) -> Vec<f64> {
    let rank = |&y: &f64| {
        let better = results.iter().filter(|&&other| goal.order(other, y).is_lt()).count();
        let equal = results.iter().filter(|&&other| goal.order(other, y).is_eq()).count();
        better as f64 + f64::midpoint(equal as f64, 1.0)
    };
    results.iter().map(rank).collect()
}

/// The groups with results that are NaN, in the order of the results: the group, the number of these results, and of all.
fn diverged_groups<'g>(groups: &'g [String], results: &[f64]) -> Vec<(&'g str, usize, usize)> {
    let mut out: Vec<(&str, usize, usize)> = Vec::new();
    for (group, y) in groups.iter().zip(results) {
        match out.iter_mut().find(|(known, ..)| known == group) {
            Some((_, diverged, all)) => (*diverged, *all) = (*diverged + usize::from(y.is_nan()), *all + 1),
            None => out.push((group, usize::from(y.is_nan()), 1)),
        }
    }
    out.retain(|(_, diverged, _)| *diverged > 0);
    out
}

/// A parameter whose importance says less than it seems to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum AxisNote {
    /// All points have the same value.
    Constant { name: String },
    /// Each value of `by` comes with one value of the parameter, so their importances cannot be separated.
    Dependent { name: String, by: String },
}

/// The parameters of `axes` that are constant or determined by a different one in `points`.
#[must_use]
pub fn axis_notes(axes: &[Dimension], points: &[(PointValues, Option<f64>)], seeds: &[&str]) -> Vec<AxisNote> {
    let column = |names: &[&str]| -> Vec<String> {
        let own =
            |values: &PointValues| joined(&names.iter().filter_map(|name| value(values, name)).collect::<Vec<_>>());
        points.iter().map(|(values, _)| own(values)).collect()
    };
    let columns: Vec<(String, Vec<String>)> =
        parameters(axes, seeds).iter().map(|(names, _)| (names.join("+"), column(names))).collect();
    let kinds = |column: &[String]| column.iter().collect::<BTreeSet<_>>().len();
    let determines = |a: &[String], b: &[String]| a.iter().zip(b).collect::<BTreeSet<_>>().len() == kinds(a);
    let mut notes = Vec::new();
    for (i, (name, own)) in columns.iter().enumerate() {
        // Values that differ in each point, such as draws from a range, determine all others by chance.
        let is_dependent = |(j, (_, other)): &(usize, &(String, Vec<String>))| {
            *j != i && (2..points.len()).contains(&kinds(other)) && determines(other, own)
        };
        if points.len() > 1 && kinds(own) == 1 {
            notes.push(AxisNote::Constant { name: name.clone() });
        } else if let Some((_, (by, _))) = columns.iter().enumerate().find(is_dependent) {
            notes.push(AxisNote::Dependent { name: name.clone(), by: by.clone() });
        }
    }
    notes
}

/// The names that vary together, without `seeds`, and true if they are drawn from a range.
fn parameters<'a>(axes: &'a [Dimension], seeds: &[&str]) -> Vec<(Vec<&'a str>, bool)> {
    let mut out = Vec::new();
    for axis in axes {
        match axis {
            Dimension::Grid(_) | Dimension::Seeds(_) | Dimension::Zip(_) => out.push((axis.names(), false)),
            Dimension::Random(random) => {
                out.extend(random.space.iter().map(|(name, draw)| (vec![name.as_str()], draw.is_range())));
            }
        }
    }
    out.retain(|(names, _)| names.iter().any(|name| !seeds.contains(name)));
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

    use super::*;
    use crate::spec::ListAxis;
    use crate::spec::{Distribution, RandomDraws};

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
        let found = importance(&axes, Goal::Minimize, &points, &[]);
        let short: Vec<_> = found.iter().map(|i| (i.name.as_str(), i.share, i.best.clone().unwrap())).collect();
        assert_eq!(short, [("lr", 16.0 / 17.0, json!(0.1)), ("layers", 1.0 / 17.0, json!(2))]);
        assert_eq!(importance(&axes, Goal::Maximize, &points, &[])[0].best, Some(json!(0.2)));

        // Points without a result do not count, and two results give no importance.
        let mut more = points.clone();
        more.push((points[0].0.clone(), None));
        assert_eq!(importance(&axes, Goal::Minimize, &more, &[]), found);
        assert_eq!(importance(&axes, Goal::Minimize, &points[..2], &[]), []);
        let flat: Vec<_> = points.iter().map(|(values, _)| (values.clone(), Some(1.0))).collect();
        assert!(importance(&axes, Goal::Minimize, &flat, &[]).iter().all(|i| i.share == 0.0));
    }

    #[test]
    fn parameters_that_are_constant_or_depend_on_another_are_named() {
        let axes = ["a", "b", "c", "seed"].map(|name| Dimension::Grid(axis(name, &[json!(1), json!(2)])));
        let points: Vec<_> = [(1, 1, 1), (2, 1, 1), (2, 2, 1), (1, 1, 2)]
            .into_iter()
            .map(|(a, b, seed)| {
                let b = if a == 1 { 7 } else { b };
                point(&[("a", json!(a)), ("b", json!(b)), ("c", json!(0)), ("seed", json!(seed))], 1.0)
            })
            .collect();
        let constant = |name: &str| AxisNote::Constant { name: name.to_owned() };
        let dependent = |name: &str, by: &str| AxisNote::Dependent { name: name.to_owned(), by: by.to_owned() };
        assert_eq!(axis_notes(&axes, &points, &["seed"]), [dependent("a", "b"), constant("c")]);
        assert_eq!(axis_notes(&axes, &points[..1], &["seed"]), []);
    }

    #[test]
    fn zipped_values_are_one_parameter_and_ranges_are_cut_into_quartiles() {
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
        let found = importance(&axes, Goal::Minimize, &points, &[]);
        let short: Vec<_> = found.iter().map(|i| (i.name.as_str(), i.share, i.how)).collect();
        // By quartile 0 0 1 1 2 2 3 3: total 10, between halves 8·1² = 8.
        assert_eq!(
            short,
            [
                ("lr", 1.0, "eta squared over quartiles"),
                ("decay", 0.8, "eta squared"),
                ("d_model+heads", 0.0, "eta squared")
            ]
        );
        assert_eq!(found[0].best, Some(json!("0.0 to 1.0")));
        assert_eq!(found[1].best, Some(json!("cosine")));
        assert_eq!(found[2].best, None, "all means are equal");
    }

    #[test]
    fn a_point_that_diverged_is_the_worst_of_its_values() {
        let rates = [json!(0.1), json!(10_000), json!(0.5)];
        let axes = [
            Dimension::Grid(axis("lr", &rates)),
            Dimension::Grid(axis("clip", &[json!(null), json!(1.0)])),
            Dimension::Grid(axis("seed", &[json!(1), json!(2)])),
        ];
        let results = [2.0, 1.0, f64::NAN, 4.0, f64::INFINITY, 3.0];
        let points: Vec<_> = results
            .into_iter()
            .enumerate()
            .map(|(i, y)| {
                let clip = [json!(null), json!(1.0)][i % 2].clone();
                point(&[("lr", rates[i / 2].clone()), ("clip", clip), ("seed", json!([1, 2, 1, 1, 2, 2][i]))], y)
            })
            .collect();
        // Ranks 2, 1, 5.5, 4, 5.5, 3: mean 3.5, total 17. Means by rate 1.5, 4.75, 4.25: between them 2·(2² + 1.25² + 0.75²) = 12.25. Means
        // by clipping 13/3, 8/3: between them 6·(5/6)² = 25/6. Seed 1 has 2, 5.5, 4, and seed 2 has 1, 5.5, 3: 6·(1/3)² = 2/3.
        let found = importance(&axes, Goal::Minimize, &points, &["seed"]);
        let short: Vec<_> = found.iter().map(|i| (i.name.as_str(), i.how, i.best.clone())).collect();
        let how = "eta squared of ranks";
        assert_eq!(short, [("lr", how, Some(json!(0.1))), ("clip", how, Some(json!(1.0)))], "a seed is noise");
        for (found, share) in found.iter().zip([12.25 / 17.0, 25.0 / 6.0 / 17.0]) {
            assert!((found.share - share).abs() < 1e-12, "{found:?} {share}");
        }
        let diverged =
            |i: usize| found[i].diverged.iter().map(|d| (d.value.clone(), d.diverged, d.points)).collect::<Vec<_>>();
        assert_eq!(diverged(0), [(json!(10_000), 1, 2), (json!(0.5), 1, 2)]);
        assert_eq!(diverged(1), [(json!(null), 2, 3)]);

        // Where a greater value is better, what diverged is the worst, too.
        let found = importance(&axes[..2], Goal::Maximize, &points, &[]);
        let bests: Vec<_> = found.iter().map(|i| (i.name.as_str(), i.best.clone())).collect();
        assert!(bests.contains(&("clip", Some(json!(1.0)))), "{bests:?}");
        // If everything diverged, nothing is the best.
        let all: Vec<_> = points.iter().map(|(values, _)| (values.clone(), Some(f64::NAN))).collect();
        let found = importance(&axes, Goal::Minimize, &all, &[]);
        assert!(found.iter().all(|i| i.share == 0.0 && i.best.is_none() && !i.diverged.is_empty()), "{found:?}");
    }
}
