//! A system with a limit on threads or a wrong clock: commands fail with an error that says what to do.

#![cfg(target_os = "linux")]

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::hub;
use crate::sandbox::{Finished, Sandbox, repository_path};
use crate::tracking::mlflow_server::MlflowServer;

const EXPERIMENT: &str = "version: 1\nname: limits\n\
    model: {family: gpt2, layers: 2, heads: 1, d_model: 8, context_length: 8}\n\
    data: {tokenizer: {chars: {}}, train: {text: {files: [input.txt]}}, validation: {fraction: 0.1}}\n\
    batch: {sequences: 2, micro_batch: 1}\ntrain: {steps: 2}\n\
    eval: {every: 2, loss: {batches: 1}, samples: {prompts: [\"1\"], count: 1, max_tokens: 2}}\n";

/// More threads than any command here starts besides one for each core.
const MAX_OTHER_THREADS: usize = 60;

/// The library `tests/torture/limits.c`, and the environment of the commands.
struct Limits {
    folder: tempfile::TempDir,
    environment: Vec<(&'static str, String)>,
}

impl Limits {
    /// Compiles the library. `None` if there is no C compiler.
    fn new() -> Option<Self> {
        let limits = Self { folder: tempfile::tempdir().unwrap(), environment: Vec::new() };
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]).arg(limits.library());
        match compiler.arg(repository_path("tests/torture/limits.c")).arg("-ldl").status() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                runner_spec::skip!("there is no C compiler (cc)");
            }
            status => assert!(status.unwrap().success(), "tests/torture/limits.c does not compile"),
        }
        Some(limits)
    }

    fn library(&self) -> PathBuf {
        self.folder.path().join("limits.so")
    }

    /// Runs a command whose processes may start `threads` threads each. Also returns whether that was too few.
    fn run_with_threads(&self, sandbox: &Sandbox, command: &str, threads: usize) -> (Finished, bool) {
        let log = self.folder.path().join("failed");
        let _ = fs::remove_file(&log);
        let mut command = sandbox.command(command);
        command.env("LD_PRELOAD", self.library()).env("LIMIT_LOG", &log).env("LIMIT_THREADS", threads.to_string());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let finished = Finished::of(&mut command);
        (finished, log.exists())
    }

    /// Runs a command that starts `seconds` after 1970.
    fn run_at(&self, sandbox: &Sandbox, command: &str, seconds: i64) -> Finished {
        let mut command = sandbox.command(command);
        Finished::of(command.env("LD_PRELOAD", self.library()).env("CLOCK_SECONDS", seconds.to_string()))
    }
}

fn new_sandbox() -> Sandbox {
    let sweep = "sweep:\n  base: exp.yaml\n  grid: {seed: [1, 2]}\n  parallel: 2\n";
    Sandbox::in_memory().with_numbers(500).with("exp.yaml", EXPERIMENT).with("sweep.yaml", sweep)
}

#[test]
fn a_file_system_without_locks_trains_with_a_warning() {
    let Some(limits) = Limits::new() else { return };
    let run = |error: i32| {
        let sandbox = Sandbox::new().with_numbers(100).with("exp.yaml", EXPERIMENT);
        let mut command = sandbox.command("apply exp.yaml --threads 1");
        command.env("LD_PRELOAD", limits.library()).env("LOCK_ERROR", error.to_string());
        Finished::of(&mut command)
    };
    for error in [libc::ENOSYS, libc::EOPNOTSUPP] {
        let printed = run(error).expect_code(0).text();
        assert_eq!(printed.matches("has no file locks, so nothing keeps a second process").count(), 1, "{printed}");
    }
    let refused = run(libc::ENOLCK).expect_code(1).text();
    assert!(refused.contains("(ENOLCK)") && refused.contains("to a folder of a different file system"), "{refused}");
}

#[test]
fn every_thread_that_cannot_be_started_is_an_error_that_says_what_to_do() {
    let Some(mut limits) = Limits::new() else { return };
    let record_template = "jsonl: {files: [docs.jsonl], template: \"{{ a }}\"}";
    let sandbox = new_sandbox()
        .with("exp.yaml.j2", EXPERIMENT.replace("steps: 2", "steps: {{ 1 + 1 }}"))
        .with("records.yaml", EXPERIMENT.replace("text: {files: [input.txt]}", record_template))
        .with("docs.jsonl", "{\"a\": \"one 1 two\"}\n".repeat(50))
        .with("hub.yaml", hub::EXPERIMENT);
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    let id = sandbox.only_run().id();
    let (hub, mlflow) = (hub::serve_lines(Duration::ZERO), MlflowServer::start());
    let home = sandbox.path("hf").display().to_string();
    limits.environment = vec![("HF_ENDPOINT", hub.address.clone()), ("HF_HOME", home)];
    let ddp = "--set parallel.mode=ddp --set parallel.replicas=2";
    let max_threads = MAX_OTHER_THREADS + thread::available_parallelism().unwrap().get();
    let mut all_failed = 0;
    for command in [
        "apply exp.yaml --threads 1 --new".to_owned(),
        "apply exp.yaml --threads 2 --new --set parallel.mode=dp --set parallel.replicas=2".to_owned(),
        format!("apply exp.yaml --threads 2 --new {ddp}"),
        "sweep sweep.yaml --new --threads 1".to_owned(),
        "plan exp.yaml".to_owned(),
        "runs".to_owned(),
        "gc".to_owned(),
        format!("compare {id} {id}"),
        format!("report {id} -o report.html --force"),
        format!("eval {id} --threads 2"),
        format!("sample {id} --prompt 1 --threads 2"),
        format!("reproduce {id} --threads 1"),
        format!("export {id} --to safetensors out --force"),
        format!("seal {id} sealed"),
        "data prepare input.txt --tokenizer bytes --to nanogpt shards --force --threads 2".to_owned(),
        "tokenizer train input.txt --vocab-size 260 --out t.json --force --threads 2".to_owned(),
        "plan exp.yaml.j2".to_owned(),
        "plan records.yaml".to_owned(),
        "data prepare --from hub.yaml --to npy hub --name x --shard-tokens 50000 --force".to_owned(),
        format!("export-metrics {id} --mlflow {}", mlflow.uri()),
    ] {
        let mut failed = 0;
        for threads in 0..=max_threads {
            let (finished, too_few) = limits.run_with_threads(&sandbox, &command, threads);
            let text = finished.text();
            assert!(!text.contains("a bug in runner") && !text.contains("panicked"), "{command}, {threads}: {text}");
            if !too_few {
                assert_eq!(finished.code, 0, "{command}: {text}");
                break;
            }
            assert!(threads < max_threads, "{command} starts threads without end");
            // A command may also do without the thread.
            if finished.code != 0 {
                failed += 1;
                assert_eq!(finished.code, 1, "{command}, {threads}: {text}");
                assert!(text.contains("`ulimit -u`"), "{command}, {threads}: {text}");
            }
        }
        eprintln!("{command}: {failed} limits were too low");
        all_failed += failed;
    }
    assert!(all_failed > 0, "no limit had an effect");
}

#[test]
fn a_clock_that_no_record_can_state_is_refused() {
    let Some(limits) = Limits::new() else { return };
    let sandbox = new_sandbox();
    for (seconds, found) in [
        (-1_000_000_000, "a time before 1970"),
        (-60, "a time before 1970"),
        (253_402_300_800, "about the year 10000"),
        (1_000_000_000_000_000, "about the year 31690708"),
        (i64::MAX - 1_000_000_000_000, "about the year 292276"),
    ] {
        for command in ["plan exp.yaml", "apply exp.yaml --threads 1", "runs", "gc", "sweep sweep.yaml --threads 1"] {
            let finished = limits.run_at(&sandbox, command, seconds);
            let text = finished.text();
            assert_eq!(finished.code, 1, "{command} at {seconds}: {text}");
            assert!(text.starts_with("error: the system's clock must show a time from 1970 to 9999"), "{text}");
            assert!(text.contains(found) && text.contains("set the clock"), "{text}");
        }
    }
    assert!(sandbox.runs().is_empty());
    // The first and the last days that a record can state.
    for seconds in [3600, 253_402_214_400] {
        let finished = limits.run_at(&sandbox, "apply exp.yaml --threads 1 --new", seconds);
        assert_eq!(finished.code, 0, "{}", finished.text());
    }
    let started: Vec<String> =
        sandbox.runs().into_values().map(|run| run.manifest()["started"].as_str().unwrap()[..10].to_owned()).collect();
    assert_eq!(started, ["1970-01-01", "9999-12-31"]);
    assert_eq!(sandbox.json_of("runs --json").as_array().unwrap().len(), 2);
    sandbox.expect(0, "apply exp.yaml --threads 1");
}
