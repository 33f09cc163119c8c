//! Pairs of experiments, and what each pair is.

mod pairs;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, OnceLock};

use self::pairs::{DDP, PAIRS};
use super::classification::{Classification, DifferenceClass, TrainingEquality, classify};
use super::facts::MathematicsPart;
use super::inherited_steps::InheritedStepsComparison;
use super::planned_experiment::{PlannedExperiment, cluster_for};
use super::setting_effect::{SettingEffect, effect_of_setting};
use super::settings::differences;
use DifferenceClass::{Bookkeeping, Mathematics, Rounding, SameRun};
use runner_config::LoadOptions;
use runner_data::{DataRequest, prepare};
use runner_plan::testing::cluster;
use runner_spec::data::DataFacts;
use runner_spec::experiment::Experiment;

/// The lines that the pairs have in common; a pair replaces lines by their key, or adds some.
const BASE: [(&str, &str); 6] = [
    ("model", "{family: gpt2, layers: 4, heads: 2, d_model: 16, d_ff: 32, context_length: 32}"),
    ("data", "{tokenizer: {bytes: {}}, train: {builtin: {corpus: stories}}, validation: {fraction: 0.1}}"),
    ("batch", "{sequences: 8, micro_batch: 4}"),
    ("train", "{steps: 100}"),
    ("optimizer", "{adamw: {lr: 1e-3}}"),
    ("eval", "{every: 50, loss: {batches: 100000}}"),
];

/// `BASE` with the lines of `changed`, each `key: value`; a value of `-` leaves the key out.
fn yaml(changed: &str) -> String {
    let mut lines: BTreeMap<&str, &str> = BASE.into();
    for line in changed.lines().filter(|line| !line.trim().is_empty()) {
        let (key, value) = line.split_once(": ").expect("a key and a value");
        match value {
            "-" => lines.remove(key.trim()),
            _ => lines.insert(key.trim(), value),
        };
    }
    let lines: Vec<String> = lines.into_iter().map(|(key, value)| format!("{key}: {value}")).collect();
    lines.join("\n") + "\n"
}

fn cache() -> &'static Path {
    static CACHE: OnceLock<tempfile::TempDir> = OnceLock::new();
    CACHE.get_or_init(|| tempfile::tempdir().expect("a folder")).path()
}

fn experiment(text: &str) -> Experiment {
    let loaded = runner_config::from_str(text, Path::new("/experiments/pair.yaml"), &LoadOptions::default());
    loaded.unwrap_or_else(|e| panic!("{text}\n{}", e.render(false))).experiment
}

fn facts(experiment: &Experiment) -> DataFacts {
    static KNOWN: Mutex<BTreeMap<String, DataFacts>> = Mutex::new(BTreeMap::new());
    let key = format!("{:?} {:?}", experiment.data, experiment.eval.hellaswag);
    // One at a time: the pairs share their tokens.
    let mut known = KNOWN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let prepared = || {
        let tasks: Vec<_> = experiment.eval.tasks().map(|(name, task)| (name.to_owned(), task.clone())).collect();
        let request = DataRequest {
            data: &experiment.data,
            tasks: &tasks,
            test: None,
            cache_dir: cache(),
            vocab_size: experiment.model.vocab_size,
            recorded_tokenizer: None,
        };
        prepare(&request, &|_| {}).expect("the corpus is there").facts
    };
    known.entry(key).or_insert_with(prepared).clone()
}

/// Both experiments as `diff` plans them.
fn sides(a: &str, b: &str) -> [PlannedExperiment; 2] {
    let experiments = [experiment(a), experiment(b)];
    let cluster = cluster_for(&experiments.each_ref(), cluster());
    experiments.map(|experiment| {
        let facts = facts(&experiment);
        PlannedExperiment::new(experiment, facts, cluster.clone()).expect("can be planned")
    })
}

fn side(text: &str) -> PlannedExperiment {
    let [side, _] = sides(text, text);
    side
}

/// The verdict, and the effect of each key that differs.
fn compared(a: &PlannedExperiment, b: &PlannedExperiment) -> (Classification, BTreeMap<String, SettingEffect>) {
    let effects: BTreeMap<String, SettingEffect> =
        differences(&a.experiment, &b.experiment).iter().map(|d| (d.key.clone(), effect_of_setting(d, a, b))).collect();
    let kept = effects.values().any(|e| *e == SettingEffect::Bookkeeping);
    (classify(a, b, kept, InheritedStepsComparison::Same), effects)
}

#[test]
fn every_pair_gets_its_class() {
    let mut wrong = Vec::new();
    for (what, a, b, class, parts, keys) in PAIRS {
        let [a, b] = sides(&yaml(a), &yaml(b));
        let (found, effects) = compared(&a, &b);
        if (found.class, found.parts.as_slice()) != (*class, *parts) {
            wrong.push(format!("{what}: {:?} {:?}, not {class:?} {parts:?}; {effects:?}", found.class, found.parts));
        }
        for (key, effect) in *keys {
            if effects.get(*key) != Some(effect) {
                wrong.push(format!("{what}: {key} is {:?}, not {effect:?}", effects.get(*key)));
            }
        }
        let (turned, back) = compared(&b, &a);
        if (turned.class, &turned.parts, turned.training, &back)
            != (found.class, &found.parts, found.training, &effects)
        {
            wrong.push(format!("{what}: {:?} {back:?} the other way round, {effects:?}", turned.class));
        }
        // The class is the hashes': a setting with more effect than the class has would contradict it.
        let most = effects.values().copied().max().unwrap_or(SettingEffect::None);
        let allowed = match found.class {
            SameRun => SettingEffect::None,
            Bookkeeping => SettingEffect::Bookkeeping,
            Rounding => SettingEffect::Rounding,
            Mathematics => SettingEffect::Mathematics,
        };
        if most > allowed {
            wrong.push(format!("{what}: {most:?} in class {:?}", found.class));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn comments_and_the_order_of_keys_do_not_differ() {
    let a = side(&yaml(""));
    let mut lines: Vec<String> = yaml("").lines().map(str::to_owned).collect();
    lines.reverse();
    let b = side(&format!("# another day\n{}\n", lines.join("   # as before\n")));
    let (found, effects) = compared(&a, &b);
    assert_eq!((found.class, effects.len()), (SameRun, 0));
}

#[test]
fn devices_that_differ_are_named() {
    let meaning = |a: &str, b: &str| {
        let [a, b] = sides(&yaml(a), &yaml(b));
        compared(&a, &b).0.meaning
    };
    assert_eq!(
        meaning("device: cpu", "device: cuda"),
        "same mathematics on different devices, which round differently: A on 1 cpu, B on 1 cuda"
    );
    assert_eq!(meaning("", "device: cuda"), "same run: the plans are equal, so every number should be equal");
    // On a machine without the GPU on which a run trained, `auto` is a different device.
    let [gpu, _] = sides(&yaml(""), &yaml("device: cuda"));
    let (found, effects) = compared(&gpu, &side(&yaml("device: cpu")));
    assert!(found.meaning.ends_with("A on 1 cuda, B on 1 cpu"), "{}", found.meaning);
    assert_eq!(effects["device"], SettingEffect::Rounding);
}

#[test]
fn a_difference_tells_whether_the_weights_are_the_same() {
    let training = |a: &str, b: &str| compared(&side(&yaml(a)), &side(&yaml(b))).0.training;
    assert_eq!(training("", "eval: {every: 25, loss: {batches: 1}}"), TrainingEquality::SameBits);
    assert_eq!(
        training("", "eval: {every: 50, loss: {batches: 100000}, samples: {prompts: [b]}}"),
        TrainingEquality::SameBits
    );
    assert_eq!(training("", "precision: tf32"), TrainingEquality::SameBits);
    assert_eq!(training("", DDP), TrainingEquality::Rounding);
    assert_eq!(training("", "parallel: {mode: ddp, replicas: 2}\neval: {every: 25}"), TrainingEquality::Rounding);
    assert_eq!(
        training("", "batch: {sequences: 8, micro_batch: 2}\neval: {every: 50, loss: {batches: 1}}"),
        TrainingEquality::Rounding
    );
    assert_eq!(training("", "seed: 2"), TrainingEquality::Other);
}

/// Text files whose names or content differ.
fn with_file(folder: &Path, name: &str, content: &str) -> PlannedExperiment {
    std::fs::create_dir_all(folder).expect("a folder");
    std::fs::write(folder.join(name), content).expect("a file");
    let data = format!("{{tokenizer: {{bytes: {{}}}}, train: {{text: {{files: [{name}]}}}}}}");
    let text = yaml(&format!("data: {data}\neval: {{every: 50}}"));
    let loaded = runner_config::from_str(&text, &folder.join("exp.yaml"), &LoadOptions::default());
    let experiment = loaded.unwrap_or_else(|e| panic!("{}", e.render(false))).experiment;
    let data = DataRequest {
        data: &experiment.data,
        tasks: &[],
        test: None,
        cache_dir: &folder.join("cache"),
        vocab_size: None,
        recorded_tokenizer: None,
    };
    let facts = prepare(&data, &|_| {}).expect("prepared").facts;
    PlannedExperiment::new(experiment, facts, cluster()).expect("planned")
}

#[test]
fn data_is_its_content_not_its_name() {
    let dir = tempfile::tempdir().expect("a folder");
    let text = "a small text, over and over. ".repeat(100);
    let a = with_file(&dir.path().join("a"), "input.txt", &text);
    let moved = with_file(&dir.path().join("b"), "moved.txt", &text);
    let (found, effects) = compared(&a, &moved);
    assert_eq!(found.class, Bookkeeping, "{effects:?}");
    assert_eq!(effects["data.train.text.files"], SettingEffect::Bookkeeping);
    // The same path, changed meanwhile, and with it the tenth that is held out.
    let before = with_file(&dir.path().join("c"), "input.txt", &text);
    let after = with_file(&dir.path().join("c"), "input.txt", &text.replace("small", "large"));
    let (found, effects) = compared(&before, &after);
    assert_eq!(
        (found.class, found.parts, effects.len()),
        (Mathematics, vec![MathematicsPart::Data, MathematicsPart::Evaluation], 0)
    );
}
