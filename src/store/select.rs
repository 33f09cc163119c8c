//! Choosing and ordering listed runs by their fields: `--where` and `--sort`.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use minijinja::value::Value;
use minijinja::{Environment, UndefinedBehavior};

use super::catalog::Listed;
use super::manifest::RunOrigin;

/// Fields of a listed run, as expressions and sort keys name them.
pub const FIELDS: [&str; 19] = [
    "id",
    "name",
    "status",
    "step",
    "steps",
    "tokens",
    "seconds",
    "loss",
    "val_loss",
    "best_val_loss",
    "tokens_per_second",
    "started",
    "ended",
    "tags",
    "sweep",
    "point",
    "origin",
    "origin_step",
    "error",
];

/// An expression takes no more steps than this for a run: one that does is a mistake.
const FUEL: u64 = 100_000;

/// A wrong expression or key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectError(String);

/// A field's value; `None` where the run has none.
#[derive(Debug, Clone, PartialEq)]
enum Cell {
    Number(Option<f64>),
    Text(Option<String>),
    List(Vec<String>),
}

fn cell(run: &Listed, field: &str) -> Cell {
    let text = |text: &str| Cell::Text(Some(text.to_owned()));
    let (origin, origin_step) = match (&run.origin, &run.continued_from) {
        (Some(RunOrigin::Fork { id, step, .. }), _) => (Some(id), *step),
        (Some(RunOrigin::Reproduction { id, .. }), _) => (Some(id), None),
        (None, Some(from)) => (Some(&from.id), Some(from.step)),
        (None, None) => (None, None),
    };
    match field {
        "id" => text(&run.id),
        "name" => Cell::Text(run.name.clone()),
        "status" => text(run.status.as_str()),
        "step" => Cell::Number(Some(run.step as f64)),
        "steps" => Cell::Number(Some(run.steps as f64)),
        "tokens" => Cell::Number(run.tokens.map(|n| n as f64)),
        "seconds" => Cell::Number(run.seconds),
        "loss" => Cell::Number(run.loss),
        "val_loss" => Cell::Number(run.val_loss),
        "best_val_loss" => Cell::Number(run.best_val_loss),
        "tokens_per_second" => Cell::Number(run.tokens_per_second),
        "started" => Cell::Text(run.started.clone()),
        "ended" => Cell::Text(run.ended.clone()),
        "tags" => Cell::List(run.tags.clone()),
        "sweep" => Cell::Text(run.sweep.as_ref().map(|s| s.id.clone())),
        "point" => Cell::Number(run.sweep.as_ref().map(|s| s.point as f64)),
        "origin" => Cell::Text(origin.cloned()),
        "origin_step" => Cell::Number(origin_step.map(|n| n as f64)),
        _ => Cell::Text(run.error.clone()),
    }
}

/// The known name that `name` is nearest to, if it is near to any.
#[must_use]
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let scored = known.into_iter().map(|k| (strsim::jaro_winkler(name, k), k));
    scored.filter(|(score, _)| *score > 0.75).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, k)| k)
}

fn unknown(what: &str, name: &str) -> SelectError {
    let help = nearest(name, FIELDS)
        .map_or_else(|| format!("the fields are {}", FIELDS.join(", ")), |near| format!("did you mean `{near}`?"));
    SelectError(format!("{what}: a run has no field `{}`; {help}", name.escape_default()))
}

/// Keeps the runs of which `expression` is true.
///
/// A number that a run does not have is unknown, and a run is kept only if the expression is true whatever that number be: it
/// is tried with the smallest and with the largest. `x is none` asks whether it is unknown.
///
/// # Errors
/// If it is no expression, names a field that there is not, or cannot be computed.
pub fn keep_where(runs: &mut Vec<Listed>, expression: &str) -> Result<(), SelectError> {
    let wrong = |error: &minijinja::Error| {
        let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
        SelectError(format!("--where {expression:?}: {detail}"))
    };
    let mut env = Environment::new();
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    env.set_fuel(Some(FUEL));
    env.add_test("none", |value: Value| value.is_none() || f64::try_from(value).is_ok_and(f64::is_infinite));
    let compiled = env.compile_expression(expression).map_err(|error| wrong(&error))?;
    let names = compiled.undeclared_variables(false);
    let globals: Vec<&str> = env.globals().map(|(name, _)| name).collect();
    let mut used = Vec::new();
    for name in &names {
        match FIELDS.iter().find(|field| *field == name) {
            Some(field) => used.push(*field),
            None if globals.contains(&name.as_str()) => {}
            None => return Err(unknown("--where", name)),
        }
    }
    let mut kept = Vec::with_capacity(runs.len());
    for run in runs.drain(..) {
        let cells: Vec<(&str, Cell)> = used.iter().map(|field| (*field, cell(&run, field))).collect();
        let incomplete = cells.iter().any(|(_, cell)| *cell == Cell::Number(None));
        let extremes: &[f64] = if incomplete { &[f64::NEG_INFINITY, f64::INFINITY] } else { &[0.0] };
        let mut matches = true;
        for extreme in extremes {
            let values: BTreeMap<&str, Value> = cells.iter().map(|(f, c)| (*f, value(c, *extreme))).collect();
            let result = compiled.eval(values).map_err(|error| {
                let SelectError(text) = wrong(&error);
                SelectError(format!("{text} (of run {})", run.id.escape_default()))
            })?;
            matches &= result.is_true();
        }
        if matches {
            kept.push(run);
        }
    }
    *runs = kept;
    Ok(())
}

fn value(cell: &Cell, unknown: f64) -> Value {
    match cell {
        // Counts as integers: they print and divide as such.
        Cell::Number(Some(x)) if x.fract() == 0.0 && x.abs() < 9e15 => Value::from(*x as i64),
        Cell::Number(x) => Value::from(x.unwrap_or(unknown)),
        Cell::Text(text) => text.as_ref().map_or_else(|| Value::from(()), |text| Value::from(text.as_str())),
        Cell::List(list) => Value::from(list.clone()),
    }
}

/// Sorts by `key`, a field, from low to high; by `-field` from high to low. Runs without a value come last either way, and
/// runs that are equal stay as they were.
///
/// # Errors
/// If there is no such field.
pub fn sort(runs: &mut [Listed], key: &str) -> Result<(), SelectError> {
    let (name, down) = key.strip_prefix('-').map_or((key, false), |name| (name, true));
    let field = FIELDS.into_iter().find(|field| *field == name).ok_or_else(|| unknown("--sort", name))?;
    runs.sort_by(|a, b| {
        let (a, b) = (cell(a, field), cell(b, field));
        match (&a, &b) {
            (Cell::Number(a), Cell::Number(b)) => missing_last(a.as_ref(), b.as_ref(), down, f64::total_cmp),
            (Cell::Text(a), Cell::Text(b)) => missing_last(a.as_ref(), b.as_ref(), down, Ord::cmp),
            (Cell::List(a), Cell::List(b)) => {
                let some = |list: &Vec<String>| (!list.is_empty()).then(|| list.join(" "));
                missing_last(some(a).as_ref(), some(b).as_ref(), down, Ord::cmp)
            }
            _ => Ordering::Equal,
        }
    });
    Ok(())
}

fn missing_last<T>(a: Option<&T>, b: Option<&T>, down: bool, compare: impl Fn(&T, &T) -> Ordering) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) if down => compare(b, a),
        (Some(a), Some(b)) => compare(a, b),
        (a, b) => a.is_none().cmp(&b.is_none()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::catalog::{Standing, describe};

    fn run(id: &str, step: u64, val_loss: Option<f64>) -> Listed {
        let nothing = describe(std::path::Path::new("/nowhere/at/all"));
        Listed { id: id.into(), status: Standing::Done, step, steps: 100, val_loss, error: None, ..nothing }
    }

    fn kept(expression: &str) -> Result<String, String> {
        let failed = Listed { status: Standing::Failed, error: Some("why".into()), ..run("c", 7, None) };
        let tagged = Listed { tags: vec!["good".into()], ..run("b", 100, Some(2.5)) };
        let mut runs = vec![run("a", 100, Some(3.5)), tagged, failed];
        keep_where(&mut runs, expression).map_err(|e| e.to_string())?;
        Ok(runs.iter().map(|r| r.id.as_str()).collect())
    }

    #[test]
    fn expressions_choose_runs() {
        for (expression, expected) in [
            ("val_loss < 3 and steps >= 100", "b"),
            ("val_loss < 3", "b"),
            ("val_loss > 3", "a"),
            ("not (val_loss < 3)", "a"),
            ("val_loss is none", "c"),
            ("val_loss is not none", "ab"),
            ("status == 'failed' or val_loss > 3", "ac"),
            ("'good' in tags", "b"),
            ("error is none", "ab"),
            ("step % 10 == 7", "c"),
            ("id in ['a', 'c']", "ac"),
            ("true", "abc"),
            ("0", ""),
        ] {
            assert_eq!(kept(expression).unwrap(), expected, "{expression}");
        }
    }

    #[test]
    fn wrong_expressions_are_explained() {
        assert!(kept("val_los < 3").unwrap_err().contains("no field `val_los`; did you mean `val_loss`?"));
        assert!(kept("qqq < 3").unwrap_err().contains("the fields are id, name"));
        assert!(kept("val_loss <").unwrap_err().starts_with("--where \"val_loss <\": "));
        assert!(kept("status + 3 > 1").unwrap_err().contains("of run a"));
    }

    #[test]
    fn runs_are_ordered_and_those_without_a_value_are_last() {
        let order = |key: &str| {
            let mut runs = vec![run("a", 1, None), run("b", 3, Some(2.0)), run("c", 2, Some(1.0))];
            sort(&mut runs, key).map(|()| runs.iter().map(|r| r.id.as_str()).collect::<String>())
        };
        for (key, expected) in [("val_loss", "cba"), ("-val_loss", "bca"), ("-step", "bca"), ("-id", "cba")] {
            assert_eq!(order(key).unwrap(), expected, "{key}");
        }
        assert!(order("valloss").unwrap_err().to_string().contains("did you mean `val_loss`?"));
    }
}
