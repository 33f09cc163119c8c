//! Ranks that others start, by the variables that launchers set: the same numbers as when `apply` starts them, one voice for
//! all, and nobody left waiting when one ends.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

const DDP: &str = "parallel: {mode: ddp, replicas: 2}\n";
const PIPELINE: &str = "parallel: {mode: pipeline, pipeline: {stages: 2}}\n";
const MESH: &str = "parallel: {mode: pipeline, replicas: 2, pipeline: {stages: 2}}\n";
const DP: &str = "parallel: {mode: dp, replicas: 2}\n";

/// Most that may pass from the end of a rank to the end of all. Generous: it is to be seconds, and not minutes.
const SECONDS: Duration = Duration::from_secs(20);

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

fn yaml(parallel: &str, steps: usize) -> String {
    format!(
        "version: 1\nname: lab\nmodel: {{family: gpt2, layers: 4, heads: 2, d_model: 32, context_length: 32, dropout: 0.1}}\n\
         data: {{tokenizer: {{chars: {{}}}}, train: {{text: {{files: [input.txt]}}}}, validation: {{fraction: 0.1}}}}\n\
         batch: {{sequences: 8, micro_batch: 2}}\ntrain: {{steps: {steps}}}\n\
         eval: {{every: 10, at_start: true, loss: {{batches: 3}}, samples: {{prompts: [\"1\", \"2\"], count: 1, max_tokens: 4}}}}\n\
         checkpoint: {{every: 10, keep: 2}}\n{parallel}"
    )
}

impl Lab {
    fn new(parallel: &str, steps: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let text: String = (0..4000).flat_map(|i| [(i * (i % 4093) % 997).to_string(), " ".to_owned()]).collect();
        fs::write(dir.path().join("input.txt"), text).unwrap();
        fs::write(dir.path().join("exp.yaml"), yaml(parallel, steps)).unwrap();
        Self { dir }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_runner"));
        command.args(arguments).current_dir(self.dir.path()).stdin(Stdio::null());
        for variable in ["RUNNER_RUNS", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"] {
            command.env_remove(variable);
        }
        command.env("RUNNER_CACHE", self.dir.path().join("cache"));
        command
    }

    /// As rank `rank` of `world`, as torchrun says it.
    fn rank(&self, rank: usize, world: usize, port: u16, arguments: &[&str]) -> Command {
        let mut command = self.command(arguments);
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", world.to_string()).env("LOCAL_RANK", rank.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// All ranks of a world, to their end.
    fn ranks(&self, world: usize, arguments: &[&str]) -> Vec<Output> {
        ranks_with(world, |rank, port| self.rank(rank, world, port, arguments))
    }

    /// As `ranks`, all of which must come to their end well; what rank 0 said. The others say nothing.
    fn trains(&self, world: usize, arguments: &[&str]) -> String {
        let outputs = self.ranks(world, arguments);
        for (rank, output) in outputs.iter().enumerate() {
            assert_eq!(output.status.code(), Some(0), "rank {rank}: {}", text(output));
            assert!(rank == 0 || text(output).is_empty(), "rank {rank}: {}", text(output));
        }
        text(&outputs[0])
    }

    /// The runs in `folder`.
    fn runs(&self, folder: &str) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.dir.path().join(folder)) else { return Vec::new() };
        let entries = entries.map(|entry| entry.unwrap());
        entries.filter(|e| !e.file_name().to_string_lossy().starts_with('.')).map(|e| e.path()).collect()
    }

    /// The only run in `folder`.
    fn run(&self, folder: &str) -> PathBuf {
        let runs = self.runs(folder);
        assert_eq!(runs.len(), 1, "{runs:?}");
        runs[0].clone()
    }

    /// What `apply` makes of the same file when it starts the ranks itself.
    fn reference(&self) -> PathBuf {
        let output = self.command(&["apply", "exp.yaml", "--threads", "2", "--runs", "local"]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
        self.run("local")
    }
}

/// Starts what `command` gives for each rank and a port, and waits for all.
fn ranks_with(world: usize, command: impl Fn(usize, u16) -> Command) -> Vec<Output> {
    let port = free_port();
    let children: Vec<Child> = (0..world).map(|rank| command(rank, port).spawn().unwrap()).collect();
    children.into_iter().map(|child| child.wait_with_output().unwrap()).collect()
}

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// What metrics and samples say besides times.
fn record(run: &Path) -> Vec<String> {
    let lines = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).map(|line| {
        ["kind", "step", "loss", "grad_norm", "lr", "val_loss", "tokens"].map(|key| line[key].to_string()).join(" ")
    });
    let samples = fs::read_to_string(run.join("samples.jsonl")).unwrap();
    lines.chain(samples.lines().map(str::to_owned)).collect()
}

fn final_hash(run: &Path) -> Value {
    json(&run.join("summary.json"))["final_hash"].clone()
}

/// Metrics, samples and the last checkpoint: bit for bit what `apply` makes of the file by itself.
fn same_as_local(parallel: &str, world: usize) {
    let lab = Lab::new(parallel, 20);
    let said = lab.trains(world, &["apply", "exp.yaml", "--threads", "2"]);
    assert!(said.contains("run    lab-") && said.contains("20 steps"), "{said}");
    let (run, local) = (lab.run("runs"), lab.reference());
    assert_eq!(record(&run), record(&local));
    assert_eq!(final_hash(&run), final_hash(&local));
    let files = |run: &Path| -> Vec<(String, Vec<u8>)> {
        let folder = fs::read_dir(run.join("checkpoints/step-00000020")).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = folder
            .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read(&path).unwrap()))
            .collect();
        files.sort();
        files
    };
    assert!(files(&run) == files(&local), "the checkpoints differ");
    // And again: there is nothing to do, for all of them.
    let again = lab.trains(world, &["apply", "exp.yaml", "--threads", "2"]);
    assert!(again.contains("up to date"), "{again}");
}

#[test]
fn replicas_compute_what_local_ones_do() {
    same_as_local(DDP, 2);
}

#[test]
fn stages_compute_what_local_ones_do() {
    same_as_local(PIPELINE, 2);
}

#[test]
fn a_mesh_computes_what_a_local_one_does() {
    same_as_local(MESH, 4);
}

#[test]
fn replicas_of_dp_may_be_processes_too() {
    let lab = Lab::new(DP, 20);
    lab.trains(2, &["apply", "exp.yaml", "--threads", "2"]);
    assert_eq!(record(&lab.run("runs")), record(&lab.reference()));
}

/// Interrupted, on whatever rank, all stop after the same step with a checkpoint, and go on from there under either launcher.
#[test]
fn a_stop_reaches_all_and_is_resumed() {
    let lab = Lab::new(MESH, 60);
    lab.trains(4, &["apply", "exp.yaml", "--threads", "2", "--until-step", "15"]);
    let id = lab.run("runs").file_name().unwrap().to_string_lossy().into_owned();
    let port = free_port();
    let children: Vec<Child> =
        (0..4).map(|rank| lab.rank(rank, 4, port, &["resume", &id, "--threads", "2"]).spawn().unwrap()).collect();
    until(|| steps(&lab.run("runs")) >= 20);
    signal(children[2].id(), libc::SIGTERM);
    let outputs: Vec<Output> = children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    let codes: Vec<_> = outputs.iter().map(|output| output.status.code()).collect();
    let stopped = steps(&lab.run("runs"));
    if stopped < 60 {
        assert_eq!(codes, [Some(130); 4], "{}", outputs.iter().map(text).collect::<String>());
        let saved = format!("checkpoints/step-{stopped:08}/state.json");
        assert!(lab.run("runs").join(saved).exists(), "no checkpoint of step {stopped}");
        let output = lab.command(&["resume", &id, "--threads", "2"]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    }
    assert_eq!(record(&lab.run("runs")), record(&lab.reference()));
}

/// Steps that are recorded.
fn steps(run: &Path) -> usize {
    let metrics = fs::read_to_string(run.join("metrics.jsonl")).unwrap_or_default();
    metrics.lines().filter(|line| line.contains("\"train\"")).count()
}

fn until(come: impl Fn() -> bool) {
    let started = Instant::now();
    while !come() {
        assert!(started.elapsed() < Duration::from_mins(1), "it does not come");
        thread::sleep(Duration::from_millis(5));
    }
}

#[expect(unsafe_code, reason = "FFI")]
fn signal(pid: u32, signal: i32) {
    // SAFETY: two numbers; the process is a child that was not waited for.
    unsafe {
        libc::kill(pid as i32, signal);
    }
}

/// Kills the ranks `victims` in the middle of training; what each rank said.
fn killed(victims: &[usize]) -> Vec<String> {
    let lab = Lab::new(MESH, 100_000);
    let port = free_port();
    let mut ranks: Vec<Running> = (0..4)
        .map(|rank| Running(lab.rank(rank, 4, port, &["apply", "exp.yaml", "--threads", "2"]).spawn().unwrap()))
        .collect();
    until(|| !lab.runs("runs").is_empty());
    until(|| steps(&lab.run("runs")) >= 12);
    // Until each rank has shown the others, once a second at least, where it is.
    thread::sleep(Duration::from_millis(1200));
    let started = Instant::now();
    for rank in victims {
        signal(ranks[*rank].0.id(), libc::SIGKILL);
    }
    let mut said = Vec::new();
    for (rank, running) in ranks.iter_mut().enumerate() {
        let status = running.0.wait().unwrap();
        assert!(started.elapsed() < SECONDS, "rank {rank} took {:?}", started.elapsed());
        assert!(victims.contains(&rank) || status.code() == Some(1), "rank {rank}: {status}");
        let mut text = String::new();
        std::io::Read::read_to_string(&mut running.0.stderr.take().unwrap(), &mut text).unwrap();
        // On a slow machine ranks may have waited for each other.
        said.push(text.lines().filter(|line| !line.starts_with("waiting: ")).collect::<Vec<_>>().join("\n"));
    }
    if !victims.contains(&0) {
        let manifest = json(&lab.run("runs").join("manifest.json"));
        assert_eq!(manifest["status"], "failed");
        let left: Vec<_> = fs::read_dir(lab.run("runs").join("checkpoints")).unwrap().map(|e| e.unwrap()).collect();
        assert!(left.iter().all(|e| !e.file_name().to_string_lossy().starts_with('.')), "{left:?}");
    }
    said
}

#[test]
fn a_rank_that_is_killed_ends_the_others_with_one_error() {
    let said = killed(&[2]);
    assert!(said[0].contains("error: run lab-") && said[0].contains("rank 2 was lost in step "), "{said:?}");
    assert!(said[0].contains("closed without a word") && said[0].contains("resumes from it"), "{said:?}");
    assert!(said[1].is_empty() && said[3].is_empty(), "told once: {said:?}");
}

#[test]
fn rank_0_that_is_killed_is_told_by_another() {
    let said = killed(&[0]);
    assert!(said[1].contains("error: rank 0 was lost in step "), "{said:?}");
    assert!(said[2].is_empty() && said[3].is_empty(), "told once: {said:?}");
}

#[test]
fn ranks_0_and_1_that_are_killed_are_told_by_the_next() {
    let said = killed(&[0, 1]);
    let told = ["error: rank 0 was lost in step ", "error: rank 1 was lost in step "];
    assert!(told.iter().any(|told| said[2].contains(told)) && said[3].is_empty(), "told once: {said:?}");
}

/// What the ranks said that fail with `code` each, all together.
fn fails(outputs: &[Output], code: i32) -> String {
    for (rank, output) in outputs.iter().enumerate() {
        assert_eq!(output.status.code(), Some(code), "rank {rank}: {}", text(output));
    }
    outputs.iter().map(text).collect()
}

#[test]
fn another_number_of_ranks_is_told_once_with_both() {
    let lab = Lab::new("parallel: {mode: ddp, replicas: 4}\n", 20);
    let told = fails(&lab.ranks(2, &["apply", "exp.yaml", "--threads", "1"]), 2);
    assert!(told.contains("WORLD_SIZE is 2, and the plan has 4 ranks (ddp: 4 replicas)"), "{told}");
    assert_eq!(told.matches("error:").count(), 1, "{told}");
}

#[test]
fn another_plan_on_one_rank_is_told_with_both() {
    let lab = Lab::new(DDP, 20);
    let outputs = ranks_with(2, |rank, port| {
        let seed = format!("seed={}", 7 + rank);
        lab.rank(rank, 2, port, &["apply", "exp.yaml", "--threads", "1", "--set", &seed])
    });
    let told = fails(&outputs, 1);
    assert!(told.contains("rank 1 has the plan ") && told.contains(", and rank 0 has "), "{told}");
    assert_eq!(told.matches("error:").count(), 1, "{told}");
    assert!(lab.runs("runs").is_empty(), "no run is made");
}

#[test]
fn a_mistake_that_one_rank_alone_finds_is_told_by_rank_0() {
    let lab = Lab::new(DDP, 20);
    let outputs = ranks_with(2, |rank, port| {
        let set = if rank == 1 { "data.train.text.files=[nothing.txt]" } else { "train.steps=20" };
        lab.rank(rank, 2, port, &["apply", "exp.yaml", "--threads", "1", "--set", set])
    });
    let told: String = outputs.iter().map(text).collect();
    assert!(told.contains("rank 1 failed while starting: ") && told.contains("nothing.txt"), "{told}");
    assert!(text(&outputs[1]).is_empty(), "{told}");
    assert!(outputs.iter().all(|output| output.status.code() != Some(0)), "{told}");
}

#[test]
fn a_failure_in_a_step_names_rank_and_instruction() {
    let lab = Lab::new(PIPELINE, 20);
    let told = fails(&lab.ranks(2, &["apply", "exp.yaml", "--threads", "1", "--test-faults", "full=1@10"]), 1);
    assert!(told.contains("rank 1 failed in step 10 at periodic["), "{told}");
    assert_eq!(told.matches("error:").count(), 1, "{told}");
}

#[test]
fn who_waits_alone_is_told_what_is_missing() {
    let lab = Lab::new(DDP, 20);
    let arguments = ["apply", "exp.yaml", "--threads", "1", "--test-faults", "wait=500"];
    let port = free_port();
    let output = lab.rank(0, 2, port, &arguments).output().unwrap();
    let expected = format!("only 1 of 2 ranks came to 127.0.0.1:{port}");
    assert!(output.status.code() == Some(1) && text(&output).contains(&expected), "{}", text(&output));
    let output = lab.rank(1, 2, port, &arguments).output().unwrap();
    let expected = format!("rank 1 found no rank 0 at 127.0.0.1:{port}");
    assert!(output.status.code() == Some(1) && text(&output).contains(&expected), "{}", text(&output));
    let busy = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = busy.local_addr().unwrap().port();
    let output = lab.rank(0, 2, port, &arguments).output().unwrap();
    let expected = format!("rank 0 cannot listen at 127.0.0.1:{port}");
    assert!(output.status.code() == Some(1) && text(&output).contains(&expected), "{}", text(&output));
}

#[test]
fn variables_that_make_no_sense_are_named() {
    let lab = Lab::new(DDP, 20);
    let mut command = lab.command(&["apply", "exp.yaml"]);
    let output = command.env("RANK", "two").env("WORLD_SIZE", "2").env("MASTER_ADDR", "x").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("RANK is \"two\", which is no rank"), "{}", text(&output));
    let output = lab.command(&["apply", "exp.yaml", "--launcher", "env"]).output().unwrap();
    assert!(output.status.code() == Some(2) && text(&output).contains("--launcher env: neither"), "{}", text(&output));
}

/// The shell of an allocation, a batch script, and one process of a launcher with a plan of one rank.
#[test]
fn who_is_alone_starts_the_ranks_itself() {
    let lab = Lab::new(DDP, 10);
    let slurm = [("SLURM_JOB_ID", "7"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1"), ("SLURM_STEP_ID", "0")];
    let arguments = ["apply", "exp.yaml", "--threads", "2"];
    let output = lab.command(&arguments).envs(slurm).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert!(lab.run("runs").join("ranks/rank-1.log").exists(), "started by apply");
    let output = lab.rank(0, 1, 1, &[&arguments[..], &["--runs", "other", "--launcher", "local"]].concat()).output();
    assert_eq!(output.unwrap().status.code(), Some(0));
    let output = lab.rank(0, 1, 1, &[&arguments[..], &["--runs", "third"]].concat()).output().unwrap();
    assert!(text(&output).contains("WORLD_SIZE is 1, and the plan has 2 ranks"), "{}", text(&output));
    let single = Lab::new("", 10);
    let output = single.rank(0, 1, 1, &arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
}
