//! The functions and filters that templates have besides minijinja's; see `docs/templates.md`.

use std::sync::Arc;

use minijinja::{Environment, Error, ErrorKind, Value};

use super::limits::invalid_operation;
use super::loader::TemplateFiles;
use super::units;
use super::value::{printed, yaml_line};

/// Items of one list.
const MAX_POINTS: usize = 10_000;

/// Adds them to `env`.
pub(super) fn add(env: &mut Environment<'static>, files: &Arc<TemplateFiles>) {
    env.add_function("pow10", pow10);
    env.add_function("logspace", logspace);
    env.add_function("linspace", linspace);
    env.add_function("tokens", tokens);
    env.add_function("raise", raise);
    let files = files.clone();
    env.add_function("env", move |name: &str, default: Option<Value>| variable(&files, name, default));
    env.add_filter("tokens", tokens);
    env.add_filter("tokens_short", |n: u64| units::tokens_short(n));
    env.add_filter("yaml", |value: &Value| yaml_line(value));
}

/// 10 to the power of `n`; a whole number where it is one.
fn pow10(n: f64) -> Result<Value, Error> {
    if n.fract() == 0.0 && (0.0..19.0).contains(&n) {
        return Ok(Value::from(10_i64.pow(n as u32)));
    }
    // Parsed, a whole power is the nearest float, as it is when written out.
    let value = if n.fract() == 0.0 { format!("1e{n}").parse().unwrap_or(f64::NAN) } else { 10_f64.powf(n) };
    if value.is_finite() {
        Ok(Value::from(value))
    } else {
        Err(invalid_operation(format!("10 to the power of {n} is too large")))
    }
}

/// `n` numbers from `a` to `b`, each the same multiple of the one before.
fn logspace(a: f64, b: f64, n: usize) -> Result<Vec<f64>, Error> {
    if !(a > 0.0 && b > 0.0) {
        return Err(invalid_operation(format!("logspace needs two positive numbers, got {a} and {b}")));
    }
    spaced("logspace", n, a, b, |t| (a.ln() * (1.0 - t) + b.ln() * t).exp())
}

/// `n` numbers from `a` to `b` at equal distances.
fn linspace(a: f64, b: f64, n: usize) -> Result<Vec<f64>, Error> {
    spaced("linspace", n, a, b, |t| a * (1.0 - t) + b * t)
}

fn spaced(function: &str, n: usize, a: f64, b: f64, at: impl Fn(f64) -> f64) -> Result<Vec<f64>, Error> {
    if !(a.is_finite() && b.is_finite()) {
        return Err(invalid_operation(format!("{function} needs two finite numbers, got {a} and {b}")));
    }
    if n == 0 || n > MAX_POINTS {
        return Err(invalid_operation(format!("a list must have 1 to {MAX_POINTS} numbers, got {n}")));
    }
    // Both ends are as given; between them no digits that only say how it was computed.
    let round = |x: f64| format!("{x:.13e}").parse().unwrap_or(x);
    let inner = |i: usize| match i {
        0 => a,
        i if i + 1 == n => b,
        i => round(at(i as f64 / (n - 1) as f64)),
    };
    Ok((0..n).map(inner).collect())
}

fn tokens(value: &Value) -> Result<u64, Error> {
    if value.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    match value.as_str() {
        Some(text) => units::tokens(text).map_err(|error| invalid_operation(error.text)),
        None => {
            u64::try_from(value.clone()).map_err(|_| invalid_operation(format!("{value} is not a count of tokens")))
        }
    }
}

/// Stops the template with the text of `message`, whose lines after the first say what to do.
fn raise(message: &Value) -> Result<Value, Error> {
    let text = printed(message)?;
    let text = text.trim();
    Err(invalid_operation(if text.is_empty() { "the template calls `raise`".to_owned() } else { text.to_owned() }))
}

/// An environment variable.
fn variable(files: &TemplateFiles, name: &str, default: Option<Value>) -> Result<Value, Error> {
    match (files.variable(name), default) {
        (Some(value), _) => Ok(Value::from(value)),
        (None, Some(default)) if !default.is_undefined() => Ok(default),
        _ => {
            let message = format!("the environment variable `{name}` is not set");
            Err(invalid_operation(format!("{message}\nset it, or give a default: env(\"{name}\", \"…\")")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_and_spaces_are_computed() {
        assert_eq!(pow10(-3.0).unwrap().to_string(), "0.001");
        assert_eq!(pow10(3.0).unwrap().to_string(), "1000");
        assert_eq!(pow10(-10.0).unwrap(), Value::from(1e-10));
        assert_eq!(pow10(22.0).unwrap(), Value::from(1e22));
        assert!(pow10(400.0).is_err() && pow10(f64::NAN).is_err());
        assert_eq!(logspace(1e-4, 1e-2, 3).unwrap(), [1e-4, 1e-3, 1e-2]);
        assert_eq!(logspace(1e-5, 1e-1, 5).unwrap(), [1e-5, 1e-4, 1e-3, 1e-2, 1e-1]);
        assert_eq!(linspace(0.0, 1.0, 5).unwrap(), [0.0, 0.25, 0.5, 0.75, 1.0]);
        assert_eq!(linspace(0.0, 0.3, 4).unwrap(), [0.0, 0.1, 0.2, 0.3]);
        assert_eq!(linspace(2.0, 9.0, 1).unwrap(), [2.0]);
        assert!(
            logspace(0.0, 1.0, 3).is_err() && linspace(0.0, 1.0, 0).is_err() && linspace(0.0, 1.0, 10_001).is_err()
        );
    }
}
