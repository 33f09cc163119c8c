//! What a loss depends on, and the targets at which a ladder predicts it.

use super::LadderRun;

runner_record::named_enum! {
    /// What a loss depends on.
    pub enum Scale {
        Flops = "flops",
        Parameters = "parameters",
        Tokens = "tokens",
    }
}

impl Scale {
    /// The symbol in formulas.
    #[must_use]
    pub fn symbol(self) -> &'static str {
        match self {
            Self::Flops => "C",
            Self::Parameters => "N",
            Self::Tokens => "D",
        }
    }

    /// The smallest factor between the largest and the smallest rung at which a law over this scale alone is fitted. At a fixed ratio of
    /// tokens to parameters, FLOPs grow with the square of either.
    pub(super) fn least_span(self) -> f64 {
        match self {
            Self::Flops => 4.0,
            Self::Parameters | Self::Tokens => 2.0,
        }
    }

    pub(super) fn of(self, run: &LadderRun) -> f64 {
        match self {
            Self::Flops => run.flops,
            Self::Parameters => run.parameters,
            Self::Tokens => run.tokens,
        }
    }
}

/// A scale at which a loss is predicted.
#[derive(Debug, Clone, PartialEq)]
pub struct LadderTarget(pub(super) Vec<(Scale, f64)>);

impl LadderTarget {
    /// Reads `flops=1e18`, or `parameters=1e9,tokens=2e10`.
    ///
    /// # Errors
    /// The rule for targets.
    pub fn parse(text: &str) -> Result<Self, String> {
        let rule = "must be flops=X, parameters=X or tokens=X, or several separated by commas, with positive numbers";
        let part = |part: &str| {
            let (name, value) = part.split_once('=')?;
            let scale = Scale::ALL.into_iter().find(|scale| scale.name() == name.trim())?;
            let value: f64 = value.trim().parse().ok()?;
            (value.is_finite() && value > 0.0).then_some((scale, value))
        };
        let parts: Option<Vec<(Scale, f64)>> = text.split(',').map(part).collect();
        let parts = parts.ok_or(rule)?;
        let is_repeated = parts.iter().enumerate().any(|(i, (scale, _))| parts[..i].iter().any(|(s, _)| s == scale));
        if is_repeated { Err(rule.to_owned()) } else { Ok(Self(parts)) }
    }

    pub(super) fn value_of(&self, scale: Scale) -> Option<f64> {
        self.0.iter().find(|(known, _)| *known == scale).map(|(_, value)| *value)
    }
}
