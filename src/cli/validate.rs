//! `runner validate`: whether an experiment file is right, and where each of its values comes from.

use std::io::Write;
use std::path::Path;

use runner_config::LoadOptions;

/// Loads the file and says so on `out`; with `explain`, a table of every value and where it is from.
///
/// # Errors
/// `ConfigError` with the mistakes of the file (exit code 2), or `io::Error` of writing.
pub(crate) fn run(path: &Path, options: &LoadOptions, explain: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let loaded = runner_config::load(path, options)?;
    if explain {
        write!(out, "{}", runner_config::explain(&loaded.origins))?;
    } else {
        writeln!(out, "{}: `{}` is a valid experiment", path.display(), loaded.experiment.name)?;
    }
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_that_a_file_is_good_explains_it_and_hands_on_what_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.yaml");
        std::fs::write(&path, "model: {preset: gpt2-nano}\ndata: {train: {builtin: {corpus: stories}}}\n").unwrap();
        let said = |explain, options: &LoadOptions| {
            let mut out = Vec::new();
            run(&path, options, explain, &mut out).map(|()| String::from_utf8(out).unwrap())
        };
        assert!(said(false, &LoadOptions::default()).unwrap().ends_with("`tiny` is a valid experiment\n"));
        let options = LoadOptions { sets: vec!["seed=3".into()], ..LoadOptions::default() };
        let table = said(true, &options).unwrap();
        let seed = table.lines().find(|l| l.starts_with("seed ")).unwrap();
        assert_eq!(seed.split_whitespace().collect::<Vec<_>>(), ["seed", "3", "--set", "seed=3"]);
        let options = LoadOptions { sets: vec!["seed=x".into()], ..LoadOptions::default() };
        assert!(said(false, &options).unwrap_err().is::<runner_spec::diagnostic::ConfigError>());
    }
}
