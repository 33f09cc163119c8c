//! What is in the folder of a sealed run.

use std::path::Path;

use runner_compare::verdict::OriginalRun;
use runner_record::run_dir::{
    self, DATA, EXPERIMENT, MERGED_FILES, METRICS, PLAN, RESOLVED, ROWS, SAMPLES, SUMMARY, TEMPLATE, TOKENIZER, TRACE,
};
use runner_spec::error::Result;

use super::manifest::{MANIFEST, README, RUN};

/// The files of the record that are copied, where the run has them. Logs, times and jobs describe the machine.
pub(super) const COPIED: [&str; 12] =
    [EXPERIMENT, TEMPLATE, MERGED_FILES, RESOLVED, PLAN, TOKENIZER, DATA, METRICS, SAMPLES, ROWS, SUMMARY, TRACE];

/// True for the name of a file that a sealed run may have, outside of the folder of the run.
pub(super) fn is_written(name: &str) -> bool {
    const WRITTEN: [&str; 7] = [
        README,
        MANIFEST,
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors.index.json",
    ];
    let is_weights = name.starts_with("model") && name.ends_with(".safetensors") && !name.contains('/');
    is_weights || WRITTEN.contains(&name)
}

/// The last recorded step of the sealed run in `folder`.
pub(super) fn last_step(folder: &Path) -> Result<u64> {
    let run = folder.join(RUN);
    Ok(OriginalRun::read(&run, &run_dir::read_manifest(&run)?, run_dir::read_summary(&run)?)?.last_step())
}
