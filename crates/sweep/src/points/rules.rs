//! The rules of a ladder: settings whose values are expressions, over the dial, over other rules, and over figures of a point's plan.

use minijinja::value::ValueKind;
use serde_json::Value;

use super::exclude;
use super::point::ExpandedPoint;
use crate::spec::{SettingRule, SweepSpec};
use runner_spec::diagnostic::{ConfigError, short};
use runner_template::expression::expression_environment;
use runner_yaml::source::Source;

/// The names of the figures of a plan that rules may use.
pub(crate) const FIGURES: [&str; 4] = ["parameters", "tokens", "flops", "steps"];

impl SettingRule {
    /// The value of the rule for `point`, which has the values of the rules before it. `figures` are those of `FIGURES`.
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
            .and_then(|(expression, _)| exclude::evaluate(&expression, spec, &known))
            .and_then(|value| {
                let float = (value.kind() == ValueKind::Number).then(|| f64::try_from(value.clone()).ok()).flatten();
                let message = || format!("a rule must give a number, got `{}`", short(&value.to_string()));
                let help = "write it as in `64 * model.layers`";
                float.filter(|x| x.is_finite()).ok_or_else(|| (message(), help.to_owned()))
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
    let whole = |x: f64| (x.fract() == 0.0 && x.abs() < 9e15).then(|| Value::from(x as i64));
    let rounded = format!("{x:.5e}").parse().unwrap_or(x);
    whole(x).or_else(|| whole(rounded)).unwrap_or_else(|| Value::from(rounded))
}

/// Adds the values of the rules that need no plan to `point`.
///
/// # Errors
/// An expression that cannot be computed.
pub(crate) fn add_rule_values(spec: &SweepSpec, point: &mut ExpandedPoint) -> Result<(), ConfigError> {
    for rule in spec.rules.iter().filter(|rule| !rule.needs_plan) {
        let value = rule.value(spec, point, None)?;
        point.values.push((rule.key.clone(), value));
    }
    Ok(())
}
