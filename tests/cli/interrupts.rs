//! Ctrl-C: each command that trains ends by naming the command that resumes it, which a shell can run unchanged.

#![cfg(unix)]

use std::fs;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::ptr;

use crate::sandbox::{Finished, RunFolder, RunningProcess, Sandbox, runner_binary, wait_until};

/// A sandbox with an experiment whose run does not end on its own, and a sweep of it.
fn new_sandbox() -> Sandbox {
    let yaml = "version: 1\nname: lab\nmodel: {family: gpt2, layers: 1, heads: 2, d_model: 16, context_length: 32}\n\
                data: {tokenizer: {chars: {}}, train: {text: {files: [input.txt]}}, validation: {fraction: 0.1}}\n\
                batch: {sequences: 8, micro_batch: 8}\ntrain: {steps: 1000000}\neval: {every: 1000000, loss: {batches: 1}}\n\
                checkpoint: {every: 1000000}\n";
    let sweep = "sweep:\n  base: exp.yaml\n  grid: {seed: [1, 2]}\n  parallel: 2\n";
    Sandbox::new().with_numbers(4000).with("exp.yaml", yaml).with("my sweep.yaml", sweep)
}

/// Starts a command, interrupts it once it has trained a few steps, and returns what it printed.
fn interrupted(sandbox: &Sandbox, arguments: &[&str]) -> String {
    let start_of = sandbox.new_session_start();
    let mut command = sandbox.command(arguments);
    let mut child = RunningProcess(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    wait_until("a new session trains", || {
        let is_training = |run: &RunFolder| start_of(run).is_some_and(|from| run.has_step(from as usize + 3));
        sandbox.runs().values().any(is_training) || child.has_ended()
    });
    child.signal("INT");
    let (code, text) = child.finish();
    assert_eq!(code, Some(130), "{text}");
    text
}

/// The first command under `next:`.
#[track_caller]
fn next_command(text: &str) -> String {
    let next = text.split_once("\nnext:\n").unwrap_or_else(|| panic!("no `next:` in {text}")).1;
    next.lines().next().unwrap().trim().to_owned()
}

/// Runs the shell's command `line`, in which `runner` is the program under test.
fn run_line(sandbox: &Sandbox, line: &str) -> Finished {
    let function = format!("runner() {{ '{}' \"$@\"; }}; {line}", runner_binary().display());
    Finished::of(sandbox.prepare(Command::new("sh").args(["-c", &function])))
}

/// A new terminal: the end that a terminal's window holds, and the one that programs write to. `None` if the system has no terminals, as in
/// a container without `/dev/pts`.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "FFI")]
fn open_terminal() -> Option<(OwnedFd, OwnedFd)> {
    let (mut window, mut program) = (-1, -1);
    // SAFETY: it writes two descriptors, which nothing else owns, and reads none of the null pointers.
    unsafe {
        if libc::openpty(&raw mut window, &raw mut program, ptr::null_mut(), ptr::null(), ptr::null()) != 0 {
            runner_spec::skip!("no terminal can be opened: {}", std::io::Error::last_os_error());
        }
        Some((OwnedFd::from_raw_fd(window), OwnedFd::from_raw_fd(program)))
    }
}

/// Lets `command` heed hangups, also if these tests run under nohup.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "FFI")]
fn heed_hangups(command: &mut Command) {
    let heed = || {
        // SAFETY: it may be called between fork and exec, and SIG_DFL runs no code of ours.
        unsafe { libc::signal(libc::SIGHUP, libc::SIG_DFL) };
        Ok(())
    };
    // SAFETY: the closure allocates nothing and takes no lock.
    unsafe { command.pre_exec(heed) };
}

/// Writes to a terminal that was closed fail, and are not why the run ends.
#[test]
#[cfg(target_os = "linux")]
fn a_closed_terminal_is_an_interrupt() {
    let Some((window, program)) = open_terminal() else { return };
    let sandbox = new_sandbox();
    let child = {
        let mut command = sandbox.command("apply exp.yaml --threads 1");
        command.stdout(program.try_clone().unwrap()).stderr(program);
        heed_hangups(&mut command);
        command.spawn().unwrap()
    };
    let mut child = RunningProcess(child);
    wait_until("the run trains", || sandbox.runs().values().any(|run| run.has_step(3)) || child.has_ended());
    drop(window);
    child.signal("HUP");
    assert_eq!(child.wait(), Some(130));
    assert_eq!(sandbox.only_run().manifest()["status"], "interrupted");
}

#[test]
fn apply_resume_and_fork_name_the_resumption() {
    let sandbox = new_sandbox();
    let text = interrupted(&sandbox, &["apply", "exp.yaml", "--threads", "1", "--new"]);
    let id = sandbox.only_run().id();
    let next = next_command(&text);
    assert_eq!(next, format!("runner resume {id}"), "{text}");
    let step = sandbox.only_run().summary()["steps"].as_u64().unwrap();
    let resumed = run_line(&sandbox, &format!("{next} --until-step {}", step + 2)).expect_code(0).text();
    assert!(resumed.contains(&format!("resuming from step {step}")), "{resumed}");
    let text = interrupted(&sandbox, &["fork", &id, "--from", "latest", "--set", "seed=7", "--threads", "1"]);
    let fork = sandbox.runs().into_keys().find(|other| *other != id).unwrap();
    assert_eq!(next_command(&text), format!("runner resume {fork}"), "{text}");
    let text = interrupted(&sandbox, &["resume", &fork, "--threads", "1"]);
    assert_eq!(next_command(&text), format!("runner resume {fork}"), "{text}");
}

#[test]
fn reproduce_names_itself() {
    let sandbox = new_sandbox();
    // Long enough to be interrupted on a fast machine.
    sandbox.expect(0, "apply exp.yaml --threads 2 --quiet --set train.steps=3000 --set eval=null");
    let id = sandbox.only_run().id();
    let text = interrupted(&sandbox, &["reproduce", &id, "--threads", "1", "--tolerance", "1e-3"]);
    let next = next_command(&text);
    assert_eq!(next, format!("runner reproduce {id} --threads 1 --tolerance 1e-3"), "{text}");
    let resumed = run_line(&sandbox, &next).expect_code(0).text();
    assert!(resumed.contains("continues with") && resumed.contains("bitwise"), "{resumed}");
}

#[test]
fn a_sweep_names_itself_without_new() {
    let sandbox = new_sandbox();
    let text = interrupted(&sandbox, &["sweep", "my sweep.yaml", "--new", "--threads", "1"]);
    let next = next_command(&text);
    assert_eq!(next, "runner sweep 'my sweep.yaml' --threads 1", "{text}");
    let planned = run_line(&sandbox, &format!("{next} --dry-run")).expect_code(0).text();
    assert!(planned.contains("2 points"), "{planned}");
}

#[test]
fn an_interrupt_before_training_repeats_the_command() {
    let sandbox = new_sandbox();
    let mut command = sandbox.command("apply /dev/stdin --new --set seed=2");
    let streams = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = RunningProcess(streams.spawn().unwrap());
    // The pipe stays open, so that the program waits for the experiment.
    let _writer = child.0.stdin.take();
    let descriptors = format!("/proc/{}/fd", child.0.id());
    wait_until("the program reads the experiment", || {
        let descriptors = fs::read_dir(&descriptors).into_iter().flatten();
        let links: Vec<_> = descriptors.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok()).collect();
        let input = fs::read_link(format!("/proc/{}/fd/0", child.0.id())).ok();
        // It has opened its standard input a second time.
        links.into_iter().filter(|link| Some(link) == input.as_ref()).count() > 1
    });
    child.signal("TERM");
    let (code, text) = child.finish();
    assert_eq!(code, Some(75), "{text}");
    assert!(text.contains("interrupted before training; nothing is lost"), "{text}");
    assert_eq!(next_command(&text), "runner apply /dev/stdin --new --set seed=2");
    assert!(sandbox.runs().is_empty());
}

/// Without a checkpoint there is nothing to sample from.
#[test]
fn a_notice_before_the_first_checkpoint_suggests_what_works() {
    let evaluation = "{every: 1000000, at_start: true, loss: {batches: 100}}";
    for _ in 0..20 {
        let sandbox = new_sandbox();
        sandbox.edit("exp.yaml", "{every: 1000000, loss: {batches: 1}}", evaluation);
        sandbox.edit("exp.yaml", "fraction: 0.1", "fraction: 0.8");
        let mut command = sandbox.command("apply exp.yaml --threads 1");
        let mut child = RunningProcess(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        let has_session = |run: &RunFolder| run.session_starts().next().is_some();
        wait_until("the session begins", || sandbox.runs().values().any(has_session) || child.has_ended());
        child.signal("TERM");
        let (code, text) = child.finish();
        assert_eq!(code, Some(75), "{text}");
        let run = sandbox.only_run();
        let saved = !sandbox.files_in(&format!("runs/{}/checkpoints", run.id())).is_empty();
        // Too early, or too late: not in the evaluation before the first step.
        if text.contains("before training") || saved {
            continue;
        }
        assert!(!text.contains("runner sample"), "{text}");
        assert_eq!(next_command(&text), format!("runner resume {}", run.id()), "{text}");
        return;
    }
    panic!("no signal came between the start of training and the first checkpoint");
}
