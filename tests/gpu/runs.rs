//! Whole runs of the binary on a GPU.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::device::gpus;

struct Lab(tempfile::TempDir);

impl Lab {
    fn new(more: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let text: String = (0..4000_u32).flat_map(|i| [(i * i % 997).to_string(), " ".to_owned()]).collect();
        fs::write(dir.path().join("input.txt"), text).unwrap();
        let yaml = format!(
            "version: 1\nname: lab\nmodel: {{family: gpt2, layers: 2, heads: 2, d_model: 32, context_length: 32, dropout: 0.1}}\n\
             data: {{tokenizer: {{chars: {{}}}}, train: {{text: {{files: [input.txt]}}}}, validation: {{fraction: 0.1}}}}\n\
             batch: {{sequences: 8, micro_batch: 4}}\ntrain: {{steps: 12}}\ndevice: cuda\n\
             eval: {{every: 6, at_start: true, loss: {{batches: 2}}, samples: {{prompts: [\"1\"], count: 1, max_tokens: 4}}}}\n\
             checkpoint: {{every: 4, keep: 2}}\n{more}\n"
        );
        fs::write(dir.path().join("exp.yaml"), yaml).unwrap();
        Self(dir)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        // Where the tests are carried to another machine, the binary is elsewhere, too.
        let binary = std::env::var("RUNNER_GPU_BINARY").unwrap_or_else(|_| env!("CARGO_BIN_EXE_runner").to_owned());
        let mut command = Command::new(binary);
        command.args(arguments).current_dir(self.0.path()).stdin(Stdio::null()).env_remove("RUNNER_RUNS");
        command.env("RUNNER_CACHE", self.0.path().join("cache")).output().unwrap()
    }

    fn done(&self, arguments: &[&str], code: i32) -> String {
        let output = self.run(arguments);
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        text
    }

    fn folder(&self) -> PathBuf {
        let mut runs = fs::read_dir(self.0.path().join("runs")).unwrap().map(|e| e.unwrap().path());
        runs.find(|p| !p.file_name().unwrap().to_string_lossy().starts_with('.')).expect("a run")
    }

    /// Its metrics without times.
    fn numbers(&self) -> Vec<String> {
        let text = fs::read_to_string(self.folder().join("metrics.jsonl")).unwrap();
        let line = |line: &str| {
            let line: Value = serde_json::from_str(line).unwrap();
            let keys = ["kind", "step", "loss", "lr", "grad_norm", "tokens", "val_loss", "val_perplexity"];
            keys.map(|key| line[key].to_string()).join(" ")
        };
        text.lines().map(line).collect()
    }
}

#[test]
fn a_run_goes_on_with_the_same_bits() {
    let Some(_) = gpus(1) else { return };
    for precision in ["precision: fp32", "precision: bf16", "precision: bf16\nmaster_weights: false"] {
        let (whole, parts) = (Lab::new(precision), Lab::new(precision));
        whole.done(&["apply", "exp.yaml"], 0);
        parts.done(&["apply", "exp.yaml", "--until-step", "7"], 0);
        parts.done(&["apply", "exp.yaml"], 0);
        assert_eq!(whole.numbers(), parts.numbers(), "{precision}");
        assert_eq!(whole.numbers().len(), 12 + 3);
    }
}

/// A run that was trained on a GPU is looked at there, and can be looked at without one.
#[test]
fn a_run_is_evaluated_and_sampled_here_and_there() {
    let Some(_) = gpus(1) else { return };
    for (precision, tolerance) in [("fp32", 1e-5), ("bf16", 1e-3)] {
        let lab = Lab::new(&format!("precision: {precision}"));
        lab.done(&["apply", "exp.yaml"], 0);
        let last = lab.numbers().into_iter().rfind(|line| line.starts_with("\"eval\"")).unwrap();
        let recorded: f64 = last.split(' ').nth(6).unwrap().parse().unwrap();
        let loss = |more: &[&str]| {
            let told = lab.done(&[&["eval", "lab", "--json"], more].concat(), 0);
            serde_json::from_str::<Value>(told.trim()).unwrap()["val_loss"].as_f64().unwrap()
        };
        let here = loss(&[]);
        assert_eq!((here, loss(&["--device", "cuda"])), (recorded, recorded), "{precision}: the same bits");
        // The same sums in another order; bf16 rounds what differs.
        let there = loss(&["--device", "cpu"]);
        assert!((there - recorded).abs() < tolerance * recorded, "{precision}: {there}, not {recorded}");
        for device in ["auto", "cpu"] {
            lab.done(&["sample", "lab", "--prompt", "1", "--device", device], 0);
        }
    }
}

/// The test of the best checkpoint, after the last step.
#[test]
fn a_run_is_tested_on_its_gpu() {
    let Some(_) = gpus(1) else { return };
    let lab = Lab::new("precision: bf16");
    fs::write(lab.0.path().join("test.txt"), "1 4 9 16 25 36 49 64 81 100 121 ".repeat(20)).unwrap();
    let told = lab.done(&["apply", "exp.yaml", "--set", "eval.test={text: {files: [test.txt]}}"], 0);
    assert!(told.contains("test loss "), "{told}");
}

#[test]
fn auto_takes_the_gpu() {
    let Some(_) = gpus(1) else { return };
    let lab = Lab::new("").done(&["plan", "exp.yaml", "--set", "device=auto", "--json"], 0);
    assert!(lab.contains("cuda"), "{lab}");
}
