//! Weights of the hub: the commit in the result, and when nothing is asked.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{LoadOptions, Loaded, ModelFetchError, from_str, to_yaml};
use runner_spec::diagnostic::ConfigError;
use runner_spec::experiment::{HubModel, ModelFolder, WeightInit, WeightsSource};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Loads an experiment that starts from `from`.
fn load(from: &str, options: &LoadOptions<'_>) -> Result<Loaded, ConfigError> {
    let text = format!(
        "model: {{init: {{from: {from}}}}}\ndata: {{tokenizer: {{bytes: {{}}}}, train: {{builtin: {{corpus: stories}}}}}}\n"
    );
    from_str(&text, Path::new("exp.yaml"), options)
}

fn source(loaded: &Loaded) -> String {
    match &loaded.experiment.model.init {
        Some(WeightInit::From(source @ WeightsSource::Hub(_))) => source.to_string(),
        other => panic!("{other:?}"),
    }
}

fn fetch_error(message: &str, is_refused: bool) -> ModelFetchError {
    ModelFetchError { message: message.to_owned(), is_refused }
}

#[test]
fn a_branch_becomes_the_commit_that_was_found() {
    let asked = AtomicUsize::new(0);
    let fetch = |model: &HubModel| {
        asked.fetch_add(1, Ordering::SeqCst);
        assert_eq!((model.name.as_str(), model.revision.as_str()), ("own/small", "main"));
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/hf/gpt2");
        Ok(ModelFolder { path, commit: COMMIT.to_owned() })
    };
    let options = LoadOptions { fetch_model: Some(&fetch), ..LoadOptions::default() };
    let loaded = load("hub:own/small", &options).unwrap();
    assert_eq!((source(&loaded), asked.load(Ordering::SeqCst)), (format!("hub:own/small@{COMMIT}"), 1));
    // A run's record holds everything that the weights say.
    let (absent, resolved) =
        (LoadOptions { allows_absent_files: true, ..LoadOptions::default() }, to_yaml(&loaded.experiment));
    let again = from_str(&resolved, Path::new("resolved.yaml"), &absent).unwrap();
    assert_eq!(again.experiment, loaded.experiment);
    let checkpointed = LoadOptions { allows_absent_initial_inputs: true, ..options };
    let again = from_str(&resolved, Path::new("resolved.yaml"), &checkpointed).unwrap();
    assert_eq!((again.experiment, asked.load(Ordering::SeqCst)), (loaded.experiment.clone(), 1), "nothing is asked");
    let error = load("hub:own/small", &LoadOptions::default()).unwrap_err().to_string();
    assert!(error.contains("does not download models") && error.contains("give `from` the folder"), "{error}");
    let error = load("\"hub:own/small@\"", &absent).unwrap_err().to_string();
    assert!(error.contains("the revision is empty"), "a name that is none is a mistake without files too: {error}");

    let refusal = |_: &HubModel| Err(fetch_error("no such revision", true));
    let refused = LoadOptions { fetch_model: Some(&refusal), ..LoadOptions::default() };
    let unreachable = |_: &HubModel| Err(fetch_error("there is no hub", false));
    let offline = LoadOptions { fetch_model: Some(&unreachable), ..LoadOptions::default() };
    for (options, message, help) in [
        (&refused, "no such revision", "names a model on the Hugging Face hub"),
        (&offline, "there is no hub", "connect to the hub"),
    ] {
        let error = load("hub:own/small@v9", options).unwrap_err();
        let diagnostic = &error.diagnostics[0];
        assert_eq!((error.diagnostics.len(), diagnostic.message.as_str()), (1, message));
        assert_eq!(diagnostic.key, "model.init.from");
        assert!(diagnostic.help.contains(help), "{error}");
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), "{").unwrap();
    let fetch = |_: &HubModel| Ok(ModelFolder { path: folder.path().to_owned(), commit: COMMIT.to_owned() });
    let damaged = LoadOptions { fetch_model: Some(&fetch), ..LoadOptions::default() };
    let error = load("hub:own/small", &damaged).unwrap_err().to_string();
    assert!(error.contains("config.json"), "{error}");
}

/// Weights that are missing are listed if they may be. If the model lacks keys without them, they are mistakes again.
#[test]
fn missing_weights_explain_missing_keys() {
    let absent = LoadOptions { allows_absent_files: true, ..LoadOptions::default() };
    let text = |model: &str| {
        format!(
            "model: {{{model}init: {{from: nowhere}}}}\ndata: {{tokenizer: {{bytes: {{}}}}, train: {{builtin: {{corpus: stories}}}}}}\n"
        )
    };
    let load = |model: &str| from_str(&text(model), Path::new("exp.yaml"), &absent);
    let whole = load("preset: gpt2-nano, ").unwrap();
    let keys: Vec<&str> = whole.absent_files.iter().map(|file| file.key.as_str()).collect();
    assert_eq!(keys, ["model.init.from"]);
    let mistakes = load("").unwrap_err().to_string();
    assert!(mistakes.contains("nowhere") && mistakes.contains("`layers`, `heads`"), "{mistakes}");
    let refused = from_str(&text("preset: gpt2-nano, "), Path::new("exp.yaml"), &LoadOptions::default()).unwrap_err();
    assert_eq!(refused.diagnostics.len(), 1, "{refused}");
}
