//! minijinja's filters, tests and functions that templates have. Filters that can make large values out of small ones have limits.

use minijinja::value::Rest;
use minijinja::{AutoEscape, Environment, Error, State, UndefinedBehavior, Value, filters};

use super::expression::is_divisible_by;
use super::limits::{MAX_FUEL, ValueSize, check_time, invalid_operation, max_printed};
use super::tags::ONE;
use runner_spec::diagnostic::short;

macro_rules! filters {
    ($($name:ident)*) => {
        /// Names that a message suggests.
        pub(super) const FILTERS: &[&str] = &[$(stringify!($name)),*];

        fn add_filters(env: &mut Environment<'static>) {
            $(env.add_filter(stringify!($name), limited(stringify!($name), Value::from_function(filters::$name)));)*
            env.add_filter("count", limited("length", Value::from_function(filters::length)));
            env.add_filter("d", limited("default", Value::from_function(filters::default)));
        }
    };
}

filters! {
    abs attr batch bool capitalize chain default dictsort first float format groupby indent int items join last length lines
    list lower map max min reject rejectattr replace reverse round select selectattr slice sort split string sum title
    tojson trim unique upper zip
}

/// Names that a message suggests, separated by blanks.
pub(super) const TESTS: &str = "boolean defined divisibleby endingwith eq even false filter float ge gt in integer iterable \
                                le lower lt mapping ne none number odd sequence startingwith string test true undefined";

/// The functions of experiments' templates, minijinja's among them.
pub(super) const FUNCTIONS: [&str; 10] =
    ["dict", "env", "linspace", "logspace", "namespace", "pow10", "raise", "range", "seconds", "tokens"];
/// The filters that experiments' templates have besides minijinja's.
pub(super) const OWN_FILTERS: [&str; 5] = ["duration", "seconds", "tokens", "tokens_short", "yaml"];

/// Widths and counts that a filter is asked for.
const MAX_WIDTH: i64 = 1000;
/// Comparisons that a filter may make: each item of a list with all of another.
const MAX_COMPARISONS: usize = 20_000_000;

/// minijinja with what templates may use of it: undefined values are errors, and blocks leave no lines behind.
pub(super) fn environment() -> Environment<'static> {
    // This brings the tests; all of its filters and functions are replaced or taken away.
    let mut env = Environment::new();
    for name in ["safe", "escape", "e", "pprint"] {
        env.remove_filter(name);
    }
    env.remove_global("debug");
    add_filters(&mut env);
    env.add_test("divisibleby", is_divisible_by);
    set_whitespace(&mut env);
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_fuel(Some(MAX_FUEL));
    env.add_global(ONE, 1);
    env
}

/// A line with nothing but a block leaves nothing behind, and the end of the file stays.
pub(super) fn set_whitespace(env: &mut Environment<'_>) {
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env.set_keep_trailing_newline(true);
}

/// The filter `original`, called `name`, within the limits.
fn limited(
    name: &'static str,
    original: Value,
) -> impl Fn(&State<'_, '_>, Rest<Value>) -> Result<Value, Error> + Send + Sync + 'static {
    move |state, args| {
        check_time()?;
        check_arguments(name, &args)?;
        original.call(state, &args)
    }
}

/// Fails if an argument is too large, or if the filter would make or compare too much.
fn check_arguments(name: &str, args: &[Value]) -> Result<(), Error> {
    let sizes = args.iter().map(ValueSize::measure_argument).collect::<Result<Vec<_>, _>>()?;
    let items = args.first().and_then(Value::len).unwrap_or(1);
    let others = sizes.get(1..).unwrap_or(&[]);
    let widest = others.iter().map(|size| size.largest_integer).max().unwrap_or(0);
    let compared: usize = others.iter().map(|size| size.items + size.text).sum();
    let text = |i: usize| args.get(i).and_then(Value::as_str).unwrap_or("");
    let made = match name {
        "join" => items.saturating_mul(text(1).len()),
        "replace" if text(1).is_empty() => (text(0).len() + 1).saturating_mul(text(2).len()),
        "replace" => text(0).matches(text(1)).count().saturating_mul(text(2).len()),
        "indent" | "batch" | "slice" | "tojson" | "round" if widest > MAX_WIDTH => {
            return Err(invalid_operation(format!("`{name}` accepts at most {MAX_WIDTH}, got {widest}")));
        }
        "indent" => text(0).lines().count().saturating_mul(widest as usize),
        "format" if text(0).split('%').skip(1).any(has_large_width) => {
            return Err(invalid_operation(format!(
                "a width in `{}` has more than three digits, or is `*`",
                short(text(0))
            )));
        }
        "select" | "reject" | "selectattr" | "rejectattr" | "map" | "unique" | "groupby"
            if items.saturating_mul(compared) > MAX_COMPARISONS =>
        {
            return Err(invalid_operation(format!("`{name}` would search a long list for every item of another")));
        }
        _ => 0,
    };
    let limit = max_printed();
    if made > limit {
        return Err(invalid_operation(format!("`{name}` would produce more than {} MB of this", limit >> 20)));
    }
    Ok(())
}

/// True if the text after a `%` starts with a width or precision of more than three digits, or takes it from an argument.
fn has_large_width(spec: &str) -> bool {
    let flags: &str = &spec[..spec.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(spec.len())];
    flags.contains('*') || flags.split(|c: char| !c.is_ascii_digit()).any(|n| n.trim_start_matches('0').len() > 3)
}
