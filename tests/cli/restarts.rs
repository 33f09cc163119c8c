//! Ranks that a launcher started, after one of them was lost: those that remain wait for it, or the launcher restarts all of them.

#![cfg(target_os = "linux")]

use std::process::Command;

use crate::launchers::{DDP, expect_ended, free_port, local_run, new_sandbox, rank_command, run_commands};
use crate::ranks::FAULTS;
use crate::sandbox::{RunningProcess, Sandbox, wait_until};

const STEPS: usize = 60;

fn start(sandbox: &Sandbox, rank: usize, port: u16) -> RunningProcess {
    let mut command = rank_command(sandbox, rank, 2, port, &["apply", "exp.yaml", "--threads", "2", "--new"]);
    RunningProcess(command.spawn().unwrap())
}

fn sandbox_with_restarts(max_restarts: u32) -> Sandbox {
    new_sandbox(&DDP.replace('}', &format!(", max_restarts: {max_restarts}}}")), STEPS)
}

/// Starts both ranks, and kills rank `victim` once `steps` steps are recorded. Returns the other one.
fn kill_in_training(sandbox: &Sandbox, victim: usize, port: u16, steps: usize) -> RunningProcess {
    let mut ranks: Vec<RunningProcess> = (0..2).map(|rank| start(sandbox, rank, port)).collect();
    let recorded = || sandbox.runs().values().map(|run| run.metrics_of("train").len()).max();
    wait_until("steps are recorded", || recorded() >= Some(steps));
    let mut killed = ranks.remove(victim);
    killed.signal("KILL");
    killed.finish();
    ranks.remove(0)
}

#[test]
fn ranks_that_remain_wait_for_a_lost_one() {
    let sandbox = sandbox_with_restarts(1);
    let port = free_port();
    let zero = kill_in_training(&sandbox, 1, port, 12);
    let one = start(&sandbox, 1, port);
    let (code, printed) = zero.finish();
    assert_eq!((code, one.finish()), (Some(0), (Some(0), String::new())), "{printed}");
    let warning = "waiting for all ranks to connect again, to resume from the newest checkpoint (restart 1 of 1)";
    assert!(printed.contains("warning: rank 1 was lost: ") && printed.contains(warning), "{printed}");
    assert!(!printed.contains("error: "), "{printed}");
    // The ranks resume it in spite of --new.
    let run = sandbox.only_run();
    assert_eq!(run.final_hash(), local_run(&sandbox).final_hash());
    let manifest = run.manifest();
    let sessions = manifest["sessions"].as_array().unwrap();
    assert!(sessions[0]["error"].as_str().unwrap().starts_with("rank 1 was lost: "), "{sessions:?}");
    assert_eq!((sessions.len(), &sessions[0]["restarts"], &sessions[1]["restarts"]), (2, &().into(), &1.into()));
    let shown = sandbox.expect(0, &["runs", "show", &run.id()]);
    assert!(shown.contains("failed: rank 1 was lost: ") && shown.contains("restarted once"), "{shown}");
}

#[test]
fn a_rank_0_that_comes_back_resumes_the_run() {
    let sandbox = sandbox_with_restarts(1);
    let port = free_port();
    let one = kill_in_training(&sandbox, 0, port, 12);
    let mut zero = rank_command(&sandbox, 0, 2, port, &["apply", "exp.yaml", "--threads", "2"]);
    let (code, printed) = RunningProcess(zero.spawn().unwrap()).finish();
    assert_eq!(code, Some(0), "{printed}");
    let (code, printed) = one.finish();
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("warning: rank 0 was lost: ") && printed.contains("restart 1 of 1"), "{printed}");
    assert_eq!(sandbox.only_run().final_hash(), local_run(&sandbox).final_hash());
}

#[test]
fn ranks_wait_as_often_as_allowed() {
    let sandbox = sandbox_with_restarts(0);
    let (code, printed) = kill_in_training(&sandbox, 1, free_port(), 2).finish();
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("error: run lab-") && !printed.contains("waiting for all ranks"), "{printed}");
    // torchrun restarts all ranks itself.
    let sandbox = sandbox_with_restarts(1);
    let outputs = run_commands(2, |rank, port| relaunched(&sandbox, rank, port, 0, "panic=1@15"));
    assert!(!expect_ended(&outputs[..1], 1).contains("waiting for all ranks"));
}

/// A rank with the variables of a torchrun that has restarted the ranks `restarts` times.
fn relaunched(sandbox: &Sandbox, rank: usize, port: u16, restarts: u32, faults: &str) -> Command {
    let mut command = rank_command(sandbox, rank, 2, port, &["apply", "exp.yaml", "--threads", "2", "--new"]);
    command.env("TORCHELASTIC_RUN_ID", "job").env("TORCHELASTIC_RESTART_COUNT", restarts.to_string());
    if !faults.is_empty() {
        command.env(FAULTS, faults);
    }
    command
}

#[test]
fn a_death_that_comes_again_is_left_alone_under_a_launcher() {
    let sandbox = new_sandbox(DDP, STEPS);
    let attempt = |restarts, faults: &'static str| {
        run_commands(2, |rank, port| relaunched(&sandbox, rank, port, restarts, faults))
    };
    for (restarts, start) in [(0, "run    lab-"), (1, "resuming from step 10"), (2, "resuming from step 10")] {
        let printed = expect_ended(&attempt(restarts, "panic=1@15")[..1], 1);
        assert!(printed.contains(start) && printed.contains("rank 1 was lost: "), "{restarts}: {printed}");
    }
    // The first attempt saved step 10, the two after it nothing.
    let printed = expect_ended(&attempt(3, ""), 1);
    let refusal = "is not restarted: rank 1 was lost: ";
    let advice = "so they are not restarted; start it again yourself to try once more";
    assert!(printed.contains(refusal) && printed.contains(advice), "{printed}");
    assert_eq!(sandbox.only_run().manifest()["sessions"].as_array().map(Vec::len), Some(3));
    let by_hand = |rank, port| rank_command(&sandbox, rank, 2, port, &["apply", "exp.yaml", "--threads", "2"]);
    expect_ended(&run_commands(2, by_hand), 0);
    assert_eq!(sandbox.only_run().final_hash(), local_run(&sandbox).final_hash());
}
