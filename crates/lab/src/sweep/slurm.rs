//! A sweep as an array of Slurm jobs: which points one has, and the script that asks for it. Submitting is the command's.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::frozen::SweepRecord;
use runner_spec::diagnostic::ConfigError;
use runner_template::Inputs;

/// The script's template, unless the current folder has one under `TEMPLATE`.
const BUILT_IN: &str = include_str!("../../../../templates/slurm.sh.j2");
pub const TEMPLATE: &str = "templates/slurm.sh.j2";

/// Memory that a job asks for, beside the plan's estimate: a quarter of it, and the program itself.
const MARGIN: f64 = 1.25;
const PROGRAM_MB: u64 = 512;

/// What an array is to be.
#[derive(Debug, Clone)]
pub struct SlurmArray<'a> {
    /// This program, and the sweep's folder: absolute.
    pub program: &'a Path,
    pub sweep: &'a Path,
    /// Points, from 1, ascending.
    pub points: &'a [usize],
    /// Jobs at once, at most.
    pub parallel: usize,
    /// Of each job.
    pub threads: usize,
    /// Further lines, as `--partition=long`.
    pub options: &'a [String],
}

impl SlurmArray<'_> {
    /// The batch script, from the template `given` or the built-in one.
    ///
    /// # Errors
    /// A mistake in the template, at its place.
    pub fn script(&self, frozen: &SweepRecord, given: Option<&str>) -> Result<String, ConfigError> {
        let inputs = Inputs { vars: self.variables(frozen), ..Inputs::default() };
        Ok(runner_template::render(given.unwrap_or(BUILT_IN), &PathBuf::from(TEMPLATE), &inputs)?.text)
    }

    fn variables(&self, frozen: &SweepRecord) -> Map<String, Value> {
        let points = || frozen.points.iter().filter(|p| self.points.contains(&p.index));
        let bytes = points().map(|p| p.memory_bytes).max().unwrap_or(0);
        let memory_mb = PROGRAM_MB + (bytes as f64 * MARGIN / f64::from(1 << 20)).ceil() as u64;
        let values = json!({
            "name": frozen.id,
            "points": ranges(self.points),
            "parallel": self.parallel,
            "cpus": self.threads,
            "memory_mb": memory_mb,
            "gpus": points().map(|p| p.cuda_devices).max().unwrap_or(0),
            "options": self.options,
            "runner": shell(&self.program.to_string_lossy()),
            "sweep": shell(&self.sweep.to_string_lossy()),
            // Slurm puts job numbers where a file's name has a percent sign.
            "output": self.sweep.join("points").to_string_lossy().replace('%', "%%"),
        });
        match values {
            Value::Object(map) => map,
            _ => Map::new(),
        }
    }
}

/// `1-3,7`.
#[must_use]
pub fn ranges(points: &[usize]) -> String {
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
fn shell(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sweep;

    #[test]
    fn points_as_ranges() {
        assert_eq!(ranges(&[1, 2, 3, 7, 9, 10]), "1-3,7,9-10");
        assert_eq!((ranges(&[4]).as_str(), ranges(&[]).as_str()), ("4", ""));
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
        insta::assert_snapshot!(array.script(&sweep(), None).unwrap(), @r#"
        #!/bin/sh
        # A sweep as an array of jobs, one for each point: rendered by `runner sweep --launcher slurm`.
        # A file templates/slurm.sh.j2 in the folder where that command is called takes this one's place.
        #SBATCH --job-name=s-12345678
        #SBATCH --array=1-2%2
        #SBATCH --ntasks=1
        #SBATCH --cpus-per-task=4
        #SBATCH --mem=514M
        #SBATCH --output="/data/runs/sweeps/it's 5%%/points/%4a.job"
        #SBATCH --open-mode=append
        # A minute before a time limit the run saves and ends.
        #SBATCH --signal=B:TERM@60
        #SBATCH --partition=long

        exec '/opt/a b/runner' sweep point '/data/runs/sweeps/it'\''s 5%' "$SLURM_ARRAY_TASK_ID" --threads 4
        "#);
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
