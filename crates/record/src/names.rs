//! The names of files and folders in the folder of runs.

use runner_files::is_number;

pub const EXPERIMENT: &str = "experiment.yaml";
/// The template that the experiment file was rendered from, if it was.
pub const TEMPLATE: &str = "template.yaml.j2";
/// The text of the other files that the experiment was merged from.
pub const MERGED_FILES: &str = "merged-files.yaml";
pub const RESOLVED: &str = "resolved.yaml";
pub const PLAN: &str = "plan.json";
pub const MANIFEST: &str = "manifest.json";
pub const METRICS: &str = "metrics.jsonl";
pub const SAMPLES: &str = "samples.jsonl";
/// The results of rows and items: while the run trains those of all evaluations, then those of the last and the best.
pub const ROWS: &str = "rows.jsonl";
/// Hashes of the tensors of each step, if the run is traced.
pub const TRACE: &str = "trace.jsonl";
/// The comparison of a reproduction with its original.
pub const VERDICT: &str = "verdict.json";
/// The tokenizer, so that the run can be sampled from without its data.
pub const TOKENIZER: &str = "tokenizer.json";
/// The files from which the run read its data.
pub const DATA: &str = "data.json";
pub const LOG: &str = "log.txt";
/// The folder of TensorBoard's event file, if the run writes one while it trains.
pub const TENSORBOARD: &str = "tensorboard";
pub const SUMMARY: &str = "summary.json";
pub const CHECKPOINTS: &str = "checkpoints";
/// The folder with the standard error of each rank, in a run with several processes.
pub const RANKS: &str = "ranks";

/// The file of rank `rank` in `RANKS`.
pub fn rank_log(rank: usize) -> String {
    format!("rank-{rank}.log")
}

/// The prefix of the name of a run that is being removed. If the process is killed, the rest is removed later.
pub const REMOVING: &str = ".removing-";

/// The prefix of the name of a run directory that is being created.
pub const CREATING: &str = ".creating-";

/// The file in a run directory that is locked while a process works on the run.
pub const LOCK: &str = "lock";

/// In tests a folder with a file of this name stands for one on a file system without locks.
#[cfg(any(test, feature = "testing"))]
pub const NO_LOCKS: &str = "no-locks";

/// The folder among the runs that holds sweeps. It is not a run.
pub const SWEEPS: &str = "sweeps";
/// The record in the folder of a sweep.
pub const SWEEP_RECORD: &str = "sweep.json";
/// The sweep file as given, in the folder of a sweep.
pub const SWEEP_FILE: &str = "sweep.yaml";
/// The newest job that was submitted for a run or a sweep, as a script of Slurm.
pub const SLURM_SCRIPT: &str = "slurm.sh";
/// The output of the jobs of a run.
pub const JOB_LOG: &str = "job.log";
/// The folder in that of a sweep with the resolved experiments of the points, and their logs.
pub const SWEEP_POINTS: &str = "points";

/// True if `text` has the form of the id of a run or sweep: a name, eight digits of a hash, and perhaps a number.
pub fn is_id(text: &str) -> bool {
    let is_hash = |part: &str| part.len() == 8 && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let is_base = |base: &str| base.rsplit_once('-').is_some_and(|(name, hash)| !name.is_empty() && is_hash(hash));
    let numbered = text.rsplit_once('-').filter(|(_, n)| is_number(n));
    is_base(text) || numbered.is_some_and(|(base, _)| is_base(base))
}
