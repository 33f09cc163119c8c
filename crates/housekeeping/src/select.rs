//! Filters and sorts listed runs by their fields: `--where` and `--sort`.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use minijinja::Environment;
use minijinja::machinery::{Span, Token, WhitespaceConfig, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use serde_json::{Value as Json, json};

use runner_record::ancestry::{AncestryRelation, parent};
use runner_record::catalog::ListedRun;
use runner_spec::diagnostic::nearest;
use runner_spec::error::PlainError;
use runner_spec::measure::Measure;
use runner_template::expression::{check_expression, expression_environment, guard_expression};

/// The fields that every listed run has besides its measures, as expressions and sort keys name them.
const FIELDS: &str = "id name status step steps own_steps tokens own_tokens seconds own_seconds loss \
     best_val_loss tokens_per_second started ended tags sweep point origin origin_step error";

/// The fields that are texts and may be missing. All other fields that may be missing are numbers.
const OPTIONAL_TEXTS: [&str; 6] = ["name", "started", "ended", "sweep", "origin", "error"];

/// The fields of `runs`: those that every run has, and the measures of an evaluation.
fn fields(runs: &[ListedRun]) -> Vec<Cow<'static, str>> {
    let scored = runs.iter().flat_map(|run| run.last_eval.iter()).map(|(measure, _)| measure);
    let scored: BTreeSet<Cow<'static, str>> =
        scored.filter(|measure| measure.task().is_some()).map(Measure::key).collect();
    let evaluated = Measure::all_fixed().filter(Measure::is_evaluated).map(|measure| measure.key());
    FIELDS.split_whitespace().map(Cow::from).chain(evaluated).chain(scored).collect()
}

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

/// Keeps the `limit` runs of `runs` that started last, in their order: from the oldest to the newest, and then those whose start is unknown,
/// which count as older than all others.
pub fn keep_newest(runs: &mut Vec<ListedRun>, limit: usize) {
    let dated = runs.iter().take_while(|run| run.started.is_some()).count();
    runs.truncate(dated.max(limit));
    runs.drain(..runs.len().saturating_sub(limit));
}

/// True if the run has no value for the number `field`.
fn is_unknown(fields: &Json, field: &str) -> bool {
    fields[field].is_null() && !OPTIONAL_TEXTS.contains(&field)
}

fn unknown(what: &str, name: &str, fields: &[Cow<'static, str>]) -> PlainError {
    let help = nearest(name, fields.iter().map(|field| &**field)).map_or_else(
        || format!("the fields are {}", fields.iter().map(|field| &**field).collect::<Vec<_>>().join(", ")),
        |near| format!("did you mean `{near}`?"),
    );
    PlainError::request(format!("{what}: unknown field `{}`; {help}", name.escape_default()))
}

type Tokens<'t, 'e> = &'t [(Token<'e>, Span)];

/// The parts of `tokens` between those words `word` that are outside of brackets.
fn split<'t, 'e>(tokens: Tokens<'t, 'e>, word: &str) -> Vec<Tokens<'t, 'e>> {
    let mut depth = 0_usize;
    let parts = tokens.split(|(token, _)| {
        match token {
            Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => depth += 1,
            Token::ParenClose | Token::BracketClose | Token::BraceClose => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && matches!(token, Token::Ident(name) if *name == word)
    });
    parts.collect()
}

/// The field of `run` with a number that `tokens` compare with a text: to minijinja every text is above every number.
fn number_beside_text<'t>(tokens: Tokens<'t, '_>, run: &Json) -> Option<&'t str> {
    let is_text = |token: &Token<'_>| matches!(token, Token::Str(_) | Token::String(_));
    tokens.windows(3).find_map(|window| {
        let [(left, _), (Token::Eq | Token::Ne | Token::Lt | Token::Lte | Token::Gt | Token::Gte, _), (right, _)] =
            window
        else {
            return None;
        };
        [(left, right), (right, left)].into_iter().find_map(|(field, text)| match field {
            Token::Ident(name) if is_text(text) && run[*name].is_number() => Some(*name),
            _ => None,
        })
    })
}

/// Whether the part of `text` that `tokens` are holds for a run with the fields `run`; `None` if that depends on a number that it lacks. The
/// expression is divided at `and`, `or` and `not`, and minijinja evaluates the rest.
fn holds(
    env: &Environment<'_>,
    text: &str,
    tokens: Tokens<'_, '_>,
    run: &Json,
    known: &[Cow<'static, str>],
) -> Result<Option<bool>, minijinja::Error> {
    let any = |parts: Vec<Tokens<'_, '_>>, wanted: bool| {
        let mut result = Some(!wanted);
        for part in parts {
            match holds(env, text, part, run, known)? {
                Some(found) if found == wanted => return Ok(Some(wanted)),
                Some(_) => {}
                None => result = None,
            }
        }
        Ok(result)
    };
    let (either, both) = (split(tokens, "or"), split(tokens, "and"));
    match tokens {
        // `A if B else C` binds less than `or`.
        _ if split(tokens, "if").len() > 1 => {}
        _ if either.len() > 1 => return any(either, true),
        _ if both.len() > 1 => return any(both, false),
        [(Token::Ident("not"), _), rest @ ..] => return Ok(holds(env, text, rest, run, known)?.map(|holds| !holds)),
        [(Token::ParenOpen, _), inner @ .., (Token::ParenClose, _)] if is_balanced(inner) => {
            return holds(env, text, inner, run, known);
        }
        _ => {}
    }
    let (first, last) = (tokens.first(), tokens.last());
    let range =
        first.map_or(0, |(_, span)| span.start_offset as usize)..last.map_or(0, |(_, span)| span.end_offset as usize);
    let expression = guard_expression(|| env.compile_expression(&text[range]))?;
    let names = expression.undeclared_variables(false);
    let asks_for_none = matches!(
        tokens,
        [_, (Token::Ident("is"), _), (Token::Ident("none"), _)]
            | [_, (Token::Ident("is"), _), (Token::Ident("not"), _), (Token::Ident("none"), _)]
    );
    let fields = known.iter().map(|field| &**field).filter(|field| names.contains(*field));
    if !asks_for_none && fields.clone().any(|field| is_unknown(run, field)) {
        return Ok(None);
    }
    if let Some(field) = number_beside_text(tokens, run) {
        let message = format!("`{field}` is a number, and is compared with a text; write numbers without quotes");
        return Err(minijinja::Error::new(minijinja::ErrorKind::InvalidOperation, message));
    }
    let values: BTreeMap<&str, Value> = fields.map(|field| (field, to_value(&run[field]))).collect();
    Ok(Some(guard_expression(|| expression.eval(values))?.is_true()))
}

/// True if each parenthesis of `tokens` that is closed was opened in them: not for `a) == (b`.
fn is_balanced(tokens: Tokens<'_, '_>) -> bool {
    let depth = tokens.iter().try_fold(0_usize, |depth, (token, _)| match token {
        Token::ParenOpen => Some(depth + 1),
        Token::ParenClose => depth.checked_sub(1),
        _ => Some(depth),
    });
    depth.is_some()
}

/// Keeps the runs for which `expression` is true. A comparison with a number that a run does not have is neither true nor false, as in SQL;
/// `x is none` asks whether the run has it.
///
/// # Errors
/// If it is not an expression, names an unknown field, or cannot be computed.
pub fn keep_where(runs: &mut Vec<ListedRun>, expression: &str) -> Result<(), PlainError> {
    let wrong = |error: &minijinja::Error| {
        let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
        PlainError::request(format!("--where {expression:?}: {detail}"))
    };
    let env = expression_environment();
    check_expression(expression)
        .map_err(|(message, help)| PlainError::request(format!("--where {expression:?}: {message}; {help}")))?;
    let names =
        guard_expression(|| env.compile_expression(expression)).map_err(|e| wrong(&e))?.undeclared_variables(false);
    let fields = fields(runs);
    if let Some(name) = names.iter().find(|name| !fields.iter().any(|field| field == *name)) {
        return Err(unknown("--where", name, &fields));
    }
    let tokens = tokenize(expression, true, SyntaxConfig, WhitespaceConfig::default());
    let tokens: Vec<(Token<'_>, Span)> = tokens.collect::<Result<_, _>>().map_err(|error| wrong(&error))?;
    let is_kept = |run: &ListedRun| {
        let result = holds(&env, expression, &tokens, &fields_of(run), &fields)
            .map_err(|error| PlainError::request(format!("{} (of run {})", wrong(&error), run.id.escape_default())))?;
        Ok(result == Some(true))
    };
    let kept = runs.iter().map(is_kept).collect::<Result<Vec<bool>, _>>()?;
    let mut kept = kept.into_iter();
    runs.retain(|_| kept.next() == Some(true));
    Ok(())
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
    let fields = fields(runs);
    let field = fields.iter().find(|field| **field == name).ok_or_else(|| unknown("--sort", name, &fields))?;
    let key_of = |run: &ListedRun| match &fields_of(run)[&**field] {
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
    use runner_record::catalog::{ListedStatus, describe};

    fn run(id: &str, step: u64, val_loss: Option<f64>) -> ListedRun {
        let nothing = describe(std::path::Path::new("/nowhere/at/all"));
        let last_eval = val_loss.into_iter().map(|loss| (Measure::VAL_LOSS, loss)).collect();
        ListedRun { id: id.into(), status: ListedStatus::Done, step, steps: 100, last_eval, error: None, ..nothing }
    }

    fn kept(expression: &str) -> Result<String, String> {
        let failed = ListedRun { status: ListedStatus::Failed, error: Some("why".into()), ..run("c", 7, None) };
        let tagged = ListedRun { tags: vec!["good".into()], ..run("b", 100, Some(2.5)) };
        let mut runs = vec![run("a", 100, Some(3.5)), tagged, failed];
        keep_where(&mut runs, expression).map_err(|e| e.to_string())?;
        Ok(runs.iter().map(|r| r.id.as_str()).collect())
    }

    #[test]
    fn the_newest_runs_are_kept_in_their_order() {
        let run = |id: &str, started: Option<&str>| ListedRun {
            id: id.to_owned(),
            started: started.map(str::to_owned),
            ..ListedRun::default()
        };
        let kept = |limit| {
            let mut runs =
                vec![run("a", Some("2026-01-01")), run("b", Some("2026-01-02")), run("x", None), run("y", None)];
            keep_newest(&mut runs, limit);
            runs.iter().map(|run| run.id.as_str()).collect::<String>()
        };
        assert_eq!([1, 2, 3, 4, 9].map(kept), ["b", "ab", "abx", "abxy", "abxy"]);
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
            ("val_loss != 3.5 or val_loss == 3.5", "ab"),
            ("val_loss != best_val_loss", ""),
            ("loss <= val_loss", ""),
            ("loss < val_loss or loss > val_loss", ""),
            ("val_loss < 3 or step == 7", "bc"),
            ("(val_loss < 3) or (step == 7)", "bc"),
            ("not (val_loss < 3 and step < 100)", "ab"),
            ("1 if step == 7 or val_loss else 0", "ab"),
            ("not (2 < val_loss < 3)", "a"),
            ("val_loss != step", "ab"),
            ("val_loss != -3 and status == 'failed'", ""),
            ("val_loss not in [1, 3.0e0]", "ab"),
            ("best_val_loss is none and val_loss is not none", "ab"),
            ("not val_loss is none and 'val_loss is none' != id", "ab"),
            ("val_loss - loss < 0", ""),
            ("id|upper == 'A' or val_loss * 2 < 6 and status == 'done'", "ab"),
        ] {
            assert_eq!(kept(expression).unwrap(), expected, "{expression}");
        }
    }

    #[test]
    fn wrong_expressions_are_explained() {
        assert!(kept("val_los < 3").unwrap_err().contains("unknown field `val_los`; did you mean `val_loss`?"));
        assert!(kept("qqq < 3").unwrap_err().contains("the fields are id, name"));
        assert!(kept("val_loss <").unwrap_err().starts_with("--where \"val_loss <\": "));
        assert!(kept("status + 3 > 1").unwrap_err().contains("of run a"));
        assert!(kept("step is divisibleby(0)").unwrap_err().contains("nothing is divisible by 0 (of run a)"));
        assert!(kept("}} {{ step").unwrap_err().contains("belongs to templates"));
        assert!(kept("'%99999999999d'|format(step) == id").unwrap_err().contains("format is unknown"));
        for quoted in ["val_loss < '3'", "status == 'done' and '3' >= val_loss"] {
            let refused = kept(quoted).unwrap_err();
            assert!(refused.contains("`val_loss` is a number, and is compared with a text"), "{refused}");
        }
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
