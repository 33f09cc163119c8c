//! Whole runs of the binary against kills, interrupts, closed pipes and each other.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// A folder with an experiment that trains in under a second and saves often.
struct Lab {
    dir: tempfile::TempDir,
}

const STEPS: usize = 120;
/// Lines of its metrics: steps, evaluations, the one before the first step.
const LINES: usize = STEPS + STEPS / 15 + 1;

impl Lab {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let text: String = (0..4000u32).flat_map(|i| [(i * i % 997).to_string(), " ".to_owned()]).collect();
        fs::write(dir.path().join("input.txt"), text).unwrap();
        let yaml = format!(
            "version: 1\nname: lab\nmodel: {{family: gpt2, layers: 2, heads: 2, d_model: 32, context_length: 32, dropout: 0.1}}\n\
             data: {{tokenizer: {{chars: {{}}}}, train: {{text: {{files: [input.txt]}}}}, validation: {{fraction: 0.1}}}}\n\
             batch: {{sequences: 8, micro_batch: 4}}\ntrain: {{steps: {STEPS}}}\n\
             eval: {{every: 15, at_start: true, loss: {{batches: 2}}, samples: {{prompts: [\"1\"], count: 1, max_tokens: 4}}}}\n\
             checkpoint: {{every: 10, keep: 2}}\n"
        );
        fs::write(dir.path().join("exp.yaml"), yaml).unwrap();
        Self { dir }
    }

    /// One whose run does not end by itself.
    fn endless() -> Self {
        let lab = Self::new();
        let file = lab.dir.path().join("exp.yaml");
        let yaml = fs::read_to_string(&file).unwrap();
        fs::write(file, yaml.replace(&format!("steps: {STEPS}"), "steps: 10000000")).unwrap();
        lab
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_runner"));
        command.args(arguments).current_dir(self.dir.path()).stdin(Stdio::null());
        command.env_remove("RUNNER_RUNS").env("RUNNER_CACHE", self.dir.path().join("cache"));
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn spawn(&self, arguments: &[&str]) -> Child {
        self.command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// The only run there is, if there is one.
    fn find(&self) -> Option<PathBuf> {
        let mut runs = fs::read_dir(self.dir.path().join("runs")).ok()?.map(|e| e.unwrap().path());
        runs.find(|path| !path.file_name().unwrap().to_string_lossy().starts_with('.'))
    }

    fn path(&self) -> PathBuf {
        self.find().expect("a run")
    }

    fn json(&self, name: &str) -> Value {
        serde_json::from_str(&fs::read_to_string(self.path().join(name)).unwrap()).unwrap()
    }

    /// What must not depend on interruptions: lines without their times.
    fn numbers(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path().join("metrics.jsonl")).unwrap();
        text.lines()
            .map(|line| {
                let line: Value = serde_json::from_str(line).unwrap();
                let keys = ["kind", "step", "loss", "lr", "grad_norm", "tokens", "val_loss", "val_perplexity"];
                keys.map(|key| line[key].to_string()).join(" ")
            })
            .collect()
    }

    /// Starts `apply` and waits until `moment` has come; the process as it is then.
    fn until(&self, moment: &dyn Fn(&Path) -> bool) -> Child {
        let mut child = self.spawn(&["apply", "exp.yaml", "--threads", "2"]);
        let started = Instant::now();
        while !self.find().is_some_and(|path| moment(&path)) {
            assert!(started.elapsed() < Duration::from_mins(1), "the moment never came");
            if child.try_wait().unwrap().is_some() {
                break;
            }
            thread::yield_now();
        }
        child
    }
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("an exit code")
}

fn metric_lines(run: &Path) -> usize {
    fs::read(run.join("metrics.jsonl")).map_or(0, |bytes| bytes.split(|&b| b == b'\n').count() - 1)
}

fn saving(run: &Path) -> bool {
    fs::read_dir(run.join("checkpoints")).is_ok_and(|mut entries| {
        entries.any(|e| e.is_ok_and(|e| e.file_name().to_string_lossy().starts_with(".tmp-step")))
    })
}

#[test]
fn killed_at_any_moment_and_resumed_equals_uninterrupted() {
    let (whole, broken) = (Lab::new(), Lab::new());
    let output = whole.run(&["apply", "exp.yaml", "--threads", "1"]);
    assert_eq!(code(&output), 0, "{}", text(&output));
    let in_save_after = |lines: usize| move |run: &Path| metric_lines(run) > lines && saving(run);
    let moments: [&dyn Fn(&Path) -> bool; 6] = [
        &|_| true,
        &|run| metric_lines(run) >= 5,
        &|run| metric_lines(run) >= 27,
        &in_save_after(35),
        &|run| metric_lines(run) >= 77,
        &in_save_after(100),
    ];
    for moment in moments {
        let mut child = broken.until(moment);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let output = broken.run(&["apply", "exp.yaml"]);
    assert_eq!(code(&output), 0, "{}", text(&output));
    assert!(text(&output).contains("resuming from step"), "{}", text(&output));
    assert_eq!(broken.numbers(), whole.numbers());
    assert_eq!(whole.numbers().len(), LINES);
    let [a, b] = [&whole, &broken].map(|lab| lab.json("summary.json"));
    for key in ["final_hash", "weights_hash", "steps", "tokens", "final_train_loss", "last_eval", "best_eval"] {
        assert_eq!(a[key], b[key], "{key}");
        assert!(!a[key].is_null(), "{key}");
    }
    let samples = |lab: &Lab| fs::read_to_string(lab.path().join("samples.jsonl")).unwrap();
    assert_eq!(samples(&whole), samples(&broken));
    let leftovers = fs::read_dir(broken.path().join("checkpoints")).unwrap().count();
    assert!(leftovers <= 3, "the newest two and the best");
}

#[test]
fn a_finished_run_is_left_alone() {
    let lab = Lab::new();
    assert_eq!(code(&lab.run(&["apply", "exp.yaml", "--quiet"])), 0);
    let state = || {
        let mut files: Vec<_> = fs::read_dir(lab.path()).unwrap().map(|e| e.unwrap()).collect();
        files.sort_by_key(fs::DirEntry::path);
        files.iter().map(|e| (e.path(), e.metadata().unwrap().modified().unwrap())).collect::<Vec<_>>()
    };
    let before = state();
    let output = lab.run(&["apply", "exp.yaml"]);
    assert_eq!(code(&output), 0);
    assert!(text(&output).contains("up to date"), "{}", text(&output));
    assert_eq!(state(), before, "nothing is written");
    let output = lab.run(&["apply", "exp.yaml", "--new", "--quiet"]);
    assert_eq!((code(&output), text(&output).lines().count()), (0, 1), "{}", text(&output));
    assert!(text(&output).starts_with("done: lab-") && text(&output).contains("-2, 120 steps"), "{}", text(&output));
    let first = lab.json("manifest.json");
    assert_eq!(first["status"], "done");
    // An ambiguous and a unique name.
    let output = lab.run(&["runs", "show", "la"]);
    assert_eq!(code(&output), 2);
    assert!(text(&output).contains("-2"), "{}", text(&output));
    let id = first["id"].as_str().unwrap();
    let output = lab.run(&["runs", "show", id, "--json"]);
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&shown["run"]["id"], &shown["summary"]["steps"]), (&Value::from(id), &Value::from(STEPS)));
    let listed: Value = serde_json::from_slice(&lab.run(&["runs", "--json"]).stdout).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 2);
}

#[test]
#[cfg(unix)]
fn an_interrupt_saves_and_the_run_goes_on() {
    for signal in ["INT", "TERM"] {
        let lab = Lab::new();
        let mut child = lab.until(&|run| metric_lines(run) >= 33);
        let pid = child.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
        assert_eq!(child.wait().unwrap().code(), Some(130), "{signal}");
        let summary = lab.json("summary.json");
        assert_eq!(summary["status"], "interrupted");
        let step = summary["steps"].as_u64().unwrap();
        assert!(lab.path().join(format!("checkpoints/step-{step:08}")).is_dir(), "saved at {step}");
        let output = lab.run(&["apply", "exp.yaml"]);
        assert_eq!(code(&output), 0);
        assert!(text(&output).contains(&format!("resuming from step {step} of {STEPS}")), "{}", text(&output));
        assert_eq!(lab.json("manifest.json")["sessions"].as_array().unwrap().len(), 2);
        assert_eq!(lab.numbers().len(), LINES);
    }
}

#[test]
fn the_second_of_two_at_once_is_refused() {
    let lab = Lab::endless();
    let mut child = lab.until(&|run| metric_lines(run) >= 3);
    let output = lab.run(&["apply", "exp.yaml"]);
    let first = child.try_wait().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(first.is_none(), "the first is not disturbed");
    assert_eq!(code(&output), 2, "{}", text(&output));
    assert!(text(&output).contains(&format!("pid {}", child.id())), "{}", text(&output));
}

/// Started at the same moment, on nothing: one of them makes the run, the others are refused.
#[test]
fn simultaneous_starts_make_one_run() {
    let lab = Lab::endless();
    let mut children: Vec<Child> = (0..3).map(|_| lab.spawn(&["apply", "exp.yaml", "--threads", "1"])).collect();
    let started = Instant::now();
    let ended =
        |children: &mut Vec<Child>| children.iter_mut().filter_map(|c| c.try_wait().unwrap()).collect::<Vec<_>>();
    while ended(&mut children).len() < 2 && started.elapsed() < Duration::from_mins(1) {
        thread::sleep(Duration::from_millis(5));
    }
    let refused = ended(&mut children);
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(refused.iter().map(ExitStatus::code).collect::<Vec<_>>(), [Some(2), Some(2)]);
    let runs = fs::read_dir(lab.dir.path().join("runs")).unwrap().map(|e| e.unwrap().path());
    assert_eq!(runs.filter(|path| path.is_dir()).count(), 1);
}

#[test]
fn a_number_that_is_not_finite_stops_the_run_and_keeps_the_checkpoint() {
    let lab = Lab::new();
    let diverges = [
        "apply",
        "exp.yaml",
        "--set",
        "optimizer={sgd: {lr: 10000}}",
        "--set",
        "train.clip_norm=null",
        "--set",
        "checkpoint.every=1",
    ];
    let output = lab.run(&diverges);
    assert_eq!(code(&output), 1, "{}", text(&output));
    assert!(text(&output).contains("not finite") && text(&output).contains("is kept"), "{}", text(&output));
    assert_eq!(lab.json("summary.json")["status"], "failed");
    assert!(lab.json("manifest.json")["error"].as_str().unwrap().contains("not finite"));
    assert!(fs::read_dir(lab.path().join("checkpoints")).unwrap().count() > 0);
    let again = lab.run(&diverges);
    assert_eq!(code(&again), 1);
    assert!(text(&again).contains("resuming from step"), "{}", text(&again));
    let listed = text(&lab.run(&["runs"]));
    assert!(listed.contains("failed"), "{listed}");
}

#[test]
fn a_truncated_checkpoint_is_told_and_the_one_before_serves() {
    let (whole, broken) = (Lab::new(), Lab::new());
    whole.run(&["apply", "exp.yaml", "--quiet"]);
    let mut child = broken.until(&|run| metric_lines(run) >= 60);
    child.kill().unwrap();
    child.wait().unwrap();
    let mut steps: Vec<PathBuf> = fs::read_dir(broken.path().join("checkpoints"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.file_name().unwrap().to_string_lossy().starts_with("step-"))
        .collect();
    steps.sort();
    let newest = steps.last().unwrap().join("model.safetensors");
    let file = fs::File::options().write(true).open(&newest).unwrap();
    file.set_len(100).unwrap();
    let output = broken.run(&["apply", "exp.yaml"]);
    assert_eq!(code(&output), 0, "{}", text(&output));
    assert!(text(&output).contains("model.safetensors is cut short"), "{}", text(&output));
    assert_eq!(broken.numbers(), whole.numbers());
    assert_eq!(broken.json("summary.json")["final_hash"], whole.json("summary.json")["final_hash"]);
}

#[test]
fn json_is_json_and_errors_are_not_on_standard_output() {
    let lab = Lab::new();
    let output = lab.run(&["apply", "exp.yaml", "--json", "--set", "train.steps=20"]);
    let kinds: Vec<String> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["kind"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!((kinds[0].as_str(), kinds[kinds.len() - 1].as_str()), ("start", "summary"));
    assert_eq!(kinds.iter().filter(|k| *k == "train").count(), 20);
    let output = lab.run(&["apply", "missing.yaml", "--json"]);
    assert_eq!((code(&output), output.stdout.len()), (2, 0), "{}", text(&output));
    let output = lab.run(&["apply", "exp.yaml", "--set", "batch.micro_bach=4"]);
    assert_eq!(code(&output), 2);
    assert!(text(&output).contains("micro_batch"), "{}", text(&output));
    let output = lab.run(&["runs", "show", "nothing"]);
    assert_eq!(code(&output), 2, "{}", text(&output));
}

#[test]
#[cfg(unix)]
fn readers_may_go_away() {
    let lab = Lab::new();
    let binary = env!("CARGO_BIN_EXE_runner");
    for command in ["schema", "runs", "apply exp.yaml", "validate exp.yaml --explain"] {
        let line = format!("{{ {binary} {command}; echo rc=$? >&2; }} | true");
        let mut shell = Command::new("sh");
        shell.args(["-c", &line]).current_dir(lab.dir.path()).env("RUNNER_CACHE", lab.dir.path().join("cache"));
        let output = shell.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains("rc=0") && !stderr.contains("panicked"), "{command}: {stderr}");
    }
    assert_eq!(lab.json("summary.json")["status"], "done");
}

#[test]
fn broken_folders_are_listed_as_broken() {
    let lab = Lab::new();
    lab.run(&["apply", "exp.yaml", "--quiet", "--set", "train.steps=5"]);
    let runs = lab.dir.path().join("runs");
    fs::create_dir(runs.join("empty")).unwrap();
    fs::create_dir(runs.join("odd")).unwrap();
    fs::write(runs.join("odd/manifest.json"), "[1, 2").unwrap();
    let output = lab.run(&["runs"]);
    assert_eq!(code(&output), 0);
    assert_eq!(text(&output).matches("broken").count(), 2, "{}", text(&output));
    let output = lab.run(&["runs", "show", "odd"]);
    assert_eq!(code(&output), 1);
    assert!(text(&output).contains("manifest.json"), "{}", text(&output));
}
