//! A folder in which tiny runs are made by the binary.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

pub const SINGLE: &str = "";
pub const MESH: &str = "parallel: {mode: pipeline, replicas: 2, pipeline: {stages: 2, microbatches: 2}}\n";
pub const INTERLEAVED: &str =
    "parallel: {mode: pipeline, pipeline: {stages: 2, schedule: interleaved_1f1b, chunks: 2, microbatches: 2}}\n";

pub struct Lab {
    dir: tempfile::TempDir,
}

impl Lab {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let text: String = (0..1500u32).flat_map(|i| [(i * i % 997).to_string(), " ".to_owned()]).collect();
        fs::write(dir.path().join("input.txt"), text).unwrap();
        Self { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// An experiment called `name` of a model section, bytes for tokens, two steps.
    pub fn experiment(&self, name: &str, model: &str, more: &str) {
        let yaml = format!(
            "name: {name}\nmodel: {{{model}}}\n\
             data: {{tokenizer: {{bytes: {{}}}}, train: {{text: {{files: [input.txt]}}}}, validation: {{fraction: 0.1}}}}\n\
             batch: {{sequences: 8}}\ntrain: {{steps: 2}}\noptimizer: {{adamw: {{lr: 1e-2}}}}\n\
             eval: {{every: 2, at_start: true, loss: {{batches: 1000}}}}\n{more}"
        );
        fs::write(self.path(&format!("{name}.yaml")), yaml).unwrap();
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_runner"));
        command.args(arguments).current_dir(self.dir.path()).stdin(Stdio::null());
        command.env_remove("RUNNER_RUNS").env("RUNNER_CACHE", self.path("cache"));
        command.output().unwrap()
    }

    /// Runs what must succeed.
    pub fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs what must be refused; what it says.
    pub fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", text(&output));
        text(&output)
    }

    /// Trains `name` to its end.
    pub fn apply(&self, name: &str) -> PathBuf {
        self.ok(&["apply", &format!("{name}.yaml"), "--threads", "1", "--quiet"]);
        self.folder(name)
    }

    /// What is unfinished, in the lab's folder and the ones in it.
    pub fn leftovers(&self) -> Vec<String> {
        let folders = fs::read_dir(self.dir.path()).unwrap().map(|e| e.unwrap().path()).filter(|path| path.is_dir());
        let all = folders.chain([self.dir.path().to_owned()]).flat_map(|folder| fs::read_dir(folder).unwrap());
        all.map(|e| e.unwrap().file_name().into_string().unwrap()).filter(|name| name.starts_with(".tmp-")).collect()
    }

    /// The folder of the run of `name`.
    pub fn folder(&self, name: &str) -> PathBuf {
        let runs = fs::read_dir(self.path("runs")).unwrap().map(|e| e.unwrap().path());
        let of = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with(&format!("{name}-"));
        runs.filter(of).min().expect("a run")
    }
}

pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The validation loss of a run after `step`.
pub fn val_loss(run: &Path, step: u64) -> f64 {
    let metrics = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let lines = metrics.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let found = lines.rev().find(|line| line["kind"] == "eval" && line["step"] == step).expect("evaluated");
    found["val_loss"].as_f64().unwrap()
}

pub fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}
