//! Filters and sorts listed runs by their fields: `--where` and `--sort`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use minijinja::machinery::{Span, Token, WhitespaceConfig, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, UndefinedBehavior};
use serde_json::{Value as Json, json};

use super::ancestry::{AncestryRelation, parent};
use super::catalog::ListedRun;
use runner_spec::diagnostic::nearest;
use runner_spec::error::PlainError;

/// The fields of a listed run, as expressions and sort keys name them.
const FIELDS: &str = "id name status step steps lost_steps changed_metrics tokens seconds loss val_loss best_val_loss val_bits_per_byte tokens_per_second started \
     ended tags sweep point origin origin_step error";

/// The fields that are texts and may be missing. All other fields that may be missing are numbers.
const OPTIONAL_TEXTS: [&str; 6] = ["name", "started", "ended", "sweep", "origin", "error"];

fn fields() -> impl Iterator<Item = &'static str> {
    FIELDS.split_whitespace()
}

/// The largest number of interpreter steps of an expression for one run.
const FUEL: u64 = 100_000;

/// The fields of a run, by name: those of its JSON, and what it was made from. `null` where the run has no value.
fn fields_of(run: &ListedRun) -> Json {
    let parent = parent(run.origin.as_ref(), run.continued_from.as_ref());
    let origin_step =
        parent.as_ref().filter(|parent| parent.relation != AncestryRelation::Reproduction).and_then(|p| p.step);
    // A path need not be UTF-8, and is not a field.
    let mut fields = json!(ListedRun { path: PathBuf::new(), ..run.clone() });
    fields["origin"] = json!(parent.map(|parent| parent.id));
    fields["origin_step"] = json!(origin_step);
    fields["sweep"] = json!(run.sweep.as_ref().map(|sweep| &sweep.id));
    fields["point"] = json!(run.sweep.as_ref().map(|sweep| sweep.point));
    fields
}

/// True if the run has no value for the number `field`: then it may be any number.
fn is_unknown(fields: &Json, field: &str) -> bool {
    fields[field].is_null() && !OPTIONAL_TEXTS.contains(&field)
}

fn unknown(what: &str, name: &str) -> PlainError {
    let help = nearest(name, fields()).map_or_else(
        || format!("the fields are {}", fields().collect::<Vec<_>>().join(", ")),
        |near| format!("did you mean `{near}`?"),
    );
    PlainError::request(format!("{what}: a run has no field `{}`; {help}", name.escape_default()))
}

/// Keeps the runs for which `expression` is true.
///
/// A number that a run does not have is unknown: the run is kept only if the expression is true for every number, see
/// `unknown_trials`. `x is none` asks whether it is unknown.
///
/// # Errors
/// If it is not an expression, names an unknown field, or cannot be computed.
pub fn keep_where(runs: &mut Vec<ListedRun>, expression: &str) -> Result<(), PlainError> {
    let wrong = |error: &minijinja::Error| {
        let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
        PlainError::request(format!("--where {expression:?}: {detail}"))
    };
    let mut env = Environment::new();
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    env.set_fuel(Some(FUEL));
    // The expression as given serves for error messages. In the prepared one, `is none` asks about the field, not the tried number.
    let names = env.compile_expression(expression).map_err(|e| wrong(&e))?.undeclared_variables(false);
    let (text, constants) = prepared(expression).map_err(|error| wrong(&error))?;
    let compiled = env.compile_expression(&text).map_err(|error| wrong(&error))?;
    let globals: Vec<&str> = env.globals().map(|(name, _)| name).collect();
    let mut used = Vec::new();
    for name in &names {
        match fields().find(|field| field == name) {
            Some(field) => used.push(field),
            None if globals.contains(&name.as_str()) => {}
            None => return Err(unknown("--where", name)),
        }
    }
    let is_kept = |run: &ListedRun| -> Result<bool, PlainError> {
        let fields = fields_of(run);
        for trial in unknown_trials(&fields, &used, &constants) {
            let mut values: BTreeMap<String, Value> = BTreeMap::new();
            let mut numbers = trial.into_iter();
            for field in &used {
                let unknown = if is_unknown(&fields, field) { numbers.next() } else { None };
                let value = unknown.map_or_else(|| to_value(&fields[*field]), Value::from);
                values.insert((*field).to_owned(), value);
                values.insert(format!("{IS_NONE}{field}"), Value::from(fields[*field].is_null()));
            }
            let result = compiled.eval(values).map_err(|error| {
                PlainError::request(format!("{} (of run {})", wrong(&error), run.id.escape_default()))
            })?;
            if !result.is_true() {
                return Ok(false);
            }
        }
        Ok(true)
    };
    let kept = runs.iter().map(is_kept).collect::<Result<Vec<bool>, _>>()?;
    let mut kept = kept.into_iter();
    runs.retain(|_| kept.next() == Some(true));
    Ok(())
}

/// The prefix of the variable that says whether a field has no value.
const IS_NONE: &str = "__none_";

/// `expression` with a variable of its own for each `FIELD is none`, and the numbers in it, with either sign.
fn prepared(expression: &str) -> Result<(String, Vec<f64>), minijinja::Error> {
    let tokens = tokenize(expression, true, SyntaxConfig, WhitespaceConfig::default());
    let tokens: Vec<(Token<'_>, Span)> = tokens.collect::<Result<_, _>>()?;
    let identifier = |at: usize| match tokens.get(at) {
        Some((Token::Ident(name), _)) => *name,
        _ => "",
    };
    let (mut out, mut copied, mut constants) = (String::new(), 0, Vec::new());
    for (at, (token, span)) in tokens.iter().enumerate() {
        match token {
            Token::Int(n) => constants.push(*n as f64),
            Token::Int128(n) => constants.push(**n as f64),
            Token::Float(x) => constants.push(*x),
            _ => {}
        }
        let is_attribute = at > 0 && matches!(tokens[at - 1].0, Token::Dot | Token::Pipe);
        let negated = identifier(at + 2) == "not";
        let end = at + 2 + usize::from(negated);
        let field = fields().find(|field| *field == identifier(at) && !is_attribute);
        if let Some(field) = field.filter(|_| identifier(at + 1) == "is" && identifier(end) == "none") {
            out += &expression[copied..span.start_offset as usize];
            out.extend(["(", if negated { "not " } else { "" }, IS_NONE, field, ")"]);
            copied = tokens[end].1.end_offset as usize;
        }
    }
    out += &expression[copied..];
    constants.retain(|x| x.is_finite());
    let negative: Vec<f64> = constants.iter().map(|x| -x).collect();
    constants.extend(negative);
    Ok((out, constants))
}

/// The largest number of combinations that are tried for unknown numbers.
const MAX_COMBINATIONS: usize = 100_000;

/// Lists of numbers to try for the unknown ones; one empty list if no number is unknown.
///
/// The result of a comparison changes only where the number passes a constant of the expression, a number of the run, or another
/// unknown number. So all of the first two are tried, and as many numbers between each pair of them, below and above as there are
/// unknown ones, in all combinations.
fn unknown_trials(fields: &Json, used: &[&str], constants: &[f64]) -> impl Iterator<Item = Vec<f64>> {
    let unknown = used.iter().filter(|field| is_unknown(fields, field)).count();
    let known = used.iter().filter_map(|field| fields[*field].as_f64());
    let mut bounds: Vec<f64> = constants.iter().copied().chain(known).chain([0.0]).collect();
    bounds.retain(|x| x.is_finite());
    bounds.sort_by(f64::total_cmp);
    bounds.dedup();
    let between = |a: f64, b: f64| (1..=unknown).map(move |i| a + (b - a) * i as f64 / (unknown + 1) as f64);
    let beyond = |x: f64| 1.0 + x.abs();
    let (low, high) = (bounds[0], bounds[bounds.len() - 1]);
    let mut numbers = vec![f64::NEG_INFINITY, f64::INFINITY];
    numbers.extend(bounds.windows(2).flat_map(|pair| between(pair[0], pair[1])));
    numbers.extend(between(low - beyond(low), low).chain(between(high, high + beyond(high))));
    numbers.extend(bounds);
    let combinations = numbers.len().saturating_pow(u32::try_from(unknown).unwrap_or(u32::MAX)).min(MAX_COMBINATIONS);
    (0..combinations).map(move |mut rest| {
        let mut next_digit = || {
            let number = numbers[rest % numbers.len()];
            rest /= numbers.len();
            number
        };
        (0..unknown).map(|_| next_digit()).collect()
    })
}

/// A field as a value in an expression. Counts become integers: they print and divide as such.
fn to_value(field: &Json) -> Value {
    match field.as_f64() {
        Some(x) if x.fract() == 0.0 && x.abs() < 9e15 => Value::from(x as i64),
        _ => Value::from_serialize(field),
    }
}

/// Sorts by the field `key`, ascending; by `-field`, descending. Runs without a value come last either way. The sort is stable.
///
/// # Errors
/// If there is no such field.
pub fn sort(runs: &mut Vec<ListedRun>, key: &str) -> Result<(), PlainError> {
    let (name, descending) = key.strip_prefix('-').map_or((key, false), |name| (name, true));
    let field = fields().find(|field| *field == name).ok_or_else(|| unknown("--sort", name))?;
    let key_of = |run: &ListedRun| match &fields_of(run)[field] {
        Json::String(text) => (None, Some(text.clone())),
        Json::Array(items) if !items.is_empty() => (None, Some(run.tags.join(" "))),
        number => (number.as_f64(), None),
    };
    let compare = |a: &(Option<f64>, Option<String>), b: &(Option<f64>, Option<String>)| {
        let order = match (a, b) {
            ((Some(a), _), (Some(b), _)) => a.total_cmp(b),
            ((_, Some(a)), (_, Some(b))) => a.cmp(b),
            // Missing values come last, whatever the direction.
            (a, b) => return (*a == (None, None)).cmp(&(*b == (None, None))),
        };
        if descending { order.reverse() } else { order }
    };
    let mut keyed: Vec<_> = runs.drain(..).map(|run| (key_of(&run), run)).collect();
    keyed.sort_by(|(a, _), (b, _)| compare(a, b));
    runs.extend(keyed.into_iter().map(|(_, run)| run));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{ListedStatus, describe};

    fn run(id: &str, step: u64, val_loss: Option<f64>) -> ListedRun {
        let nothing = describe(std::path::Path::new("/nowhere/at/all"));
        ListedRun { id: id.into(), status: ListedStatus::Done, step, steps: 100, val_loss, error: None, ..nothing }
    }

    fn kept(expression: &str) -> Result<String, String> {
        let failed = ListedRun { status: ListedStatus::Failed, error: Some("why".into()), ..run("c", 7, None) };
        let tagged = ListedRun { tags: vec!["good".into()], ..run("b", 100, Some(2.5)) };
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
            // Unknown, whatever it is compared with.
            ("val_loss != 3", "ab"),
            ("val_loss != 3.5 or val_loss == 3.5", "abc"),
            ("val_loss != best_val_loss", ""),
            ("loss <= val_loss", ""),
            ("loss < val_loss or loss > val_loss", ""),
            ("loss <= val_loss or loss > val_loss", "abc"),
            ("not (2 < val_loss < 3)", "a"),
            ("val_loss != step", "ab"),
            ("val_loss != -3 and status == 'failed'", ""),
            ("val_loss not in [1, 3.0e0]", "ab"),
            ("best_val_loss is none and val_loss is not none", "ab"),
            ("not val_loss is none and 'val_loss is none' != id", "ab"),
            ("val_loss - loss < 0", ""),
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
