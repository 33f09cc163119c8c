//! Runs stopped at a step, resumed from their folders, done again, and made from one another.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const STEPS: u64 = 12;

const SINGLE: &str = "";
const DP: &str = "parallel: {mode: dp, replicas: 2}\n";
const DDP: &str = "parallel: {mode: ddp, replicas: 2}\n";
const PIPELINE: &str = "parallel: {mode: pipeline, pipeline: {stages: 2}}\n";
const MESH: &str = "parallel: {mode: pipeline, replicas: 2, pipeline: {stages: 2}}\n";

/// A folder with an experiment of a tiny model.
struct Lab {
    dir: tempfile::TempDir,
}

impl Lab {
    fn new(parallel: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let yaml = format!(
            "version: 1\nname: lab\nmodel: {{family: gpt2, layers: 2, heads: 2, d_model: 16, context_length: 16, dropout: 0.1}}\n\
             data: {{tokenizer: {{chars: {{}}}}, train: {{text: {{files: [input.txt]}}}}, validation: {{fraction: 0.1}}}}\n\
             batch: {{sequences: 4, micro_batch: 1}}\ntrain: {{steps: {STEPS}}}\n\
             eval: {{every: 4, loss: {{batches: 2}}, samples: {{prompts: [\"1\"], count: 1, max_tokens: 4}}}}\n\
             checkpoint: {{every: 4, keep: 9}}\n{parallel}"
        );
        fs::write(dir.path().join("exp.yaml"), yaml).unwrap();
        let lab = Self { dir };
        lab.data("");
        lab
    }

    /// Writes the training text, `more` at its beginning.
    fn data(&self, more: &str) {
        let numbers = (0..2000u32).flat_map(|i| [(i * (i % 4093) % 997).to_string(), " ".to_owned()]);
        fs::write(self.dir.path().join("input.txt"), more.to_owned() + &numbers.collect::<String>()).unwrap();
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_runner"));
        command.args(arguments).current_dir(self.dir.path()).stdin(Stdio::null());
        command.env_remove("RUNNER_RUNS").env("RUNNER_CACHE", self.dir.path().join("cache"));
        command.output().unwrap()
    }

    /// Runs the words of `line`, which must end with `code`; what was said.
    fn says(&self, code: i32, line: &str) -> String {
        let output = self.run(&line.split(' ').collect::<Vec<_>>());
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{line}: {said}");
        said
    }

    /// The runs there are, by id.
    fn runs(&self) -> BTreeMap<String, PathBuf> {
        let Ok(entries) = fs::read_dir(self.dir.path().join("runs")) else { return BTreeMap::new() };
        let named = entries.map(|e| e.unwrap()).map(|e| (e.file_name().into_string().unwrap(), e.path()));
        named.filter(|(name, _)| !name.starts_with('.')).collect()
    }

    /// The only run there is.
    fn only(&self) -> (String, PathBuf) {
        let mut runs = self.runs();
        assert_eq!(runs.len(), 1, "{runs:?}");
        runs.pop_first().unwrap()
    }
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// What must not depend on how often a run stopped: its record without times, and the hash of its end.
fn numbers(run: &Path) -> Vec<String> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let keys = ["kind", "step", "loss", "lr", "grad_norm", "tokens", "val_loss", "val_perplexity"];
    let line = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        keys.map(|key| line[key].to_string()).join(" ")
    };
    let end = json(&run.join("summary.json"))["final_hash"].to_string();
    text.lines().map(line).chain([fs::read_to_string(run.join("samples.jsonl")).unwrap(), end]).collect()
}

#[test]
fn a_run_stops_after_the_step_asked_for_and_goes_on_to_the_same_bits() {
    for (layout, name) in [(SINGLE, "single"), (DP, "dp"), (DDP, "ddp"), (PIPELINE, "pipeline"), (MESH, "mesh")] {
        let (whole, broken) = (Lab::new(layout), Lab::new(layout));
        whole.says(0, "apply exp.yaml --threads 1 --quiet");
        // Between checkpoints, at one, and at what is there already.
        for step in [3, 8] {
            let said = broken.says(0, &format!("apply exp.yaml --threads 1 --until-step {step}"));
            assert!(said.contains(&format!("stopped after step {step} as asked")), "{name}: {said}");
            let (_, path) = broken.only();
            let summary = json(&path.join("summary.json"));
            assert_eq!((summary["status"].as_str(), summary["steps"].as_u64()), (Some("interrupted"), Some(step)));
            assert!(path.join(format!("checkpoints/step-{step:08}")).is_dir(), "{name}");
        }
        let said = broken.says(0, "apply exp.yaml --threads 1 --until-step 5");
        assert!(said.contains("has 8 steps already"), "{name}: {said}");
        broken.says(0, "apply exp.yaml --threads 1 --quiet --until-step 12");
        assert_eq!(numbers(&broken.only().1), numbers(&whole.only().1), "{name}");
        let said = broken.says(0, "apply exp.yaml --threads 1 --until-step 5");
        assert!(said.contains("up to date"), "{name}: {said}");
    }
}

#[test]
fn a_run_is_resumed_from_its_folder() {
    let (whole, broken) = (Lab::new(DP), Lab::new(DP));
    whole.says(0, "apply exp.yaml --threads 1 --quiet");
    broken.says(0, "apply exp.yaml --threads 1 --quiet --until-step 5");
    fs::remove_file(broken.dir.path().join("exp.yaml")).unwrap();
    let (id, path) = broken.only();
    let said = broken.says(0, &format!("resume {id} --threads 1"));
    assert!(said.contains("resuming from step 5 of 12"), "{said}");
    assert_eq!(numbers(&path), numbers(&whole.only().1));
    assert!(broken.says(0, "resume lab").contains("up to date"));
    // What is no longer the same is not resumed.
    let other = Lab::new(SINGLE);
    other.says(0, "apply exp.yaml --threads 1 --quiet --until-step 5");
    other.data("7 ");
    let said = other.says(2, "resume lab --threads 1");
    assert!(said.contains("its data has changed") && said.contains("runner fork"), "{said}");
    fs::remove_file(other.dir.path().join("input.txt")).unwrap();
    assert!(other.says(2, "resume lab --threads 1").contains("input.txt"));
}

#[test]
fn nothing_is_begun_of_another_plan_than_expected() {
    let lab = Lab::new(SINGLE);
    let said = lab.says(2, "apply exp.yaml --threads 1 --expect-plan 0123456789abcdef");
    assert!(said.contains("not 0123456789abcdef") && said.contains("Nothing was begun"), "{said}");
    assert!(!lab.dir.path().join("runs").exists());
    lab.says(0, "apply exp.yaml --threads 1 --quiet --sweep-point lr-abc:3");
    let (_, path) = lab.only();
    let manifest = json(&path.join("manifest.json"));
    assert_eq!((manifest["sweep"]["id"].as_str(), manifest["sweep"]["point"].as_u64()), (Some("lr-abc"), Some(3)));
    let hash = manifest["plan_hash"].as_str().unwrap();
    assert!(lab.says(0, &format!("apply exp.yaml --threads 1 --expect-plan {hash}")).contains("up to date"));
    // What differs is told where a run of the plan shows it.
    let said = lab.says(2, &format!("apply exp.yaml --threads 1 --set seed=7 --expect-plan {hash}"));
    assert!(said.contains("what differs is: seed"), "{said}");
    lab.data("7 ");
    let said = lab.says(2, &format!("apply exp.yaml --threads 1 --expect-plan {hash}"));
    assert!(said.contains("what differs is: data"), "{said}");
    assert_eq!(lab.runs().len(), 1);
}
