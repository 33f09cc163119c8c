//! Filters and sorts listed runs by their fields: `--where` and `--sort`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use minijinja::value::Value;
use minijinja::{Environment, UndefinedBehavior};
use serde_json::{Value as Json, json};

use super::catalog::ListedRun;
use super::manifest::RunOrigin;

/// The fields of a listed run, as expressions and sort keys name them.
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

/// The largest number of interpreter steps of an expression for one run.
const FUEL: u64 = 100_000;

/// A wrong expression or key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectError(String);

/// The fields that are numbers.
const NUMBERS: [&str; 10] = [
    "step",
    "steps",
    "tokens",
    "seconds",
    "loss",
    "val_loss",
    "best_val_loss",
    "tokens_per_second",
    "point",
    "origin_step",
];

/// The fields of a run, by name: those of its JSON, and what it was made from. `null` where the run has no value.
fn fields_of(run: &ListedRun) -> Json {
    let (origin, origin_step) = match (&run.origin, &run.continued_from) {
        (Some(RunOrigin::Fork { id, step, .. }), _) => (Some(id), *step),
        (Some(RunOrigin::Reproduction { id, .. }), _) => (Some(id), None),
        (None, Some(from)) => (Some(&from.id), Some(from.step)),
        (None, None) => (None, None),
    };
    // A path need not be UTF-8, and is not a field.
    let mut fields = json!(ListedRun { path: PathBuf::new(), ..run.clone() });
    fields["origin"] = json!(origin);
    fields["origin_step"] = json!(origin_step);
    fields["sweep"] = json!(run.sweep.as_ref().map(|sweep| &sweep.id));
    fields["point"] = json!(run.sweep.as_ref().map(|sweep| sweep.point));
    fields
}

/// True if the run has no value for the number `field`: then it may be any number.
fn is_unknown(fields: &Json, field: &str) -> bool {
    fields[field].is_null() && NUMBERS.contains(&field)
}

/// The name in `known` that is most similar to `name`, if one is similar enough.
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

/// Keeps the runs for which `expression` is true.
///
/// A number that a run does not have is unknown: the run is kept only if the expression is true for every number, see
/// `UnknownTrials`. `x is none` asks whether it is unknown.
///
/// # Errors
/// If it is not an expression, names an unknown field, or cannot be computed.
pub fn keep_where(runs: &mut Vec<ListedRun>, expression: &str) -> Result<(), SelectError> {
    let wrong = |error: &minijinja::Error| {
        let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
        SelectError(format!("--where {expression:?}: {detail}"))
    };
    let mut env = Environment::new();
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    env.set_fuel(Some(FUEL));
    // The expression as given serves for error messages. In the prepared one, `is none` asks about the field, not the tried number.
    let names = env.compile_expression(expression).map_err(|e| wrong(&e))?.undeclared_variables(false);
    let (text, constants) = prepared(expression);
    let compiled = env.compile_expression(&text).map_err(|error| wrong(&error))?;
    let globals: Vec<&str> = env.globals().map(|(name, _)| name).collect();
    let mut used = Vec::new();
    for name in &names {
        match FIELDS.iter().find(|field| *field == name) {
            Some(field) => used.push(*field),
            None if globals.contains(&name.as_str()) => {}
            None => return Err(unknown("--where", name)),
        }
    }
    let is_kept = |run: &ListedRun| -> Result<bool, SelectError> {
        let fields = fields_of(run);
        for trial in UnknownTrials::new(&fields, &used, &constants) {
            let mut values: BTreeMap<String, Value> = BTreeMap::new();
            let mut numbers = trial.into_iter();
            for field in &used {
                let unknown = if is_unknown(&fields, field) { numbers.next() } else { None };
                let value = unknown.map_or_else(|| to_value(&fields[*field]), Value::from);
                values.insert((*field).to_owned(), value);
                values.insert(format!("{IS_NONE}{field}"), Value::from(fields[*field].is_null()));
            }
            let result = compiled.eval(values).map_err(|error| {
                let SelectError(text) = wrong(&error);
                SelectError(format!("{text} (of run {})", run.id.escape_default()))
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

/// `expression` with `FIELD is none` as a variable of its own, and the numbers in it.
fn prepared(expression: &str) -> (String, Vec<f64>) {
    let (tokens, mut constants) = (tokens(expression), Vec::new());
    // The positions of the tokens that are not space.
    let words: Vec<usize> = (0..tokens.len()).filter(|&i| !tokens[i].trim().is_empty()).collect();
    let word = |at: usize| words.get(at).map_or("", |&i| tokens[i]);
    let (mut out, mut at) = (String::new(), 0);
    while at < words.len() {
        let token = word(at);
        let attribute = at > 0 && matches!(word(at - 1), "." | "|");
        let negated = usize::from(word(at + 2) == "not");
        if !attribute && FIELDS.contains(&token) && word(at + 1) == "is" && word(at + 2 + negated) == "none" {
            out.push_str(if negated == 1 { "(not " } else { "(" });
            out.push_str(IS_NONE);
            out.push_str(token);
            out.push_str(") ");
            at += 3 + negated;
            continue;
        }
        if token.starts_with(|c: char| c.is_ascii_digit()) {
            constants.extend(token.replace('_', "").parse::<f64>().ok().filter(|x| x.is_finite()));
        }
        out.push_str(token);
        out.push_str(&tokens[words[at] + 1..words.get(at + 1).copied().unwrap_or(tokens.len())].concat());
        at += 1;
    }
    let negative: Vec<f64> = constants.iter().map(|x| -x).collect();
    constants.extend(negative);
    (out, constants)
}

/// Splits `expression` into words, numbers, strings and single other characters.
fn tokens(expression: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = expression;
    while let Some(first) = rest.chars().next() {
        let wordly = |c: char| c.is_alphanumeric() || c == '_';
        let end = if first == '"' || first == '\'' {
            let mut escaped = false;
            let closing = rest.char_indices().skip(1).find(|(_, c)| {
                let closes = *c == first && !escaped;
                escaped = *c == '\\' && !escaped;
                closes
            });
            closing.map_or(rest.len(), |(at, c)| at + c.len_utf8())
        } else if first.is_ascii_digit() {
            let mut before = first;
            let after = rest.find(|c: char| {
                let goes_on = wordly(c) || c == '.' || matches!(c, '+' | '-') && matches!(before, 'e' | 'E');
                before = c;
                !goes_on
            });
            after.unwrap_or(rest.len())
        } else if wordly(first) {
            rest.find(|c: char| !wordly(c)).unwrap_or(rest.len())
        } else {
            first.len_utf8()
        };
        let (token, after) = rest.split_at(end);
        out.push(token);
        rest = after;
    }
    out
}

/// The numbers that are tried for the unknown ones. The result of a comparison changes only where the number passes a constant of
/// the expression, a number of the run, or another unknown number. So all of the first two are tried, and as many numbers
/// between each pair of them, below and above as there are unknown ones, in all combinations.
struct UnknownTrials {
    numbers: Vec<f64>,
    /// How many numbers are unknown, and the next combination; `None` after the last.
    unknown: usize,
    next: Option<usize>,
}

impl UnknownTrials {
    /// The largest number of combinations that are tried.
    const MAX_COMBINATIONS: usize = 100_000;

    fn new(fields: &Json, used: &[&str], constants: &[f64]) -> Self {
        let unknown = used.iter().filter(|field| is_unknown(fields, field)).count();
        let mut numbers = Vec::new();
        if unknown > 0 {
            let known = used.iter().filter_map(|field| fields[*field].as_f64());
            let mut bounds: Vec<f64> = constants.iter().copied().chain(known).chain([0.0]).collect();
            bounds.retain(|x| x.is_finite());
            bounds.sort_by(f64::total_cmp);
            bounds.dedup();
            let between = |a: f64, b: f64| (1..=unknown).map(move |i| a + (b - a) * i as f64 / (unknown + 1) as f64);
            numbers.extend([f64::NEG_INFINITY, f64::INFINITY]);
            numbers.extend(bounds.windows(2).flat_map(|pair| between(pair[0], pair[1])));
            let (low, high) = (bounds[0], bounds[bounds.len() - 1]);
            let beyond = |x: f64| 1.0 + x.abs();
            numbers.extend(between(low - beyond(low), low).chain(between(high, high + beyond(high))));
            numbers.extend(bounds);
        }
        Self { numbers, unknown, next: Some(0) }
    }

    fn combinations(&self) -> usize {
        self.numbers.len().saturating_pow(u32::try_from(self.unknown).unwrap_or(u32::MAX)).min(Self::MAX_COMBINATIONS)
    }
}

impl Iterator for UnknownTrials {
    type Item = Vec<f64>;

    /// A number for each of those that are unknown; one empty list if none is.
    fn next(&mut self) -> Option<Vec<f64>> {
        let mut at = self.next?;
        self.next = (at + 1 < self.combinations()).then_some(at + 1);
        let mut digit = |_| {
            let number = self.numbers[at % self.numbers.len()];
            at /= self.numbers.len();
            number
        };
        Some((0..self.unknown).map(&mut digit).collect())
    }
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
pub fn sort(runs: &mut Vec<ListedRun>, key: &str) -> Result<(), SelectError> {
    let (name, descending) = key.strip_prefix('-').map_or((key, false), |name| (name, true));
    let field = FIELDS.into_iter().find(|field| *field == name).ok_or_else(|| unknown("--sort", name))?;
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
