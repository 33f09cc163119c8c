//! Tests that need what a machine may lack.

/// Leaves a test that this machine cannot run, with the reason, whose form is that of `format!`. A function that returns an `Option` returns
/// `None`. With `RUNNER_TESTS_REQUIRE=all` in the environment the test fails instead.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)*) => {{
        let reason = format!($($reason)*);
        let required = std::env::var_os("RUNNER_TESTS_REQUIRE").is_some_and(|value| value == "all");
        assert!(!required, "skipped: {reason}");
        eprintln!("skipped: {reason}");
        return Default::default();
    }};
}
