//! minijinja as templates have it.

use minijinja::{AutoEscape, Environment, UndefinedBehavior};

use super::expression::is_divisible_by;
use super::limits::MAX_FUEL;

/// Names that a message suggests, separated by blanks.
pub(super) const FILTERS: &str = "abs attr batch bool capitalize chain default dictsort first float format groupby indent \
                                  int items join last length lines list lower map max min reject rejectattr replace reverse round \
                                  select selectattr slice sort split string sum title tojson tokens tokens_short trim \
                                  unique upper yaml zip";
pub(super) const TESTS: &str = "boolean defined divisibleby endingwith eq even false filter float ge gt in integer iterable \
                                le lower lt mapping ne none number odd sequence startingwith string test true undefined";
/// The functions of experiments' templates, minijinja's among them.
pub(super) const FUNCTIONS: [&str; 9] =
    ["dict", "env", "linspace", "logspace", "namespace", "pow10", "raise", "range", "tokens"];

/// minijinja with limited instructions: undefined values are errors, and blocks leave no lines behind.
pub(super) fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.add_test("divisibleby", is_divisible_by);
    set_whitespace(&mut env);
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_fuel(Some(MAX_FUEL));
    env
}

/// A line with nothing but a block leaves nothing behind, and the end of the file stays.
pub(super) fn set_whitespace(env: &mut Environment<'_>) {
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env.set_keep_trailing_newline(true);
}
