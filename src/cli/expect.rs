//! `runner apply --expect-plan`: nothing is begun unless the plan is the one that the caller has in mind.

use std::path::Path;

use super::continued::differences;
use super::exit::RequestError;
use runner_spec::plan::Plan;
use runner_store::{catalog, run_dir};

/// Digits that tell plans apart for a person, and of a whole hash.
const FEWEST: usize = 8;
const WHOLE: usize = 64;

/// A plan's hash on the command line, or its beginning.
pub(super) fn plan_hash(text: &str) -> Result<String, String> {
    let digits = text.bytes().all(|b| b.is_ascii_hexdigit());
    if digits && (FEWEST..=WHOLE).contains(&text.len()) {
        Ok(text.to_ascii_lowercase())
    } else {
        Err(format!("a plan's hash has {WHOLE} hexadecimal digits, of which {FEWEST} or more are enough"))
    }
}

/// # Errors
/// If `plan` is another one, with what differs from a run in `root` of the plan that was expected, if there is one.
pub(super) fn same_plan(expected: &str, plan: &Plan, root: &Path) -> anyhow::Result<()> {
    if plan.hash.starts_with(expected) {
        return Ok(());
    }
    let mut what = "; the file, its data or the program has changed".to_owned();
    // A run of the expected plan shows what it was.
    let runs = catalog::list(root).unwrap_or_default();
    let of_it = |path: &Path| run_dir::read_manifest(path).is_ok_and(|m| m.plan_hash.starts_with(expected));
    if let Some(run) = runs.iter().find(|run| of_it(&run.path)) {
        let found =
            runner_lab::stored_plan::read(&run.path).map(|theirs| differences(&theirs, plan)).unwrap_or_default();
        if !found.is_empty() {
            what = format!("; beside {}, what differs is: {}", run.id, found.join(", "));
        }
    }
    let message = format!(
        "the plan is {}, not {}{what}. Nothing was begun; training data: {}",
        short(&plan.hash),
        short(expected),
        short(&plan.data.train.hash)
    );
    Err(RequestError(message).into())
}

fn short(hash: &str) -> &str {
    hash.get(..16).unwrap_or(hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_plan::testing::{compiled, experiment};

    #[test]
    fn hashes_are_taken_whole_or_in_part() {
        let whole = "0123456789abcdef".repeat(4);
        for good in [&whole[..], &whole[..8], "ABCDEF012345"] {
            assert_eq!(plan_hash(good).unwrap(), good.to_ascii_lowercase());
        }
        for bad in ["", "1234567", "0123456z", &format!("{whole}0")] {
            assert!(plan_hash(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn another_plan_is_refused() {
        let plan = compiled(&experiment());
        let nowhere = Path::new("no/such/folder");
        same_plan(&plan.hash, &plan, nowhere).unwrap();
        same_plan(&plan.hash[..8], &plan, nowhere).unwrap();
        let error = same_plan(&"0".repeat(64), &plan, nowhere).unwrap_err().to_string();
        assert!(error.contains(&plan.hash[..16]) && error.contains("0000000000000000"), "{error}");
    }
}
