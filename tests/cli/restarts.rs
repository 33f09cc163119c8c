//! Ranks that a launcher started, after one of them was lost: the launcher restarts all of them.

#![cfg(target_os = "linux")]

use std::process::Command;

use crate::launchers::{DDP, expect_ended, local_run, new_sandbox, rank_command, run_commands};
use crate::ranks::FAULTS;
use crate::sandbox::Sandbox;

const STEPS: usize = 60;

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
fn ranks_that_a_launcher_restarts_resume_in_spite_of_new() {
    let sandbox = new_sandbox(DDP, STEPS);
    let attempt = |restarts, faults: &'static str| {
        run_commands(2, |rank, port| relaunched(&sandbox, rank, port, restarts, faults))
    };
    let printed = expect_ended(&attempt(0, "panic=1@15")[..1], 1);
    assert!(printed.contains("rank 1 was lost: "), "{printed}");
    assert!(expect_ended(&attempt(1, ""), 0).contains("resuming from step 10"));
    let run = sandbox.only_run();
    assert_eq!(run.final_hash(), local_run(&sandbox).final_hash());
    let sessions = run.manifest()["sessions"].as_array().unwrap().clone();
    assert!(sessions[0]["error"].as_str().unwrap().starts_with("rank 1 was lost: "), "{sessions:?}");
    assert_eq!((sessions.len(), &sessions[0]["restarts"], &sessions[1]["restarts"]), (2, &().into(), &1.into()));
    let shown = sandbox.expect(0, &["runs", "show", &run.id()]);
    assert!(shown.contains("failed: rank 1 was lost: ") && shown.contains("restarted once"), "{shown}");
}
