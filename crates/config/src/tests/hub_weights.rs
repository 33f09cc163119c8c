//! Weights of the hub: the commit in the result, and when nothing is asked.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{
    LoadOptions, Loaded, ModelFetchError, ModelFetchFailure, RecordedWeights, WrittenInputs, from_str,
    load_text_source, to_yaml,
};
use runner_spec::diagnostic::ConfigError;
use runner_spec::experiment::{HubModel, ModelFolder, Source, Validation, WeightInit, WeightsSource};

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

fn fetch_error(message: &str, failure: ModelFetchFailure) -> ModelFetchError {
    ModelFetchError { message: message.to_owned(), failure }
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

    // Where the hub cannot be reached, a record replaces the weights that the run's file named, and those at its commit.
    let unreachable = |_: &HubModel| Err(fetch_error("there is no hub", ModelFetchFailure::Unreachable));
    let record = |written: Option<&str>, name: Option<&str>| {
        let written = written.map(|text| WeightsSource::from(text.to_owned()));
        vec![RecordedWeights::of_experiment(&loaded.experiment, written, name.map(str::to_owned)).unwrap()]
    };
    let gone = |written: Option<&str>, name: Option<&str>| LoadOptions {
        fetch_model: Some(&unreachable),
        recorded_weights: record(written, name),
        ..LoadOptions::default()
    };
    let (at_commit, other_commit) = (format!("hub:own/small@{COMMIT}"), format!("hub:own/small@{}", "f".repeat(40)));
    for (from, written, is_replaced) in [
        ("hub:own/small", Some("hub:own/small"), true),
        ("hub:own/small@main", Some("hub:own/small"), true),
        ("hub:own/small@v1", Some("hub:own/small@v1"), true),
        ("hub:own/small@v2", Some("hub:own/small@v1"), false),
        ("hub:own/small", Some("hub:own/small@v1"), false),
        ("hub:own/other", Some("hub:own/small"), false),
        // The record does not tell what the file named.
        ("hub:own/small", None, false),
        (at_commit.as_str(), None, true),
        (other_commit.as_str(), None, false),
    ] {
        match load(from, &gone(written, None)) {
            Ok(replaced) => {
                assert!(is_replaced, "{from}, {written:?}");
                assert_eq!((replaced.experiment.model, from), (loaded.experiment.model.clone(), from));
            }
            Err(error) => {
                let diagnostic = &error.diagnostics[0];
                assert_eq!((error.diagnostics.len(), diagnostic.message.as_str()), (1, "there is no hub"), "{from}");
                assert_eq!(diagnostic.key, "model.init.from");
                assert!(!is_replaced && diagnostic.help.contains("connect to the hub"), "{from}, {written:?}");
            }
        }
    }
    // The file is called exp.yaml.
    for (name, is_replaced) in [("exp", true), ("other", false)] {
        let options = gone(Some("hub:own/small"), Some(name));
        assert_eq!(load("hub:own/small", &options).is_ok(), is_replaced, "{name}");
    }
    // A hub that refuses leaves the record's commit alone: another revision is a mistake.
    let refusal = |_: &HubModel| Err(fetch_error("no such revision", ModelFetchFailure::Refused));
    let refused = LoadOptions { fetch_model: Some(&refusal), ..gone(Some("hub:own/small"), None) };
    assert_eq!(load(&at_commit, &refused).unwrap().experiment.model, loaded.experiment.model);
    for from in ["hub:own/small", "hub:own/small@v9"] {
        let error = load(from, &refused).unwrap_err();
        assert_eq!(error.diagnostics[0].message, "no such revision", "{from}");
        assert!(error.diagnostics[0].help.contains("names a model on the Hugging Face hub"), "{error}");
    }
    // A model that is there and cannot be read is not taken for one that is gone.
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), "{").unwrap();
    let fetch = |_: &HubModel| Ok(ModelFolder { path: folder.path().to_owned(), commit: COMMIT.to_owned() });
    let damaged = LoadOptions { fetch_model: Some(&fetch), ..gone(Some("hub:own/small"), None) };
    let error = load("hub:own/small", &damaged).unwrap_err().to_string();
    assert!(error.contains("config.json"), "{error}");
}

#[test]
fn written_inputs_are_those_of_the_highest_layer() {
    let text = "model: {init: {from: hub:own/small@v1}}\ndata: {tokenizer: {hub: own/words}, train: {builtin: {corpus: stories}}}\n";
    let read = |sets: &[&str], env: &[(&str, &str)]| {
        let sets = sets.iter().map(|&set| set.to_owned()).collect();
        let env = env.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        let inputs = WrittenInputs::read(text, &LoadOptions { sets, env, ..LoadOptions::default() }).unwrap();
        let tokenizer = inputs.tokenizer.map(|model| WeightsSource::Hub(model).to_string());
        (inputs.weights.map(|weights| weights.to_string()), tokenizer)
    };
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(read(&[], &[]), (some("hub:own/small@v1"), some("hub:own/words")));
    let set = ["model.init.from=hub:own/small@v2", "data.tokenizer.hub.revision=v3"];
    assert_eq!(read(&set, &[]), (some("hub:own/small@v2"), some("hub:own/words@v3")));
    let env = [("RUNNER_MODEL__INIT__FROM", "out"), ("RUNNER_DATA__TOKENIZER", "{bytes: {}}")];
    assert_eq!(read(&[], &env), (None, None));
    assert_eq!(read(&["model.init=null"], &[]), (None, some("hub:own/words")));
    assert_eq!(WrittenInputs::read("model: [", &LoadOptions::default()), None);
}

/// The sizes of the model are not known without its weights.
#[test]
fn a_text_source_needs_no_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("exp.yaml");
    let load = |text: &str| {
        std::fs::write(&path, text).unwrap();
        load_text_source(&path, &LoadOptions::default()).map_err(|error| error.to_string())
    };
    let data = load("model: {init: {from: hub:own/small}}\ndata: {train: {text: {files: [a.txt]}}}\n").unwrap();
    assert_eq!(data.validation, Some(Validation::Fraction(0.1)));
    let Source::Text { files } = &data.train else { panic!("{data:?}") };
    assert_eq!(files, &[folder.path().join("a.txt")]);
    let error = load("model: {init: {from: hub:own/small}}\ndata: {train: {text: {file: a.txt}}}\n").unwrap_err();
    assert!(error.contains("did you mean `files`?"), "{error}");
    let error = load("model: {preset: gpt2-micro}\n").unwrap_err();
    assert!(error.contains("data"), "{error}");
}
