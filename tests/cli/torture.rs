//! A fault at every call with which the program changes files, and a loss of power after each of them. Every run either succeeds with
//! the right result or fails with a clear error, and the same command afterwards gives the right result.
//!
//! `cargo test` tries a sample of the faults, `make torture` (`RUNNER_TORTURE=all`) all of them.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod file_system;
mod injector;
mod power_loss;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hasher as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::sandbox::{Sandbox, names_in};
use file_system::{FileSystem, Survival};
use injector::{Call, FaultKind, Injector};

const APPLY: &str = "apply exp.yaml --threads 1 --quiet";
const EXPORTS: [&str; 2] = ["export torture --to safetensors out --force", "export torture --to hf out --force"];
const SEAL: &str = "seal torture out";
const PREPARATIONS: [&str; 2] = [
    "data prepare input.txt --tokenizer bytes --to llmc out --name x --shard-tokens 500",
    "data prepare input.txt --tokenizer bytes --to nanogpt out --shard-tokens 500",
];
const EXPERIMENT: &str = "version: 1\nname: torture\n\
    model: {family: gpt2, layers: 1, heads: 1, d_model: 8, context_length: 8, dropout: 0.1}\n\
    data: {tokenizer: {chars: {}}, train: {text: {files: [input.txt]}}, validation: {fraction: 0.1}}\n\
    batch: {sequences: 2, micro_batch: 2}\ntrain: {steps: 5}\n\
    eval: {every: 2, at_start: true, loss: {batches: 1}, samples: {prompts: [\"1\"], count: 1, max_tokens: 2}}\n\
    checkpoint: {every: 2, keep: 1}\n";

/// Names of what a command makes, and what they stand for.
type Products = BTreeMap<String, String>;

/// Fewer calls than this are missing in some runs of a command.
const VARYING_CALLS: usize = 3;

/// Every n-th of a series of cases; with `RUNNER_TORTURE=all` each of them.
struct Sample {
    stride: usize,
    seen: usize,
    tried: usize,
    failed: usize,
    started: Instant,
}

impl Sample {
    fn every(stride: usize) -> Self {
        let all = env::var("RUNNER_TORTURE").is_ok_and(|value| value == "all");
        Self { stride: if all { 1 } else { stride }, seen: 0, tried: 0, failed: 0, started: Instant::now() }
    }

    /// Tries the next case if it belongs to the sample or is `required`. A case that fails does not keep the others from being tried.
    fn try_next(&mut self, required: bool, case: impl FnOnce()) {
        self.seen += 1;
        if required || self.seen.is_multiple_of(self.stride) {
            self.tried += 1;
            self.failed += usize::from(catch_unwind(AssertUnwindSafe(case)).is_err());
        }
    }

    fn finish(self, what: &str) {
        let seconds = self.started.elapsed().as_secs_f64();
        eprintln!("{what}: {} of {} cases in {seconds:.1} s, {} failed", self.tried, self.seen, self.failed);
        assert_eq!(self.failed, 0, "{what}");
    }
}

/// A command that is made to fail in many ways.
struct Scenario<'a> {
    name: &'a str,
    injector: &'a Injector,
    command: &'a str,
    /// A command reports at most one error, but a sweep one of each point.
    max_errors: usize,
    /// The sandbox as it is before the command.
    prepared: Sandbox,
    /// True if the command refuses to make again what it has made.
    refuses_made: bool,
    /// Reads what the command makes.
    products: fn(&Sandbox) -> Products,
    /// Checks what a fault left.
    check_remains: fn(&Sandbox, reference: &Products, what: &str),
    /// The products of the command without faults, and its calls.
    reference: Products,
    calls: Vec<Call>,
}

impl<'a> Scenario<'a> {
    /// A command that makes runs.
    fn of_runs(injector: &'a Injector, name: &'a str, command: &'a str, prepared: Sandbox) -> Self {
        let (reference, calls) = (Products::new(), Vec::new());
        let (products, check_remains) = (results_of_runs, check_runs);
        Self {
            name,
            injector,
            command,
            max_errors: 1,
            prepared,
            refuses_made: false,
            products,
            check_remains,
            reference,
            calls,
        }
        .observed()
    }

    /// A command that writes files to the folder `out`.
    fn of_files(injector: &'a Injector, command: &'a str, prepared: Sandbox) -> Self {
        let (reference, calls) = (Products::new(), Vec::new());
        let (products, check_remains) = (visible_files, check_files_are_whole);
        Self {
            name: command,
            injector,
            command,
            max_errors: 1,
            prepared,
            refuses_made: command == SEAL,
            products,
            check_remains,
            reference,
            calls,
        }
        .observed()
    }

    /// The rest of a run that was killed.
    fn of_resumed_run(injector: &'a Injector) -> Self {
        let scenario = Self::of_runs(injector, "a resumed run", APPLY, stopped_sandbox(injector));
        assert_eq!(scenario.reference, results_of_runs(&trained_sandbox()), "a run that is not interrupted");
        scenario
    }

    fn observed(mut self) -> Self {
        let sandbox = copy_of(&self.prepared);
        self.calls = self.injector.record(&sandbox, self.command);
        self.reference = (self.products)(&sandbox);
        assert!(!self.reference.is_empty());
        self
    }

    /// Runs the command again, after a fault.
    fn check_recovery(&self, sandbox: &Sandbox, what: &str) {
        let is_made = (self.products)(sandbox) == self.reference;
        let again = sandbox.run(self.command);
        assert_eq!(again.code, if is_made && self.refuses_made { 2 } else { 0 }, "{what}: {}", again.text());
        (self.check_remains)(sandbox, &self.reference, what);
        assert_eq!((self.products)(sandbox), self.reference, "{what}");
    }

    fn check_fault(&self, number: usize, kind: FaultKind) {
        let sandbox = copy_of(&self.prepared);
        let (finished, failed) = self.injector.run(&sandbox, self.command, Some((number, kind)));
        let call = failed
            .as_ref()
            .map_or("not reached".to_owned(), |call| format!("{} {}", call.operation, call.path.display()));
        let what = format!("{}: {kind:?} at call {number} ({call}): {}", self.name, finished.text());
        // The processes of a sweep do not make their calls in the same order each time, and the threads of a run not quite as many.
        let may_be_missing = self.max_errors > 1 || self.calls.len() - number < VARYING_CALLS;
        assert!(failed.is_some() || kind == FaultKind::Full || may_be_missing, "{what}");
        match finished.code {
            0 => assert_eq!((self.products)(&sandbox), self.reference, "{what}"),
            -1 => assert!(kind.is_kill(), "{what}"),
            code => {
                assert_eq!(code, 1, "{what}");
                let errors = finished.stderr.lines().filter(|line| line.starts_with("error")).count();
                assert!((1..=self.max_errors).contains(&errors), "{what}");
                check_error(&finished.stderr, kind, &failed.unwrap().path, &what);
            }
        }
        (self.check_remains)(&sandbox, &self.reference, &what);
        self.check_recovery(&sandbox, &what);
    }

    fn check_faults(&self, mut sample: Sample) {
        for (index, call) in self.calls.iter().enumerate() {
            for kind in FaultKind::possible_for(call) {
                sample.try_next(false, || self.check_fault(index + 1, kind));
            }
        }
        sample.finish(&format!("faults: {}, {} calls", self.name, self.calls.len()));
    }
}

/// A sandbox with an experiment of a few steps.
fn new_sandbox() -> Sandbox {
    Sandbox::in_memory().with_numbers(400).with("exp.yaml", EXPERIMENT)
}

/// A sandbox with a run that is done.
fn trained_sandbox() -> Sandbox {
    let sandbox = new_sandbox();
    sandbox.expect(0, APPLY);
    sandbox
}

/// A sandbox with a run that kept two checkpoints.
fn sealable_sandbox() -> Sandbox {
    let sandbox = new_sandbox();
    sandbox.edit("exp.yaml", "keep: 1", "keep: 2");
    sandbox.expect(0, APPLY);
    sandbox
}

/// A sandbox with a run that was killed when it had written half of the last file of its second checkpoint.
fn stopped_sandbox(injector: &Injector) -> Sandbox {
    let is_last_write =
        |operation: &str, path: &Path| operation == "write" && path.ends_with(".tmp-step-00000004/state.json");
    // Checkpoints are written while training continues, so calls are not in the same order each time.
    for _ in 0..50 {
        let sandbox = new_sandbox();
        let calls = injector.record(&copy_of(&sandbox), APPLY);
        let index = calls.iter().position(|call| is_last_write(&call.operation, &call.path)).unwrap();
        let (finished, failed) = injector.run(&sandbox, APPLY, Some((index + 1, FaultKind::Torn)));
        if finished.code == -1 && failed.is_some_and(|call| is_last_write(&call.operation, &call.path)) {
            return sandbox;
        }
    }
    panic!("no kill hit the last write of the second checkpoint");
}

fn copy_of(sandbox: &Sandbox) -> Sandbox {
    let copy = Sandbox::in_memory();
    FileSystem::holding(sandbox.folder()).write_image(Survival::Names, copy.folder());
    copy
}

/// The hashes, metrics and samples of each run that has ended.
fn results_of_runs(sandbox: &Sandbox) -> Products {
    let ended = sandbox.runs().into_iter().filter(|(_, run)| run.path("summary.json").exists());
    let results = ended.map(|(id, run)| {
        let summary = run.summary();
        let hashes = ["status", "steps", "final_hash", "weights_hash"].map(|key| summary[key].to_string());
        (id, [hashes.to_vec(), run.numbers_and_samples()].concat().join("\n"))
    });
    results.collect()
}

/// Files of JSON in the folders of runs are whole, and no checkpoint was set aside because it is damaged.
fn check_runs(sandbox: &Sandbox, _: &Products, what: &str) {
    for run in sandbox.runs().values() {
        for name in ["manifest.json", "plan.json", "summary.json", "timeline.json", "tokenizer.json"] {
            let bytes = fs::read(run.path(name)).unwrap_or_else(|_| b"null".to_vec());
            assert!(serde_json::from_slice::<serde_json::Value>(&bytes).is_ok(), "{what}: {name} is damaged");
        }
        let checkpoints = run.path("checkpoints");
        let names = if checkpoints.is_dir() { names_in(&checkpoints) } else { Vec::new() };
        assert!(!names.iter().any(|name| name.ends_with(".damaged")), "{what}: {names:?}");
        // A checkpoint has its record.
        let recorded = run.metrics_of("train").len() as u64;
        let saved = (recorded + 1..=5).find(|step| run.checkpoint(*step).exists());
        assert_eq!(saved, None, "{what}: {recorded} steps are recorded");
    }
}

/// The files in `out` and below it, without hidden ones, and hashes of their contents.
fn visible_files(sandbox: &Sandbox) -> Products {
    let hash = |bytes: &[u8]| {
        let mut hasher = DefaultHasher::new();
        hasher.write(bytes);
        format!("{} bytes, {:016x}", bytes.len(), hasher.finish())
    };
    let (mut files, mut folders) = (Products::new(), vec!["out".to_owned()]);
    while let Some(folder) = folders.pop().filter(|folder| sandbox.path(folder).is_dir()) {
        for name in sandbox.names_in(&folder).into_iter().filter(|name| !name.starts_with('.')) {
            let path = format!("{folder}/{name}");
            if sandbox.path(&path).is_dir() {
                folders.push(path);
            } else {
                files.insert(path.clone(), hash(&fs::read(sandbox.path(&path)).unwrap()));
            }
        }
    }
    files
}

fn check_files_are_whole(sandbox: &Sandbox, reference: &Products, what: &str) {
    for (name, hash) in visible_files(sandbox) {
        assert_eq!(reference.get(&name), Some(&hash), "{what}: {name} is not whole");
    }
}

/// A sealed run appears whole.
fn check_is_all_or_nothing(sandbox: &Sandbox, reference: &Products, what: &str) {
    let found = visible_files(sandbox);
    assert!(found.is_empty() || found == *reference, "{what}: {:?} is not whole", found.keys());
}

/// The error names the file at `path`, or the folder of a file that has a temporary name.
fn check_error(stderr: &str, kind: FaultKind, path: &Path, what: &str) {
    assert!(!stderr.contains("panicked"), "{what}");
    // On a full disk a later file may be the one that matters. A sweep names the point whose process was killed.
    if matches!(kind, FaultKind::NoSpace | FaultKind::InputOutput) {
        let is_temporary = |name: &str| [".tmp-", ".creating-", "stage-"].iter().any(|prefix| name.starts_with(prefix));
        let named: PathBuf = path.iter().take_while(|name| !is_temporary(name.to_str().unwrap())).collect();
        assert!(stderr.contains(named.to_str().unwrap()), "{what}: {} is not named", named.display());
    }
}

#[test]
fn a_new_run_survives_faults() {
    let Some(injector) = Injector::new() else { return };
    Scenario::of_runs(&injector, "a new run", APPLY, new_sandbox()).check_faults(Sample::every(29));
}

#[test]
fn a_resumed_run_survives_faults() {
    let Some(injector) = Injector::new() else { return };
    Scenario::of_resumed_run(&injector).check_faults(Sample::every(41));
}

/// Each rank writes a part of each checkpoint, and the command the record.
#[test]
fn a_run_of_several_processes_survives_faults() {
    let Some(injector) = Injector::new() else { return };
    let sandbox = new_sandbox();
    sandbox.edit("exp.yaml", "layers: 1", "layers: 2");
    sandbox.edit("exp.yaml", "micro_batch: 2", "micro_batch: 1");
    sandbox.edit("exp.yaml", "checkpoint:", "parallel: {mode: pipeline, pipeline: {stages: 2}}\ncheckpoint:");
    let scenario = Scenario::of_runs(&injector, "a run of several processes", APPLY, sandbox);
    Scenario { max_errors: 2, ..scenario }.check_faults(Sample::every(71));
}

#[test]
fn a_sweep_survives_faults() {
    let Some(injector) = Injector::new() else { return };
    let sweep = "sweep: {base: exp.yaml, grid: {optimizer.adamw.lr: [1e-3, 2e-3]}}\n";
    let prepared = new_sandbox().with("sweep.yaml", sweep);
    let command = "sweep sweep.yaml --threads 1 --quiet --set train.steps=2";
    let scenario = Scenario::of_runs(&injector, "a sweep", command, prepared);
    Scenario { max_errors: 2, ..scenario }.check_faults(Sample::every(211));
}

#[test]
fn exports_survive_faults() {
    let Some(injector) = Injector::new() else { return };
    for command in EXPORTS {
        Scenario::of_files(&injector, command, trained_sandbox()).check_faults(Sample::every(29));
    }
}

#[test]
fn a_sealed_run_survives_faults() {
    let Some(injector) = Injector::new() else { return };
    let scenario = Scenario::of_files(&injector, SEAL, sealable_sandbox());
    let scenario = Scenario { check_remains: check_is_all_or_nothing, ..scenario };
    scenario.check_faults(Sample::every(29));
}

#[test]
fn prepared_shards_survive_faults() {
    let Some(injector) = Injector::new() else { return };
    for command in PREPARATIONS {
        Scenario::of_files(&injector, command, new_sandbox()).check_faults(Sample::every(29));
    }
}
