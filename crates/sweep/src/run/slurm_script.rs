//! The batch script of an array of Slurm jobs.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::record::SweepRecord;
use runner_spec::diagnostic::ConfigError;
use runner_template::Inputs;

/// The script's template, unless the user gives another.
const BUILT_IN_TEMPLATE: &str = include_str!("../../../../templates/slurm.sh.j2");
/// The path of the user's template.
pub const TEMPLATE: &str = "templates/slurm.sh.j2";

/// A job requests this multiple of the planned memory, and memory for the program itself.
const MEMORY_MARGIN: f64 = 1.25;
const PROGRAM_MEMORY_MB: u64 = 512;

/// An array of jobs.
#[derive(Debug, Clone)]
pub(super) struct SlurmArray<'a> {
    /// The absolute paths of this program and of the sweep's folder.
    pub program: &'a Path,
    pub sweep: &'a Path,
    /// The numbers of the points, ascending.
    pub points: &'a [usize],
    /// The largest number of concurrent jobs.
    pub parallel: usize,
    /// The number of threads of each job.
    pub threads: usize,
    /// Further options of `sbatch`, such as `--partition=long`.
    pub options: &'a [String],
}

impl SlurmArray<'_> {
    /// The batch script, from the template `given` or the built-in one.
    ///
    /// # Errors
    /// A mistake in the template, at its place.
    pub(super) fn script(&self, record: &SweepRecord, given: Option<&str>) -> Result<String, ConfigError> {
        let inputs = Inputs { vars: self.variables(record), ..Inputs::default() };
        Ok(runner_template::render(given.unwrap_or(BUILT_IN_TEMPLATE), Path::new(TEMPLATE), &inputs)?.text)
    }

    fn variables(&self, record: &SweepRecord) -> Map<String, Value> {
        let points = || record.points.iter().filter(|p| self.points.contains(&p.index));
        let bytes = points().map(|p| p.memory_bytes).max().unwrap_or(0);
        let memory_mb = PROGRAM_MEMORY_MB + (bytes as f64 * MEMORY_MARGIN / f64::from(1 << 20)).ceil() as u64;
        let values = json!({
            "name": record.id,
            "points": point_ranges(self.points),
            "parallel": self.parallel,
            "cpus": self.threads,
            "memory_mb": memory_mb,
            "gpus": points().map(|p| p.cuda_devices).max().unwrap_or(0),
            "options": self.options,
            "runner": shell_word(&self.program.to_string_lossy()),
            "sweep": shell_word(&self.sweep.to_string_lossy()),
            // Slurm replaces a percent sign in the name of a file.
            "output": self.sweep.join("points").to_string_lossy().replace('%', "%%"),
        });
        match values {
            Value::Object(map) => map,
            _ => Map::new(),
        }
    }
}

/// `1-3,7`.
fn point_ranges(points: &[usize]) -> String {
    let mut out = String::new();
    let mut rest = points;
    while let Some(&first) = rest.first() {
        let run = rest.iter().zip(first..).take_while(|(point, next)| **point == *next).count();
        let comma = if out.is_empty() { "" } else { "," };
        let _ = match run {
            1 => write!(out, "{comma}{first}"),
            n => write!(out, "{comma}{first}-{}", first + n - 1),
        };
        rest = &rest[run..];
    }
    out
}

/// `text` as one word of a shell.
fn shell_word(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sweep;

    const EXPECTED_SCRIPT: &str = r#"#!/bin/sh
# A sweep as an array of jobs, one for each point: rendered by `runner sweep --launcher slurm`.
# A file templates/slurm.sh.j2 in the folder where that command is called takes this one's place.
#SBATCH --job-name=s-12345678
#SBATCH --array=1-2%2
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --mem=514M
#SBATCH --output="/data/runs/sweeps/it's 5%%/points/%4a.job"
#SBATCH --open-mode=append
# A minute before a time limit the run saves and ends with code 75, after which `RequeueExit=75` in slurm.conf starts the job again.
#SBATCH --signal=B:TERM@60
#SBATCH --partition=long

exec '/opt/a b/runner' sweep point '/data/runs/sweeps/it'\''s 5%' "$SLURM_ARRAY_TASK_ID" --threads 4
"#;

    #[test]
    fn points_are_ranges() {
        assert_eq!(point_ranges(&[1, 2, 3, 7, 9, 10]), "1-3,7,9-10");
        assert_eq!((point_ranges(&[4]).as_str(), point_ranges(&[]).as_str()), ("4", ""));
    }

    #[test]
    fn the_script_asks_for_what_the_points_need() {
        let array = SlurmArray {
            program: Path::new("/opt/a b/runner"),
            sweep: Path::new("/data/runs/sweeps/it's 5%"),
            points: &[1, 2],
            parallel: 2,
            threads: 4,
            options: &["--partition=long".to_owned()],
        };
        assert_eq!(array.script(&sweep(), None).unwrap(), EXPECTED_SCRIPT);
    }

    #[test]
    fn a_template_of_ones_own_is_held_to_its_variables() {
        let array = SlurmArray {
            program: Path::new("/runner"),
            sweep: Path::new("/s"),
            points: &[1],
            parallel: 1,
            threads: 1,
            options: &[],
        };
        assert_eq!(array.script(&sweep(), Some("#{{ points }} {{ memory_mb }}\n")).unwrap(), "#1 514\n");
        let error = array.script(&sweep(), Some("\n{{ partition }}")).unwrap_err().to_string();
        assert!(error.contains("templates/slurm.sh.j2:2:4"), "{error}");
    }
}
