//! Expressions that leave points out: minijinja's, over the values of a point.

use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, Expression};
use serde_json::{Map, Value};

use super::point::{ExpandedPoint, value_text};
use crate::spec::{ExcludeExpression, SweepSpec};
use runner_spec::diagnostic::{list, nearest, short};
use runner_template::error_detail;
use runner_template::expression::{EXPRESSION_FILTERS, ExpressionProblem, check_expression, guard_expression};

/// Compiles an expression, and returns it with its variables, which must be among `names`, if those are known.
pub(crate) fn compile<'e>(
    environment: &'e Environment<'static>,
    names: Option<&[String]>,
    exclude: &'e ExcludeExpression,
) -> Result<(Expression<'e, 'e>, Vec<String>), ExpressionProblem> {
    let text = &exclude.text;
    check_expression(text)?;
    let expression = guard_expression(|| environment.compile_expression(text)).map_err(|e| syntax(text, &e))?;
    let mut used: Vec<String> = expression.undeclared_variables(true).into_iter().collect();
    used.sort();
    names.map_or(Ok(()), |names| check_names(&used, names))?;
    Ok((expression, used))
}

/// Checks that the variables `used` are among `names`.
fn check_names(used: &[String], names: &[String]) -> Result<(), ExpressionProblem> {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for path in used {
        let within = |inner: &str, outer: &str| inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('.'));
        // A part of a path is fine as far as it goes; so is what lies within a value.
        if names.iter().any(|&name| name == path.as_str() || within(name, path) || within(path, name)) {
            continue;
        }
        let help = match nearest(path, names.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => match names.iter().find(|n| n.rsplit('.').next() == Some(path.as_str())) {
                Some(name) => format!("write the whole path: `{name}`"),
                None => format!("the sweep varies {}", list(&names, "and")),
            },
        };
        return Err((format!("`{}` does not vary in this sweep", short(path)), help));
    }
    Ok(())
}

/// The value of the expression for `point`.
pub(crate) fn evaluate(
    expression: &Expression<'_, '_>,
    spec: &SweepSpec,
    point: &ExpandedPoint,
) -> Result<minijinja::Value, ExpressionProblem> {
    guard_expression(|| expression.eval(context(spec, point))).map_err(|error| {
        let help = match error.kind() {
            ErrorKind::UnknownFilter => format!("the filters here are {}", list(&EXPRESSION_FILTERS, "and")),
            _ => String::new(),
        };
        let (at, detail) = (describe_point(point), error_detail(&error));
        (format!("the expression cannot be computed for {at}: {detail}"), help)
    })
}

fn describe_point(point: &ExpandedPoint) -> String {
    let values: Vec<String> =
        point.values.iter().map(|(name, value)| format!("{name}: {}", value_text(value))).collect();
    short(&values.join(", "))
}

/// True if the expression is true for `point`, which is then left out.
pub(crate) fn is_true_for(
    expression: &Expression<'_, '_>,
    spec: &SweepSpec,
    point: &ExpandedPoint,
) -> Result<bool, ExpressionProblem> {
    let value = evaluate(expression, spec, point)?;
    if value.kind() == ValueKind::Bool {
        return Ok(value.is_true());
    }
    let (found, at) = (short(&value.to_string()), describe_point(point));
    let message = format!("the expression must be true or false, but gives `{found}` for {at}");
    Err((message, "compare with something, as in `layers == 4`".to_owned()))
}

/// The names that an expression may use.
pub(crate) fn variable_names(spec: &SweepSpec) -> Vec<String> {
    let names = spec.names().into_iter().map(str::to_owned);
    names.chain(spec.vars.keys().cloned()).collect()
}

/// The values of `point` by name; those of key paths nested, so that `model.layers` is an expression.
fn context(spec: &SweepSpec, point: &ExpandedPoint) -> Value {
    if spec.has_template() {
        let mut all = spec.vars.clone();
        all.extend(point.values.iter().cloned());
        return Value::Object(all);
    }
    let mut all = Value::Object(Map::new());
    for (path, value) in &point.values {
        let nested =
            path.rsplit('.').fold(value.clone(), |inner, key| Value::Object(Map::from_iter([(key.to_owned(), inner)])));
        merge(&mut all, nested);
    }
    all
}

/// Lays `over` over `under`, as layers of settings are.
fn merge(under: &mut Value, over: Value) {
    match (under, over) {
        (Value::Object(under), Value::Object(over)) => {
            for (key, value) in over {
                merge(under.entry(key).or_insert(Value::Null), value);
            }
        }
        (under, over) => *under = over,
    }
}

fn syntax(expression: &str, error: &Error) -> ExpressionProblem {
    let bare = ["==", "!=", "<=", ">="].iter().fold(expression.to_owned(), |text, op| text.replace(op, ""));
    let help = if bare.contains('=') {
        "equality is written `==`"
    } else if bare.contains("&&") || bare.contains("||") || bare.contains('!') {
        "logic is written `and`, `or` and `not`"
    } else {
        "write it as in `layers == 4 and lr > 5e-4`"
    };
    (format!("not an expression: {}", error_detail(error)), help.to_owned())
}
