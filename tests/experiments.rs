//! Whole runs of the binary: what may not change a bit, what every kind of experiment must do, and commands on a finished run.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// A folder with an experiment, a text to train on, and room for runs and cache.
struct Bench {
    folder: tempfile::TempDir,
}

const EXPERIMENT: &str = "
version: 1
name: tiny
model: {family: gpt2, layers: 2, heads: 2, d_model: 16, context_length: 16, dropout: 0.1}
data: {tokenizer: {chars: {}}, train: {text: {files: [text.txt]}}}
batch: {sequences: 8, micro_batch: 4}
train: {steps: 60}
optimizer: {adamw: {lr: 1e-2}}
schedule: {warmup: {steps: 5}, decay: {cosine: {final: 0.1}}}
eval: {every: 20, at_start: true, loss: {batches: 2}, samples: {prompts: ['the '], max_tokens: 8}}
checkpoint: {every: 7, keep: 2}
";

impl Bench {
    fn new(experiment: &str) -> Self {
        let bench = Self { folder: tempfile::tempdir().unwrap() };
        bench.write("exp.yaml", experiment);
        let words = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "another", "dog"];
        let text: Vec<&str> = (0..3000_usize).map(|i| words[(i * i + i / 7) % words.len()]).collect();
        bench.write("text.txt", &text.join(" "));
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn command(&self, runs: &str, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_runner"));
        command
            .current_dir(self.folder.path())
            .env("RUNNER_RUNS", self.path(runs))
            .env("RUNNER_CACHE", self.path("cache"))
            .args(args)
            .stdin(Stdio::null());
        command
    }

    fn run_in(&self, runs: &str, args: &[&str]) -> Output {
        self.command(runs, args).output().unwrap()
    }

    fn run(&self, args: &[&str]) -> Output {
        self.run_in("runs", args)
    }

    /// The one run folder under `runs`.
    fn run_dir(&self, runs: &str) -> PathBuf {
        let mut found: Vec<PathBuf> = std::fs::read_dir(self.path(runs))
            .unwrap()
            .map(|e| e.unwrap().path())
            .filter(|p| p.join("manifest.json").exists())
            .collect();
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }

    fn summary(&self, runs: &str) -> Value {
        json(&self.run_dir(runs).join("summary.json"))
    }

    fn final_hash(&self, runs: &str) -> String {
        self.summary(runs)["final_hash"].as_str().unwrap().to_owned()
    }

    /// The lines of metrics.jsonl of one kind.
    fn metrics(&self, runs: &str, kind: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.run_dir(runs).join("metrics.jsonl")).unwrap();
        let lines = text.lines().map(|l| serde_json::from_str::<Value>(l).unwrap());
        lines.filter(|l| l["kind"] == kind).collect()
    }
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn ok(output: &Output) {
    assert!(output.status.success(), "{:?}\n{}", output.status, text(output));
}

/// The resolved experiment alone, from another folder, is the same run.
#[test]
fn a_resolved_experiment_is_the_same_run() {
    let bench = Bench::new(EXPERIMENT);
    ok(&bench.run(&["apply", "exp.yaml", "--quiet"]));
    let resolved = bench.run_dir("runs").join("resolved.yaml");
    ok(&bench.run_in("other", &["apply", resolved.to_str().unwrap(), "--quiet"]));
    assert_eq!(bench.final_hash("runs"), bench.final_hash("other"));
    assert_eq!(bench.run_dir("runs").file_name(), bench.run_dir("other").file_name());
}

#[test]
fn threads_do_not_change_a_bit() {
    let bench = Bench::new(EXPERIMENT);
    for threads in ["1", "2", "3"] {
        ok(&bench.run_in(threads, &["apply", "exp.yaml", "--quiet", "--threads", threads]));
    }
    assert_eq!(bench.final_hash("1"), bench.final_hash("2"));
    assert_eq!(bench.final_hash("1"), bench.final_hash("3"));
}

#[test]
fn both_families_every_precision_and_padded_rows_train() {
    let llama = EXPERIMENT
        .replace("gpt2, layers: 2, heads: 2", "llama, layers: 2, heads: 2, kv_heads: 1")
        .replace(", dropout: 0.1", "");
    let padded =
        llama.replace("{chars: {}}", "{bpe: {vocab_size: 300, special_tokens: ['[BOT]', '[EOT]', '[PAD]']}}").replace(
            "{text: {files: [text.txt]}}",
            "{jsonl: {files: [rows.jsonl], field: text}}, layout: {padded: {bos: '[BOT]', eos: '[EOT]', pad: '[PAD]'}}",
        );
    for (name, experiment) in [
        ("llama", llama.clone()),
        ("bf16", format!("{EXPERIMENT}\nprecision: bf16")),
        ("tf32", format!("{llama}\nprecision: tf32")),
        ("sgd", EXPERIMENT.replace("{adamw: {lr: 1e-2}}", "{sgd: {lr: 0.5, momentum: 0.9}}")),
        ("padded", padded),
    ] {
        let bench = Bench::new(&experiment);
        let rows: Vec<String> = (0..200)
            .map(|i| format!("{{\"text\": \"the cat number {} sat on a mat{}\"}}", i % 10, " again".repeat(i % 5)))
            .collect();
        bench.write("rows.jsonl", &rows.join("\n"));
        ok(&bench.run(&["apply", "exp.yaml", "--quiet"]));
        let losses = bench.metrics("runs", "train");
        let loss = |step: usize| losses[step]["loss"].as_f64().unwrap();
        assert!(loss(59) < loss(0) - 0.3, "{name}: {} to {}", loss(0), loss(59));
    }
}

#[test]
fn evaluation_and_samples_work_on_their_own() {
    let bench = Bench::new(EXPERIMENT);
    ok(&bench.run(&["apply", "exp.yaml", "--quiet"]));
    let evaluated = bench.run(&["eval", "tiny", "--json"]);
    ok(&evaluated);
    let report: Value = serde_json::from_slice(&evaluated.stdout).unwrap();
    let recorded = bench.metrics("runs", "eval");
    assert_eq!(recorded.iter().map(|e| e["step"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 20, 40, 60]);
    assert_eq!(report["val_loss"], recorded[3]["val_loss"]);
    if !cfg!(feature = "cuda") {
        let refused = bench.run(&["eval", "tiny", "--device", "cuda"]);
        let told = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(2) && told.contains("built without CUDA"), "{told}");
    }
    assert!(recorded[3]["val_loss"].as_f64() < recorded[0]["val_loss"].as_f64());
    let sampled = bench.run(&["sample", "tiny", "--prompt", "the cat", "--max-tokens", "50", "--seed", "7"]);
    ok(&sampled);
    let again = bench.run(&["sample", "tiny", "--prompt", "the cat", "--max-tokens", "50", "--seed", "7"]);
    assert_eq!(sampled.stdout, again.stdout);
    assert!(String::from_utf8_lossy(&sampled.stdout).contains("the cat"));
    // '%' is not among the characters that the tokenizer saw.
    let foreign = bench.run(&["sample", "tiny", "--prompt", "100%"]);
    assert_eq!(foreign.status.code(), Some(2), "{}", text(&foreign));
    assert!(text(&foreign).contains('%'), "{}", text(&foreign));
}

fn shipped(name: &str) -> String {
    format!("{}/experiments/{name}.yaml", env!("CARGO_MANIFEST_DIR"))
}

/// The parallel systems at their real size are planned without their data or machines, and no rank of a pipeline holds the
/// whole model.
#[test]
fn shipped_systems_can_be_planned() {
    let bench = Bench::new(EXPERIMENT);
    for (name, ranks, parameters) in [
        ("llama-dp", 4, 179_448_576_u64),
        ("llama-ddp", 4, 179_448_576),
        ("llama-pipeline", 3, 179_448_576),
        ("transformer-ddp-pipeline", 4, 1_041_453_167),
        ("gpt2-fineweb", 8, 124_475_904),
        ("gpt2-alpaca", 1, 124_439_808),
        ("gpt2-fineweb-start", 1, 124_439_808),
    ] {
        let output = bench.run(&["plan", &shipped(name), "--rows", "100000", "--cluster", "1x8xA100", "--json"]);
        ok(&output);
        let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(plan["totals"]["parameters"], parameters, "{name}");
        assert_eq!(plan["ranks"].as_array().unwrap().len(), ranks, "{name}");
        assert!(plan["forecast"]["step_seconds"].as_f64().unwrap() > 0.0, "{name}");
        if name.ends_with("pipeline") {
            let part = |rank: &Value| rank["params"]["total"].as_u64().unwrap();
            let largest = plan["ranks"].as_array().unwrap().iter().map(part).max().unwrap();
            assert!(largest < parameters * 2 / 3, "{name}: {largest} of {parameters}");
        }
    }
}

/// Their small variants run, and the three Llamas are one run up to rounding: a few f32 steps apart by the order of sums.
#[test]
fn shipped_variants_train_alike() {
    let bench = Bench::new(EXPERIMENT);
    let losses = |name: &str| {
        let steps = ["--set", "train.steps=3", "--set", "schedule.warmup.steps=2", "--set", "eval.hellaswag=null"];
        ok(&bench.run_in(name, &[&["apply", &shipped(name), "--quiet"][..], &steps].concat()));
        let losses = bench.metrics(name, "train");
        losses.iter().map(|l| l["loss"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    let dp = losses("llama-dp-tiny");
    for other in ["llama-ddp-tiny", "llama-pipeline-tiny"] {
        for (a, b) in losses(other).iter().zip(&dp) {
            assert!((a - b).abs() < 1e-4 * b, "{other}: {a} and {b}");
        }
    }
    for name in ["transformer-ddp-pipeline-tiny", "gpt2-alpaca-tiny", "gpt2-fineweb-tiny"] {
        let got = losses(name);
        assert!(got.len() == 3 && got[2] < got[0], "{name}: {got:?}");
    }
}

/// Encoder layers in bf16 without master weights: a run that was stopped and taken up again ends in the bits of one that was
/// not; the checkpoint holds bf16 values, evaluates to what the run said, and is sampled from.
#[test]
fn encoder_layers_in_bf16_resume_to_the_same_bits() {
    let model = "model: {family: gpt2, layers: 2, heads: 2, d_model: 16, context_length: 16, dropout: 0.1, norm: post, \
                 activation: relu, positions: sinusoidal, embedding_scale: true, head_bias: true, final_norm: false, \
                 tie_embeddings: false, mlp_dropout: 0.1, init: {pytorch: {embedding: 0.1}}}";
    let line = EXPERIMENT.lines().find(|l| l.starts_with("model:")).unwrap();
    let bench = Bench::new(&(EXPERIMENT.replace(line, model) + "precision: bf16\nmaster_weights: false\n"));
    ok(&bench.run(&["apply", "exp.yaml", "--quiet"]));
    ok(&bench.run_in("parts", &["apply", "exp.yaml", "--quiet", "--until-step", "33"]));
    ok(&bench.run_in("parts", &["apply", "exp.yaml", "--quiet"]));
    assert_eq!(bench.final_hash("parts"), bench.final_hash("runs"));
    let losses: Vec<f64> = bench.metrics("runs", "train").iter().map(|l| l["loss"].as_f64().unwrap()).collect();
    assert!(losses[59] < 0.8 * losses[0], "it learns: {losses:?}");

    let run = bench.run_dir("runs");
    let saved = run.join("checkpoints/step-00000060");
    for file in ["model.safetensors", "optimizer.safetensors"] {
        let tensors = candle_core::safetensors::load(saved.join(file), &candle_core::Device::Cpu).unwrap();
        assert!(!tensors.is_empty());
        for (name, tensor) in &tensors {
            let values: Vec<f32> = tensor.flatten_all().unwrap().to_vec1().unwrap();
            assert!(values.iter().all(|v| v.to_bits().trailing_zeros() >= 16), "{file}: {name}");
        }
    }
    let evaluated = bench.run(&["eval", run.to_str().unwrap(), "--json"]);
    ok(&evaluated);
    let evaluated: Value = serde_json::from_slice(&evaluated.stdout).unwrap();
    let said = bench.metrics("runs", "eval");
    assert_eq!(evaluated["val_loss"], said.last().unwrap()["val_loss"]);
    ok(&bench.run(&["sample", run.to_str().unwrap(), "--prompt", "the ", "--max-tokens", "4"]));
}

/// The language model of PyTorch's tutorial on pipelines with data parallelism has exactly this many parameters.
#[test]
fn the_plan_of_an_encoder_of_a_billion_parameters() {
    let bench = Bench::new(
        "model: {family: gpt2, vocab_size: 28783, layers: 8, heads: 16, d_model: 4096, d_ff: 4096, context_length: 35, \
         dropout: 0.2, mlp_dropout: 0.2, norm: post, activation: relu, positions: sinusoidal, embedding_scale: true, \
         head_bias: true, final_norm: false, tie_embeddings: false, init: {pytorch: {embedding: 0.1}}}\n\
         data: {train: {text: {files: [text.txt]}}}\nbatch: {sequences: 16}\n\
         optimizer: {sgd: {lr: 5.0}}\ntrain: {steps: 10, clip_norm: 0.5}\n\
         parallel: {mode: pipeline, replicas: 2, pipeline: {stages: 2, microbatches: 8}}\n",
    );
    let planned = bench.run(&["plan", "exp.yaml", "--cluster", "1x4xA100", "--rows", "100000", "--json"]);
    ok(&planned);
    let plan: Value = serde_json::from_slice(&planned.stdout).unwrap();
    assert_eq!(plan["totals"]["parameters"], 1_041_453_167_u64);
}

/// The test is of the best checkpoint, is made again by a run that is told to go on, and is of text that nothing else has.
#[test]
fn the_best_checkpoint_is_tested_once() {
    let bench = Bench::new(EXPERIMENT);
    let words: Vec<&str> = (0..900_usize).map(|i| ["the", "dog", "saw", "a", "mat"][(i * 7 + i / 5) % 5]).collect();
    bench.write("test.txt", &words.join(" "));
    let with = |file: &str| format!("eval.test={{text: {{files: [{file}]}}}}");
    let often = ["--set", "checkpoint.every=20"];
    ok(&bench.run(&[&["apply", "exp.yaml", "--quiet", "--set", &with("test.txt")][..], &often].concat()));
    let summary = bench.summary("runs");
    let best = summary["best_eval"]["step"].as_u64().unwrap();
    assert_eq!(summary["test"]["step"].as_u64(), Some(best));
    let evaluated = bench.run(&["eval", "tiny", "--best", "--json"]);
    ok(&evaluated);
    assert!(summary["test"]["loss"].as_f64().unwrap() > 0.0 && summary["test"]["tokens"].as_u64().unwrap() > 1000);

    let whole = summary["test"].clone();
    let stopped = ["--set", &with("test.txt"), "--until-step", "40"];
    ok(&bench.run_in("two", &[&["apply", "exp.yaml", "--quiet"][..], &stopped, &often].concat()));
    assert!(bench.summary("two")["test"].is_null(), "it is not over");
    ok(&bench.run_in("two", &[&["apply", "exp.yaml", "--quiet", "--set", &with("test.txt")][..], &often].concat()));
    assert_eq!(bench.summary("two")["test"], whole);

    let same = bench.run(&["apply", "exp.yaml", "--set", &with("text.txt")]);
    assert_eq!(same.status.code(), Some(2), "{}", text(&same));
    assert!(text(&same).contains("eval.test") && text(&same).contains("test on other text"), "{}", text(&same));
}
