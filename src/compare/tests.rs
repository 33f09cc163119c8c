//! Pairs of experiments, and what each pair is.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, OnceLock};

use super::class::{Class, Part, Training, Verdict, verdict};
use super::effect::{Effect, effect};
use super::keys::differences;
use super::side::{Side, cluster_for};
use crate::config::{self, Experiment, LoadOptions};
use crate::data::{DataFacts, DataRequest, prepare};
use crate::plan::tests::cluster;

/// What is common to the pairs; a pair replaces lines by their key, or adds some.
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
    let loaded = config::from_str(text, Path::new("/experiments/pair.yaml"), &LoadOptions::default());
    loaded.unwrap_or_else(|e| panic!("{text}\n{}", e.render(false))).experiment
}

fn facts(experiment: &Experiment) -> DataFacts {
    static KNOWN: Mutex<BTreeMap<String, DataFacts>> = Mutex::new(BTreeMap::new());
    let key = format!("{:?} {:?}", experiment.data, experiment.eval.hellaswag);
    // One at a time: the pairs share their tokens.
    let mut known = KNOWN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let prepared = || {
        let request = DataRequest {
            data: &experiment.data,
            choice: experiment.eval.hellaswag.as_ref(),
            seed: experiment.seed,
            cache_dir: cache(),
            vocab_size: experiment.model.vocab_size,
        };
        prepare(&request, &|_| {}).expect("the corpus is there").facts
    };
    known.entry(key).or_insert_with(prepared).clone()
}

fn side(text: &str) -> Side {
    let experiment = experiment(text);
    let (facts, cluster) = (facts(&experiment), cluster_for(&experiment, cluster()));
    Side::new(experiment, facts, cluster).expect("can be planned")
}

/// The verdict, and the effect of each key that differs.
fn compared(a: &Side, b: &Side) -> (Verdict, BTreeMap<String, Effect>) {
    let effects: BTreeMap<String, Effect> =
        differences(&a.experiment, &b.experiment).iter().map(|d| (d.key.clone(), effect(d, a, b))).collect();
    let kept = effects.values().any(|e| *e == Effect::Bookkeeping);
    (verdict(a, b, kept), effects)
}

const DDP: &str = "parallel: {mode: ddp, replicas: 2}";
const PIPELINE: &str = "parallel: {mode: pipeline, pipeline: {stages: 2, microbatches: 4}}\nbatch: {sequences: 8}";

use Class::{Bookkeeping, Mathematics, Rounding, SameRun};
use Effect as E;
use Part as P;

/// What a pair is called, its sides, their class, parts, and some of the keys with their effects.
type Pair = (&'static str, &'static str, &'static str, Class, &'static [Part], &'static [(&'static str, Effect)]);

const PAIRS: &[Pair] = &[
    ("nothing", "", "", SameRun, &[], &[]),
    ("a default spelt out", "", "seed: 1337\nprecision: fp32\nlog: {every: 10}", SameRun, &[], &[]),
    (
        "a preset and its sizes",
        "model: {preset: gpt2-nano}",
        "model: {family: gpt2, layers: 3, heads: 4, d_model: 64, d_ff: 256, context_length: 64}",
        SameRun,
        &[],
        &[],
    ),
    (
        "the vocabulary of the tokenizer spelt out",
        "",
        "model: {family: gpt2, vocab_size: 257, layers: 4, heads: 2, d_model: 16, d_ff: 32, context_length: 32}",
        SameRun,
        &[],
        &[("model.vocab_size", E::None)],
    ),
    ("tokens a step instead of sequences", "", "batch: {tokens: 256, micro_batch: 4}", SameRun, &[], &[]),
    (
        "steps and the tokens that make them",
        "",
        "train: {tokens: 25600}",
        SameRun,
        &[],
        &[("train.steps", E::None), ("train.tokens", E::None)],
    ),
    (
        "the length of the decay spelt out",
        "schedule: {warmup: {steps: 10}, decay: {cosine: {final: 0.1}}}",
        "schedule: {warmup: {steps: 10}, decay: {cosine: {final: 0.1, steps: 90}}}",
        SameRun,
        &[],
        &[("schedule.decay.cosine.steps", E::None)],
    ),
    ("buckets of one rank", "", "parallel: {bucket_mb: 3}", SameRun, &[], &[("parallel.bucket_mb", E::None)]),
    (
        "a device that auto finds",
        "",
        "device: cpu\nparallel: {devices: [cpu]}",
        SameRun,
        &[],
        &[("device", E::None), ("parallel.devices", E::None)],
    ),
    (
        "a partition that auto finds",
        "parallel: {mode: pipeline, pipeline: {stages: 2, microbatches: 4, partition: [2, 2]}}\nbatch: {sequences: 8}\nmodel: {family: gpt2, layers: 4, heads: 2, d_model: 256, d_ff: 1024, context_length: 32}",
        "parallel: {mode: pipeline, pipeline: {stages: 2, microbatches: 4}}\nbatch: {sequences: 8}\nmodel: {family: gpt2, layers: 4, heads: 2, d_model: 256, d_ff: 1024, context_length: 32}",
        SameRun,
        &[],
        &[("parallel.pipeline.partition", E::None)],
    ),
    ("a name", "", "name: other", Bookkeeping, &[], &[("name", E::Bookkeeping)]),
    ("progress lines", "", "log: {every: 7}", Bookkeeping, &[], &[("log.every", E::Bookkeeping)]),
    ("checkpoints", "", "checkpoint: {every: 5, keep: 9}", Bookkeeping, &[], &[("checkpoint.keep", E::Bookkeeping)]),
    (
        "restarts",
        DDP,
        "parallel: {mode: ddp, replicas: 2, max_restarts: 3}",
        Bookkeeping,
        &[],
        &[("parallel.max_restarts", E::Bookkeeping)],
    ),
    (
        "other GPUs of the same machine",
        "parallel: {mode: ddp, replicas: 2, devices: [cuda:0, cuda:1]}",
        "parallel: {mode: ddp, replicas: 2, devices: [cuda:2, cuda:3]}",
        Bookkeeping,
        &[],
        &[("parallel.devices", E::Bookkeeping)],
    ),
    (
        "micro-batches, all of the validation read",
        "",
        "batch: {sequences: 8, micro_batch: 2}",
        Rounding,
        &[],
        &[("batch.micro_batch", E::Rounding)],
    ),
    ("single and ddp", "", DDP, Rounding, &[], &[("parallel.mode", E::Rounding), ("parallel.replicas", E::Rounding)]),
    ("dp and ddp", "parallel: {mode: dp, replicas: 2}", DDP, Rounding, &[], &[("parallel.mode", E::Rounding)]),
    (
        "ddp of two and of four",
        DDP,
        "parallel: {mode: ddp, replicas: 4}\nbatch: {sequences: 8, micro_batch: 2}",
        Rounding,
        &[],
        &[("parallel.replicas", E::Rounding)],
    ),
    (
        "buckets of ddp",
        DDP,
        "parallel: {mode: ddp, replicas: 2, bucket_mb: 0.001}",
        Rounding,
        &[],
        &[("parallel.bucket_mb", E::Rounding)],
    ),
    (
        "single and a pipeline",
        "",
        PIPELINE,
        Rounding,
        &[],
        &[("parallel.mode", E::Rounding), ("parallel.pipeline.stages", E::Rounding)],
    ),
    ("ddp and a pipeline", DDP, PIPELINE, Rounding, &[], &[("parallel.mode", E::Rounding)]),
    (
        "another partition",
        PIPELINE,
        "parallel: {mode: pipeline, pipeline: {stages: 2, microbatches: 4, partition: [1, 3]}}\nbatch: {sequences: 8}",
        Rounding,
        &[],
        &[("parallel.pipeline.partition", E::Rounding)],
    ),
    (
        "another schedule of the pipeline",
        PIPELINE,
        "parallel: {mode: pipeline, pipeline: {stages: 2, microbatches: 4, schedule: gpipe}}\nbatch: {sequences: 8}",
        Rounding,
        &[],
        &[("parallel.pipeline.schedule", E::Rounding)],
    ),
    (
        "a pipeline of replicas",
        PIPELINE,
        "parallel: {mode: pipeline, replicas: 2, pipeline: {stages: 2, microbatches: 4}}\nbatch: {sequences: 8}",
        Rounding,
        &[],
        &[],
    ),
    ("another kind of device", "", "device: cuda", Rounding, &[], &[("device", E::None)]),
    ("tf32 where there is none", "", "precision: tf32", Rounding, &[], &[("precision", E::None)]),
    (
        "evaluations past the end",
        "eval: {every: 200, loss: {batches: 100000}}",
        "eval: {every: 300, loss: {batches: 100000}}",
        Rounding,
        &[],
        &[("eval.every", E::None)],
    ),
    (
        "tf32 where there is some",
        "device: cuda",
        "device: cuda\nprecision: tf32",
        Mathematics,
        &[P::Precision],
        &[("precision", E::Mathematics)],
    ),
    ("bf16", "", "precision: bf16", Mathematics, &[P::Precision], &[("precision", E::Mathematics)]),
    (
        "micro-batches, of which the evaluation counts some",
        "eval: {every: 50, loss: {batches: 2}}",
        "eval: {every: 50, loss: {batches: 2}}\nbatch: {sequences: 8, micro_batch: 2}",
        Mathematics,
        &[P::Evaluation],
        &[("batch.micro_batch", E::Evaluation)],
    ),
    (
        "evaluations twice as often",
        "",
        "eval: {every: 25, loss: {batches: 100000}}",
        Mathematics,
        &[P::Evaluation],
        &[("eval.every", E::Evaluation)],
    ),
    (
        "an evaluation before the start",
        "",
        "eval: {every: 50, at_start: true, loss: {batches: 100000}}",
        Mathematics,
        &[P::Evaluation],
        &[("eval.at_start", E::Evaluation)],
    ),
    (
        "prompts",
        "eval: {every: 50, loss: {batches: 100000}, samples: {prompts: [a]}}",
        "eval: {every: 50, loss: {batches: 100000}, samples: {prompts: [b]}}",
        Mathematics,
        &[P::Evaluation],
        &[("eval.samples.prompts", E::Evaluation)],
    ),
    (
        "no samples and some",
        "",
        "eval: {every: 50, loss: {batches: 100000}, samples: {prompts: [b]}}",
        Mathematics,
        &[P::Evaluation],
        &[("eval.samples.prompts", E::Evaluation)],
    ),
    (
        "multiple choice",
        "",
        "eval: {every: 50, loss: {batches: 100000}, hellaswag: {builtin: stories, limit: 9}}",
        Mathematics,
        &[P::Evaluation],
        &[("eval.hellaswag.limit", E::Evaluation)],
    ),
    (
        "another layout and other evaluations",
        "",
        "parallel: {mode: ddp, replicas: 2}\neval: {every: 25, loss: {batches: 100000}}",
        Mathematics,
        &[P::Evaluation],
        &[("parallel.mode", E::Rounding), ("eval.every", E::Evaluation)],
    ),
    ("a seed", "", "seed: 7", Mathematics, &[P::Seed], &[("seed", E::Mathematics)]),
    (
        "a learning rate",
        "",
        "optimizer: {adamw: {lr: 2e-3}}",
        Mathematics,
        &[P::Optimizer],
        &[("optimizer.adamw.lr", E::Mathematics)],
    ),
    (
        "another optimizer",
        "",
        "optimizer: {sgd: {lr: 1e-3}}",
        Mathematics,
        &[P::Optimizer],
        &[("optimizer", E::Mathematics), ("optimizer.sgd.lr", E::Mathematics)],
    ),
    (
        "clipping",
        "",
        "train: {steps: 100, clip_norm: 0.5}",
        Mathematics,
        &[P::Optimizer],
        &[("train.clip_norm", E::Mathematics)],
    ),
    (
        "no clipping",
        "train: {steps: 100, clip_norm: 0.5}",
        "train: {steps: 100, clip_norm: null}",
        Mathematics,
        &[P::Optimizer],
        &[("train.clip_norm", E::Mathematics)],
    ),
    (
        "a warmup",
        "schedule: {warmup: {steps: 10}}",
        "schedule: {warmup: {steps: 20}}",
        Mathematics,
        &[P::Schedule],
        &[("schedule.warmup.steps", E::Mathematics)],
    ),
    (
        "another decay",
        "schedule: {decay: {constant: {}}}",
        "schedule: {decay: {linear: {final: 0}}}",
        Mathematics,
        &[P::Schedule],
        &[("schedule.decay", E::Mathematics)],
    ),
    (
        "more steps at a constant rate",
        "schedule: {decay: {constant: {}}}",
        "schedule: {decay: {constant: {}}}\ntrain: {steps: 200}",
        Mathematics,
        &[P::TrainingLength],
        &[("train.steps", E::Mathematics)],
    ),
    (
        "more steps, over which the rate decays",
        "schedule: {decay: {cosine: {final: 0}}}",
        "schedule: {decay: {cosine: {final: 0}}}\ntrain: {steps: 200}",
        Mathematics,
        &[P::Schedule, P::TrainingLength],
        &[],
    ),
    (
        "a larger batch",
        "",
        "batch: {sequences: 16, micro_batch: 4}",
        Mathematics,
        &[P::Batch],
        &[("batch.sequences", E::Mathematics)],
    ),
    (
        "more layers",
        "",
        "model: {family: gpt2, layers: 5, heads: 2, d_model: 16, d_ff: 32, context_length: 32}",
        Mathematics,
        &[P::Model],
        &[("model.layers", E::Mathematics)],
    ),
    (
        "dropout",
        "",
        "model: {family: gpt2, layers: 4, heads: 2, d_model: 16, d_ff: 32, context_length: 32, dropout: 0.1}",
        Mathematics,
        &[P::Model],
        &[("model.dropout", E::Mathematics)],
    ),
    (
        "another tokenizer",
        "",
        "data: {tokenizer: {chars: {}}, train: {builtin: {corpus: stories}}, validation: {fraction: 0.1}}",
        Mathematics,
        &[P::Data, P::Model, P::Evaluation],
        &[("data.tokenizer", E::Mathematics)],
    ),
    (
        "another part for validation",
        "",
        "data: {tokenizer: {bytes: {}}, train: {builtin: {corpus: stories}}, validation: {fraction: 0.2}}",
        Mathematics,
        &[P::Data, P::Evaluation],
        &[("data.validation.fraction", E::Mathematics)],
    ),
    (
        "shorter rows",
        "",
        "data: {tokenizer: {bytes: {}}, train: {builtin: {corpus: stories}}, validation: {fraction: 0.1}, layout: {packed: {length: 16}}}",
        Mathematics,
        &[P::Data, P::Evaluation],
        &[("data.layout.packed.length", E::Mathematics)],
    ),
    (
        "a seed under another layout",
        "",
        "seed: 7\nparallel: {mode: ddp, replicas: 2}",
        Mathematics,
        &[P::Seed],
        &[("seed", E::Mathematics), ("parallel.mode", E::Rounding)],
    ),
];

#[test]
fn every_pair_gets_its_class() {
    let mut wrong = Vec::new();
    for (what, a, b, class, parts, keys) in PAIRS {
        let (a, b) = (side(&yaml(a)), side(&yaml(b)));
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
        let most = effects.values().copied().max().unwrap_or(Effect::None);
        let allowed = match found.class {
            SameRun => Effect::None,
            Bookkeeping => Effect::Bookkeeping,
            Rounding => Effect::Rounding,
            Mathematics => Effect::Mathematics,
        };
        if most > allowed {
            wrong.push(format!("{what}: {most:?} in class {:?}", found.class));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn comments_and_the_order_of_keys_are_no_difference() {
    let a = side(&yaml(""));
    let mut lines: Vec<String> = yaml("").lines().map(str::to_owned).collect();
    lines.reverse();
    let b = side(&format!("# another day\n{}\n", lines.join("   # as before\n")));
    let (found, effects) = compared(&a, &b);
    assert_eq!((found.class, effects.len()), (SameRun, 0));
}

#[test]
fn what_becomes_of_the_weights() {
    let training = |a: &str, b: &str| compared(&side(&yaml(a)), &side(&yaml(b))).0.training;
    assert_eq!(training("", "eval: {every: 25, loss: {batches: 1}}"), Training::SameBits);
    assert_eq!(training("", "eval: {every: 50, loss: {batches: 100000}, samples: {prompts: [b]}}"), Training::SameBits);
    assert_eq!(training("", "precision: tf32"), Training::SameBits);
    assert_eq!(training("", DDP), Training::Rounding);
    assert_eq!(training("", "parallel: {mode: ddp, replicas: 2}\neval: {every: 25}"), Training::Rounding);
    assert_eq!(
        training("", "batch: {sequences: 8, micro_batch: 2}\neval: {every: 50, loss: {batches: 1}}"),
        Training::Rounding
    );
    assert_eq!(training("", "seed: 2"), Training::Other);
}

/// Text files whose names or content differ.
fn with_file(folder: &Path, name: &str, content: &str) -> Side {
    std::fs::create_dir_all(folder).expect("a folder");
    std::fs::write(folder.join(name), content).expect("a file");
    let data = format!("{{tokenizer: {{bytes: {{}}}}, train: {{text: {{files: [{name}]}}}}}}");
    let text = yaml(&format!("data: {data}\neval: {{every: 50}}"));
    let loaded = config::from_str(&text, &folder.join("exp.yaml"), &LoadOptions::default());
    let experiment = loaded.unwrap_or_else(|e| panic!("{}", e.render(false))).experiment;
    let data = DataRequest {
        data: &experiment.data,
        choice: None,
        seed: 0,
        cache_dir: &folder.join("cache"),
        vocab_size: None,
    };
    let facts = prepare(&data, &|_| {}).expect("prepared").facts;
    Side::new(experiment, facts, cluster()).expect("planned")
}

#[test]
fn data_is_its_content_not_its_name() {
    let dir = tempfile::tempdir().expect("a folder");
    let text = "a small text, over and over. ".repeat(100);
    let a = with_file(&dir.path().join("a"), "input.txt", &text);
    let moved = with_file(&dir.path().join("b"), "moved.txt", &text);
    let (found, effects) = compared(&a, &moved);
    assert_eq!(found.class, Bookkeeping, "{effects:?}");
    assert_eq!(effects["data.train.text.files"], Effect::Bookkeeping);
    // The same path, changed meanwhile, and with it the tenth that is held out.
    let before = with_file(&dir.path().join("c"), "input.txt", &text);
    let after = with_file(&dir.path().join("c"), "input.txt", &text.replace("small", "large"));
    let (found, effects) = compared(&before, &after);
    assert_eq!((found.class, found.parts, effects.len()), (Mathematics, vec![Part::Data, Part::Evaluation], 0));
}
