//! The rules of a ladder: settings whose values are expressions, over the dial, over other rules, and over figures of a point's plan.

use minijinja::value::ValueKind;
use serde_json::{Number, Value};

use super::exclude;
use super::point::{ExpandedPoint, PointValues};
use crate::spec::{SettingRule, SweepSpec};
use runner_spec::diagnostic::{ConfigError, short};
use runner_template::expression::{ExpressionProblem, expression_environment};
use runner_yaml::source::Source;

/// The names of the figures of a plan that rules may use.
pub(crate) const FIGURES: [&str; 4] = ["parameters", "tokens", "flops", "steps"];

impl SettingRule {
    /// The value of the rule for `point`, which has the values of the rules before it. `figures` are those of [`FIGURES`].
    ///
    /// # Errors
    /// An expression that cannot be computed, or is not a number.
    pub fn value(
        &self,
        spec: &SweepSpec,
        point: &ExpandedPoint,
        figures: Option<[f64; FIGURES.len()]>,
    ) -> Result<Value, ConfigError> {
        let mut known = point.clone();
        for (name, figure) in FIGURES.iter().zip(figures.into_iter().flatten()) {
            known.values.push(((*name).to_owned(), number(figure)));
        }
        let found = exclude::compile(&expression_environment(), None, &self.expression)
            .and_then(|expression| exclude::evaluate(&expression, spec, &known))
            .and_then(|value| {
                let float = (value.kind() == ValueKind::Number).then(|| f64::try_from(value.clone()).ok()).flatten();
                float.filter(|x| x.is_finite()).ok_or_else(|| -> ExpressionProblem {
                    let found = short(&value.to_string());
                    (
                        format!("a rule must give a number, got `{found}`"),
                        "write it as in `64 * model.layers`".to_owned(),
                    )
                })
            });
        found.map(number).map_err(|(message, help)| {
            let source = Source::file(&spec.path, spec.text.clone());
            let key = format!("ladder.rules.{}", self.key);
            ConfigError::new(vec![source.diagnostic(self.expression.place, &key, message, help)])
        })
    }
}

/// `x` as a whole number where it is one, otherwise with six significant digits: powers differ between machines in the last digits of a
/// float.
fn number(x: f64) -> Value {
    if x.fract() == 0.0 && x.abs() < 9e15 {
        return Value::from(x as i64);
    }
    let rounded: f64 = format!("{x:.5e}").parse().unwrap_or(x);
    if rounded.fract() == 0.0 && rounded.abs() < 9e15 {
        return Value::from(rounded as i64);
    }
    Number::from_f64(rounded).map_or(Value::Null, Value::Number)
}

/// Adds the values of the rules that need no plan to `point`.
///
/// # Errors
/// An expression that cannot be computed.
pub(crate) fn add_rule_values(spec: &SweepSpec, point: &mut ExpandedPoint) -> Result<(), ConfigError> {
    for rule in spec.rules.iter().filter(|rule| !rule.needs_plan) {
        let value = rule.value(spec, point, None)?;
        set_value(&mut point.values, &rule.key, value);
    }
    Ok(())
}

/// Gives `name` a value.
pub(crate) fn set_value(values: &mut PointValues, name: &str, value: Value) {
    match values.iter_mut().find(|(known, _)| known == name) {
        Some((_, known)) => *known = value,
        None => values.push((name.to_owned(), value)),
    }
}
