//! Expressions outside of templates: conditions of sweeps and of lists of runs, and rules of ladders. minijinja evaluates them, with few
//! filters and tests, because others make values of any size.

use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, Value, filters, tests as conditions};
use runner_spec::panics::catch_panic;

/// Instructions that an expression may take; a comparison takes four.
const FUEL: u64 = 10_000;
/// Bytes of an expression: one of many thousand operators would be parsed too deep.
const MAX_LENGTH: usize = 1000;
/// What begins or ends a tag of a template.
const TAGS: [&str; 6] = ["{{", "}}", "{%", "%}", "{#", "#}"];

pub const EXPRESSION_FILTERS: [&str; 7] = ["abs", "float", "int", "length", "lower", "round", "upper"];

/// A mistake in an expression, and what to do about it.
pub type ExpressionProblem = (String, String);

/// The environment of expressions, in which undefined values are errors.
#[must_use]
pub fn expression_environment() -> Environment<'static> {
    let mut environment = Environment::empty();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_fuel(Some(FUEL));
    environment.add_filter("abs", filters::abs);
    environment.add_filter("float", filters::float);
    environment.add_filter("int", filters::int);
    environment.add_filter("length", filters::length);
    environment.add_filter("lower", filters::lower);
    environment.add_filter("round", filters::round);
    environment.add_filter("upper", filters::upper);
    environment.add_test("divisibleby", is_divisible_by);
    environment.add_test("defined", conditions::is_defined);
    environment.add_test("none", conditions::is_none);
    environment.add_test("number", conditions::is_number);
    environment.add_test("string", conditions::is_string);
    environment.add_test("startingwith", conditions::is_startingwith);
    environment.add_test("endingwith", conditions::is_endingwith);
    environment
}

/// minijinja's test `divisibleby`, which panics for 0.
pub(crate) fn is_divisible_by(value: &Value, divisor: &Value) -> Result<bool, Error> {
    if divisor.kind() == ValueKind::Number && f64::try_from(divisor.clone()).is_ok_and(|divisor| divisor == 0.0) {
        return Err(Error::new(ErrorKind::InvalidOperation, "nothing is divisible by 0"));
    }
    Ok(conditions::is_divisibleby(value, divisor))
}

/// Checks an expression before it is compiled.
///
/// # Errors
/// If it is too long, or has tags of templates.
pub fn check_expression(text: &str) -> Result<(), ExpressionProblem> {
    if text.len() > MAX_LENGTH {
        let message = format!("an expression must have at most {MAX_LENGTH} bytes, got {}", text.len());
        return Err((message, "use several shorter expressions".to_owned()));
    }
    if let Some(tag) = TAGS.into_iter().find(|tag| text.contains(tag)) {
        let message = format!("`{tag}` belongs to templates");
        return Err((message, "write only the expression, as in `layers == 4 and lr > 5e-4`".to_owned()));
    }
    Ok(())
}

/// Compiles or evaluates an expression. A panic of the engine becomes an error.
///
/// # Errors
/// If `work` fails or panics.
pub fn guard_expression<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_panic(work).unwrap_or_else(|panic| Err(Error::new(ErrorKind::InvalidOperation, panic.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_cannot_panic() {
        let environment = expression_environment();
        let evaluate = |text: &str| -> Result<String, String> {
            check_expression(text).map_err(|(message, _)| message)?;
            let value = guard_expression(|| environment.compile_expression(text)?.eval(()));
            value.map(|value| value.to_string()).map_err(|error| error.to_string())
        };
        assert_eq!(evaluate("12 is divisibleby(4) and 'Ab'|lower == 'ab'"), Ok("True".to_owned()));
        for (text, message) in [
            ("4 is divisibleby(0)", "nothing is divisible by 0"),
            ("4.5 is divisibleby(0.0)", "nothing is divisible by 0"),
            ("4 % 0", "unable to calculate"),
            ("}} {{ step", "belongs to templates"),
            ("{% if x %}", "belongs to templates"),
            ("'%99999999999d'|format(1)", "unknown filter"),
            ("[1]|slice(99999999999)", "unknown filter"),
            ("'a' * 99999999999", "too large"),
            ("9 ** 9 ** 9 ** 9", "unable to calculate"),
        ] {
            let found = evaluate(text).expect_err(text);
            assert!(found.contains(message), "{text}: {found}");
        }
    }
}
