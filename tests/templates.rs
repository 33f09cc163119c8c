//! Templates through the binary: `render`, `validate`, `plan` and `apply` with variables, and what a run records of them.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// A folder with a template of a tiny experiment, its macros, and room for runs and cache.
struct Bench {
    folder: tempfile::TempDir,
}

const TEMPLATE: &str = "\
{# env: SEED #}
{% import 'sizes.j2' as sizes %}
name: tiny
seed: {{ env('SEED', 1) }}
model: {{ sizes.model(layers | default(1)) }}
data: {tokenizer: {chars: {}}, train: {text: {files: [text.txt]}}}
batch: {sequences: 4}
train: {steps: {{ steps }}}
optimizer: {adamw: {lr: {{ lr }}}}
";
const SIZES: &str = "{% macro model(layers) %}{family: gpt2, layers: {{ layers }}, heads: 2, d_model: 16, context_length: 16}{% endmacro %}\n";

impl Bench {
    fn new() -> Self {
        let bench = Self { folder: tempfile::tempdir().unwrap() };
        bench.write("exp.yaml.j2", TEMPLATE);
        fs::create_dir(bench.path("templates")).unwrap();
        bench.write("templates/sizes.j2", SIZES);
        bench.write("text.txt", &"the cat sat on a mat and saw another dog ".repeat(100));
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn run(&self, line: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_runner"));
        command.current_dir(self.folder.path()).env_remove("SEED").env_remove("RUNNER_RUNS");
        command.env("RUNNER_CACHE", self.path("cache")).args(line.split(' ')).stdin(Stdio::null());
        command.output().unwrap()
    }

    /// What it prints.
    fn ok(&self, line: &str) -> String {
        let output = self.run(line);
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// What it says about a wrong request.
    fn refused(&self, line: &str) -> String {
        let output = self.run(line);
        assert_eq!(output.status.code(), Some(2), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stderr).unwrap()
    }

    /// The one run of the name.
    fn run_dir(&self) -> PathBuf {
        let entries = fs::read_dir(self.path("runs")).unwrap().map(|e| e.unwrap().path());
        let mut found: Vec<PathBuf> = entries.filter(|p| p.join("manifest.json").exists()).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }
}

#[test]
fn render_prints_what_the_template_says() {
    let bench = Bench::new();
    bench.write("vars.yaml", "steps: 5\nlr: 1\nunused: 7\n");
    let text = bench.ok("render exp.yaml.j2 --vars vars.yaml --var lr=3e-4");
    assert!(text.contains("train: {steps: 5}\noptimizer: {adamw: {lr: 0.0003}}\n"), "{text}");
    let lines = bench.ok("render exp.yaml.j2 --vars vars.yaml --var lr=3e-4 --lines");
    assert!(lines.contains("exp.yaml.j2:8 | train: {steps: 5}\n"), "{lines}");
    // Any template, no experiment.
    bench.write("job.sh.j2", "#!/bin/sh\n{% for i in range(n) %}\nrun {{ i }}\n{% endfor %}\n");
    assert_eq!(bench.ok("render job.sh.j2 --var n=2"), "#!/bin/sh\nrun 0\nrun 1\n");
    assert!(bench.refused("render templates/sizes.yaml").contains("is not a template"));
    assert!(bench.refused("render nowhere.j2").contains("there is no such file"));
}

/// Those that come with the program are experiments, with every variable that they have.
#[test]
fn shipped_templates_are_experiments() {
    let bench = Bench::new();
    let runner = |line: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_runner"));
        command.current_dir(env!("CARGO_MANIFEST_DIR")).args(line.split(' ')).stdin(Stdio::null());
        command.env("RUNNER_CACHE", bench.path("cache")).output().unwrap()
    };
    for vars in [
        "--var lr=1e-3",
        "--var lr=1e-3 --var layers=4 --var d_model=128 --var heads=8 --var warmup=20 --var decay=linear --var steps=100",
    ] {
        let output = runner(&format!("validate experiments/stories-lr.yaml.j2 {vars}"));
        assert!(output.status.success(), "{vars}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn mistakes_are_wrong_requests_at_their_place() {
    let bench = Bench::new();
    let said = bench.refused("validate exp.yaml.j2 --var lr=1e-3 --var layers=2");
    assert!(said.contains("`steps` is not defined") && said.contains("exp.yaml.j2:8:19"), "{said}");
    let said = bench.refused("apply exp.yaml.j2 --var lr=1e-3 --var steps=0");
    assert!(
        said.contains("exp.yaml.j2:8:16") && said.contains("rendered") && said.contains("train: {steps: 0}"),
        "{said}"
    );
    let said = bench.refused("plan exp.yaml.j2 --var lr=1e-3 --var steps=5 --var layer=2");
    assert!(said.contains("did you mean `layers`?"), "{said}");
    let said = bench.refused("validate exp.yaml.j2 --var lr=1e-3 --var steps=5 --vars nowhere.yaml");
    assert!(said.contains("nowhere.yaml"), "{said}");
    bench.write("plain.yaml", "model: {preset: gpt2-nano}\n");
    assert!(bench.refused("apply plain.yaml --var lr=1e-3").contains("is not a template"));
    assert!(!bench.path("runs").exists(), "nothing was started");
}

#[test]
fn a_run_records_its_template_and_does_not_depend_on_it() {
    let bench = Bench::new();
    let line = "apply exp.yaml.j2 --var lr=1e-3 --var steps=4 --threads 1 --quiet";
    bench.ok(line);
    let dir = bench.run_dir();
    let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
    assert_eq!(read("experiment.yaml"), bench.ok("render exp.yaml.j2 --var lr=1e-3 --var steps=4"));
    assert_eq!(read("template.yaml.j2"), TEMPLATE);
    let manifest: Value = serde_json::from_str(&read("manifest.json")).unwrap();
    assert_eq!(manifest["template"], serde_json::json!({"file": "exp.yaml.j2", "vars": {"lr": 0.001, "steps": 4}}));
    // The same variables, the same run; what they rendered to is the same run, too.
    assert!(bench.ok(line).contains("up to date"));
    bench.write("rendered.yaml", &read("experiment.yaml"));
    assert!(bench.ok("apply rendered.yaml --threads 1 --quiet").contains("up to date"));
    // Without the template it is a run like any other.
    fs::remove_file(bench.path("exp.yaml.j2")).unwrap();
    bench.ok("eval tiny --batches 1");
}

#[test]
fn a_neighbour_is_included_wherever_the_command_is_called() {
    let bench = Bench::new();
    fs::create_dir(bench.path("sub")).unwrap();
    bench.write("sub/part.j2", "part");
    bench.write("sub/a.j2", "{% include 'part.j2' %} {% import 'sizes.j2' as sizes %}{{ sizes.model(1) }}");
    let expected = "part {family: gpt2, layers: 1, heads: 2, d_model: 16, context_length: 16}";
    assert_eq!(bench.ok("render sub/a.j2").trim_end(), expected);
    // By its bare name, from its own folder: templates/ then lies beside that.
    let mut command = Command::new(env!("CARGO_BIN_EXE_runner"));
    let output = command.current_dir(bench.path("sub")).args(["render", "a.j2"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), expected, "{output:?}");
}
