//! Filters and sorts listed runs by their fields: `--where` and `--sort`.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use minijinja::value::Value;
use serde_json::{Value as Json, json};

use rayon::iter::{IntoParallelRefIterator as _, ParallelIterator as _};
use runner_config::check::check_key_path;
use runner_files::read_regular_text;
use runner_record::ancestry::{AncestryRelation, parent};
use runner_record::catalog::ListedRun;
use runner_record::run_dir::RESOLVED;
use runner_spec::diagnostic::nearest;
use runner_spec::error::PlainError;
use runner_spec::measure::Measure;
use runner_template::expression::{check_expression, expression_environment, guard_expression};
use runner_yaml::document;

/// The fields that every listed run has besides its measures, as expressions and sort keys name them.
const FIELDS: &str = "id name status step steps own_steps tokens own_tokens seconds own_seconds loss \
     best_val_loss tokens_per_second started ended tags sweep point origin origin_step error";

/// The fields that are texts and may be missing. All other fields that may be missing are numbers.
const OPTIONAL_TEXTS: [&str; 6] = ["name", "started", "ended", "sweep", "origin", "error"];

/// The fields of `runs`: those that every run has, and the measures of an evaluation.
fn fields(runs: &[ListedRun]) -> Vec<Cow<'static, str>> {
    let scored = |run: &ListedRun| -> Vec<Cow<'static, str>> {
        let measured = run.last_eval.with_errors();
        measured.iter().filter(|(measure, _)| measure.task().is_some()).map(|(measure, _)| measure.key()).collect()
    };
    let scored: BTreeSet<Cow<'static, str>> = runs.iter().flat_map(scored).collect();
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

/// Keeps the runs for which `expression` is true. Names are fields of runs, or key paths of their experiments, such as `optimizer.adamw.lr`. A run
/// that lacks a setting or a number which the expression names is left out, unless the expression asks for it: `x is none or x < 3`.
///
/// # Errors
/// If it is not an expression, names an unknown field or key, or cannot be computed.
pub fn keep_where(runs: &mut Vec<ListedRun>, expression: &str) -> Result<(), PlainError> {
    let wrong = |error: &minijinja::Error| {
        let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
        PlainError::request(format!("--where {expression:?}: {detail}"))
    };
    let env = expression_environment();
    check_expression(expression)
        .map_err(|(message, help)| PlainError::request(format!("--where {expression:?}: {message}; {help}")))?;
    let compiled = guard_expression(|| env.compile_expression(expression)).map_err(|error| wrong(&error))?;
    let names = compiled.undeclared_variables(true);
    let fields = fields(runs);
    let is_field = |name: &str| fields.iter().any(|field| *field == name);
    let (used, keys): (Vec<&str>, Vec<&str>) =
        names.iter().map(String::as_str).partition(|name| is_field(name.split('.').next().unwrap_or(name)));
    if let Some(name) = used.iter().find(|name| name.contains('.')) {
        return Err(PlainError::request(format!("--where: `{name}` is not a field: it would be a part of one")));
    }
    for key in &keys {
        check_key_path(key).map_err(|mistake| {
            if key.contains('.') {
                PlainError::request(format!("--where: {}; {}", mistake.message, mistake.help))
            } else {
                unknown("--where", key, &fields)
            }
        })?;
    }
    let is_separator = |c: char| !c.is_alphanumeric() && c != '_';
    let words: Vec<&str> = expression.split(is_separator).filter(|word| !word.is_empty()).collect();
    let asks_for = |name: &str| {
        let last = name.rsplit('.').next().unwrap_or(name);
        words.windows(3).any(|three| matches!(three, [name, "is", "none" | "not"] if *name == last))
    };
    let is_kept = |run: &ListedRun| {
        let own = fields_of(run);
        if used.iter().any(|field| is_unknown(&own, field) && !asks_for(field)) {
            return Ok(false);
        }
        let mut values: BTreeMap<&str, Value> = used.iter().map(|field| (*field, to_value(&own[field]))).collect();
        let settings = if keys.is_empty() { Json::Null } else { settings_of(run) };
        let mut named = Json::Null;
        for key in &keys {
            let value = settings.pointer(&format!("/{}", key.replace('.', "/"))).unwrap_or(&Json::Null);
            if value.is_null() && !asks_for(key) {
                return Ok(false);
            }
            insert(&mut named, key, value);
        }
        for key in &keys {
            let section = key.split('.').next().unwrap_or(key);
            values.insert(section, to_value(&named[section]));
        }
        let value = guard_expression(|| compiled.eval(values))
            .map_err(|error| PlainError::request(format!("{} (of run {})", wrong(&error), run.id.escape_default())))?;
        Ok(value.is_true())
    };
    let kept = runs.par_iter().map(is_kept).collect::<Result<Vec<bool>, PlainError>>()?;
    let mut kept = kept.into_iter();
    runs.retain(|_| kept.next() == Some(true));
    Ok(())
}

/// The settings of a run, as `resolved.yaml` has them; null if they cannot be read.
fn settings_of(run: &ListedRun) -> Json {
    let text = read_regular_text(&run.path.join(RESOLVED)).ok();
    text.and_then(|text| document::from_str(&text).ok()).unwrap_or_default()
}

/// Puts `value` at the key path `key` of `all`, unless a part of it is there.
fn insert(all: &mut Json, key: &str, value: &Json) {
    let mut at = all;
    for key in key.split('.') {
        if !at.is_object() {
            *at = json!({});
        }
        at = &mut at[key];
    }
    if at.is_null() {
        *at = value.clone();
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
            // A run without a loss is left out, whatever else is asked.
            ("status == 'failed' or val_loss > 3", "a"),
            ("status == 'failed' or val_loss is not none and val_loss > 3", "ac"),
            ("val_loss is none or val_loss < 3", "bc"),
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
            ("not (val_loss < 3 and step < 100)", "ab"),
            ("best_val_loss is none and val_loss < 3", "b"),
            ("1 if step == 7 or val_loss else 0", "ab"),
            ("not (2 < val_loss < 3)", "a"),
            ("val_loss != step", "ab"),
            ("val_loss != -3 and status == 'failed'", ""),
            ("val_loss not in [1, 3.0e0]", "ab"),
            ("best_val_loss is none and val_loss is not none", "ab"),
            ("not val_loss is none and 'val_loss is none' != id", "ab"),
            ("val_loss - loss < 0", ""),
            // Settings of runs whose `resolved.yaml` is missing are unknown.
            ("model.layers > 2", ""),
            ("model.layers is none", "abc"),
            ("id|upper == 'A' or val_loss * 2 < 6 and status == 'done'", "ab"),
        ] {
            assert_eq!(kept(expression).unwrap(), expected, "{expression}");
        }
    }

    #[test]
    fn wrong_expressions_are_explained() {
        assert!(kept("val_los < 3").unwrap_err().contains("unknown field `val_los`; did you mean `val_loss`?"));
        assert!(
            kept("model.layrs < 3").unwrap_err().contains("unknown key `layrs` in `model`; did you mean `layers`?")
        );
        assert!(kept("optimizer.adam.lr < 3").unwrap_err().contains("did you mean `adamw`?"));
        assert!(kept("val_loss.x < 3").unwrap_err().contains("`val_loss.x` is not a field"));
        assert!(kept("qqq < 3").unwrap_err().contains("the fields are id, name"));
        assert!(kept("val_loss <").unwrap_err().starts_with("--where \"val_loss <\": "));
        assert!(kept("status + 3 > 1").unwrap_err().contains("of run a"));
        assert!(kept("step is divisibleby(0)").unwrap_err().contains("nothing is divisible by 0 (of run a)"));
        assert!(kept("}} {{ step").unwrap_err().contains("belongs to templates"));
        assert!(kept("'%99999999999d'|format(step) == id").unwrap_err().contains("format is unknown"));
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
