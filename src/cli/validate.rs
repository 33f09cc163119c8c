//! `runner validate`: checks an experiment file, and shows where each of its values comes from.

use std::path::Path;

use runner_config::LoadOptions;

/// Loads the file and says that it is valid; with `explain`, shows all values and their origins in a table instead.
///
/// # Errors
/// `ConfigError` with the mistakes of the file (exit code 2).
pub(crate) fn run(path: &Path, options: &LoadOptions, explain: bool) -> anyhow::Result<String> {
    let loaded = runner_config::load(path, options)?;
    Ok(if explain {
        runner_config::explain(&loaded.origins)
    } else {
        format!("{}: `{}` is a valid experiment\n", path.display(), loaded.experiment.name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_that_a_file_is_good_explains_it_and_hands_on_what_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.yaml");
        std::fs::write(&path, "model: {preset: gpt2-nano}\ndata: {train: {builtin: {corpus: stories}}}\n").unwrap();
        let said = |explain, options: &LoadOptions| run(&path, options, explain);
        assert!(said(false, &LoadOptions::default()).unwrap().ends_with("`tiny` is a valid experiment\n"));
        let options = LoadOptions { sets: vec!["seed=3".into()], ..LoadOptions::default() };
        let table = said(true, &options).unwrap();
        let seed = table.lines().find(|l| l.starts_with("seed ")).unwrap();
        assert_eq!(seed.split_whitespace().collect::<Vec<_>>(), ["seed", "3", "--set", "seed=3"]);
        let options = LoadOptions { sets: vec!["seed=x".into()], ..LoadOptions::default() };
        assert!(said(false, &options).unwrap_err().is::<runner_spec::diagnostic::ConfigError>());
    }
}
