//! Experiments of several files: which wins, where paths start, and what is wrong with files that are named.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{ExperimentFile, LayerFile, LoadOptions, Loaded, load};
use runner_spec::experiment::Source;
use tempfile::TempDir;

const BASE: &str = "name: base\nmodel: {preset: gpt2-micro, dropout: 0.1}\ndata: {train: {builtin: {corpus: stories}}}\n\
                    train: {steps: 10}\noptimizer: {adamw: {lr: 1e-3}}\n";

/// A folder with these files.
fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

fn layer(key: &str, path: PathBuf) -> LayerFile {
    LayerFile { key: key.to_owned(), path }
}

fn loaded(path: &Path, options: &LoadOptions<'_>) -> Loaded {
    load(path, options).unwrap_or_else(|mistakes| panic!("{mistakes}"))
}

/// The mistakes of `exp.yaml` in `folder`, without the folder's own path.
fn mistakes(folder: &TempDir) -> String {
    let mistakes = load(&folder.path().join("exp.yaml"), &LoadOptions::default()).unwrap_err().to_string();
    mistakes.replace(&format!("{}/", folder.path().display()), "")
}

#[test]
fn a_file_replaces_what_it_extends_and_names_where_each_value_is_from() {
    let folder = folder(&[
        ("base.yaml", BASE),
        ("models/wide.yaml", "extends: deep.yaml\nd_model: 128\n"),
        ("models/deep.yaml", "layers: 6\nd_model: 64\n"),
        ("runs/exp.yaml", "extends: [../base.yaml, {model: ../models/wide.yaml}]\noptimizer: {sgd: {lr: 0.1}}\n"),
    ]);
    let loaded = loaded(&folder.path().join("runs/exp.yaml"), &LoadOptions::default());
    let model = &loaded.experiment.model;
    assert_eq!((model.layers, model.d_model, model.dropout), (6, 128, 0.1));
    assert_eq!(loaded.experiment.name, "exp", "a name is not inherited");
    let origin = |key: &str| {
        let found = loaded.origins.iter().find(|origin| origin.key == key).unwrap_or_else(|| panic!("no {key}"));
        found.source.replace(&format!("{}/", folder.path().display()), "")
    };
    assert_eq!(origin("train.steps"), "base.yaml:4:9");
    assert_eq!(origin("model.layers"), "models/deep.yaml:1:1");
    assert_eq!(origin("model.d_model"), "models/wide.yaml:2:1");
    assert_eq!(origin("optimizer.sgd.lr"), "runs/exp.yaml:2:19");
    assert_eq!(origin("model.heads"), "preset gpt2-micro");
    let files: Vec<(&str, bool)> =
        loaded.other_files.iter().map(|read| (read.file.key.as_str(), read.is_above)).collect();
    assert_eq!(files, [("", false), ("model", false), ("model", false)]);
}

#[test]
fn files_of_flags_are_above_the_file_and_below_settings() {
    let folder = folder(&[
        ("exp.yaml", BASE),
        ("fast.yaml", "train: {steps: 2}\nmodel: {dropout: 0.2}\n"),
        ("small.yaml", "dropout: 0.3\nlayers: 3\n"),
    ]);
    let at = |name: &str| folder.path().join(name);
    let options = LoadOptions {
        files: vec![layer("", at("fast.yaml")), layer("model", at("small.yaml"))],
        sets: vec!["model.layers=5".to_owned()],
        ..LoadOptions::default()
    };
    let Loaded { experiment, .. } = loaded(&at("exp.yaml"), &options);
    assert_eq!((experiment.train.steps, experiment.model.dropout, experiment.model.layers), (Some(2), 0.3, 5));
    assert_eq!(experiment.name, "base", "the file's own name counts");
    fs::write(at("exp.yaml"), BASE.replace("name: base\n", "")).unwrap();
    assert_eq!(loaded(&at("exp.yaml"), &options).experiment.name, "exp-fast");
}

#[test]
fn paths_start_from_the_folder_of_the_file_that_has_them() {
    let folder = folder(&[
        ("shared/base.yaml", "model: {preset: gpt2-micro}\ndata: {train: {text: {files: [text.txt]}}}\n"),
        ("shared/text.txt", "some text"),
        ("shared/more.txt", "some text"),
        ("exp.yaml", "extends: shared/base.yaml\n"),
    ]);
    let exp = folder.path().join("exp.yaml");
    let files = |options: &LoadOptions<'_>| match loaded(&exp, options).experiment.data.train {
        Source::Text { files } => files,
        other => panic!("{other:?}"),
    };
    assert_eq!(files(&LoadOptions::default()), [folder.path().join("shared/text.txt")]);
    let sets = vec!["data.train.text.files=[shared/more.txt]".to_owned()];
    let options = LoadOptions { sets, ..LoadOptions::default() };
    assert_eq!(
        files(&options),
        [folder.path().join("shared/more.txt")],
        "a flag's path starts from the experiment's folder"
    );
}

#[test]
fn a_file_without_settings_of_its_own_is_an_experiment() {
    let folder = folder(&[("base.yaml", BASE), ("exp.yaml", "extends: base.yaml\n"), ("empty.yaml", "# nothing\n")]);
    let at = |name: &str| folder.path().join(name);
    let options = LoadOptions { files: vec![layer("", at("empty.yaml"))], ..LoadOptions::default() };
    assert_eq!(loaded(&at("exp.yaml"), &options).experiment.train.steps, Some(10));
}

#[test]
fn seeds_of_a_file_below_make_a_group_until_they_are_taken_back() {
    let folder = folder(&[
        ("base.yaml", &format!("{BASE}seeds: 3\n")),
        ("exp.yaml", "extends: base.yaml\n"),
        ("one.yaml", "extends: base.yaml\nseeds: null\n"),
    ]);
    let has_seeds = |name: &str| ExperimentFile::read(&folder.path().join(name)).unwrap().has_key("seeds");
    assert!(has_seeds("exp.yaml"));
    assert!(!has_seeds("one.yaml"));
}

#[test]
fn mistakes_are_shown_in_the_file_that_has_them() {
    let folder = folder(&[
        ("base.yaml", &BASE.replace("steps", "stepps")),
        ("models/wide.yaml", "layers: many\n"),
        ("exp.yaml", "extends: [base.yaml, {model: models/wide.yaml}]\nmodel: {heads: 3}\n"),
    ]);
    insta::assert_snapshot!(mistakes(&folder));
}

#[test]
fn a_mistake_between_files_is_shown_at_the_highest() {
    let folder = folder(&[("base.yaml", BASE), ("exp.yaml", "extends: base.yaml\nmodel: {heads: 3}\n")]);
    insta::assert_snapshot!(mistakes(&folder));
}

#[test]
fn files_that_cannot_be_extended_are_named_with_their_chain() {
    let folder = folder(&[
        ("exp.yaml", "extends: a.yaml\nmodel: {preset: gpt2-micro}\n"),
        ("a.yaml", "extends: [sub/b.yaml, t.yaml.j2, '', {optimiser: a.yaml}, {model: [1]}, 3]\n"),
        ("sub/b.yaml", "extends: [../exp.yaml, ../bass.yaml]\n"),
        ("base.yaml", BASE),
        ("t.yaml.j2", BASE),
    ]);
    insta::assert_snapshot!(mistakes(&folder));
}

#[test]
fn files_that_extend_many_are_limited() {
    let names: Vec<String> = (0..8).map(|i| format!("{i}.yaml")).collect();
    let below = |i: usize| if i < 7 { format!("extends: [{0}.yaml, {0}.yaml]\n", i + 1) } else { BASE.to_owned() };
    let texts: Vec<String> = (0..8).map(below).collect();
    let mut files: Vec<(&str, &str)> = names.iter().map(String::as_str).zip(texts.iter().map(String::as_str)).collect();
    files.push(("exp.yaml", "extends: 0.yaml\n"));
    let folder = folder(&files);
    assert!(mistakes(&folder).contains("the experiment has more than 100 files"), "{}", mistakes(&folder));
}

#[test]
fn extends_is_no_setting() {
    let folder = folder(&[("exp.yaml", BASE)]);
    for options in [
        LoadOptions { sets: vec!["extends=base.yaml".to_owned()], ..LoadOptions::default() },
        LoadOptions { env: vec![("RUNNER_EXTENDS".to_owned(), "base.yaml".to_owned())], ..LoadOptions::default() },
    ] {
        let mistakes = load(&folder.path().join("exp.yaml"), &options).unwrap_err().to_string();
        assert!(mistakes.contains("`extends` belongs in a file"), "{mistakes}");
    }
}
