//! The section `log`.

use std::path::Path;

use crate::{LoadOptions, from_str};
use runner_spec::experiment::Log;

fn load(log: &str) -> Result<Log, String> {
    let text = format!(
        "name: a\nmodel: {{preset: gpt2-micro}}\ndata: {{train: {{builtin: {{corpus: stories}}}}}}\nlog: {log}\n"
    );
    let loaded = from_str(&text, Path::new("exp.yaml"), &LoadOptions::default());
    loaded.map(|loaded| loaded.experiment.log).map_err(|error| error.to_string())
}

#[test]
fn a_server_gets_the_name_of_the_run_unless_the_file_names_an_experiment() {
    assert_eq!(load("{every: 3}").unwrap(), Log { every: 3, ..Log::default() });
    let named = |log: &str| load(log).unwrap().mlflow.unwrap().experiment.unwrap();
    assert_eq!(named("{mlflow: {uri: 'http://localhost:5000/'}}"), "a");
    assert_eq!(named("{tensorboard: true, mlflow: {uri: 'https://a.b/c', experiment: My runs}}"), "My runs");
}

#[test]
fn a_wrong_address_is_reported_at_its_place() {
    for (uri, problem) in [
        ("localhost:5000", "must start with http:// or https://"),
        ("file:///tmp/mlruns", "must start with http:// or https://"),
        ("http://", "has no host"),
        ("http://:5000", "has no host"),
        ("http://me:secret@host", "must not contain a user or a password"),
        ("http://host/?a=b", "must not contain `?`"),
        ("http://a b", "must not contain `?`"),
    ] {
        let error = load(&format!("{{mlflow: {{uri: '{uri}'}}}}")).unwrap_err();
        assert!(error.contains(problem) && error.contains("exp.yaml:4:"), "{uri}: {error}");
    }
    let error = load("{mlflow: {uri: 'http://host', experiment: ' '}}").unwrap_err();
    assert!(error.contains("`log.mlflow.experiment` must be one line of text"), "{error}");
    assert!(load("{mlflow: {experiment: a}}").unwrap_err().contains("uri"));
}
