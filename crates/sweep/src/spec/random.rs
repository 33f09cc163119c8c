//! Random draws. A number is a function of (seed, name, sample), so another axis changes none of them.

use serde_json::Value;

use runner_spec::philox::Philox;

/// The draws of `random`.
#[derive(Debug, Clone, PartialEq)]
pub struct RandomDraws {
    /// At least 1.
    pub samples: usize,
    pub seed: u64,
    /// The names and distributions, in the order of the file.
    pub space: Vec<(String, Distribution)>,
}

/// The distribution that a value is drawn from.
#[derive(Debug, Clone, PartialEq)]
pub enum Distribution {
    /// Evenly from an interval, to six significant digits.
    Uniform(f64, f64),
    /// Its logarithm evenly, to six significant digits; both bounds are positive.
    LogUniform(f64, f64),
    /// Whole numbers, both bounds among them.
    IntUniform(i64, i64),
    /// Whole numbers, k as likely as ln((k+1)/k); both bounds among them, and positive.
    IntLogUniform(i64, i64),
    /// One of these, each as likely.
    Choice(Vec<Value>),
}

impl Distribution {
    /// The value of `name` in sample number `sample`.
    #[must_use]
    pub fn value(&self, seed: u64, name: &str, sample: usize) -> Value {
        let sample = sample as u64;
        let words = Philox::new(seed, &format!("sweep/{name}")).block([sample as u32, (sample >> 32) as u32, 0, 0]);
        let bits = u64::from(words[0]) << 32 | u64::from(words[1]);
        let unit = (bits >> 11) as f64 / (1_u64 << 53) as f64;
        // The n-th of `count` equal parts of 2^64.
        let part = |count: u128| ((u128::from(bits) * count) >> 64) as i128;
        match self {
            &Self::Uniform(low, high) => float(low * (1.0 - unit) + high * unit, low, high),
            &Self::LogUniform(low, high) => float((low.ln() * (1.0 - unit) + high.ln() * unit).exp(), low, high),
            &Self::IntUniform(low, high) => {
                let count = (i128::from(high) - i128::from(low) + 1).max(1) as u128;
                Value::from((i128::from(low) + part(count)) as i64)
            }
            &Self::IntLogUniform(low, high) => {
                let (from, to) = ((low as f64).ln(), (high as f64 + 1.0).ln());
                Value::from(((from * (1.0 - unit) + to * unit).exp() as i64).clamp(low, high.max(low)))
            }
            Self::Choice(values) => values.get(part(values.len() as u128) as usize).cloned().unwrap_or_default(),
        }
    }
}

/// Six significant digits read well, and hide in which last bit one machine's logarithm differs from another's.
fn float(x: f64, low: f64, high: f64) -> Value {
    let rounded = format!("{x:.5e}").parse().unwrap_or(x);
    Value::from(if rounded < low {
        low
    } else if rounded > high {
        high
    } else {
        rounded
    })
}
