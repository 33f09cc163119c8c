//! Ranks that a launcher starts, by the variables that it sets: they compute what they compute when `apply` starts them, one rank
//! reports for all, and no rank waits for one that has ended.

#![cfg(target_os = "linux")]

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::proxy::{Damage, Direction, Fault, Proxy};
use crate::ranks::FAULTS;
use crate::sandbox::{Finished, RunFolder, RunningProcess, Sandbox, files_in, names_in, wait_until};

pub(crate) const DDP: &str = "parallel: {mode: ddp, replicas: 2}\n";
const PIPELINE: &str = "parallel: {mode: pipeline, pipeline: {stages: 2}}\n";
const MESH: &str = "parallel: {mode: pipeline, replicas: 2, pipeline: {stages: 2}}\n";
const SHARDED: &str = "parallel: {mode: ddp, replicas: 2, shard: optimizer}\n";
const DP: &str = "parallel: {mode: dp, replicas: 2}\n";

/// The longest time from the end of one rank to the end of all. It is generous: the test is about seconds, not minutes.
const END_TIMEOUT: Duration = Duration::from_secs(20);

fn yaml(parallel: &str, steps: usize) -> String {
    format!(
        "version: 1\nname: lab\nmodel: {{family: gpt2, layers: 4, heads: 2, d_model: 32, context_length: 32, dropout: 0.1}}\n\
         data: {{tokenizer: {{chars: {{}}}}, train: {{text: {{files: [input.txt]}}}}, validation: {{fraction: 0.1}}}}\n\
         batch: {{sequences: 8, micro_batch: 2}}\ntrain: {{steps: {steps}}}\n\
         eval: {{every: 10, at_start: true, loss: {{batches: 3}}, samples: {{prompts: [\"1\", \"2\"], count: 1, max_tokens: 4}}}}\n\
         checkpoint: {{every: 10, keep: 2}}\n{parallel}"
    )
}

/// A sandbox with an experiment of a tiny model that saves often.
pub(crate) fn new_sandbox(parallel: &str, steps: usize) -> Sandbox {
    Sandbox::new().with_numbers(4000).with("exp.yaml", yaml(parallel, steps))
}

/// A command of rank `rank` of `world`, with the variables that torchrun sets.
pub(crate) fn rank_command(sandbox: &Sandbox, rank: usize, world: usize, port: u16, arguments: &[&str]) -> Command {
    let mut command = sandbox.command(arguments);
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", world.to_string()).env("LOCAL_RANK", rank.to_string());
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs all ranks of a world to their end.
fn run_ranks(sandbox: &Sandbox, world: usize, arguments: &[&str]) -> Vec<Finished> {
    run_commands(world, |rank, port| rank_command(sandbox, rank, world, port, arguments))
}

/// The command of one of two ranks with injected faults.
fn faulty_rank(sandbox: &Sandbox, rank: usize, port: u16, faults: &str) -> Command {
    let mut command = rank_command(sandbox, rank, 2, port, &["apply", "exp.yaml", "--threads", "1"]);
    command.env(FAULTS, faults);
    command
}

/// Starts the command of each rank with one free port for all, and waits for their end.
pub(crate) fn run_commands(world: usize, command: impl Fn(usize, u16) -> Command) -> Vec<Finished> {
    let port = free_port();
    let commands: Vec<Command> = (0..world).map(|rank| command(rank, port)).collect();
    let started: Vec<(Command, Child)> = commands
        .into_iter()
        .map(|mut c| {
            let child = c.spawn().unwrap();
            (c, child)
        })
        .collect();
    started.into_iter().map(|(command, child)| Finished::new(&command, child.wait_with_output().unwrap())).collect()
}

/// Runs all ranks of a world, which must succeed, and returns what rank 0 printed. The others must print nothing.
fn expect_trained(sandbox: &Sandbox, world: usize, arguments: &[&str]) -> String {
    let outputs = run_ranks(sandbox, world, arguments);
    let printed: Vec<(i32, String)> = outputs.iter().map(|output| (output.code, output.text())).collect();
    let has_trained = |(rank, (code, text)): (usize, &(i32, String))| *code == 0 && (rank == 0 || text.is_empty());
    assert!(printed.iter().enumerate().all(has_trained), "{printed:#?}");
    outputs[0].text()
}

/// The run of the same file whose ranks `apply` starts itself.
pub(crate) fn local_run(sandbox: &Sandbox) -> RunFolder {
    sandbox.expect(0, "apply exp.yaml --threads 2 --runs local");
    sandbox.only_run_in("local")
}

/// A port on which nothing listens. It is below the ports that the system hands out, so that no other connection takes it before
/// rank 0 does, and each call of this process returns a different one.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let offset = (std::process::id() as u16).wrapping_mul(97).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = 20_000 + offset % 12_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Metrics, samples and the last checkpoint are those of `apply` alone, bit for bit.
fn same_as_local(parallel: &str, world: usize) {
    let sandbox = new_sandbox(parallel, 20);
    let printed = expect_trained(&sandbox, world, &["apply", "exp.yaml", "--threads", "2"]);
    assert!(printed.contains("run    lab-") && printed.contains("20 steps"), "{printed}");
    let (run, local) = (sandbox.only_run(), local_run(&sandbox));
    assert_eq!(run.numbers_and_samples(), local.numbers_and_samples());
    assert_eq!(run.final_hash(), local.final_hash());
    let files = |run: &RunFolder| files_in(&run.checkpoint(20));
    assert!(files(&run) == files(&local), "the checkpoints differ");
    // And again: there is nothing to do, for all of them.
    let again = expect_trained(&sandbox, world, &["apply", "exp.yaml", "--threads", "2"]);
    assert!(again.contains("up to date"), "{again}");
}

#[test]
fn replicas_compute_what_local_ones_do() {
    same_as_local(DDP, 2);
}

#[test]
fn sharded_replicas_compute_what_local_ones_do() {
    same_as_local(SHARDED, 2);
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
    let sandbox = new_sandbox(DP, 20);
    expect_trained(&sandbox, 2, &["apply", "exp.yaml", "--threads", "2"]);
    assert_eq!(sandbox.only_run().numbers_and_samples(), local_run(&sandbox).numbers_and_samples());
}

/// Interrupted, on whatever rank, all stop after the same step with a checkpoint, and continue from there under either launcher.
#[test]
fn a_stop_reaches_all_and_is_resumed() {
    let sandbox = new_sandbox(MESH, 60);
    expect_trained(&sandbox, 4, &["apply", "exp.yaml", "--threads", "2", "--until-step", "15"]);
    let id = sandbox.only_run().id();
    let port = free_port();
    let mut ranks: Vec<RunningProcess> = (0..4)
        .map(|rank| rank_command(&sandbox, rank, 4, port, &["resume", &id, "--threads", "2"]))
        .map(|mut command| RunningProcess(command.spawn().unwrap()))
        .collect();
    let steps = || sandbox.only_run().metrics_of("train").len();
    wait_until("20 steps are recorded", || steps() >= 20);
    ranks[2].signal("TERM");
    // The rank whose exit code counts got no signal.
    let (codes, printed): (Vec<_>, Vec<_>) = ranks.into_iter().map(RunningProcess::finish).unzip();
    let stopped = steps();
    if stopped < 60 {
        assert_eq!(codes, [Some(75); 4], "{printed:?}");
        assert!(printed[0].contains("\nnext:\n  runner resume"), "{printed:?}");
        let checkpoint = sandbox.only_run().checkpoint(stopped as u64);
        assert!(checkpoint.join("state.json").exists(), "no checkpoint of step {stopped}");
        sandbox.expect(0, &["resume", &id, "--threads", "2"]);
    }
    assert_eq!(sandbox.only_run().numbers_and_samples(), local_run(&sandbox).numbers_and_samples());
}

/// The number of connections that a listener at `port` of this machine has accepted.
fn connections_to(port: u16) -> usize {
    const ESTABLISHED: &str = "01";
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| fs::read_to_string(table).unwrap_or_default());
    let lines = tables.iter().flat_map(|table| table.lines());
    lines
        .filter(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let (local, state) = (fields.next(), fields.nth(1));
            local.is_some_and(|local| local.ends_with(&format!(":{port:04X}"))) && state == Some(ESTABLISHED)
        })
        .count()
}

/// A scheduler's signal reaches all ranks, or one of them, while they prepare.
#[test]
fn a_notice_before_training_reaches_all() {
    for only_one in [false, true] {
        let sandbox = new_sandbox(MESH, 60);
        let port = free_port();
        // Rank 3 reads its experiment from a pipe that stays open, so the others wait for it.
        let mut ranks: Vec<RunningProcess> = (0..4)
            .map(|rank| {
                let file = if rank == 3 { "/dev/stdin" } else { "exp.yaml" };
                let mut command = rank_command(&sandbox, rank, 4, port, &["apply", file, "--threads", "2"]);
                RunningProcess(command.stdin(Stdio::piped()).spawn().unwrap())
            })
            .collect();
        let _writer = ranks[3].0.stdin.take();
        let descriptors = format!("/proc/{}/fd", ranks[3].id());
        wait_until("rank 3 reads the experiment", || {
            let descriptors = fs::read_dir(&descriptors).into_iter().flatten().flatten();
            let pipe = fs::read_link(format!("/proc/{}/fd/0", ranks[3].id())).ok();
            descriptors.filter(|entry| fs::read_link(entry.path()).ok() == pipe).count() > 1
        });
        // A rank that comes later would find nobody.
        wait_until("ranks 1 and 2 have met rank 0", || connections_to(port) >= 2);
        let victims = if only_one { &mut ranks[3..] } else { &mut ranks[..] };
        for rank in victims {
            rank.signal("USR1");
        }
        let (codes, printed): (Vec<_>, Vec<_>) = ranks.into_iter().map(RunningProcess::finish).unzip();
        assert_eq!(codes, [Some(75); 4], "{printed:?}");
        assert!(printed[0].contains("before training; nothing is lost"), "{printed:?}");
        assert!(sandbox.runs().is_empty());
    }
}

/// The rank that gets the second signal ends at once, and the others with the code of the first.
#[test]
fn a_second_signal_to_one_rank_gives_all_the_same_code() {
    let sandbox = new_sandbox(MESH, 60);
    let port = free_port();
    let start = |rank| {
        let mut command = rank_command(&sandbox, rank, 4, port, &["apply", "exp.yaml", "--threads", "2"]);
        // So that the step after the first signal does not end.
        RunningProcess(command.env(FAULTS, "hang=3@15").spawn().unwrap())
    };
    let mut ranks: Vec<RunningProcess> = (0..4).map(start).collect();
    wait_until("14 steps are recorded", || sandbox.runs().values().any(|run| run.has_step(14)));
    ranks[1].signal("TERM");
    // Sooner, it would count as the same signal.
    thread::sleep(Duration::from_millis(5500));
    assert!(!ranks[1].has_ended());
    ranks[1].signal("TERM");
    let _hung = ranks.pop();
    let (codes, printed): (Vec<_>, Vec<_>) = ranks.into_iter().map(RunningProcess::finish).unzip();
    assert_eq!(codes, [Some(75); 3], "{printed:?}");
    assert!(printed[0].contains("rank 1 was stopped immediately"), "{printed:?}");
}

/// Kills the ranks `victims` in the middle of training, and returns what each rank printed to standard error.
fn kill_ranks(victims: &[usize]) -> Vec<String> {
    let sandbox = new_sandbox(MESH, 100_000);
    let port = free_port();
    let mut ranks: Vec<RunningProcess> = (0..4)
        .map(|rank| rank_command(&sandbox, rank, 4, port, &["apply", "exp.yaml", "--threads", "2"]))
        .map(|mut command| RunningProcess(command.spawn().unwrap()))
        .collect();
    wait_until("12 steps are recorded", || sandbox.runs().values().any(|run| run.metrics_of("train").len() >= 12));
    // Each rank sends the others its progress at least once a second.
    thread::sleep(Duration::from_millis(1200));
    let started = Instant::now();
    for &rank in victims {
        ranks[rank].signal("KILL");
    }
    let mut printed = Vec::new();
    for (rank, process) in ranks.into_iter().enumerate() {
        let (code, text) = process.finish();
        assert!(started.elapsed() < END_TIMEOUT, "rank {rank} took {:?}", started.elapsed());
        assert!(victims.contains(&rank) || code == Some(1), "rank {rank}: {code:?}");
        // On a slow machine ranks may have waited for each other.
        printed.push(text.lines().filter(|line| !line.starts_with("waiting: ")).collect::<Vec<_>>().join("\n"));
    }
    if !victims.contains(&0) {
        let run = sandbox.only_run();
        assert_eq!(run.manifest()["status"], "failed");
        // A rank of another machine may write its part of a checkpoint still, so the next session removes what is unfinished.
        let next_step = (run.metrics_of("train").len() + 1).to_string();
        sandbox.expect(0, &["resume", &run.id(), "--until-step", &next_step, "--threads", "2"]);
        let left = names_in(&run.path("checkpoints"));
        assert!(left.iter().all(|name| !name.starts_with('.')), "{left:?}");
    }
    printed
}

#[test]
fn a_rank_that_is_killed_ends_the_others_with_one_error() {
    let printed = kill_ranks(&[2]);
    assert!(printed[0].contains("error: run lab-") && printed[0].contains("rank 2 was lost: "), "{printed:?}");
    assert!(printed[0].contains("closed without notice; its last heartbeat, "), "{printed:?}");
    assert!(printed[0].contains(" s before, was sent "), "{printed:?}");
    assert!(printed[0].contains("resumes from it"), "{printed:?}");
    assert!(printed[1].is_empty() && printed[3].is_empty(), "reported once: {printed:?}");
}

#[test]
fn rank_0_that_is_killed_is_reported_by_another() {
    let printed = kill_ranks(&[0]);
    assert!(printed[1].contains("error: rank 0 was lost: "), "{printed:?}");
    assert!(printed[2].is_empty() && printed[3].is_empty(), "reported once: {printed:?}");
}

#[test]
fn ranks_0_and_1_that_are_killed_are_reported_by_the_next() {
    let printed = kill_ranks(&[0, 1]);
    let errors = ["error: rank 0 was lost: ", "error: rank 1 was lost: "];
    let has_error = errors.iter().any(|error| printed[2].contains(error));
    assert!(has_error && printed[3].is_empty(), "reported once: {printed:?}");
}

/// Checks that all ranks ended with `code`, and returns what they printed.
pub(crate) fn expect_ended(outputs: &[Finished], code: i32) -> String {
    for (rank, output) in outputs.iter().enumerate() {
        assert_eq!(output.code, code, "rank {rank}: {}", output.text());
    }
    outputs.iter().map(Finished::text).collect()
}

/// The same, and keeps what they printed for the sandbox's screens.
fn show_ended(sandbox: &Sandbox, outputs: Vec<Finished>, code: i32) {
    for output in outputs {
        sandbox.keep(output.expect_code(code));
    }
}

#[test]
fn a_different_number_of_ranks_is_reported_once_with_both() {
    let sandbox = new_sandbox("parallel: {mode: ddp, replicas: 4}\n", 20);
    show_ended(&sandbox, run_ranks(&sandbox, 2, &["apply", "exp.yaml", "--threads", "1"]), 2);
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn a_different_plan_on_one_rank_is_reported_with_both() {
    let sandbox = new_sandbox(DDP, 20);
    let outputs = run_commands(2, |rank, port| {
        let seed = format!("seed={}", 7 + rank);
        rank_command(&sandbox, rank, 2, port, &["apply", "exp.yaml", "--threads", "1", "--set", &seed])
    });
    let printed = expect_ended(&outputs, 1);
    assert!(printed.contains("rank 1 has the plan ") && printed.contains(", but rank 0 has "), "{printed}");
    assert_eq!(printed.matches("error:").count(), 1, "{printed}");
    assert!(sandbox.runs().is_empty(), "no run is made");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn other_products_in_bf16_on_one_rank_are_reported() {
    if !is_x86_feature_detected!("avx512bf16") {
        runner_spec::skip!("this processor has no AVX512_BF16, so there is one method");
    }
    let sandbox = new_sandbox(DDP, 4);
    let outputs = run_commands(2, |rank, port| {
        let arguments = ["apply", "exp.yaml", "--threads", "1", "--set", "precision=bf16"];
        let mut command = rank_command(&sandbox, rank, 2, port, &arguments);
        command.env("RUNNER_BF16_PRODUCTS", ["f32", "avx512_bf16"][rank]);
        command
    });
    let printed = expect_ended(&outputs, 1);
    let message = "rank 1 multiplies bf16 matrices with avx512_bf16, but rank 0 with f32";
    assert!(printed.contains(message) && printed.contains("RUNNER_BF16_PRODUCTS"), "{printed}");
    assert!(sandbox.runs().is_empty(), "no run is made");
}

#[test]
fn a_mistake_that_one_rank_alone_finds_is_reported_by_rank_0() {
    let sandbox = new_sandbox(DDP, 20);
    let outputs = run_commands(2, |rank, port| {
        let set = if rank == 1 { "data.train.text.files=[nothing.txt]" } else { "train.steps=20" };
        rank_command(&sandbox, rank, 2, port, &["apply", "exp.yaml", "--threads", "1", "--set", set])
    });
    for output in outputs {
        sandbox.keep(output);
    }
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn a_failure_in_a_step_names_rank_and_instruction() {
    let sandbox = new_sandbox(PIPELINE, 20);
    let printed = expect_ended(&run_commands(2, |rank, port| faulty_rank(&sandbox, rank, port, "full-disk=1@10")), 1);
    assert!(printed.contains("rank 1 failed in step 10 at periodic["), "{printed}");
    assert_eq!(printed.matches("error:").count(), 1, "{printed}");
}

#[test]
fn a_rank_that_waits_alone_reports_the_missing_ranks() {
    let sandbox = new_sandbox(DDP, 20);
    let port = free_port();
    let start = |rank, port| faulty_rank(&sandbox, rank, port, "operation-timeout=500");
    sandbox.keep(Finished::of(&mut start(0, port)).expect_code(1));
    sandbox.keep(Finished::of(&mut start(1, port)).expect_code(1));
    let busy = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = busy.local_addr().unwrap().port();
    sandbox.keep(Finished::of(&mut start(0, port)).expect_code(1));
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn variables_that_make_no_sense_are_named() {
    let sandbox = new_sandbox(DDP, 20);
    let mut command = sandbox.command("apply exp.yaml");
    command.env("RANK", "two").env("WORLD_SIZE", "2").env("MASTER_ADDR", "x");
    sandbox.keep(Finished::of(&mut command).expect_code(2));
    sandbox.show(2, "apply exp.yaml --launcher env");
    insta::assert_snapshot!(sandbox.screens());
}

/// The shell of an allocation, a batch script, and one process of a launcher with a plan of one rank.
#[test]
fn a_process_that_is_alone_starts_the_ranks_itself() {
    let sandbox = new_sandbox(DDP, 10);
    let slurm = [("SLURM_JOB_ID", "7"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1"), ("SLURM_STEP_ID", "0")];
    let arguments = ["apply", "exp.yaml", "--threads", "2"];
    Finished::of(sandbox.command(&arguments).envs(slurm)).expect_code(0);
    assert!(sandbox.only_run().path("ranks/rank-1.log").exists(), "started by apply");
    let run_alone = |sandbox: &Sandbox, more: &[&str]| {
        Finished::of(&mut rank_command(sandbox, 0, 1, 1, &[&arguments[..], more].concat()))
    };
    run_alone(&sandbox, &["--runs", "other", "--launcher", "local"]).expect_code(0);
    sandbox.keep(run_alone(&sandbox, &["--runs", "third"]));
    run_alone(&new_sandbox("", 10), &[]).expect_code(0);
    insta::assert_snapshot!(sandbox.screens());
}

/// The file with the secret by which ranks of one machine recognize each other.
fn secret_files(sandbox: &Sandbox) -> Vec<String> {
    names_in(&sandbox.path("cache")).into_iter().filter(|name| name.starts_with("rank-secret-")).collect()
}

#[test]
fn ranks_of_one_machine_share_a_secret_in_a_file() {
    let sandbox = new_sandbox(DDP, 10);
    let arguments = ["apply", "exp.yaml", "--threads", "2"];
    let printed = expect_trained(&sandbox, 2, &arguments);
    assert!(!printed.contains("RUNNER_TOKEN"), "{printed}");
    let files = secret_files(&sandbox);
    let path = sandbox.path("cache").join(&files[0]);
    assert_eq!((files.len(), fs::metadata(&path).unwrap().permissions().mode() & 0o777), (1, 0o600));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let printed = expect_ended(&run_ranks(&sandbox, 2, &arguments), 1);
    assert!(printed.contains(&files[0]) && printed.contains("other users may access it; remove it"), "{printed}");
    let outputs = run_commands(2, |rank, port| {
        let mut command = rank_command(&sandbox, rank, 2, port, &arguments);
        command.env("RUNNER_TOKEN", "of these ranks");
        command
    });
    assert!(expect_ended(&outputs, 0).contains("up to date"), "ranks with a token in the environment need no file");
}

#[test]
fn ranks_that_may_be_on_several_machines_are_asked_for_a_token() {
    let sandbox = new_sandbox(DDP, 10);
    let outputs = run_commands(2, |rank, port| {
        let mut command = rank_command(&sandbox, rank, 2, port, &["apply", "exp.yaml", "--threads", "2"]);
        command.env("MASTER_ADDR", "0.0.0.0");
        command
    });
    let printed = expect_ended(&outputs, 0);
    assert_eq!(printed.matches("to the same random text on all ranks").count(), 1, "{printed}");
    assert!(secret_files(&sandbox).is_empty());
}

#[test]
fn ranks_with_other_tokens_do_not_meet() {
    let sandbox = new_sandbox(DDP, 10);
    let outputs = run_commands(2, |rank, port| {
        let mut command = faulty_rank(&sandbox, rank, port, "operation-timeout=1500");
        command.env("RUNNER_TOKEN", format!("of rank {rank}"));
        command
    });
    let printed = expect_ended(&outputs, 1);
    assert!(printed.contains("it did not prove that it knows the token"), "{printed}");
    assert!(printed.contains("is not rank 0 of this run, or has a different token"), "{printed}");
}

#[test]
fn a_stranger_does_not_stop_a_run_that_starts() {
    let sandbox = new_sandbox(DDP, 10);
    let port = free_port();
    let start = |rank| {
        let mut command = rank_command(&sandbox, rank, 2, port, &["apply", "exp.yaml", "--threads", "2"]);
        RunningProcess(command.spawn().unwrap())
    };
    let zero = start(0);
    wait_until("rank 0 listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    let _silent = TcpStream::connect(("127.0.0.1", port)).unwrap();
    // The first is the beginning of the first message of an earlier version of the protocol.
    let messages: [&[u8]; 3] =
        [b"\xf8\0\0\0{\"version\":4,\"world_size\":3,\"rank\":1", &[0; 252], b"rnrtcp\r\n\x06\0\0\0"];
    for bytes in messages {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let one = start(1);
    for (rank, process) in [zero, one].into_iter().enumerate() {
        let (code, printed) = process.finish();
        assert_eq!(code, Some(0), "rank {rank}: {printed}");
    }
}

/// Trains with rank 1 connected through a proxy with a fault.
fn train_through_proxy(sandbox: &Sandbox, damage: Damage) -> Vec<Finished> {
    run_commands(2, |rank, port| {
        let fault = Fault { direction: Direction::ToTarget, at: 1_000_000, damage };
        // Rank 0 listens at the port. The proxy works until this process ends.
        let port = if rank == 0 { port } else { std::mem::ManuallyDrop::new(Proxy::start(port, Some(fault))).port };
        faulty_rank(sandbox, rank, port, "heartbeat-timeout=5000")
    })
}

#[test]
fn a_damaged_connection_ends_the_run_and_names_a_rank() {
    let (damaged, silent) = ("its connection with rank 0 is damaged: chunk ", "it sent no heartbeat for 5 s");
    for (damage, reasons) in [
        (Damage::FlipBit(3), &[damaged][..]),
        // Later bytes, if any follow, are read in place of the missing ones.
        (Damage::Drop(70_000), &[damaged, silent]),
        (Damage::Drop(u64::MAX), &[silent]),
        (Damage::Cut, &["its connection was closed without notice"]),
    ] {
        let sandbox = new_sandbox(DDP, 100_000);
        let printed = expect_ended(&train_through_proxy(&sandbox, damage), 1);
        let is_explained = reasons.iter().any(|reason| printed.contains(reason));
        assert!(is_explained && printed.contains("rank 1 was lost: "), "{damage:?}: {printed}");
    }
}

#[test]
fn a_delayed_connection_changes_nothing() {
    let sandbox = new_sandbox(DDP, 20);
    let outputs = train_through_proxy(&sandbox, Damage::Delay(Duration::from_millis(500)));
    expect_ended(&outputs, 0);
    assert_eq!(sandbox.only_run().final_hash(), local_run(&sandbox).final_hash());
}
