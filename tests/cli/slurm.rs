//! Sweeps in jobs of Slurm. Stand-ins for Slurm's commands run the jobs of an array one after another when it is submitted.

use std::fs;
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::sandbox::{Finished, RunningProcess, Sandbox, wait_until};

const SWEEP: &str = "sweep:
  base: exp.yaml
  grid: {optimizer.adamw.lr: [1e-3, 3e-3], model.layers: [1, 2]}
";

const EXPERIMENT: &str = "version: 1
name: job
model: {family: gpt2, layers: 1, heads: 2, d_model: 16, context_length: 16}
data: {tokenizer: {bytes: {}}, train: {text: {files: [input.txt]}}}
batch: {sequences: 4, micro_batch: 4}
train: {steps: 12}
schedule: {warmup: {steps: 2}}
eval: {every: 6, loss: {batches: 1}}
";

/// Runs the script's array as Slurm would, with job number 7, and keeps the script's array line.
const SBATCH: &str = r#"#!/bin/sh
test "$1" = --parsable || exit 9
array=$(sed -n 's/^#SBATCH --array=\(.*\)%.*/\1/p' "$2")
echo "$array" >> arrays.txt
for part in $(echo "$array" | tr , ' '); do
  for task in $(seq "${part%-*}" "${part#*-}"); do
    SLURM_ARRAY_TASK_ID=$task sh "$2" >> jobs.txt 2>&1
  done
done
echo ended >> ended.txt
echo 7
"#;

/// Starts the ranks of a step. It knows no options.
const SRUN: &str = r#"#!/bin/sh
while case "$1" in --*) true ;; *) false ;; esac; do shift; done
exec "$@"
"#;

/// A sandbox with a sweep, and stand-ins for Slurm's commands in `bin`.
pub struct SlurmSandbox(Sandbox);

impl Deref for SlurmSandbox {
    type Target = Sandbox;

    fn deref(&self) -> &Sandbox {
        &self.0
    }
}

impl SlurmSandbox {
    pub fn new() -> Self {
        let sandbox = Sandbox::new().with_numbers(2000).with("exp.yaml", EXPERIMENT).with("s.yaml", SWEEP);
        let sandbox = Self(sandbox);
        sandbox.install_command("sbatch", SBATCH);
        sandbox.install_command("squeue", "#!/bin/sh\n");
        sandbox.install_command("srun", SRUN);
        sandbox
    }

    pub fn install_command(&self, name: &str, script: &str) {
        let name = format!("bin/{name}");
        self.write(&name, script);
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Puts the stand-ins first in the path of `command`.
    pub fn with_slurm<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        command.env("PATH", path)
    }

    /// Runs the program with the stand-ins first in the path.
    pub fn run_with_slurm(&self, arguments: &[&str]) -> Finished {
        Finished::of(self.with_slurm(&mut self.command(arguments)))
    }

    fn submit(&self, more: &[&str]) -> Finished {
        self.run_with_slurm(&[&["sweep", "s.yaml", "--launcher", "slurm", "--threads", "1"], more].concat())
    }

    /// The array line of each script that was submitted.
    fn submitted_arrays(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("arrays.txt")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Point, status and objective of each row.
    fn results_in(&self, folder: &str) -> Vec<(u64, String, Option<f64>)> {
        let all = self.run_with_slurm(&["sweep", "results", "--json", "--runs", folder]).json();
        let rows = all["rows"].as_array().or(all["results"]["rows"].as_array()).expect("rows");
        let row = |r: &Value| {
            (r["point"].as_u64().unwrap(), r["status"].as_str().unwrap().to_owned(), r["objective"].as_f64())
        };
        rows.iter().map(row).collect()
    }
}

#[test]
fn an_array_gives_what_this_process_gives() {
    let sandbox = SlurmSandbox::new();
    sandbox.keep(sandbox.submit(&["--parallel", "2", "--job-option=--partition=long"]).expect_code(0));
    assert_eq!(sandbox.submitted_arrays(), ["1-4"]);
    let mut folders = fs::read_dir(sandbox.path("runs/sweeps")).unwrap().map(|e| e.unwrap().path());
    let sweep = folders.find(|path| path.is_dir()).expect("a sweep");
    let script = fs::read_to_string(sweep.join("slurm.sh")).unwrap();
    for line in ["--array=1-4%2", "--ntasks=1", "--nodes=1", "--partition=long"] {
        assert!(script.contains(&format!("#SBATCH {line}\n")), "{line}: {script}");
    }

    sandbox.run_with_slurm(&["sweep", "s.yaml", "--runs", "elsewhere", "--threads", "1", "--quiet"]).expect_code(0);
    let jobs = sandbox.results_in("runs");
    assert!(jobs.iter().all(|(_, status, objective)| status == "done" && objective.is_some()), "{jobs:?}");
    assert_eq!(jobs, sandbox.results_in("elsewhere"), "to the bit");

    sandbox.keep(sandbox.submit(&[]).expect_code(0));
    assert_eq!(sandbox.submitted_arrays().len(), 1, "nothing is submitted twice");
    insta::assert_snapshot!(sandbox.screens());
}

/// Slurm gives one of an array's jobs the number of the array, and requeues all of them by that number.
#[test]
fn a_warned_point_requeues_itself_alone() {
    let sandbox = SlurmSandbox::new();
    sandbox.install_command("sbatch", "#!/bin/sh\necho 36\n");
    sandbox.submit(&[]).expect_code(0);
    let sweeps = fs::read_dir(sandbox.path("runs/sweeps")).unwrap();
    let script = sweeps.map(|sweep| sweep.unwrap().path().join("slurm.sh")).find(|script| script.is_file()).unwrap();
    sandbox.install_command("scontrol", "#!/bin/sh\necho \"$@\" >> scontrol.txt\n");
    let warned =
        "#!/bin/sh\ntrap 'exit 75' USR1\nfor again in $(seq 200); do kill -USR1 \"$PPID\"; sleep 0.05; done\nexit 9\n";
    sandbox.install_command("srun", warned);
    for (job, task) in [("37", "1"), ("36", "4")] {
        let mut command = Command::new("sh");
        sandbox.prepare(sandbox.with_slurm(&mut command)).arg(&script);
        command.envs([("SLURM_JOB_ID", job), ("SLURM_ARRAY_JOB_ID", "36"), ("SLURM_ARRAY_TASK_ID", task)]);
        assert_eq!(command.status().unwrap().code(), Some(75));
    }
    assert_eq!(sandbox.read("scontrol.txt"), "requeue 36_1\nrequeue 36_4\n");
}

#[test]
fn failed_points_are_submitted_again_and_waiting_ones_are_not() {
    let sandbox = SlurmSandbox::new();
    // The second task never gets to run, the third is still in the queue.
    let partial =
        SBATCH.replace("SLURM_ARRAY_TASK_ID", "test $task -gt 1 -a $(wc -l < arrays.txt) = 1 || SLURM_ARRAY_TASK_ID");
    sandbox.install_command("sbatch", &partial);
    // Another sweep's jobs are there, too, and have the same numbers.
    let queue = "#!/bin/sh\necho \"6_4 4 PD 0 /other/slurm.sh\"\necho \"8 N/A R 0 /a.sh\"\n\
                 for s in $PWD/runs/sweeps/*/slurm.sh; do test ! -e $s || echo \"7_3  3  PD  0  $s\"; done\n";
    sandbox.install_command("squeue", queue);
    sandbox.submit(&[]).expect_code(0);
    sandbox.submit(&[]).expect_code(0);
    assert_eq!(sandbox.submitted_arrays(), ["1-4", "2,4"]);
    sandbox.keep(sandbox.submit(&[]));
    // Whatever was noted of it or not, Slurm is asked; and if it does not answer, nothing is submitted.
    let down = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)";
    sandbox.install_command("squeue", &format!("#!/bin/sh\necho '{down}' >&2\nexit 1\n"));
    sandbox.keep(sandbox.submit(&[]).expect_code(1));
    assert_eq!(sandbox.submitted_arrays().len(), 2);
    insta::assert_snapshot!(sandbox.screens());
}

/// Each job of an array counts towards the jobs that a user may have in the queue.
#[test]
fn as_many_points_as_possible_are_submitted() {
    let sandbox = SlurmSandbox::new();
    let refuse = r#"jobs=0
for part in $(sed -n 's/^#SBATCH --array=\(.*\)%.*/\1/p' "$2" | tr , ' '); do jobs=$((jobs + ${part#*-} - ${part%-*} + 1)); done
if [ $(($(cat limit) - jobs)) -lt 0 ]; then
  echo "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit)" >&2
  exit 1
fi
echo $(($(cat limit) - jobs)) > limit
"#;
    sandbox.install_command("sbatch", &SBATCH.replacen("array=", &format!("{refuse}array="), 1));
    sandbox.write("limit", "3");
    sandbox.keep(sandbox.submit(&[]).expect_code(0));
    sandbox.keep(sandbox.submit(&[]).expect_code(1));
    sandbox.write("limit", "9");
    sandbox.submit(&[]).expect_code(0);
    assert_eq!(sandbox.submitted_arrays(), ["1-2", "3", "4"]);
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn an_impossible_submission_is_reported_before_anything_is_written() {
    let sandbox = SlurmSandbox::new();
    sandbox.keep(sandbox.submit(&["--job-option=partition"]).expect_code(2));
    sandbox.keep(sandbox.submit(&["--time", "4m"]).expect_code(2));
    assert!(!sandbox.path("runs").exists());
    // No command of Slurm is in the path.
    let arguments = ["sweep", "s.yaml", "--launcher", "slurm", "--threads", "1"];
    let out = Finished::of(sandbox.command(&arguments).env("PATH", sandbox.path("empty")));
    assert!(out.code == 2 && out.text().contains("there is no squeue on this machine"), "{}", out.text());
    assert!(!sandbox.path("runs").exists());
    sandbox.install_command("sbatch", "#!/bin/sh\necho 'Batch job submission failed: Invalid partition' >&2\nexit 1\n");
    sandbox.keep(sandbox.submit(&[]).expect_code(1));
    insta::assert_snapshot!(sandbox.screens());
}

/// Points of different layouts: one rank, and two.
#[test]
fn points_with_several_ranks_are_jobs_with_several_tasks() {
    let sandbox = SlurmSandbox::new();
    sandbox.edit("exp.yaml", "micro_batch: 4", "micro_batch: 2");
    let layouts = "[{mode: single}, {mode: ddp, replicas: 2}]";
    sandbox.write("s.yaml", format!("sweep:\n  base: exp.yaml\n  grid: {{parallel: {layouts}, seed: [1, 2]}}\n"));
    // The stand-in of srun starts the ranks of an array's task, as Slurm does.
    let ranks = r#"#!/bin/sh
while case "$1" in --*) true ;; *) false ;; esac; do shift; done
export SLURM_STEP_ID=0 SLURM_JOB_ID=$((20 + SLURM_ARRAY_TASK_ID)) SLURM_STEP_NUM_NODES=1 SLURM_STEP_NODELIST=localhost
for rank in $(seq 2 $TASKS); do SLURM_PROCID=$((rank - 1)) SLURM_LOCALID=$((rank - 1)) SLURM_STEP_NUM_TASKS=$TASKS "$@" & done
SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_STEP_NUM_TASKS=$TASKS "$@"
code=$?
wait
exit $code
"#;
    sandbox.install_command("srun", ranks);
    let tasks = r#"SLURM_ARRAY_TASK_ID=$task TASKS=$(sed -n 's/^#SBATCH --ntasks=//p' "$2")"#;
    sandbox.install_command("sbatch", &SBATCH.replace("SLURM_ARRAY_TASK_ID=$task", tasks));
    sandbox.keep(sandbox.submit(&["--parallel", "1"]).expect_code(0));
    assert_eq!(sandbox.submitted_arrays(), ["1-2", "3-4"]);
    sandbox.run_with_slurm(&["sweep", "s.yaml", "--runs", "elsewhere", "--threads", "1", "--quiet"]).expect_code(0);
    let jobs = sandbox.results_in("runs");
    assert!(jobs.iter().all(|(_, status, _)| status == "done"), "{jobs:?}: {}", sandbox.read("jobs.txt"));
    assert_eq!(jobs, sandbox.results_in("elsewhere"), "to the bit");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn early_stopping_decides_in_jobs_as_it_does_here() {
    let sandbox = SlurmSandbox::new();
    sandbox.write("s.yaml", format!("{SWEEP}  parallel: 2\n  early_stop: {{asha: {{min_steps: 6, reduction: 2}}}}\n"));
    // Each submission with the step at which it ends.
    let noted =
        SBATCH.replace("echo \"$array\"", "echo \"$array $(sed -n 's/.*\\(--until-step [0-9]*\\).*/\\1/p' \"$2\")\"");
    sandbox.install_command("sbatch", &noted);
    // An earlier call's job of the first point waits as long as there is the file.
    let queue = "#!/bin/sh\nfor s in $PWD/runs/sweeps/*/slurm.sh $PWD/runs/sweeps/*/sweep.json; do\n\
                 test ! -e waiting || echo \"7_1 1 PD 0 ${s%/*}/slurm.sh\"; done\n";
    sandbox.install_command("squeue", queue);
    sandbox.write("waiting", "");
    let arguments = ["sweep", "s.yaml", "--launcher", "slurm", "--threads", "1"];
    let mut driver = sandbox.command(&arguments);
    sandbox.with_slurm(&mut driver).stdout(Stdio::null()).stderr(Stdio::null());
    let mut driver = RunningProcess(driver.spawn().unwrap());
    wait_until("the job of the second point has ended", || sandbox.path("ended.txt").exists());
    driver.kill();
    fs::remove_file(sandbox.path("waiting")).unwrap();

    let out = sandbox.submit(&[]);
    assert!(out.code == 0 && out.text().contains("done: sweep"), "{}", out.text());
    sandbox.run_with_slurm(&["sweep", "s.yaml", "--runs", "elsewhere", "--threads", "1", "--quiet"]).expect_code(0);
    assert_eq!(sandbox.results_in("runs"), sandbox.results_in("elsewhere"), "to the bit");
    let mut submitted = sandbox.submitted_arrays();
    assert!(submitted.len() > 4 && submitted[0] == "2 --until-step 6", "{submitted:?}");
    submitted.sort();
    submitted.dedup();
    assert_eq!(submitted.len(), sandbox.submitted_arrays().len(), "nothing is submitted twice: {submitted:?}");
    assert_eq!(sandbox.submit(&[]).code, 0);
    assert_eq!(submitted.len(), sandbox.submitted_arrays().len(), "it is up to date");

    // A job that fails is tried again, and then reported with its error.
    let failing = "#!/bin/sh\nfor points in runs/sweeps/*/points; do\n\
                   echo 'error: the node has no disk' >> $points/000$SLURM_ARRAY_TASK_ID.job; done\nexit 1\n";
    sandbox.install_command("srun", failing);
    sandbox.write(
        "s.yaml",
        format!("{SWEEP}  parallel: 2\n  retries: 1\n  early_stop: {{asha: {{min_steps: 3, reduction: 2}}}}\n"),
    );
    let out = sandbox.submit(&["--set", "eval.every=3"]);
    assert!(out.code == 1 && out.text().contains("failed: the node has no disk; its log is"), "{}", out.text());
    assert!(out.text().contains("retrying (1 of 1)"), "{}", out.text());
}
