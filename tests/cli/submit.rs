//! Runs as jobs of Slurm. Stand-ins for Slurm's commands keep the queue in files; a test starts the script as Slurm would.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::sandbox::Finished;
use crate::slurm::SlurmSandbox;

/// Notes each submission. The job waits until the test changes the file `queue`, with the columns after the job's number.
const SBATCH: &str =
    "#!/bin/sh\ntest \"$1\" = --parsable || exit 9\necho \"$2\" >> submitted.txt\necho 'N/A PD 0' > queue\necho 7\n";
const SQUEUE: &str =
    "#!/bin/sh\necho called >> squeue.txt\ntest ! -s queue || echo \"7 $(cat queue) $(tail -n 1 submitted.txt)\"\n";
const SUBMIT: [&str; 4] = ["submit", "exp.yaml", "--threads", "2"];

fn new_sandbox() -> SlurmSandbox {
    let sandbox = SlurmSandbox::new();
    sandbox.install_command("sbatch", SBATCH);
    sandbox.install_command("squeue", SQUEUE);
    sandbox
}

fn submit(sandbox: &SlurmSandbox, more: &[&str]) -> Finished {
    sandbox.run_with_slurm(&[&SUBMIT, more].concat())
}

/// The scripts that were submitted.
fn submitted(sandbox: &SlurmSandbox) -> Vec<PathBuf> {
    fs::read_to_string(sandbox.path("submitted.txt")).unwrap_or_default().lines().map(PathBuf::from).collect()
}

/// Runs the newest script as Slurm does, and returns its exit code.
fn run_job(sandbox: &SlurmSandbox) -> Option<i32> {
    let script = submitted(sandbox).pop().unwrap();
    let mut command = Command::new("sh");
    sandbox.prepare(sandbox.with_slurm(&mut command)).arg(script).env("SLURM_JOB_ID", "7");
    command.status().unwrap().code()
}

/// Status and job of the only run in the list.
fn listed(sandbox: &SlurmSandbox) -> (String, Value) {
    let runs = sandbox.run_with_slurm(&["runs", "--json"]).json();
    assert_eq!(runs.as_array().map(Vec::len), Some(1), "{runs}");
    (runs[0]["status"].as_str().unwrap().to_owned(), runs[0]["job"].clone())
}

#[test]
fn a_run_is_submitted_once_and_shows_its_status() {
    let sandbox = new_sandbox();
    let dry = submit(&sandbox, &["--dry-run"]);
    assert!(dry.code == 0 && dry.stdout.starts_with("#!/bin/sh\n"), "{}", dry.text());
    assert!(!sandbox.path("runs").exists() && submitted(&sandbox).is_empty(), "a dry run writes nothing");

    let out = submit(&sandbox, &["--time", "90m", "--job-option=--partition=long"]);
    assert!(out.code == 0 && out.text().contains("as job 7: 1 rank on 1 node; time limit: 1h 30m"), "{}", out.text());
    let script = fs::read_to_string(&submitted(&sandbox)[0]).unwrap();
    for line in ["--nodes=1", "--ntasks=1", "--cpus-per-task=2", "--time=90", "--requeue", "--partition=long"] {
        assert!(script.contains(&format!("#SBATCH {line}\n")), "{line}: {script}");
    }
    assert_eq!(listed(&sandbox), ("pending".to_owned(), "7".into()));
    let again = submit(&sandbox, &[]);
    assert!(again.code == 0 && again.text().contains("already has job 7"), "{}", again.text());
    assert_eq!(submitted(&sandbox).len(), 1);
    sandbox.write("queue", "N/A R 0");
    assert_eq!(listed(&sandbox).0, "running");
    let held = fs::File::open(sandbox.only_run().0.join("lock")).unwrap();
    held.lock().unwrap();
    let again = submit(&sandbox, &[]);
    assert!(again.code == 0 && again.text().contains("already has job 7"), "the job works on it: {}", again.text());
    sandbox.write("queue", "");
    let again = submit(&sandbox, &[]);
    assert!(again.code == 2 && submitted(&sandbox).len() == 1, "another process works on it: {}", again.text());
    drop(held);
    sandbox.write("queue", "N/A PD 1");
    assert_eq!(listed(&sandbox).0, "requeued");
    let table = sandbox.run_with_slurm(&["runs", "--status", "requeued"]).text();
    assert!(table.contains("requeued") && table.contains("job"), "{table}");
    assert!(sandbox.run_with_slurm(&["runs", "show", "job"]).text().contains("requeued"));

    // The file may change: the run keeps its experiment.
    sandbox.edit("exp.yaml", "steps: 12", "steps: 9");
    assert_eq!(run_job(&sandbox), Some(0));
    sandbox.write("queue", "");
    assert_eq!(listed(&sandbox), ("done".to_owned(), Value::Null));
    sandbox.edit("exp.yaml", "steps: 9", "steps: 12");
    assert!(submit(&sandbox, &[]).text().contains("up to date"));
    sandbox.run(&["apply", "exp.yaml", "--runs", "elsewhere", "--quiet"]).expect_code(0);
    assert_eq!(sandbox.only_run().final_hash(), sandbox.only_run_in("elsewhere").final_hash());
    assert_eq!(submitted(&sandbox).len(), 1);
}

#[test]
fn the_json_of_a_submission_has_these_fields() {
    let submission = submit(&new_sandbox(), &["--json"]).expect_code(0).json();
    let fields: Vec<&String> = submission.as_object().unwrap().keys().collect();
    assert_eq!(fields, ["job", "path", "run", "script", "status"]);
}

#[test]
fn the_queue_is_read_only_for_runs_that_were_submitted() {
    let sandbox = new_sandbox();
    sandbox.run_with_slurm(&["apply", "exp.yaml", "--until-step", "3", "--quiet"]).expect_code(0);
    assert_eq!(listed(&sandbox), ("interrupted".to_owned(), Value::Null));
    assert!(!sandbox.path("squeue.txt").exists());
    submit(&sandbox, &[]).expect_code(0);
    assert_eq!(listed(&sandbox), ("pending".to_owned(), "7".into()), "the rest of the run");
    sandbox.install_command("squeue", "#!/bin/sh\necho 'Unable to contact slurm controller' >&2\nexit 1\n");
    let runs = sandbox.run_with_slurm(&["runs"]);
    assert!(runs.code == 0 && runs.text().contains("Unable to contact slurm controller"), "{}", runs.text());
    assert!(runs.stdout.contains("interrupted"), "{}", runs.text());
    let out = submit(&sandbox, &[]);
    assert!(out.code == 1 && submitted(&sandbox).len() == 1, "whether it has a job is unknown: {}", out.text());
    // Without Slurm, as on another machine that sees the runs.
    let runs = Finished::of(sandbox.command(&["runs"]).env("PATH", sandbox.path("empty")));
    assert!(runs.code == 0 && runs.stderr.is_empty() && runs.stdout.contains("interrupted"), "{}", runs.text());
}

#[test]
fn a_script_that_is_warned_requeues_the_job() {
    let sandbox = new_sandbox();
    submit(&sandbox, &[]).expect_code(0);
    let scontrol = |preempted: &str| {
        let shown = format!("echo 'JobId=7 StartTime=2026-01-01T00:00:00 PreemptTime={preempted} Partition=main'");
        let script =
            format!("#!/bin/sh\ncase \"$*\" in *'show job 7') {shown};; *) echo \"$@\" > scontrol.txt;; esac\n");
        sandbox.install_command("scontrol", &script);
    };
    scontrol("None");
    // The step warns the script, which passes the signal on.
    let step = "#!/bin/sh\ntrap 'exit CODE' USR1\nfor again in $(seq 200); do kill -USR1 \"$PPID\"; sleep 0.05; done\nexit 9\n";
    for (code, is_requeued) in [(75, true), (0, false), (1, false)] {
        sandbox.install_command("srun", &step.replace("CODE", &code.to_string()));
        assert_eq!(run_job(&sandbox), Some(code));
        let requeued = fs::read_to_string(sandbox.path("scontrol.txt")).ok();
        assert_eq!(requeued.as_deref(), is_requeued.then_some("requeue 7\n"), "after code {code}");
        let _ = fs::remove_file(sandbox.path("scontrol.txt"));
    }
    // `scancel` sends signals to the step alone.
    sandbox.install_command("srun", "#!/bin/sh\nexit 75\n");
    assert_eq!(run_job(&sandbox), Some(75));
    assert!(!sandbox.path("scontrol.txt").exists());
    // So does a job with a higher priority that takes the place of this one.
    scontrol("2026-01-01T00:10:00");
    assert_eq!(run_job(&sandbox), Some(75));
    assert_eq!(fs::read_to_string(sandbox.path("scontrol.txt")).ok().as_deref(), Some("requeue 7\n"));
}

#[test]
fn several_ranks_are_tasks_of_the_nodes_that_are_asked_for() {
    let sandbox = new_sandbox();
    sandbox.edit("exp.yaml", "micro_batch: 4", "micro_batch: 1");
    sandbox.edit("exp.yaml", "eval:", "parallel: {mode: ddp, replicas: 4}\neval:");
    let script = submit(&sandbox, &["--nodes", "2", "--dry-run"]).expect_code(0).stdout;
    for line in ["--nodes=2", "--ntasks=4", "--ntasks-per-node=2", "--cpus-per-task=1"] {
        assert!(script.contains(&format!("#SBATCH {line}\n")), "{line}: {script}");
    }
    assert!(
        script.contains("export RUNNER_TOKEN\n") && script.contains("srun --label --cpus-per-task=1 --mpi=none "),
        "{script}"
    );
    let out = submit(&sandbox, &["--nodes", "5"]);
    assert!(out.code == 2 && out.text().contains("--nodes must be at most 4"), "{}", out.text());
    let gpus = ["--set", "device=cuda", "--cluster", "2x2xH100", "--dry-run"];
    let script = submit(&sandbox, &gpus).expect_code(0).stdout;
    for line in ["--nodes=2", "--ntasks-per-node=2", "--gpus-per-node=2"] {
        assert!(script.contains(&format!("#SBATCH {line}\n")), "{line}: {script}");
    }
    assert!(script.contains("#SBATCH --time="), "the forecast of H100s gives a time limit: {script}");
}

/// The job resumes the run, which continues under the layout of its newest session.
#[test]
fn a_run_that_moved_gets_the_ranks_of_its_layout() {
    let sandbox = new_sandbox();
    sandbox.expect(0, "apply exp.yaml --until-step 2 --threads 2");
    let id = sandbox.only_run().id();
    let section = "{mode: ddp, replicas: 2, shard: optimizer}";
    sandbox.expect(0, &["resume", &id, "--until-step", "4", "--parallel", section, "--threads", "2"]);
    for more in [&["--dry-run"][..], &[]] {
        let out = submit(&sandbox, more);
        let script =
            if more.is_empty() { fs::read_to_string(&submitted(&sandbox)[0]).unwrap() } else { out.stdout.clone() };
        assert!(out.code == 0 && script.contains("--ntasks=2\n"), "{}\n{script}", out.text());
    }
}

/// The user's own template, and a mistake in it.
#[test]
fn a_template_of_ones_own_replaces_the_script() {
    let sandbox = new_sandbox();
    sandbox.write("templates/slurm.sh.j2", "#SBATCH --job-name=mine {{ ranks }}\n");
    assert_eq!(submit(&sandbox, &["--dry-run"]).expect_code(0).stdout, "#SBATCH --job-name=mine 1\n");
    sandbox.write("templates/slurm.sh.j2", "\n{{ partition }}\n");
    let out = submit(&sandbox, &["--dry-run"]);
    assert!(out.code == 2 && out.text().contains("templates/slurm.sh.j2:2:4"), "{}", out.text());
}
