//! The expressions of a sweep file: those of `exclude`, and the rules of a ladder.

use runner_yaml::source::Place;

/// An expression that leaves out the points for which it is true.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExcludeExpression {
    pub text: String,
    pub place: Place,
}

/// A key of experiments, and the expression that gives its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingRule {
    pub key: String,
    pub expression: ExcludeExpression,
    /// True if the expression uses figures of the plan, or the value of a rule that does.
    pub needs_plan: bool,
}
