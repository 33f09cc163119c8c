//! Choosing and ordering listed runs by their fields: `--where` and `--sort`.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use minijinja::value::Value;
use minijinja::{Environment, UndefinedBehavior};

use super::catalog::ListedRun;
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
enum FieldValue {
    Number(Option<f64>),
    Text(Option<String>),
    List(Vec<String>),
}

impl FieldValue {
    fn is_none(&self) -> bool {
        matches!(self, Self::Number(None) | Self::Text(None))
    }
}

fn cell(run: &ListedRun, field: &str) -> FieldValue {
    let text = |text: &str| FieldValue::Text(Some(text.to_owned()));
    let (origin, origin_step) = match (&run.origin, &run.continued_from) {
        (Some(RunOrigin::Fork { id, step, .. }), _) => (Some(id), *step),
        (Some(RunOrigin::Reproduction { id, .. }), _) => (Some(id), None),
        (None, Some(from)) => (Some(&from.id), Some(from.step)),
        (None, None) => (None, None),
    };
    match field {
        "id" => text(&run.id),
        "name" => FieldValue::Text(run.name.clone()),
        "status" => text(run.status.as_str()),
        "step" => FieldValue::Number(Some(run.step as f64)),
        "steps" => FieldValue::Number(Some(run.steps as f64)),
        "tokens" => FieldValue::Number(run.tokens.map(|n| n as f64)),
        "seconds" => FieldValue::Number(run.seconds),
        "loss" => FieldValue::Number(run.loss),
        "val_loss" => FieldValue::Number(run.val_loss),
        "best_val_loss" => FieldValue::Number(run.best_val_loss),
        "tokens_per_second" => FieldValue::Number(run.tokens_per_second),
        "started" => FieldValue::Text(run.started.clone()),
        "ended" => FieldValue::Text(run.ended.clone()),
        "tags" => FieldValue::List(run.tags.clone()),
        "sweep" => FieldValue::Text(run.sweep.as_ref().map(|s| s.id.clone())),
        "point" => FieldValue::Number(run.sweep.as_ref().map(|s| s.point as f64)),
        "origin" => FieldValue::Text(origin.cloned()),
        "origin_step" => FieldValue::Number(origin_step.map(|n| n as f64)),
        _ => FieldValue::Text(run.error.clone()),
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
/// A number that a run does not have is unknown, and a run is kept only if the expression is true whatever that number be: see
/// `UnknownTrials`. `x is none` asks whether it is unknown.
///
/// # Errors
/// If it is no expression, names a field that there is not, or cannot be computed.
pub fn keep_where(runs: &mut Vec<ListedRun>, expression: &str) -> Result<(), SelectError> {
    let wrong = |error: &minijinja::Error| {
        let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
        SelectError(format!("--where {expression:?}: {detail}"))
    };
    let mut env = Environment::new();
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    env.set_fuel(Some(FUEL));
    // Mistakes are explained in the user's own words; what is computed asks `is none` of the field, not of the number tried.
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
    let mut kept = Vec::with_capacity(runs.len());
    for run in runs.drain(..) {
        let cells: Vec<(&str, FieldValue)> = used.iter().map(|field| (*field, cell(&run, field))).collect();
        let mut matches = true;
        for trial in UnknownTrials::new(&cells, &constants) {
            let mut values: BTreeMap<String, Value> = BTreeMap::new();
            let mut tried = trial.into_iter();
            for (field, cell) in &cells {
                let number = if *cell == FieldValue::Number(None) { tried.next() } else { None };
                values.insert((*field).to_owned(), value(cell, number.unwrap_or(f64::NAN)));
                values.insert(format!("{NONE}{field}"), Value::from(cell.is_none()));
            }
            let result = compiled.eval(values).map_err(|error| {
                let SelectError(text) = wrong(&error);
                SelectError(format!("{text} (of run {})", run.id.escape_default()))
            })?;
            if !result.is_true() {
                matches = false;
                break;
            }
        }
        if matches {
            kept.push(run);
        }
    }
    *runs = kept;
    Ok(())
}

/// Begins the name of the variable that says whether a field is unknown.
const NONE: &str = "__none_";

/// `expression` with `FIELD is none` as a variable of its own, and the numbers in it.
fn prepared(expression: &str) -> (String, Vec<f64>) {
    let (tokens, mut constants) = (tokens(expression), Vec::new());
    // Where the words of the expression are, without the space between them.
    let words: Vec<usize> = (0..tokens.len()).filter(|&i| !tokens[i].trim().is_empty()).collect();
    let word = |at: usize| words.get(at).map_or("", |&i| tokens[i]);
    let (mut out, mut at) = (String::new(), 0);
    while at < words.len() {
        let token = word(at);
        let attribute = at > 0 && matches!(word(at - 1), "." | "|");
        let negated = usize::from(word(at + 2) == "not");
        if !attribute && FIELDS.contains(&token) && word(at + 1) == "is" && word(at + 2 + negated) == "none" {
            out.push_str(if negated == 1 { "(not " } else { "(" });
            out.push_str(NONE);
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

/// Words, numbers, strings, and all else character by character; together they are `expression`.
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

/// The numbers that are tried for those that a run does not have. A comparison can change only where the number passes one in
/// the expression, one that the run has, or another unknown one: tried are all of the first two, and between each two of them,
/// below and above, as many as there are unknown ones, in all combinations.
struct UnknownTrials {
    numbers: Vec<f64>,
    /// Of how many unknown numbers, and the next combination; `None` after the last.
    unknown: usize,
    next: Option<usize>,
}

impl UnknownTrials {
    /// More combinations are not tried: of so many unknown numbers a long expression says too little.
    const MOST: usize = 100_000;

    fn new(cells: &[(&str, FieldValue)], constants: &[f64]) -> Self {
        let unknown = cells.iter().filter(|(_, cell)| *cell == FieldValue::Number(None)).count();
        let mut numbers = Vec::new();
        if unknown > 0 {
            let known = cells.iter().filter_map(|(_, cell)| if let FieldValue::Number(x) = cell { *x } else { None });
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
        self.numbers.len().saturating_pow(u32::try_from(self.unknown).unwrap_or(u32::MAX)).min(Self::MOST)
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

fn value(cell: &FieldValue, unknown: f64) -> Value {
    match cell {
        // Counts as integers: they print and divide as such.
        FieldValue::Number(Some(x)) if x.fract() == 0.0 && x.abs() < 9e15 => Value::from(*x as i64),
        FieldValue::Number(x) => Value::from(x.unwrap_or(unknown)),
        FieldValue::Text(text) => text.as_ref().map_or_else(|| Value::from(()), |text| Value::from(text.as_str())),
        FieldValue::List(list) => Value::from(list.clone()),
    }
}

/// Sorts by `key`, a field, from low to high; by `-field` from high to low. Runs without a value come last either way, and
/// runs that are equal stay as they were.
///
/// # Errors
/// If there is no such field.
pub fn sort(runs: &mut [ListedRun], key: &str) -> Result<(), SelectError> {
    let (name, down) = key.strip_prefix('-').map_or((key, false), |name| (name, true));
    let field = FIELDS.into_iter().find(|field| *field == name).ok_or_else(|| unknown("--sort", name))?;
    runs.sort_by(|a, b| {
        let (a, b) = (cell(a, field), cell(b, field));
        match (&a, &b) {
            (FieldValue::Number(a), FieldValue::Number(b)) => {
                missing_last(a.as_ref(), b.as_ref(), down, f64::total_cmp)
            }
            (FieldValue::Text(a), FieldValue::Text(b)) => missing_last(a.as_ref(), b.as_ref(), down, Ord::cmp),
            (FieldValue::List(a), FieldValue::List(b)) => {
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
