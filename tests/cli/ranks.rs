//! Runs of several ranks as processes: the same numbers under every layout, and what happens when ranks, or their parent,
//! are killed, stopped and interrupted.

#![cfg(target_os = "linux")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::sandbox::{Finished, RunFolder, RunningProcess, Sandbox, names_in, send_signal, wait_until};

/// The variable with the faults that a build for tests injects.
pub(crate) const FAULTS: &str = "TEST_FAULTS_OF_RUNNER";

const STEPS: usize = 120;
/// The steps from one checkpoint to the next.
const EVERY: usize = 10;

const SINGLE: &str = "";
const DP: &str = "parallel: {mode: dp, replicas: 2}\n";
const DDP: &str = "parallel: {mode: ddp, replicas: 2}\n";
const SHARDED: &str = "parallel: {mode: ddp, replicas: 2, shard: optimizer}\n";
const PIPELINE: &str = "parallel: {mode: pipeline, pipeline: {stages: 2}}\n";
const MESH: &str = "parallel: {mode: pipeline, replicas: 2, pipeline: {stages: 2}}\n";
const THREE: &str = "parallel: {mode: pipeline, pipeline: {stages: 3}}\n";

/// The longest time from the end of a rank to the end of the run. It is generous: the test is about seconds, not minutes.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// True once a run is at the moment that a test waits for.
type Moment<'a> = &'a dyn Fn(&RunFolder) -> bool;

fn yaml(parallel: &str) -> String {
    format!(
        "version: 1\nname: lab\nmodel: {{family: gpt2, layers: 4, heads: 2, d_model: 32, context_length: 32, dropout: 0.1}}\n\
         data: {{tokenizer: {{chars: {{}}}}, train: {{text: {{files: [input.txt]}}}}, validation: {{fraction: 0.1}}}}\n\
         batch: {{sequences: 8, micro_batch: 2}}\ntrain: {{steps: {STEPS}}}\n\
         eval: {{every: 30, at_start: true, loss: {{batches: 3}}, samples: {{prompts: [\"1\", \"2\"], count: 1, max_tokens: 4}}}}\n\
         checkpoint: {{every: {EVERY}, keep: 2}}\n{parallel}"
    )
}

fn new_sandbox(parallel: &str) -> Sandbox {
    sandbox_of(&yaml(parallel), 4000)
}

/// A sandbox whose evaluations are of `batches` micro-batches, each of which takes at least a tenth of a millisecond.
fn new_evaluating_sandbox(parallel: &str, batches: u32) -> Sandbox {
    let yaml =
        yaml(parallel).replace("fraction: 0.1", "fraction: 0.8").replace("batches: 3", &format!("batches: {batches}"));
    sandbox_of(&yaml.replace(&format!("steps: {STEPS}"), "steps: 40"), 25 * batches)
}

/// A sandbox with an experiment, and a text of this many numbers to train on.
fn sandbox_of(yaml: &str, numbers: u32) -> Sandbox {
    Sandbox::new().with_squares(numbers).with("exp.yaml", yaml)
}

/// Runs `apply`, which must succeed, and returns what it printed.
#[track_caller]
fn apply(sandbox: &Sandbox) -> String {
    sandbox.expect(0, "apply exp.yaml --threads 2")
}

/// Runs `apply` with injected faults, which must make it fail and leave nothing behind. Returns what it printed.
#[track_caller]
fn expect_failure(sandbox: &Sandbox, faults: &str) -> String {
    let started = Instant::now();
    let mut command = sandbox.command("apply exp.yaml --threads 2");
    let printed = Finished::of(command.env(FAULTS, faults)).expect_code(1).text();
    eprintln!("{faults}: ended after {:?}", started.elapsed());
    assert_eq!(processes_in(sandbox), Vec::<u32>::new(), "a rank is left");
    assert!(!sandbox.only_run().is_saving(), "half a checkpoint is left");
    printed
}

/// The processes whose working directory is the sandbox.
fn processes_in(sandbox: &Sandbox) -> Vec<u32> {
    let folder = sandbox.folder().canonicalize().unwrap();
    let is_in = |pid: &u32| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == folder) && is_alive(*pid);
    pids().into_iter().filter(is_in).collect()
}

/// The standard error of a rank.
fn rank_log(sandbox: &Sandbox, rank: usize) -> String {
    sandbox.only_run().read(&format!("ranks/rank-{rank}.log"))
}

/// Starts `apply` with injected faults in a separate process group, and waits until its ranks have started and the run is at the
/// given moment. Returns the process, and the ranks' process ids.
fn start_until(
    sandbox: &Sandbox,
    world: usize,
    faults: &str,
    moment: Moment<'_>,
) -> (RunningProcess, BTreeMap<usize, u32>) {
    let mut command = sandbox.command("apply exp.yaml --threads 2");
    if !faults.is_empty() {
        command.env(FAULTS, faults);
    }
    command.stdout(Stdio::null()).stderr(fs::File::create(sandbox.path("err.txt")).unwrap());
    command.process_group(0);
    let mut child = RunningProcess(command.spawn().unwrap());
    let mut ranks = BTreeMap::new();
    wait_until("the ranks have started and the run is at the moment", || {
        let is_there = ranks.len() == world && sandbox.runs().values().any(moment);
        assert!(is_there || !child.has_ended(), "it ended too early: {}", errors_of(sandbox));
        if ranks.len() < world {
            ranks = ranks_of(child.id());
        }
        is_there
    });
    (child, ranks)
}

/// What the process of [`start_until`] has printed to its standard error.
fn errors_of(sandbox: &Sandbox) -> String {
    sandbox.read("err.txt")
}

/// True once the step is recorded, and a checkpoint is there if one was due before it: it is written while later steps run.
fn at(step: usize) -> impl Fn(&RunFolder) -> bool {
    let is_saved = |run: &RunFolder| (EVERY..=STEPS).step_by(EVERY).any(|saved| run.checkpoint(saved as u64).exists());
    move |run| run.has_step(step) && (step <= EVERY || is_saved(run))
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

/// True if the process runs. A process that ended and was not reaped does not.
fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// The inodes of the memory that the process shares with other ranks: it has no name to be left behind, so what can be left
/// is a process that has it.
fn shared_memory(pid: u32) -> BTreeSet<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let inode = |line: &str| line.split_whitespace().nth(4).map(str::to_owned);
    maps.lines().filter(|line| line.contains("/memfd:runner")).filter_map(inode).collect()
}

/// Waits for the end of `child`, whose ranks must then have ended too and have left nothing. Returns the exit code.
fn wait_for_end(
    sandbox: &Sandbox,
    child: &mut RunningProcess,
    ranks: &BTreeMap<usize, u32>,
    what: &str,
) -> Option<i32> {
    let started = Instant::now();
    let code = child.wait();
    let took = started.elapsed();
    eprintln!("{what}: ended after {took:?}");
    assert!(took < END_TIMEOUT, "{what}: {took:?}");
    assert!(!ranks.values().any(|&pid| is_alive(pid)), "{what}: a rank is left");
    assert!(!sandbox.only_run().is_saving(), "{what}: half a checkpoint is left");
    code
}

#[test]
fn layouts_agree_with_one_process_and_with_themselves() {
    let single = new_sandbox(SINGLE);
    apply(&single);
    let expected = single.only_run().metrics();
    for (layout, world, parts) in [(DP, 2, 1), (DDP, 2, 1), (PIPELINE, 2, 2), (MESH, 4, 2)] {
        let sandbox = new_sandbox(layout);
        apply(&sandbox);
        let found = sandbox.only_run().metrics();
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
        let summary = sandbox.only_run().summary();
        assert_eq!(summary["ranks"].as_array().unwrap().len(), world, "{layout}");
        if layout != DP {
            let peaks = summary["ranks"].as_array().unwrap().iter().map(|r| r["peak_rss_bytes"].as_u64().unwrap());
            assert_eq!(summary["peak_rss_bytes"].as_u64(), Some(peaks.sum()), "{layout}");
        }
        let models = names_in(&sandbox.only_run().checkpoint(STEPS as u64));
        assert_eq!(models.iter().filter(|name| name.starts_with("model")).count(), parts, "{layout}");
        let hash = sandbox.only_run().final_hash();
        sandbox.expect(0, "apply exp.yaml --threads 2 --new");
        let again = sandbox.runs().into_values().next_back().unwrap();
        assert_eq!(again.final_hash(), hash, "{layout}");
    }
}

#[test]
fn a_killed_rank_ends_the_run_which_can_be_resumed() {
    for (layout, world) in [(DDP, 2), (SHARDED, 2), (MESH, 4)] {
        let whole = new_sandbox(layout);
        apply(&whole);
        let broken = new_sandbox(layout);
        // Its parts are written, and the other ranks do not know of it yet.
        let saves = |run: &RunFolder| at(35)(run) && run.is_saving();
        let moments: [(&str, &str, Moment<'_>); 2] = [("step", "", &at(15)), ("save", "save-delay=800@40", &saves)];
        for (what, faults, moment) in moments {
            let (mut child, ranks) = start_until(&broken, world, faults, moment);
            let shared = shared_memory(ranks[&0]);
            assert_eq!(shared.len(), 1, "{shared:?}");
            assert_eq!(shared_memory(child.id()), shared);
            send_signal("KILL", ranks[&(world - 1)].into());
            let code = wait_for_end(&broken, &mut child, &ranks, &format!("{layout:?} killed in a {what}"));
            let errors = errors_of(&broken);
            assert_eq!(code, Some(1), "{errors}");
            assert!(!pids().into_iter().any(|pid| !shared_memory(pid).is_disjoint(&shared)), "{shared:?} is left");
            let name = format!("rank {} was killed by SIGKILL in step ", world - 1);
            assert!(errors.contains(&name) && errors.contains("] "), "{errors}");
            let id = broken.only_run().id();
            assert!(errors.contains(&format!("is kept; `runner resume {id}` resumes from it")), "{errors}");
            assert!(!errors.contains("aborted"), "those who followed say nothing: {errors}");
            assert_eq!(broken.only_run().summary()["status"], "failed");
        }
        let printed = apply(&broken);
        assert!(printed.contains("resuming from step"), "{printed}");
        assert_eq!(broken.only_run().numbers(), whole.only_run().numbers(), "{layout}");
        assert_eq!(broken.only_run().final_hash(), whole.only_run().final_hash(), "{layout}");
    }
}

#[test]
fn a_rank_that_is_killed_while_all_evaluate_is_named() {
    let (whole, broken) = (new_evaluating_sandbox(PIPELINE, 6000), new_evaluating_sandbox(PIPELINE, 6000));
    let (mut child, ranks) = start_until(&broken, 2, "", &at(30));
    thread::sleep(Duration::from_millis(100));
    send_signal("KILL", ranks[&0].into());
    let code = wait_for_end(&broken, &mut child, &ranks, "killed in an evaluation");
    let errors = errors_of(&broken);
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("rank 0 was killed by SIGKILL in step 30 at periodic["), "{errors}");
    assert!(errors.contains("] Evaluate"), "{errors}");
    apply(&broken);
    apply(&whole);
    assert_eq!(broken.only_run().final_hash(), whole.only_run().final_hash());
}

#[test]
fn a_second_interrupt_ends_all_at_once() {
    let sandbox = new_evaluating_sandbox(PIPELINE, 30_000);
    // During the evaluation before the first step: ranks look whether to stop in steps only.
    let (mut child, ranks) = start_until(&sandbox, 2, "", &|_| true);
    let group = -i64::from(child.id());
    send_signal("INT", group);
    thread::sleep(Duration::from_millis(200));
    assert!(child.0.try_wait().unwrap().is_none(), "one interrupt waits for the step: {}", errors_of(&sandbox));
    send_signal("INT", group);
    let code = child.wait();
    let errors = errors_of(&sandbox);
    assert_eq!(code, Some(130), "{errors}");
    assert!(errors.ends_with("\nnext:\n  runner apply exp.yaml --threads 2\n"), "{errors}");
    let started = Instant::now();
    while ranks.values().any(|&pid| is_alive(pid)) {
        assert!(started.elapsed() < END_TIMEOUT, "a rank lives on");
    }
    assert_eq!(sandbox.only_run().manifest()["status"], "running", "nothing more was recorded");
}

#[test]
fn a_stopped_rank_is_noticed() {
    let sandbox = new_sandbox(DDP);
    let (mut child, ranks) = start_until(&sandbox, 2, "heartbeat-timeout=2000", &at(15));
    send_signal("STOP", ranks[&1].into());
    let code = wait_for_end(&sandbox, &mut child, &ranks, "stopped");
    let errors = errors_of(&sandbox);
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("rank 1 sent no heartbeat") && errors.contains("process was suspended"), "{errors}");
    apply(&sandbox);
}

#[test]
fn a_rank_that_hangs_is_noticed() {
    let sandbox = new_sandbox(DDP);
    let errors = expect_failure(&sandbox, "step-timeout=1500,hang=1@15");
    assert!(errors.contains("rank 1 hung: it made no progress for "), "{errors}");
    assert!(errors.contains(" s in step 15 at step[0] "), "{errors}");
    apply(&sandbox);
    // Before anyone has looked for long enough, one that waits for it gives up; the first stage waits for the second, and
    // that one for the third.
    let sandbox = new_sandbox(THREE);
    let errors = expect_failure(&sandbox, "operation-timeout=2000,hang=2@15");
    assert!(errors.contains("rank 2 hung: it made no progress for 2 s in step 15 at step[0] "), "{errors}");
    assert!(
        (0..2).any(|rank| rank_log(&sandbox, rank).contains("rank 2")),
        "{}{}",
        rank_log(&sandbox, 0),
        rank_log(&sandbox, 1)
    );
}

#[test]
fn an_invalid_message_of_the_parent_is_reported_to_it() {
    let sandbox = new_sandbox(DDP);
    let mut command = sandbox.command("rank --run run --rank 0 --fd 0");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"boom\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(
        printed.contains("the run sent an invalid message: \\\"boom\\\" is not a message of the protocol"),
        "{printed}"
    );
}

#[test]
fn faults_are_injected_into_ranks_that_are_threads() {
    let errors = expect_failure(&new_sandbox(DP), "panic=1@15");
    assert!(errors.contains("rank 1 failed in step 15 at step[0] ") && errors.contains("it panicked"), "{errors}");
}

#[test]
fn a_death_that_comes_again_is_left_alone() {
    let sandbox = new_sandbox(&DDP.replace('}', ", max_restarts: 5}"));
    // On a busy machine a heartbeat may be late.
    let errors = expect_failure(&sandbox, "panic=1@15,heartbeat-timeout=60000");
    assert!(errors.contains("rank 1 exited with code 101 in step 15 at step[0] "), "{errors}");
    assert!(errors.contains("so they are not restarted; the checkpoint of step 10 is kept"), "{errors}");
    // The first attempt saved step 10, the two after it nothing.
    assert_eq!(sandbox.only_run().manifest()["sessions"][0]["restarts"], 2);
    assert!(rank_log(&sandbox, 1).contains("a panic in step 15, as asked for"), "{}", rank_log(&sandbox, 1));
    assert!(rank_log(&sandbox, 0).contains("because of rank 1"), "{}", rank_log(&sandbox, 0));
}

/// All ranks find out together that a number is not finite; which of them says so does not depend on who is first.
#[test]
fn a_bad_number_is_reported_the_same_way_each_time() {
    let bad = "optimizer: {adamw: {lr: 1000}}\ntrain: {clip_norm: null, steps";
    let sandbox = sandbox_of(&yaml(MESH).replace("train: {steps", bad), 4000);
    let errors: BTreeSet<String> = (0..3)
        .map(|_| {
            let printed = sandbox.expect(1, "apply exp.yaml --new --quiet");
            let from = printed.find("rank ").expect("a rank is named");
            printed[from..].split("; its log").next().unwrap().to_owned()
        })
        .collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors.first().unwrap().contains("is not finite"), "{errors:?}");
}

#[test]
fn a_run_that_is_deleted_while_it_trains_has_failed() {
    let sandbox = new_sandbox(DDP);
    let (mut child, _ranks) = start_until(&sandbox, 2, "", &at(15));
    let run = sandbox.only_run();
    // The removal fails if the run writes a file at this moment.
    while run.0.exists() {
        let _ = fs::remove_dir_all(&run.0);
    }
    assert_eq!(child.wait(), Some(1), "{}", errors_of(&sandbox));
    assert!(!run.path("summary.json").exists(), "nothing says that it is done");
}

#[test]
fn a_notice_to_a_rank_stops_all() {
    for (layout, signal) in [(DDP, "TERM"), (PIPELINE, "USR1")] {
        let sandbox = sandbox_of(&yaml(layout).replace(&format!("steps: {STEPS}"), "steps: 1000000"), 4000);
        let (mut child, ranks) = start_until(&sandbox, 2, "", &at(3));
        send_signal(signal, ranks[&1].into());
        assert_eq!(
            wait_for_end(&sandbox, &mut child, &ranks, "a rank got the signal"),
            Some(75),
            "{}",
            errors_of(&sandbox)
        );
        let run = sandbox.only_run();
        assert_eq!(run.manifest()["status"], "interrupted");
        assert!(run.checkpoint(run.summary()["steps"].as_u64().unwrap()).exists(), "{layout}");
    }
}

/// The other rank had nothing to write.
#[test]
fn a_checkpoint_that_one_rank_writes_is_completed_when_another_dies() {
    let sandbox = new_sandbox(DDP);
    let saves = |run: &RunFolder| at(42)(run) && run.is_saving();
    // Longer than other ranks may take to end.
    let (mut child, ranks) = start_until(&sandbox, 2, "save-delay=4000@40", &saves);
    send_signal("KILL", ranks[&1].into());
    assert_eq!(wait_for_end(&sandbox, &mut child, &ranks, "killed beside a save"), Some(1));
    let errors = errors_of(&sandbox);
    assert!(errors.contains("rank 1 was killed by SIGKILL in step "), "{errors}");
    assert!(errors.contains("the checkpoint of step 40 is kept"), "{errors}");
}

#[test]
fn reports_why_a_rank_failed() {
    // A full disk.
    let sandbox = new_sandbox(DDP);
    let errors = expect_failure(&sandbox, "full-disk=0@20");
    assert!(
        errors.contains("rank 0 failed in step 20 at periodic[") && errors.contains("the disk is full"),
        "{errors}"
    );
    assert!(errors.contains("the checkpoint of step 10 is kept"), "{errors}");
    assert!(rank_log(&sandbox, 0).contains("the disk is full"), "{}", rank_log(&sandbox, 0));
    assert!(rank_log(&sandbox, 1).contains("because of rank 0"), "{}", rank_log(&sandbox, 1));
    // One that cannot be started: the one that was started before it must go.
    let log = sandbox.only_run().path("ranks/rank-1.log");
    fs::remove_file(&log).unwrap();
    fs::create_dir(&log).unwrap();
    let errors = expect_failure(&sandbox, "start-delay=60000");
    assert!(errors.contains("rank 1 cannot be started"), "{errors}");
    fs::remove_dir(&log).unwrap();
    apply(&sandbox);
    // Data that is no longer what the plan was made for.
    let sandbox = new_sandbox(DDP);
    let (mut child, ranks) = start_until(&sandbox, 2, "start-delay=1000", &|_| true);
    sandbox.write("input.txt", sandbox.read("input.txt") + "1 2 3 ");
    let code = wait_for_end(&sandbox, &mut child, &ranks, "data changed");
    let errors = errors_of(&sandbox);
    assert_eq!(code, Some(1), "{errors}");
    assert!(
        errors.contains(
            "failed while starting: the data, or the weights to start from, changed since the run was started"
        ),
        "{errors}"
    );
}

#[test]
fn a_stalled_reader_does_not_hold_up_the_run() {
    let sandbox = new_sandbox(DDP);
    let set = ["--set", "train.steps=300", "--set", "checkpoint.every=100"];
    let mut command =
        sandbox.command(&[&["apply", "exp.yaml", "--threads", "2", "--json", "--quiet"], &set[..]].concat());
    let mut child = RunningProcess(command.stdout(Stdio::piped()).spawn().unwrap());
    wait_until("the run ends though nobody reads its output", || {
        sandbox.runs().values().any(|run| run.path("summary.json").exists())
    });
    let mut printed = String::new();
    child.0.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    assert_eq!(child.wait(), Some(0));
    assert!(printed.len() > 64 << 10, "{} bytes fit in a pipe", printed.len());
    let printed: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let steps: Vec<u64> =
        printed.iter().filter(|l| l["kind"] == "train").map(|l| l["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, (1..=300).collect::<Vec<u64>>());
    assert_eq!(printed.last().unwrap()["kind"], "summary");
}

#[test]
fn ranks_do_not_outlive_their_parent() {
    let (whole, broken) = (new_sandbox(PIPELINE), new_sandbox(PIPELINE));
    let (mut child, ranks) = start_until(&broken, 2, "", &at(25));
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    let started = Instant::now();
    while ranks.values().any(|&pid| is_alive(pid)) {
        assert!(started.elapsed() < END_TIMEOUT, "a rank lives on");
        thread::sleep(Duration::from_millis(1));
    }
    eprintln!("parent killed: ranks ended after {:?}", started.elapsed());
    apply(&broken);
    apply(&whole);
    assert_eq!(
        (broken.only_run().final_hash(), broken.only_run().numbers()),
        (whole.only_run().final_hash(), whole.only_run().numbers())
    );
}

#[test]
fn an_interrupt_of_the_whole_group_saves() {
    let whole = new_sandbox(MESH);
    apply(&whole);
    for (name, expected) in [("INT", 130), ("TERM", 75), ("USR1", 75)] {
        let sandbox = new_sandbox(MESH);
        let (mut child, ranks) = start_until(&sandbox, 4, "", &at(25));
        // Ctrl-C, and the warning signal of a scheduler, go to all processes of the group, a plain kill to one.
        send_signal(name, if name == "TERM" { child.id().into() } else { -i64::from(child.id()) });
        let code = wait_for_end(&sandbox, &mut child, &ranks, name);
        assert_eq!(code, Some(expected), "{}", errors_of(&sandbox));
        let summary = sandbox.only_run().summary();
        assert_eq!(summary["status"], "interrupted");
        let step = summary["steps"].as_u64().unwrap();
        assert!(sandbox.only_run().checkpoint(step).is_dir(), "saved at {step}");
        let printed = apply(&sandbox);
        assert!(printed.contains(&format!("resuming from step {step}")), "{printed}");
        assert_eq!(sandbox.only_run().final_hash(), whole.only_run().final_hash());
    }
}

#[test]
fn ranks_start_again_as_often_as_allowed() {
    let whole = new_sandbox(DDP);
    apply(&whole);
    let once = DDP.replace('}', ", max_restarts: 1}");
    let sandbox = new_sandbox(&once);
    let (mut child, ranks) = start_until(&sandbox, 2, "", &at(25));
    send_signal("KILL", ranks[&0].into());
    let code = child.wait();
    assert_eq!(code, Some(0), "{}", errors_of(&sandbox));
    assert_eq!(
        (sandbox.only_run().final_hash(), sandbox.only_run().numbers()),
        (whole.only_run().final_hash(), whole.only_run().numbers())
    );
    assert!(errors_of(&sandbox).contains("all ranks restart from step"), "{}", errors_of(&sandbox));
    assert!(sandbox.only_run().read("log.txt").contains("killed by SIGKILL"));
    assert_eq!(sandbox.only_run().manifest()["sessions"][0]["restarts"], 1);
    // A number that is not finite would come again.
    let sandbox = new_sandbox(&once);
    let diverges = ["apply", "exp.yaml", "--set", "optimizer={sgd: {lr: 10000}}", "--set", "train.clip_norm=null"];
    let errors = sandbox.expect(1, &diverges);
    assert!(errors.contains("not finite") && errors.contains("learning rate"), "{errors}");
    assert!(sandbox.only_run().manifest()["sessions"][0]["restarts"].is_null());
}

#[test]
fn a_run_resumes_under_a_different_layout() {
    for (from, to, name) in [(MESH, SINGLE, "single"), (SINGLE, THREE, "three")] {
        let sandbox = new_sandbox(from);
        sandbox.write("to.yaml", yaml(to));
        apply(&sandbox);
        let (first, run) = sandbox.runs().pop_first().unwrap();
        let expected = run.metrics();
        let go_on = ["apply", "to.yaml", "--continue", &first, "--continue-step", "110", "--threads", "2"];
        sandbox.show(0, &go_on);
        let second = sandbox.runs().into_iter().find(|(id, _)| *id != first).unwrap();
        let found = second.1.metrics();
        assert_eq!(found.len(), expected.len(), "{name}");
        for (a, b) in expected.iter().zip(&found) {
            let (Some(a), Some(b)) = (a["loss"].as_f64(), b["loss"].as_f64()) else { continue };
            // As between layouts, of the last steps; those before were taken over.
            assert!((a - b).abs() <= 1e-4 * a, "{name}: {a} and {b}");
        }
        assert_eq!(second.1.manifest()["continued_from"]["step"], 110);
        // It is done now, and says so; it did not begin elsewhere.
        sandbox.show(0, &go_on);
        sandbox.show(2, &["apply", "to.yaml", "--continue", &first, "--continue-step", "120"]);
        sandbox.show(2, &["apply", "to.yaml", "--continue", &first, "--set", "seed=7"]);
        sandbox.show(2, &["apply", "exp.yaml", "--continue", &first]);
        sandbox.keep(sandbox.run(&["runs", "show", &second.0]));
        insta::assert_snapshot!(sandbox.screens());
    }
}

#[test]
fn a_pipelines_run_is_read_in_one_process() {
    let sandbox = new_sandbox(PIPELINE);
    apply(&sandbox);
    let (id, path) = sandbox.runs().pop_first().unwrap();
    let output = sandbox.run(&["eval", &id, "--json"]).expect_code(0);
    let evaluated = output.json();
    let recorded = path.metrics().pop().unwrap();
    let (a, b) = (evaluated["val_loss"].as_f64().unwrap(), recorded["val_loss"].as_f64().unwrap());
    // The same batches through the same arithmetic; sums over stages round as sums over layers do.
    assert!((a - b).abs() <= 1e-6 * b, "{a} and {b}");
    sandbox.expect(0, &["sample", &id, "--prompt", "1", "--json"]);
    sandbox.keep(sandbox.run(&["runs", "show", &id]));
    // The file of a run in one process.
    sandbox.expect(0, &["export", &id, "--to", "safetensors", "out"]);
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn a_rank_process_started_by_hand_names_what_starts_ranks() {
    let sandbox = Sandbox::new();
    sandbox.show(2, "rank --run . --rank 0 --fd 9");
    insta::assert_snapshot!(sandbox.screens());
}
