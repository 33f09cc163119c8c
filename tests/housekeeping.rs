//! Listing, tagging, removing and exporting runs, and making room, by the binary.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// A folder with an experiment that trains in a moment.
struct Lab {
    dir: tempfile::TempDir,
}

impl Lab {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let text: String = (0..3000u32).flat_map(|i| [(i * i % 997).to_string(), " ".to_owned()]).collect();
        fs::write(dir.path().join("input.txt"), text).unwrap();
        let yaml = "version: 1\nname: lab\nmodel: {family: gpt2, layers: 1, heads: 2, d_model: 16, context_length: 16}\n\
                    data: {tokenizer: {chars: {}}, train: {text: {files: [input.txt]}}, validation: {fraction: 0.1}}\n\
                    batch: {sequences: 4}\ntrain: {steps: 20}\n\
                    eval: {every: 10, loss: {batches: 2}, samples: {prompts: [\"1\"], count: 1, max_tokens: 4}}\n\
                    checkpoint: {every: 4, keep: 9}\n";
        fs::write(dir.path().join("exp.yaml"), yaml).unwrap();
        Self { dir }
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

    /// What a command that must succeed says on standard output.
    fn say(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text_of(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.say(arguments)).unwrap()
    }

    /// Trains with `seed`; the run's id.
    fn train(&self, seed: u32) -> String {
        let before = self.ids(&[]);
        self.say(&["apply", "exp.yaml", "--set", &format!("seed={seed}"), "--threads", "1", "--quiet"]);
        self.ids(&[]).into_iter().find(|id| !before.contains(id)).unwrap()
    }

    /// The ids that `runner runs` lists with these flags.
    fn ids(&self, flags: &[&str]) -> Vec<String> {
        let rows = self.json(&[&["runs", "--json"], flags].concat());
        rows.as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
    }

    /// The exit code of a command that must not succeed, and what it says.
    fn refused(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.run(arguments);
        assert_ne!(output.status.code(), Some(0), "{arguments:?}");
        (output.status.code().unwrap(), text_of(&output))
    }

    fn path(&self, id: &str) -> PathBuf {
        self.dir.path().join("runs").join(id)
    }

    fn steps(&self, id: &str) -> Vec<u64> {
        let shown = self.json(&["runs", "show", id, "--json"]);
        shown["checkpoints"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
    }

    /// Starts a run that does not end by itself, and waits until it trains; the process and the run's id.
    fn endless(&self) -> (Live, String) {
        let mut command = self.command(&["apply", "exp.yaml", "--set", "train.steps=10000000", "--threads", "1"]);
        let live = Live(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        let started = Instant::now();
        loop {
            assert!(started.elapsed() < Duration::from_mins(1), "it never began");
            let begun = |id: &String| fs::metadata(self.path(id).join("metrics.jsonl")).is_ok_and(|m| m.len() > 0);
            if let Some(id) = self.ids(&["--status", "running"]).into_iter().find(begun) {
                return (live, id);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A process that is killed when it goes out of scope.
struct Live(Child);

impl Drop for Live {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn text_of(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn runs_are_chosen_ordered_and_tagged() {
    let lab = Lab::new();
    let (first, second) = (lab.train(1), lab.train(2));
    let both = vec![first.clone(), second.clone()];
    assert_eq!(lab.ids(&[]), both);
    assert_eq!(lab.say(&["runs", "tag", &first, "+good", "+draft"]), format!("{first}  draft good\n"));
    assert_eq!(lab.say(&["runs", "tag", &first, "-draft", "--add", "paper"]), format!("{first}  good paper\n"));
    assert_eq!(lab.ids(&["--tag", "good", "--tag", "paper"]), *std::slice::from_ref(&first));
    assert!(lab.ids(&["--tag", "draft"]).is_empty());
    assert_eq!(lab.ids(&["--status", "done,failed", "--name", "la*", "--since", "1d"]), both);
    assert!(lab.ids(&["--status", "failed"]).is_empty());
    assert!(lab.ids(&["--since", "2100-01-01"]).is_empty());
    assert_eq!(lab.ids(&["--where", "step >= 20 and 'good' not in tags"]), *std::slice::from_ref(&second));
    assert_eq!(lab.ids(&["--sort", "-started", "--limit", "1"]), [second]);
    let table = lab.say(&["runs"]);
    assert!(table.lines().next().unwrap().ends_with("started              tags"), "{table}");
    for (arguments, expected) in [
        (vec!["runs", "--status", "don"], "did you mean done?"),
        (vec!["runs", "--where", "val_los < 3"], "did you mean `val_loss`?"),
        (vec!["runs", "--sort", "los"], "did you mean `loss`?"),
        (vec!["runs", "--since", "yesterday"], "take an age such as"),
        (vec!["runs", "--name", "[a"], "--name [a"),
        (vec!["runs", "tag", &first, "+a b"], "letters, digits"),
        (vec!["runs", "tag", &first, "nothing", "+late"], "no run nothing"),
        (vec!["runs", "tag", "+late"], "no run is given"),
    ] {
        let (code, said) = lab.refused(&arguments);
        assert!(code == 2 && said.contains(expected), "{arguments:?}: {code} {said}");
    }
    assert!(lab.ids(&["--tag", "late"]).is_empty(), "with a mistake in one name nothing is tagged");
}

#[test]
fn a_run_at_work_is_tagged_but_not_removed() {
    let lab = Lab::new();
    let (live, id) = lab.endless();
    lab.say(&["runs", "tag", &id, "+live"]);
    let (code, said) = lab.refused(&["runs", "rm", &id, "--yes"]);
    assert!(code == 2 && said.contains("is being worked on"), "{code} {said}");
    let freed = lab.json(&["gc", "--yes", "--cache", "--json"]);
    assert_eq!(freed["items"], Value::Array(vec![]), "its data is in use");
    drop(live);
    assert_eq!(lab.ids(&["--status", "interrupted", "--tag", "live"]), *std::slice::from_ref(&id));
    let (code, said) = lab.refused(&["runs", "rm", &id]);
    assert!(code == 2 && said.contains("--yes"), "nobody can be asked: {said}");
    assert!(lab.path(&id).exists());
    let said = lab.say(&["runs", "rm", &id, "--yes"]);
    assert!(said.starts_with(&format!("removed {id}  interrupted  ")), "{said}");
    assert!(lab.ids(&[]).is_empty() && !lab.path(&id).exists());
}

#[test]
fn removing_touches_runs_only() {
    let lab = Lab::new();
    let (first, second) = (lab.train(1), lab.train(2));
    let elsewhere = lab.dir.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::rename(lab.path(&second), elsewhere.join(&second)).unwrap();
    std::os::unix::fs::symlink(elsewhere.join(&second), lab.path(&second)).unwrap();
    fs::create_dir(lab.path("notes")).unwrap();
    let linked = elsewhere.join(&second).display().to_string();
    for (wanted, why) in [
        (second.as_str(), "symbolic link"),
        ("notes", "no manifest.json"),
        (linked.as_str(), "not in the folder of runs"),
    ] {
        let (code, said) = lab.refused(&["runs", "rm", &first, wanted, "--yes"]);
        assert!(code == 2 && said.contains(why), "{wanted}: {code} {said}");
    }
    assert!(lab.path(&first).exists(), "with one that is refused nothing is removed");
    let third = lab.train(3);
    let said = lab.say(&["runs", "rm", &third, &format!("./runs/{third}"), "--yes"]);
    assert_eq!(said.lines().count(), 1, "two spellings, one run: {said}");
    lab.say(&["runs", "rm", &first, "--yes", "--keep-record"]);
    assert!(lab.steps(&first).is_empty() && lab.path(&first).join("metrics.jsonl").exists());
    assert!(lab.say(&["apply", "exp.yaml", "--set", "seed=1", "--threads", "1"]).contains("up to date"));
    lab.say(&["runs", "rm", &first, "--yes"]);
    assert_eq!(names(&lab.dir.path().join("runs")).iter().filter(|n| !n.starts_with('.')).count(), 2);
    assert!(elsewhere.join(&second).join("manifest.json").exists());
}

#[test]
fn gc_frees_what_it_showed() {
    let lab = Lab::new();
    let (kept, gone) = (lab.train(1), lab.train(2));
    let text = fs::read(lab.dir.path().join("input.txt")).unwrap();
    fs::write(lab.dir.path().join("input.txt"), "another text of 0123456789, long enough for some rows. ".repeat(100))
        .unwrap();
    let other = lab.train(3);
    let tokens = lab.dir.path().join("cache/tokens");
    assert_eq!((lab.steps(&kept).len(), names(&tokens).len()), (5, 2));
    lab.say(&["runs", "rm", &gone, &other, "--yes"]);
    let shown = lab.json(&["gc", "--json"]);
    assert_eq!(shown["freed"], false);
    assert_eq!(lab.steps(&kept).len(), 5, "only shown");
    assert!(lab.say(&["gc", "--older-than", "1d", "--checkpoints"]).contains("nothing to free"));
    assert!(lab.say(&["gc"]).trim_end().ends_with("--yes does it"));
    let freed = lab.json(&["gc", "--yes", "--json"]);
    assert_eq!((&freed["items"], &freed["bytes"]), (&shown["items"], &shown["bytes"]));
    let kinds: Vec<&str> = freed["items"].as_array().unwrap().iter().map(|i| i["kind"].as_str().unwrap()).collect();
    let count = |kind: &str| kinds.iter().filter(|k| **k == kind).count();
    assert_eq!((count("data"), names(&tokens).len()), (2, 1), "tokens and characters of the removed runs: {kinds:?}");
    let steps = lab.steps(&kept);
    assert!(steps.contains(&20) && steps.len() + count("checkpoint") == 5, "{steps:?} {kinds:?}");
    assert_eq!(lab.say(&["gc"]), "nothing to free\n");
    // What is left is enough to go on with.
    fs::write(lab.dir.path().join("input.txt"), text).unwrap();
    lab.say(&["sample", &kept, "--max-tokens", "2", "--best", "--threads", "1"]);
    fs::create_dir(lab.dir.path().join("empty")).unwrap();
    let output = lab.run(&["gc", "--runs", "empty", "--yes"]);
    assert!(text_of(&output).contains("--cache frees it"), "{}", text_of(&output));
    assert_eq!(names(&tokens).len(), 1, "an empty folder of runs does not empty the cache");
    let output = lab.run(&["gc", "--runs", "empty", "--cache"]);
    assert!(text_of(&output).contains("of runs in other folders goes as well"), "{}", text_of(&output));
    let (code, said) = lab.refused(&["gc", "--runs", "nowhere"]);
    assert!(code == 2 && said.contains("nowhere is no folder of runs"), "{said}");
    let (code, said) = lab.refused(&["gc", "--older-than", "soon"]);
    assert!(code == 2 && said.contains("--older-than soon"), "{said}");
}

#[test]
fn metrics_are_exported_whole_or_not_at_all() {
    let lab = Lab::new();
    let (first, second) = (lab.train(1), lab.train(2));
    let every = ["--tensorboard", "logs", "--csv", "m.csv", "--parquet", "m.parquet"];
    let made = lab.json(&[&["export-metrics", &first, &second, "--json"], every.as_slice()].concat());
    let rows: Vec<u64> = made.as_array().unwrap().iter().map(|f| f["rows"].as_u64().unwrap()).collect();
    // Two evaluations and samples in 20 steps; and the version, and the experiment.
    assert_eq!(rows, [26, 26, 44, 44]);
    assert_eq!(names(&lab.dir.path().join("logs")).len(), 2);
    let csv = fs::read_to_string(lab.dir.path().join("m.csv")).unwrap();
    let mut lines = csv.lines();
    assert!(lines.next().unwrap().starts_with("run,kind,step,wall_time,tokens,"));
    // The numbers are those of the record, digit for digit.
    let metrics = fs::read_to_string(lab.path(&first).join("metrics.jsonl")).unwrap();
    let record: Value = serde_json::from_str(metrics.lines().next().unwrap()).unwrap();
    let cells: Vec<&str> = lines.next().unwrap().split(',').collect();
    assert_eq!((cells[0], cells[1], cells[2]), (first.as_str(), "train", "1"));
    assert_eq!(cells[6].parse::<f64>().unwrap(), record["loss"].as_f64().unwrap());
    for flag in every.chunks(2) {
        let (code, said) = lab.refused(&[&["export-metrics", &first], flag].concat());
        assert!(code == 2 && said.contains("--force replaces it"), "{flag:?}: {said}");
        lab.say(&[&["export-metrics", &first, "--force"], flag].concat());
    }
    assert_eq!(fs::read_to_string(lab.dir.path().join("m.csv")).unwrap().lines().count(), 23, "replaced");
    let (code, said) = lab.refused(&["export-metrics", &first]);
    assert!(code == 2 && said.contains("--tensorboard DIR"), "{said}");
    let (code, said) = lab.refused(&["export-metrics", &first, "--csv", "no/such/folder/m.csv"]);
    assert!(code == 1 && said.contains("no/such/folder/m.csv"), "{said}");
}

#[test]
fn json_that_cannot_be_written_is_an_error_and_the_run_is_recorded() {
    let lab = Lab::new();
    let full = || Stdio::from(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    let apply = ["apply", "exp.yaml", "--threads", "1", "--json"];
    for _ in ["trained", "up to date"] {
        let output =
            lab.command(&apply).stdout(full()).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", text_of(&output));
        assert!(text_of(&output).contains("standard output"), "{}", text_of(&output));
        assert_eq!(lab.ids(&["--status", "done"]).len(), 1);
    }
}
