//! Sweeps as arrays of jobs, with stand-ins for Slurm's commands that run an array's jobs at once, one after another.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

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
echo 7
"#;

struct Lab(tempfile::TempDir);

impl Lab {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let text: String = (0..2000u32).flat_map(|i| [(i * i % 97).to_string(), " ".to_owned()]).collect();
        fs::write(dir.path().join("input.txt"), text).unwrap();
        fs::write(dir.path().join("exp.yaml"), EXPERIMENT).unwrap();
        fs::write(dir.path().join("s.yaml"), SWEEP).unwrap();
        let lab = Self(dir);
        lab.tool("sbatch", SBATCH);
        lab.tool("squeue", "#!/bin/sh\n");
        lab
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn tool(&self, name: &str, text: &str) {
        let bin = self.path().join("bin");
        fs::create_dir_all(&bin).unwrap();
        fs::write(bin.join(name), text).unwrap();
        fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn runner(&self, arguments: &[&str]) -> Output {
        let path = format!("{}:{}", self.path().join("bin").display(), std::env::var("PATH").unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_runner"));
        command.args(arguments).current_dir(self.path()).env("PATH", path).env_remove("RUNNER_RUNS");
        command.env("RUNNER_CACHE", self.path().join("cache")).output().unwrap()
    }

    fn submit(&self, more: &[&str]) -> Output {
        self.runner(&[&["sweep", "s.yaml", "--launcher", "slurm", "--threads", "1"], more].concat())
    }

    fn arrays(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path().join("arrays.txt")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Point, status and objective of each row.
    fn results(&self, root: &str) -> Vec<(u64, String, Option<f64>)> {
        let out = self.runner(&["sweep", "results", "--json", "--runs", root]);
        let all: Value = serde_json::from_slice(&out.stdout).expect("JSON");
        let rows = all["rows"].as_array().or(all["results"]["rows"].as_array()).expect("rows");
        let row = |r: &Value| {
            (r["point"].as_u64().unwrap(), r["status"].as_str().unwrap().to_owned(), r["objective"].as_f64())
        };
        rows.iter().map(row).collect()
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn an_array_gives_what_this_process_gives() {
    let lab = Lab::new();
    let out = lab.submit(&["--parallel", "2", "--slurm-option=--partition=long"]);
    assert!(out.status.success() && text(&out).contains("4 points submitted as job 7"), "{}", text(&out));
    assert_eq!(lab.arrays(), ["1-4"]);
    let mut folders = fs::read_dir(lab.path().join("runs/sweeps")).unwrap().map(|e| e.unwrap().path());
    let sweep = folders.find(|path| path.is_dir()).expect("a sweep");
    let script = fs::read_to_string(sweep.join("slurm.sh")).unwrap();
    assert!(script.contains("--array=1-4%2\n") && script.contains("#SBATCH --partition=long\n"), "{script}");

    let local = lab.runner(&["sweep", "s.yaml", "--runs", "elsewhere", "--threads", "1", "--quiet"]);
    assert!(local.status.success(), "{}", text(&local));
    let jobs = lab.results("runs");
    assert!(jobs.iter().all(|(_, status, objective)| status == "done" && objective.is_some()), "{jobs:?}");
    assert_eq!(jobs, lab.results("elsewhere"), "to the bit");

    let again = lab.submit(&[]);
    assert!(again.status.success() && text(&again).contains("up to date"), "{}", text(&again));
    assert_eq!(lab.arrays().len(), 1, "nothing is submitted twice");
}

#[test]
fn what_failed_is_submitted_again_and_what_waits_is_not() {
    let lab = Lab::new();
    // The second task never gets to run, the third is still in the queue.
    let partial =
        SBATCH.replace("SLURM_ARRAY_TASK_ID", "test $task -gt 1 -a $(wc -l < arrays.txt) = 1 || SLURM_ARRAY_TASK_ID");
    lab.tool("sbatch", &partial);
    // Another sweep's jobs are there, too, and have the same numbers.
    let queue = "#!/bin/sh\necho \"4 /other/slurm.sh\"\necho \"N/A /a.sh\"\n\
                 for s in $PWD/runs/sweeps/*/slurm.sh; do test ! -e $s || echo \"3 $s\"; done\n";
    lab.tool("squeue", queue);
    assert!(lab.submit(&[]).status.success());
    assert!(lab.submit(&[]).status.success());
    assert_eq!(lab.arrays(), ["1-4", "2,4"]);
    let waiting = lab.submit(&[]);
    assert!(text(&waiting).contains("1 point queued or running"), "{}", text(&waiting));
    // Whatever was noted of it or not, Slurm is asked; and if it does not answer, nothing is submitted.
    let down = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)";
    lab.tool("squeue", &format!("#!/bin/sh\necho '{down}' >&2\nexit 1\n"));
    let out = lab.submit(&[]);
    assert!(out.status.code() == Some(1) && text(&out).contains(down), "{}", text(&out));
    assert_eq!(lab.arrays().len(), 2);
}

#[test]
fn more_points_than_an_array_has_numbers_are_refused() {
    let lab = Lab::new();
    let seeds: Vec<String> = (0..1001).map(|seed| seed.to_string()).collect();
    fs::write(
        lab.path().join("s.yaml"),
        format!("sweep:\n  base: exp.yaml\n  grid: {{seed: [{}]}}\n", seeds.join(", ")),
    )
    .unwrap();
    for says in ["exit 1", "echo 'MaxArraySize            = 1001'"] {
        lab.tool("scontrol", &format!("#!/bin/sh\n{says}\n"));
        let out = lab.submit(&[]);
        assert!(out.status.code() == Some(2) && text(&out).contains("MaxArraySize"), "{}", text(&out));
        assert!(!lab.path().join("runs").exists());
    }
    lab.tool("scontrol", "#!/bin/sh\necho 'MaxArraySize            = 2000'\n");
    let out = lab.submit(&["--dry-run"]);
    assert!(out.status.success(), "{}", text(&out));
}

#[test]
fn what_cannot_be_submitted_is_told_before_anything_is_made() {
    let lab = Lab::new();
    let out = lab.submit(&["--slurm-option=partition"]);
    assert!(out.status.code() == Some(2) && text(&out).contains("--partition=long"), "{}", text(&out));
    fs::write(lab.path().join("s.yaml"), format!("{SWEEP}  early_stop: {{asha: {{min_steps: 6, reduction: 2}}}}\n"))
        .unwrap();
    let out = lab.submit(&[]);
    assert!(out.status.code() == Some(2) && text(&out).contains("--launcher local"), "{}", text(&out));
    assert!(!lab.path().join("runs").exists());
    fs::write(lab.path().join("s.yaml"), SWEEP).unwrap();
    lab.tool("sbatch", "#!/bin/sh\necho 'Batch job submission failed: Invalid partition' >&2\nexit 1\n");
    let out = lab.submit(&[]);
    assert!(out.status.code() == Some(1) && text(&out).contains("Invalid partition"), "{}", text(&out));
}
