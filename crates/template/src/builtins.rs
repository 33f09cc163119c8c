//! minijinja's own filters, tests and functions, as far as templates have them; those that can make much out of little only
//! up to a size.

use minijinja::value::Rest;
use minijinja::{Environment, Error, State, Value, filters};

use super::guard::{Size, beyond, fits, in_time, max_printed, measure};
use runner_spec::diagnostic::short;

macro_rules! filters {
    ($($name:ident)*) => {
        /// For "did you mean".
        pub(super) const FILTERS: &[&str] = &[$(stringify!($name)),*];

        fn add_filters(env: &mut Environment<'static>) {
            $(env.add_filter(stringify!($name), checked(stringify!($name), Value::from_function(filters::$name)));)*
            env.add_filter("count", checked("length", Value::from_function(filters::length)));
            env.add_filter("d", checked("default", Value::from_function(filters::default)));
        }
    };
}

filters! {
    abs attr batch bool capitalize chain default dictsort first float format groupby indent int items join last length lines
    list lower map max min reject rejectattr replace reverse round select selectattr slice sort split string sum title
    tojson trim unique upper zip
}

/// For "did you mean".
pub(super) const TESTS: [&str; 28] = [
    "boolean",
    "defined",
    "divisibleby",
    "endingwith",
    "eq",
    "even",
    "false",
    "filter",
    "float",
    "ge",
    "gt",
    "in",
    "integer",
    "iterable",
    "le",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "sequence",
    "startingwith",
    "string",
    "test",
    "true",
    "undefined",
];

/// Widths and counts that a filter is asked for.
const MAX_WIDTH: i64 = 1000;

/// minijinja with what templates may use of it.
pub(super) fn environment() -> Environment<'static> {
    // This brings the tests; all of its filters and functions are replaced or taken away.
    let mut env = Environment::new();
    for name in ["safe", "escape", "e", "pprint"] {
        env.remove_filter(name);
    }
    env.remove_global("debug");
    add_filters(&mut env);
    env
}

/// The filter `original`, called `name`, behind a look at what it is given.
fn checked(
    name: &'static str,
    original: Value,
) -> impl Fn(&State<'_, '_>, Rest<Value>) -> Result<Value, Error> + Send + Sync + 'static {
    move |state, args| {
        in_time()?;
        fits(&args)?;
        grows(name, &args)?;
        compares(name, &args)?;
        original.call(state, &args)
    }
}

/// What a filter may compare: each item of a list with all of another.
const MAX_COMPARED: usize = 20_000_000;

/// # Errors
/// If a filter that goes through a list would look through another one too often.
fn compares(name: &str, args: &[Value]) -> Result<(), Error> {
    if !matches!(name, "select" | "reject" | "selectattr" | "rejectattr" | "map" | "unique" | "groupby") {
        return Ok(());
    }
    let items = args.first().and_then(Value::len).unwrap_or(1);
    let mut others = Size::default();
    for arg in args.iter().skip(1) {
        measure(arg, 0, &mut others);
    }
    if items.saturating_mul(others.items + others.text) > MAX_COMPARED {
        return Err(beyond(format!("`{name}` looks through a long list for each item of another")));
    }
    Ok(())
}

/// # Errors
/// If the filter would make more out of its arguments than a template may print.
fn grows(name: &str, args: &[Value]) -> Result<(), Error> {
    let text = |i: usize| args.get(i).and_then(Value::as_str).unwrap_or_default();
    let bytes = match name {
        "join" => {
            let items = args.first().and_then(Value::len).unwrap_or(0);
            items.saturating_mul(text(1).len())
        }
        "replace" if text(1).is_empty() => (text(0).len() + 1).saturating_mul(text(2).len()),
        "replace" => text(0).matches(text(1)).count().saturating_mul(text(2).len()),
        "indent" | "batch" | "slice" | "tojson" | "round" => {
            let numbers: Vec<i64> = args
                .iter()
                .skip(1)
                .flat_map(|arg| {
                    let named = arg.is_kwargs().then(|| arg.try_iter().ok()).flatten();
                    let named = named.into_iter().flatten().filter_map(|key| arg.get_item(&key).ok());
                    named.chain([arg.clone()]).filter_map(|v| v.as_i64()).collect::<Vec<_>>()
                })
                .collect();
            let widest = numbers.into_iter().max().unwrap_or(0);
            if widest > MAX_WIDTH {
                return Err(beyond(format!("{widest} is too much for `{name}`: at most {MAX_WIDTH}")));
            }
            text(0).lines().count().saturating_mul(widest.max(0) as usize)
        }
        "format" if text(0).split('%').skip(1).any(too_wide) => {
            return Err(beyond(format!("a width in `{}` is too much, or not in it", short(text(0)))));
        }
        _ => 0,
    };
    if bytes > max_printed() {
        return Err(beyond(format!("`{name}` makes more than {} MB of this", max_printed() >> 20)));
    }
    Ok(())
}

/// Whether what follows a `%` begins with a width or precision of more than three digits, or takes it from an argument.
fn too_wide(spec: &str) -> bool {
    let flags: &str = &spec[..spec.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(spec.len())];
    flags.contains('*') || flags.split(|c: char| !c.is_ascii_digit()).any(|n| n.trim_start_matches('0').len() > 3)
}
