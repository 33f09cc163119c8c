//! Expansion of a sweep to its points.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::exclude;
use super::point::{ExpandedPoint, PointValues, TUNE, tune_of};
use super::rules::add_rule_values;
use crate::spec::{Dimension, ExcludeExpression, MAX_POINTS, SweepSpec};
use runner_config::{LayerFile, LoadOptions};
use runner_spec::diagnostic::ConfigError;
use runner_spec::error::PlainError;
use runner_template::expression::expression_environment;
use runner_template::yaml_text;
use runner_yaml::source::Source;

/// The points of a sweep, and the points that `exclude` left out.
#[derive(Debug, Clone, PartialEq)]
pub struct Expanded {
    pub points: Vec<ExpandedPoint>,
    pub excluded: Vec<ExpandedPoint>,
}

/// Expands `spec` to its points, in the order of the product: the first axis of the file varies slowest.
///
/// # Errors
/// An expression of `exclude`, with its place in the file, that cannot be computed, is not a truth value, or leaves no point.
pub fn expand(spec: &SweepSpec) -> Result<Expanded, ConfigError> {
    let source = Source::file(&spec.path, spec.text.clone());
    let whole = |message: String| ConfigError::new(vec![source.diagnostic_whole(message, String::new())]);
    let total = count(&spec.axes).map_err(|error| whole(error.text))?;
    let environment = expression_environment();
    let names = exclude::variable_names(spec);
    let mut diagnostics = Vec::new();
    let mut report = |exclude: &ExcludeExpression, (message, help)| {
        diagnostics.push(source.diagnostic(exclude.place, "sweep", message, help));
    };
    let mut conditions = Vec::new();
    for (name, condition) in &spec.conditions {
        match exclude::compile(&environment, Some(&names), condition) {
            Ok((expression, _)) => conditions.push((name, condition, Some(expression))),
            Err(problem) => report(condition, problem),
        }
    }
    let mut expressions = Vec::new();
    for exclude in &spec.exclude {
        match exclude::compile(&environment, Some(&names), exclude) {
            Ok((expression, _)) => expressions.push((exclude, Some(expression))),
            Err(problem) => report(exclude, problem),
        }
    }
    let choices: Vec<Vec<PointValues>> = spec.axes.iter().map(choices).collect();
    let (mut points, mut excluded): (Vec<ExpandedPoint>, Vec<ExpandedPoint>) = (Vec::new(), Vec::new());
    let mut seen = HashSet::new();
    for number in 0..total {
        let mut point = ExpandedPoint { index: points.len() + 1, values: Vec::new() };
        let mut rest = total;
        for choices in &choices {
            rest /= choices.len();
            point.values.extend(choices[number / rest % choices.len()].iter().cloned());
        }
        // The first axis of a ladder is its dial.
        let is_tuned = |sizes: usize| [0, sizes / 2].contains(&(number * sizes / total));
        if spec.is_ladder && tune_of(&point.values) != 1.0 && !is_tuned(choices[0].len()) {
            continue;
        }
        for (i, (name, condition, slot)) in conditions.iter_mut().enumerate() {
            let Some(expression) = slot else { continue };
            // What later conditions may take away is not known yet.
            let is_known = |other: &str| !spec.conditions[i..].iter().any(|(later, _)| later == other);
            let known = point.values.iter().filter(|(other, _)| is_known(other)).cloned().collect();
            match exclude::is_true_for(expression, spec, &ExpandedPoint { index: point.index, values: known }) {
                Ok(true) => {}
                Ok(false) => point.values.retain(|(other, _)| other != *name),
                Err(problem) => {
                    *slot = None;
                    report(condition, problem);
                }
            }
        }
        // Points that differed only in what does not apply to them are one point.
        if !conditions.is_empty() && !seen.insert(json!(point.values).to_string()) {
            continue;
        }
        let mut out = false;
        for (exclude, slot) in &mut expressions {
            let Some(expression) = slot else { continue };
            match exclude::is_true_for(expression, spec, &point) {
                Ok(is_true) => out |= is_true,
                Err(problem) => {
                    // The same mistake would be reported for almost every point.
                    *slot = None;
                    report(exclude, problem);
                }
            }
        }
        if out {
            point.index = excluded.len() + 1;
            excluded.push(point);
        } else {
            add_rule_values(spec, &mut point)?;
            points.push(point);
        }
    }
    if let (true, true, Some(last)) = (diagnostics.is_empty(), points.is_empty(), spec.exclude.last()) {
        let message = format!("no point is left: `exclude` removes all {total} points");
        diagnostics.push(source.diagnostic(last.place, "sweep.exclude", message, String::new()));
    }
    if diagnostics.is_empty() { Ok(Expanded { points, excluded }) } else { Err(ConfigError::new(diagnostics)) }
}

/// The options that load the base of `spec` for `point`: the sweep's settings, over them those of `base` (the command's), over them
/// those of the point.
#[must_use]
pub fn load_options<'a>(spec: &SweepSpec, point: &ExpandedPoint, base: &LoadOptions<'a>) -> LoadOptions<'a> {
    let mut out = base.clone();
    out.sets = spec.shared_settings().into_iter().chain(base.sets.iter().cloned()).collect();
    if spec.has_template() {
        out.template.vars.clone_from(&spec.vars);
        out.template.vars.extend(base.template.vars.clone());
        let is_variable = |name: &str| spec.seeds_axis() != Some(name);
        out.template.vars.extend(point.values.iter().filter(|(name, _)| is_variable(name)).cloned());
    }
    let files = point.values.iter().filter_map(|(key, value)| Some((key, spec.file_of(key, value)?)));
    out.files.extend(files.map(|(key, path)| LayerFile { key: key.clone(), path: path.to_owned() }));
    out.sets.extend(point_settings(spec, point));
    out
}

/// The values of `point` as settings in the form of `--set`. Those that are variables of a template are left out.
#[must_use]
pub fn point_settings(spec: &SweepSpec, point: &ExpandedPoint) -> Vec<String> {
    // The factor of a ladder is for its rules.
    let is_factor = |name: &str| spec.is_ladder && name == TUNE;
    let is_varied_key = |name: &str| !spec.has_template() && !is_factor(name);
    let is_setting = |name: &str, value: &Value| {
        spec.seeds_axis() == Some(name) || is_varied_key(name) && spec.file_of(name, value).is_none()
    };
    let values = point.values.iter().filter(|(name, value)| is_setting(name, value));
    values.map(|(key, value)| spec.as_written(format!("{key}={}", yaml_text(value)))).collect()
}

/// The number of points in the product of `axes`, or why there are too many.
pub(crate) fn count(axes: &[Dimension]) -> Result<usize, PlainError> {
    let total = axes.iter().try_fold(1_usize, |n, axis| n.checked_mul(axis.value_count()));
    match total {
        Some(total) if total <= MAX_POINTS => Ok(total),
        _ => {
            let factors: Vec<String> =
                axes.iter().map(|axis| format!("{} ({})", axis.value_count(), axis.names().join(", "))).collect();
            let product: f64 = axes.iter().map(|axis| axis.value_count() as f64).product();
            let total = total.map_or_else(|| format!("{product:.1e}"), |n| n.to_string());
            let factors = factors.join(" × ");
            let message = format!("a sweep must have at most {MAX_POINTS} points, got {total}: {factors}");
            Err(PlainError::request(message))
        }
    }
}

/// The values that a dimension adds to a point, for each of its positions.
fn choices(axis: &Dimension) -> Vec<PointValues> {
    match axis {
        Dimension::Grid(axis) | Dimension::Files(axis, _) | Dimension::Seeds(axis) | Dimension::Tune(axis) => {
            axis.values.iter().map(|value| vec![(axis.name.clone(), value.clone())]).collect()
        }
        Dimension::Zip(axes) => {
            let row = |i: usize| axes.iter().filter_map(|a| Some((a.name.clone(), a.values.get(i)?.clone()))).collect();
            (0..axis.value_count()).map(row).collect()
        }
        Dimension::Random(random) => (0..random.samples)
            .map(|sample| {
                random.space.iter().map(|(name, draw)| (name.clone(), draw.value(random.seed, name, sample))).collect()
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests;
