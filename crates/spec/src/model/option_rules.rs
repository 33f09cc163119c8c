//! Rules about several options of a model.

use super::family::Family;
use super::heads::Heads;
use super::mask::Mask;
use super::options::{LayerOptions, ModelOptions};
use super::rope::RopeScaling;
use super::wiring::{Lowering, Shape};

/// A rule that options break.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokenRule {
    /// The keys of the `model` section, the one at fault first.
    pub keys: Vec<String>,
    pub message: String,
    pub advice: String,
}

impl ModelOptions {
    /// The rules that these options break in a model of `family` with `layers` layers, `d_model` wide, with these heads.
    pub fn broken_rules(&self, family: Family, layers: usize, d_model: usize, heads: Heads) -> Vec<BrokenRule> {
        let head_dim = heads.width;
        let mut broken = Lowering::new(self, Shape::for_rules(layers, d_model, heads)).lower().1;
        let mut breaks = |keys: &[&str], message: String, advice: &str| {
            let keys = keys.iter().map(|key| (*key).to_owned()).collect();
            broken.push(BrokenRule { keys, message, advice: advice.to_owned() });
        };
        let has_window = self.window.is_some() || self.pattern.iter().any(|layer| layer.window.is_some());
        if has_window && self.mask == Mask::Full {
            let key = if self.window.is_some() { "window" } else { "pattern" };
            breaks(
                &[key, "causal"],
                "a window limits attention to the latest keys, but with `causal: false` it sees all keys".into(),
                "delete the window, or write `causal: true`",
            );
        }
        if let Some(fraction) = self.rope_fraction
            && (head_dim as f64 * fraction) < 2.0
        {
            breaks(
                &["rope_fraction"],
                format!("`rope_fraction` {fraction} of a head of {head_dim} is less than one pair of dimensions"),
                "use at least 2 / head_dim",
            );
        }
        for (key, scaling) in std::iter::once(("rope_scaling", self.rope_scaling))
            .chain(self.pattern.iter().filter_map(|layer| Some(("pattern", layer.rope_scaling?))))
        {
            if let Some(message) = scaling.mistake() {
                breaks(&[key], message, "make the first number smaller than the second");
            }
        }
        if self.pattern.iter().any(|layer| !layer.attention && !layer.mlp) {
            breaks(
                &["pattern"],
                "a layer of `pattern` has neither attention nor an MLP".into(),
                "delete one of `attention: false` and `mlp: false`",
            );
        }
        if self.pattern.iter().any(|layer| layer.layers == 0) {
            breaks(&["pattern"], "an entry of `pattern` must stand for at least one layer".into(), "delete it");
        }
        for (key, number, [least, most]) in self.numbers() {
            // 0 itself is never legal.
            let is_legal = number <= most && if least > 0.0 { number >= least } else { number > 0.0 };
            if !is_legal {
                let lower = if least > 0.0 { format!("at least {least}") } else { "above 0".to_owned() };
                let message = format!("a number of `{key}` must be {lower} and at most {most}, got {number}");
                breaks(&[key], message, "use a number in this range");
            }
        }
        if !(0.0..=1.0).contains(&self.z_loss) {
            breaks(&["z_loss"], format!("`z_loss` must be 0 to 1, got {}", self.z_loss), "use a number in this range");
        }
        if !family.defaults().rotary && self.pattern.iter().any(LayerOptions::rotates_otherwise) {
            breaks(
                &["pattern"],
                "`rope`, `rope_theta` and `rope_scaling` are not keys of the family `gpt2`, which does not rotate positions"
                    .into(),
                "delete them, or choose `family: llama`",
            );
        }
        broken
    }
}

impl ModelOptions {
    /// The numbers of options with their keys, and the least and the most that they may be, as in a file. A least of 0 is not legal itself.
    fn numbers(&self) -> Vec<(&'static str, f64, [f64; 2])> {
        let mut numbers = Vec::new();
        let mut check = |key, number: Option<f64>, limits| numbers.extend(number.map(|number| (key, number, limits)));
        check("head_dim", self.head_dim.map(|width| width as f64), [0.0, 1e5]);
        check("attention_scale", self.attention_scale, [0.0, 1000.0]);
        check("window", self.window.map(f64::from), [0.0, MOST_TOKENS]);
        check("rope_fraction", self.rope_fraction, [0.0, 1.0]);
        check("logit_softcap", self.logit_softcap, [0.0, 1e6]);
        for layer in &self.pattern {
            check("pattern", layer.window.map(f64::from), [0.0, MOST_TOKENS]);
            check("pattern", layer.rope_theta, [0.0, 1e12]);
        }
        let scalings = self.pattern.iter().filter_map(|layer| Some(("pattern", layer.rope_scaling?)));
        for (key, scaling) in scalings.chain([("rope_scaling", self.rope_scaling)]) {
            let mut check = |number, limits| numbers.push((key, number, limits));
            match scaling {
                RopeScaling::None {} => {}
                RopeScaling::Linear { factor } => check(factor, [1.0, 1e6]),
                RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                    check(factor, [1.0, 1e6]);
                    check(low_freq_factor, [0.0, 1e6]);
                    check(high_freq_factor, [0.0, 1e6]);
                    check(original_context as f64, [0.0, MOST_TOKENS]);
                }
                RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor } => {
                    check(factor, [1.0, 1e6]);
                    check(original_context as f64, [0.0, MOST_TOKENS]);
                    check(beta_fast, [0.0, 1e6]);
                    check(beta_slow, [0.0, 1e6]);
                    check(attention_factor.unwrap_or(1.0), [0.0, 100.0]);
                }
            }
        }
        numbers
    }
}

/// The longest context.
const MOST_TOKENS: f64 = 16_777_216.0;

impl LayerOptions {
    fn rotates_otherwise(&self) -> bool {
        !self.rope || self.rope_theta.is_some() || self.rope_scaling.is_some()
    }
}

impl RopeScaling {
    fn mistake(self) -> Option<String> {
        match self {
            Self::Llama3 { low_freq_factor: low, high_freq_factor: high, .. } if low >= high => {
                Some(format!("`low_freq_factor` must be below `high_freq_factor`, got {low} and {high}"))
            }
            Self::Yarn { beta_fast, beta_slow, .. } if beta_slow >= beta_fast => {
                Some(format!("`beta_slow` must be below `beta_fast`, got {beta_slow} and {beta_fast}"))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADS: Heads = Heads { queries: 2, kv: 2, width: 8 };

    #[test]
    fn options_that_contradict_each_other_are_named() {
        let broken = |options: ModelOptions| {
            let rules = options.broken_rules(Family::Llama, 2, 16, HEADS);
            rules.into_iter().map(|rule| rule.keys[0].clone()).collect::<Vec<_>>()
        };
        let base = ModelOptions::default;
        let pattern = |layer: LayerOptions| ModelOptions { pattern: vec![layer], ..base() };
        assert_eq!(broken(base()), [""; 0]);
        assert_eq!(broken(ModelOptions { window: Some(4), mask: Mask::Full, ..base() }), ["window"]);
        assert_eq!(broken(ModelOptions { rope_fraction: Some(0.2), ..base() }), ["rope_fraction"]);
        assert_eq!(broken(ModelOptions { head_dim: Some(0), ..base() }), ["head_dim"]);
        assert_eq!(broken(ModelOptions { attention_scale: Some(f64::NAN), ..base() }), ["attention_scale"]);
        assert_eq!(broken(ModelOptions { z_loss: -0.1, ..base() }), ["z_loss"]);
        let linear = RopeScaling::Linear { factor: 0.5 };
        assert_eq!(broken(ModelOptions { rope_scaling: linear, ..base() }), ["rope_scaling"]);
        assert_eq!(broken(pattern(LayerOptions { rope_theta: Some(-1.0), ..LayerOptions::default() })), ["pattern"]);
        assert_eq!(broken(pattern(LayerOptions { layers: 0, ..LayerOptions::default() })), ["pattern"]);
        assert_eq!(
            broken(pattern(LayerOptions { attention: false, mlp: false, ..LayerOptions::default() })),
            ["pattern"]
        );
        let scaling =
            RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 4.0, high_freq_factor: 4.0, original_context: 8192 };
        assert_eq!(broken(ModelOptions { rope_scaling: scaling, ..base() }), ["rope_scaling"]);
        let rotated = pattern(LayerOptions { rope: false, ..LayerOptions::default() });
        assert_eq!(rotated.broken_rules(Family::Gpt2, 2, 16, HEADS).len(), 1);
    }
}
