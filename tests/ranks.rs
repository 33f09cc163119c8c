//! Runs of several ranks as processes: the same numbers under every layout, and what happens when ranks, or their parent,
//! are killed, stopped and interrupted.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot be set up has failed")]
#![allow(clippy::print_stderr, reason = "how long an end took is worth reading")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

const STEPS: usize = 120;

const SINGLE: &str = "";
const DP: &str = "parallel: {mode: dp, replicas: 2}\n";
const DDP: &str = "parallel: {mode: ddp, replicas: 2}\n";
const PIPELINE: &str = "parallel: {mode: pipeline, pipeline: {stages: 2}}\n";
const MESH: &str = "parallel: {mode: pipeline, replicas: 2, pipeline: {stages: 2}}\n";
const THREE: &str = "parallel: {mode: pipeline, pipeline: {stages: 3}}\n";

/// Most that may pass from the end of a rank to the end of the run. Generous: it is to be seconds, and not minutes.
const SECONDS: Duration = Duration::from_secs(10);

/// Whether a run directory is as far as a test waits for.
type Moment<'a> = &'a dyn Fn(&Path) -> bool;

/// A folder with an experiment of a tiny model that saves often.
struct Lab {
    dir: tempfile::TempDir,
}

/// A process that does not outlive its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn yaml(parallel: &str) -> String {
    format!(
        "version: 1\nname: lab\nmodel: {{family: gpt2, layers: 4, heads: 2, d_model: 32, context_length: 32, dropout: 0.1}}\n\
         data: {{tokenizer: {{chars: {{}}}}, train: {{text: {{files: [input.txt]}}}}, validation: {{fraction: 0.1}}}}\n\
         batch: {{sequences: 8, micro_batch: 2}}\ntrain: {{steps: {STEPS}}}\n\
         eval: {{every: 30, at_start: true, loss: {{batches: 3}}, samples: {{prompts: [\"1\", \"2\"], count: 1, max_tokens: 4}}}}\n\
         checkpoint: {{every: 10, keep: 2}}\n{parallel}"
    )
}

impl Lab {
    fn new(parallel: &str) -> Self {
        Self::of(&yaml(parallel), 4000)
    }

    /// One whose evaluations are of `batches` micro-batches, a tenth of a millisecond each at best.
    fn evaluating(parallel: &str, batches: u32) -> Self {
        let yaml = yaml(parallel)
            .replace("fraction: 0.1", "fraction: 0.8")
            .replace("batches: 3", &format!("batches: {batches}"));
        Self::of(&yaml.replace(&format!("steps: {STEPS}"), "steps: 40"), 25 * batches)
    }

    fn of(yaml: &str, numbers: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let text: String = (0..numbers).flat_map(|i| [(i * (i % 4093) % 997).to_string(), " ".to_owned()]).collect();
        fs::write(dir.path().join("input.txt"), text).unwrap();
        fs::write(dir.path().join("exp.yaml"), yaml).unwrap();
        Self { dir }
    }

    /// Adds the experiment `name` under another layout.
    fn add(&self, name: &str, parallel: &str) {
        fs::write(self.dir.path().join(name), yaml(parallel)).unwrap();
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

    /// `apply`, to its end.
    fn apply(&self, more: &[&str]) -> Output {
        let output = self.run(&[&["apply", "exp.yaml", "--threads", "2"], more].concat());
        assert_eq!(code(&output), 0, "{}", text(&output));
        output
    }

    /// The runs there are, by id.
    fn runs(&self) -> BTreeMap<String, PathBuf> {
        let Ok(entries) = fs::read_dir(self.dir.path().join("runs")) else { return BTreeMap::new() };
        let named = entries.map(|e| e.unwrap()).map(|e| (e.file_name().into_string().unwrap(), e.path()));
        named.filter(|(name, _)| !name.starts_with('.')).collect()
    }

    /// The only run there is.
    fn path(&self) -> PathBuf {
        let runs: Vec<PathBuf> = self.runs().into_values().collect();
        assert_eq!(runs.len(), 1, "{runs:?}");
        runs[0].clone()
    }

    fn json(&self, name: &str) -> Value {
        json(&self.path().join(name))
    }

    fn hash(&self) -> String {
        self.json("summary.json")["final_hash"].as_str().unwrap().to_owned()
    }

    /// `apply` with `faults` (see `launch::faults`), which must fail; what it said.
    fn fails(&self, faults: &str) -> String {
        let started = Instant::now();
        let output = self.run(&["apply", "exp.yaml", "--threads", "2", "--test-faults", faults]);
        eprintln!("{faults}: ended after {:?}", started.elapsed());
        assert_eq!(code(&output), 1, "{}", text(&output));
        assert_eq!(self.processes(), Vec::<u32>::new(), "a rank is left");
        assert!(!saving(&self.path()), "half a checkpoint is left");
        text(&output)
    }

    /// The processes that work in this folder.
    fn processes(&self) -> Vec<u32> {
        let here = self.dir.path().canonicalize().unwrap();
        let works = |pid: &u32| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == here) && lives(*pid);
        pids().into_iter().filter(works).collect()
    }

    /// What rank `rank` wrote to its standard error.
    fn log(&self, rank: usize) -> String {
        fs::read_to_string(self.path().join(format!("ranks/rank-{rank}.log"))).unwrap()
    }

    /// Starts `apply` with `faults` in a process group of its own, and waits until its ranks are there and `moment` has
    /// come.
    fn until(&self, world: usize, faults: &str, moment: Moment<'_>) -> (Running, BTreeMap<usize, u32>) {
        let mut command = self.command(&["apply", "exp.yaml", "--threads", "2"]);
        if !faults.is_empty() {
            command.args(["--test-faults", faults]);
        }
        command.stdout(Stdio::null()).stderr(fs::File::create(self.dir.path().join("err.txt")).unwrap());
        command.process_group(0);
        let mut child = Running(command.spawn().unwrap());
        let started = Instant::now();
        let mut ranks = BTreeMap::new();
        while ranks.len() < world || !self.runs().values().any(|path| moment(path)) {
            assert!(started.elapsed() < Duration::from_mins(2), "the moment never came");
            let ended = child.0.try_wait().unwrap();
            assert_eq!(ended, None, "it ended too early: {}", self.errors());
            if ranks.len() < world {
                ranks = ranks_of(child.0.id());
            }
        }
        (child, ranks)
    }

    fn errors(&self) -> String {
        fs::read_to_string(self.dir.path().join("err.txt")).unwrap()
    }
}

fn pids() -> Vec<u32> {
    fs::read_dir("/proc").unwrap().filter_map(|e| e.unwrap().file_name().to_str()?.parse().ok()).collect()
}

/// Rank and process id of the ranks that `parent` started.
fn ranks_of(parent: u32) -> BTreeMap<usize, u32> {
    let rank = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let of: u32 = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
        let mut words = line.split('\0').skip_while(|word| *word != "--rank");
        (of == parent).then(|| Some((words.nth(1)?.parse().ok()?, pid)))?
    };
    pids().into_iter().filter_map(rank).collect()
}

/// Whether the process is there; one that ended but was not reaped is not.
fn lives(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

fn signal(name: &str, pid: &str) {
    assert!(Command::new("kill").args(["-s", name, "--", pid]).status().unwrap().success());
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("an exit code")
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn lines(run: &Path) -> Vec<Value> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Of each line what is no time.
fn numbers(run: &Path) -> Vec<String> {
    let keys = ["kind", "step", "loss", "lr", "grad_norm", "tokens", "val_loss", "val_perplexity"];
    lines(run).iter().map(|line| keys.map(|key| line[key].to_string()).join(" ")).collect()
}

fn at(steps: usize) -> impl Fn(&Path) -> bool {
    move |run| lines(run).iter().any(|line| line["kind"] == "train" && line["step"] == steps)
}

fn saving(run: &Path) -> bool {
    fs::read_dir(run.join("checkpoints"))
        .is_ok_and(|mut all| all.any(|e| e.is_ok_and(|e| e.file_name().to_string_lossy().starts_with(".tmp-step"))))
}

/// The inodes of the memory that the process shares with other ranks: it has no name to be left behind, so what can be left
/// is a process that has it.
fn shared_memory(pid: u32) -> BTreeSet<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let inode = |line: &str| line.split_whitespace().nth(4).map(str::to_owned);
    maps.lines().filter(|line| line.contains("/memfd:runner")).filter_map(inode).collect()
}

/// Waits for the end of `child`, whose ranks must then be gone and leave nothing.
fn ended(lab: &Lab, child: &mut Running, ranks: &BTreeMap<usize, u32>, what: &str) -> ExitStatus {
    let started = Instant::now();
    let status = child.0.wait().unwrap();
    let took = started.elapsed();
    eprintln!("{what}: ended after {took:?}");
    assert!(took < SECONDS, "{what}: {took:?}");
    assert!(!ranks.values().any(|&pid| lives(pid)), "{what}: a rank is left");
    assert!(!saving(&lab.path()), "{what}: half a checkpoint is left");
    status
}

#[test]
fn layouts_agree_with_one_process_and_with_themselves() {
    let single = Lab::new(SINGLE);
    single.apply(&["--quiet"]);
    let expected = lines(&single.path());
    for (layout, world, parts) in [(DP, 2, 1), (DDP, 2, 1), (PIPELINE, 2, 2), (MESH, 4, 2)] {
        let lab = Lab::new(layout);
        lab.apply(&["--quiet"]);
        let found = lines(&lab.path());
        assert_eq!(found.len(), expected.len(), "{layout}");
        for (a, b) in expected.iter().zip(&found) {
            assert_eq!((&a["kind"], &a["step"], &a["tokens"]), (&b["kind"], &b["step"], &b["tokens"]), "{layout}");
            for key in ["loss", "val_loss"] {
                let (Some(a), Some(b)) = (a[key].as_f64(), b[key].as_f64()) else { continue };
                // Sums in another order round otherwise, by about 1e-7 each, and a hundred steps of AdamW spread that.
                assert!((a - b).abs() <= 1e-4 * a, "{layout}: {key} {a} and {b}");
            }
            assert_eq!(b["kind"] == "train", b["comm_ms"].is_number(), "{b}");
        }
        let summary = lab.json("summary.json");
        assert_eq!(summary["ranks"].as_array().unwrap().len(), world, "{layout}");
        if layout != DP {
            let peaks = summary["ranks"].as_array().unwrap().iter().map(|r| r["peak_rss_bytes"].as_u64().unwrap());
            assert_eq!(summary["peak_rss_bytes"].as_u64(), Some(peaks.sum()), "{layout}");
        }
        let last = lab.path().join(format!("checkpoints/step-{STEPS:08}"));
        let models = fs::read_dir(last).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        assert_eq!(models.filter(|name| name.starts_with("model")).count(), parts, "{layout}");
        let hash = lab.hash();
        lab.apply(&["--quiet", "--new"]);
        let again = lab.runs().into_values().next_back().unwrap();
        assert_eq!(json(&again.join("summary.json"))["final_hash"], hash.as_str(), "{layout}");
    }
}

#[test]
fn a_killed_rank_ends_the_run_which_then_goes_on() {
    for (layout, world) in [(DDP, 2), (MESH, 4)] {
        let whole = Lab::new(layout);
        whole.apply(&["--quiet"]);
        let broken = Lab::new(layout);
        // Its parts are written, and not yet told of.
        let saves = |run: &Path| at(35)(run) && saving(run);
        let moments: [(&str, &str, &str, Moment<'_>); 2] =
            [("step", "", "in step ", &at(15)), ("save", "save=800@40", "in step 40 at periodic[", &saves)];
        for (what, faults, place, moment) in moments {
            let (mut child, ranks) = broken.until(world, faults, moment);
            let shared = shared_memory(ranks[&0]);
            assert_eq!(shared.len(), 1, "{shared:?}");
            assert_eq!(shared_memory(child.0.id()), shared);
            signal("KILL", &ranks[&(world - 1)].to_string());
            let status = ended(&broken, &mut child, &ranks, &format!("{layout:?} killed in a {what}"));
            let errors = broken.errors();
            assert_eq!(status.code(), Some(1), "{errors}");
            assert!(!pids().into_iter().any(|pid| !shared_memory(pid).is_disjoint(&shared)), "{shared:?} is left");
            let name = format!("rank {} was killed by SIGKILL {place}", world - 1);
            assert!(errors.contains(&name) && errors.contains("] "), "{errors}");
            assert!(errors.contains("is kept; the same command resumes from it"), "{errors}");
            assert!(!errors.contains("aborted"), "those who followed say nothing: {errors}");
            assert_eq!(broken.json("summary.json")["status"], "failed");
        }
        let output = broken.apply(&[]);
        assert!(text(&output).contains("resuming from step"), "{}", text(&output));
        assert_eq!(numbers(&broken.path()), numbers(&whole.path()), "{layout}");
        assert_eq!(broken.hash(), whole.hash(), "{layout}");
    }
}

#[test]
fn a_rank_killed_while_all_evaluate() {
    let (whole, broken) = (Lab::evaluating(PIPELINE, 6000), Lab::evaluating(PIPELINE, 6000));
    let (mut child, ranks) = broken.until(2, "", &at(30));
    thread::sleep(Duration::from_millis(100));
    signal("KILL", &ranks[&0].to_string());
    let status = ended(&broken, &mut child, &ranks, "killed in an evaluation");
    let errors = broken.errors();
    assert_eq!(status.code(), Some(1), "{errors}");
    assert!(errors.contains("rank 0 was killed by SIGKILL in step 30 at periodic["), "{errors}");
    assert!(errors.contains("] Evaluate"), "{errors}");
    broken.apply(&["--quiet"]);
    whole.apply(&["--quiet"]);
    assert_eq!(broken.hash(), whole.hash());
}

#[test]
fn a_second_interrupt_ends_all_at_once() {
    let lab = Lab::evaluating(PIPELINE, 30_000);
    // During the evaluation before the first step: ranks look whether to stop in steps only.
    let (mut child, ranks) = lab.until(2, "", &|_| true);
    let group = format!("-{}", child.0.id());
    signal("INT", &group);
    thread::sleep(Duration::from_millis(200));
    assert!(child.0.try_wait().unwrap().is_none(), "one interrupt waits for the step: {}", lab.errors());
    signal("INT", &group);
    let status = child.0.wait().unwrap();
    assert_eq!(status.code(), Some(130), "{}", lab.errors());
    let started = Instant::now();
    while ranks.values().any(|&pid| lives(pid)) {
        assert!(started.elapsed() < SECONDS, "a rank lives on");
    }
    assert_eq!(lab.json("manifest.json")["status"], "running", "nothing was recorded any more");
}

#[test]
fn a_stopped_rank_is_noticed() {
    let lab = Lab::new(DDP);
    let (mut child, ranks) = lab.until(2, "silence=2000", &at(15));
    signal("STOP", &ranks[&1].to_string());
    let status = ended(&lab, &mut child, &ranks, "stopped");
    let errors = lab.errors();
    assert_eq!(status.code(), Some(1), "{errors}");
    assert!(errors.contains("rank 1 gave no sign of life") && errors.contains("process is stopped"), "{errors}");
    lab.apply(&["--quiet"]);
}

#[test]
fn a_rank_that_hangs_is_noticed() {
    let lab = Lab::new(DDP);
    let errors = lab.fails("patience=1500,hang=1@15");
    assert!(errors.contains("rank 1 hung: it did not come on for "), "{errors}");
    assert!(errors.contains(" s in step 15 at step[0] "), "{errors}");
    lab.apply(&["--quiet"]);
    // Before anyone has looked for long enough, one that waits for it gives up; the first stage waits for the second, and
    // that one for the third.
    let lab = Lab::new(THREE);
    let errors = lab.fails("wait=2000,hang=2@15");
    assert!(errors.contains("rank 2 hung: it did not come on for 2 s in step 15 at step[0] "), "{errors}");
    assert!((0..2).any(|rank| lab.log(rank).contains("rank 2")), "{}{}", lab.log(0), lab.log(1));
}

#[test]
fn a_death_that_comes_again_is_left_alone() {
    let lab = Lab::new(&DDP.replace('}', ", max_restarts: 5}"));
    let errors = lab.fails("panic=1@15");
    assert!(errors.contains("rank 1 exited with code 101 in step 15 at step[0] "), "{errors}");
    assert!(errors.contains("so they are not started once more; the checkpoint of step 10 is kept"), "{errors}");
    // The first attempt saved step 10, the two after it nothing.
    assert_eq!(lab.json("manifest.json")["sessions"][0]["restarts"], 2);
    assert!(lab.log(1).contains("a panic in step 15, as asked for"), "{}", lab.log(1));
    assert!(lab.log(0).contains("because of rank 1"), "{}", lab.log(0));
}

/// All ranks find out together that a number is not finite; which of them says so does not depend on who is first.
#[test]
fn a_bad_number_is_told_the_same_way_each_time() {
    let bad = "optimizer: {adamw: {lr: 1000}}\ntrain: {clip_norm: null, steps";
    let lab = Lab::of(&yaml(MESH).replace("train: {steps", bad), 4000);
    let errors: BTreeSet<String> = (0..3)
        .map(|_| {
            let output = lab.run(&["apply", "exp.yaml", "--new", "--quiet"]);
            assert_eq!(code(&output), 1, "{}", text(&output));
            let said = text(&output);
            let from = said.find("rank ").expect("a rank is named");
            said[from..].split("; its log").next().unwrap().to_owned()
        })
        .collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors.first().unwrap().contains("is not finite"), "{errors:?}");
}

#[test]
fn a_run_that_is_deleted_while_it_trains_has_failed() {
    let lab = Lab::new(DDP);
    let (mut child, _ranks) = lab.until(2, "", &at(15));
    let path = lab.path();
    // A file that is written at this moment may come between.
    while path.exists() {
        let _ = fs::remove_dir_all(&path);
    }
    assert_eq!(child.0.wait().unwrap().code(), Some(1), "{}", lab.errors());
    assert!(!path.join("summary.json").exists(), "nothing says that it is done");
}

#[test]
fn what_a_rank_fails_of_is_told() {
    // A full disk.
    let lab = Lab::new(DDP);
    let errors = lab.fails("full=0@20");
    assert!(
        errors.contains("rank 0 failed in step 20 at periodic[") && errors.contains("the disk is full"),
        "{errors}"
    );
    assert!(errors.contains("the checkpoint of step 10 is kept"), "{errors}");
    assert!(lab.log(0).contains("the disk is full"), "{}", lab.log(0));
    assert!(lab.log(1).contains("because of rank 0"), "{}", lab.log(1));
    // One that cannot be started: the one that was started before it must go.
    let log = lab.path().join("ranks/rank-1.log");
    fs::remove_file(&log).unwrap();
    fs::create_dir(&log).unwrap();
    let errors = lab.fails("start=60000");
    assert!(errors.contains("rank 1 cannot be started"), "{errors}");
    fs::remove_dir(&log).unwrap();
    lab.apply(&["--quiet"]);
    // Data that is no longer what the plan was made for.
    let lab = Lab::new(DDP);
    let (mut child, ranks) = lab.until(2, "start=1000", &|_| true);
    let input = lab.dir.path().join("input.txt");
    fs::write(&input, fs::read_to_string(&input).unwrap() + "1 2 3 ").unwrap();
    let status = ended(&lab, &mut child, &ranks, "data changed");
    let errors = lab.errors();
    assert_eq!(status.code(), Some(1), "{errors}");
    assert!(
        errors.contains(
            "failed while starting: the data, or the weights to start from, changed since the run was started"
        ),
        "{errors}"
    );
}

#[test]
fn a_reader_who_stands_still_does_not_hold_up_the_run() {
    let lab = Lab::new(DDP);
    let set = ["--set", "train.steps=300", "--set", "checkpoint.every=100"];
    let mut command = lab.command(&[&["apply", "exp.yaml", "--threads", "2", "--json", "--quiet"], &set[..]].concat());
    let mut child = Running(command.stdout(Stdio::piped()).spawn().unwrap());
    let started = Instant::now();
    while !lab.runs().values().any(|run| run.join("summary.json").exists()) {
        assert!(started.elapsed() < Duration::from_mins(1), "the run waits for whoever reads of it");
        thread::sleep(Duration::from_millis(10));
    }
    let mut said = String::new();
    child.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(child.0.wait().unwrap().success());
    assert!(said.len() > 64 << 10, "{} bytes fit in a pipe", said.len());
    let said: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let steps: Vec<u64> = said.iter().filter(|l| l["kind"] == "train").map(|l| l["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, (1..=300).collect::<Vec<u64>>());
    assert_eq!(said.last().unwrap()["kind"], "summary");
}

#[test]
fn ranks_do_not_outlive_their_parent() {
    let (whole, broken) = (Lab::new(PIPELINE), Lab::new(PIPELINE));
    let (mut child, ranks) = broken.until(2, "", &at(25));
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    let started = Instant::now();
    while ranks.values().any(|&pid| lives(pid)) {
        assert!(started.elapsed() < SECONDS, "a rank lives on");
        thread::sleep(Duration::from_millis(1));
    }
    eprintln!("parent killed: ranks ended after {:?}", started.elapsed());
    broken.apply(&["--quiet"]);
    whole.apply(&["--quiet"]);
    assert_eq!((broken.hash(), numbers(&broken.path())), (whole.hash(), numbers(&whole.path())));
}

#[test]
fn an_interrupt_of_the_whole_group_saves() {
    let whole = Lab::new(MESH);
    whole.apply(&["--quiet"]);
    for name in ["INT", "TERM"] {
        let lab = Lab::new(MESH);
        let (mut child, ranks) = lab.until(4, "", &at(25));
        // Ctrl-C goes to all processes of the group, a plain kill to one.
        signal(name, &if name == "INT" { format!("-{}", child.0.id()) } else { child.0.id().to_string() });
        let status = ended(&lab, &mut child, &ranks, name);
        assert_eq!(status.code(), Some(130), "{}", lab.errors());
        let summary = lab.json("summary.json");
        assert_eq!(summary["status"], "interrupted");
        let step = summary["steps"].as_u64().unwrap();
        assert!(lab.path().join(format!("checkpoints/step-{step:08}")).is_dir(), "saved at {step}");
        let output = lab.apply(&[]);
        assert!(text(&output).contains(&format!("resuming from step {step}")), "{}", text(&output));
        assert_eq!(lab.hash(), whole.hash());
    }
}

#[test]
fn ranks_start_again_as_often_as_allowed() {
    let whole = Lab::new(DDP);
    whole.apply(&["--quiet"]);
    let once = DDP.replace('}', ", max_restarts: 1}");
    let lab = Lab::new(&once);
    let (mut child, ranks) = lab.until(2, "", &at(25));
    signal("KILL", &ranks[&0].to_string());
    let status = child.0.wait().unwrap();
    assert_eq!(status.code(), Some(0), "{}", lab.errors());
    assert_eq!((lab.hash(), numbers(&lab.path())), (whole.hash(), numbers(&whole.path())));
    assert!(lab.errors().contains("all ranks start again from step"), "{}", lab.errors());
    assert!(fs::read_to_string(lab.path().join("log.txt")).unwrap().contains("killed by SIGKILL"));
    assert_eq!(lab.json("manifest.json")["sessions"][0]["restarts"], 1);
    // A number that is not finite would come again.
    let lab = Lab::new(&once);
    let diverges = ["apply", "exp.yaml", "--set", "optimizer={sgd: {lr: 10000}}", "--set", "train.clip_norm=null"];
    let output = lab.run(&diverges);
    let errors = text(&output);
    assert!(code(&output) == 1 && errors.contains("not finite") && errors.contains("learning rate"), "{errors}");
    assert!(lab.json("manifest.json")["sessions"][0]["restarts"].is_null());
}

#[test]
fn a_run_goes_on_under_another_layout() {
    for (from, to, name) in [(MESH, SINGLE, "single"), (SINGLE, THREE, "three")] {
        let lab = Lab::new(from);
        lab.add("to.yaml", to);
        lab.apply(&["--quiet"]);
        let (first, path) = lab.runs().pop_first().unwrap();
        let expected = lines(&path);
        let go_on = ["apply", "to.yaml", "--continue", &first, "--continue-step", "110", "--threads", "2"];
        let output = lab.run(&go_on);
        assert_eq!(code(&output), 0, "{name}: {}", text(&output));
        assert!(text(&output).contains(&format!("continuing {first} from step 110")), "{}", text(&output));
        let second = lab.runs().into_iter().find(|(id, _)| *id != first).unwrap();
        let found = lines(&second.1);
        assert_eq!(found.len(), expected.len(), "{name}");
        for (a, b) in expected.iter().zip(&found) {
            let (Some(a), Some(b)) = (a["loss"].as_f64(), b["loss"].as_f64()) else { continue };
            // As between layouts, of the last steps; those before were taken over.
            assert!((a - b).abs() <= 1e-4 * a, "{name}: {a} and {b}");
        }
        assert_eq!(json(&second.1.join("manifest.json"))["continued_from"]["step"], 110);
        // It is done now, and says so; it did not begin elsewhere.
        let output = lab.run(&go_on);
        assert!(code(&output) == 0 && text(&output).contains("up to date"), "{}", text(&output));
        let output = lab.run(&["apply", "to.yaml", "--continue", &first, "--continue-step", "120"]);
        assert!(code(&output) == 2 && text(&output).contains("after step 110"), "{}", text(&output));
        let output = lab.run(&["apply", "to.yaml", "--continue", &first, "--set", "seed=7"]);
        assert!(code(&output) == 2 && text(&output).contains("something else: seed"), "{}", text(&output));
        let output = lab.run(&["apply", "exp.yaml", "--continue", &first]);
        assert!(code(&output) == 2 && text(&output).contains("is a run of this file"), "{}", text(&output));
        let shown = text(&lab.run(&["runs", "show", &second.0]));
        assert!(shown.contains(&format!("{first} after step 110")), "{shown}");
    }
}

#[test]
fn a_pipelines_run_is_read_in_one_process() {
    let lab = Lab::new(PIPELINE);
    lab.apply(&["--quiet"]);
    let (id, path) = lab.runs().pop_first().unwrap();
    let output = lab.run(&["eval", &id, "--json"]);
    assert_eq!(code(&output), 0, "{}", text(&output));
    let evaluated: Value = serde_json::from_slice(&output.stdout).unwrap();
    let recorded = lines(&path).pop().unwrap();
    let (a, b) = (evaluated["val_loss"].as_f64().unwrap(), recorded["val_loss"].as_f64().unwrap());
    // The same batches through the same arithmetic; sums over stages round as sums over layers do.
    assert!((a - b).abs() <= 1e-6 * b, "{a} and {b}");
    let output = lab.run(&["sample", &id, "--prompt", "1", "--json"]);
    assert_eq!(code(&output), 0, "{}", text(&output));
    let shown = text(&lab.run(&["runs", "show", &id]));
    assert!(shown.contains("pipeline, 2 stages = 2 ranks") && shown.contains("rank 1"), "{shown}");
    // The file of a run in one process.
    let output = lab.run(&["export", &id, "--to", "safetensors", "out"]);
    assert_eq!(code(&output), 0, "{}", text(&output));
}
