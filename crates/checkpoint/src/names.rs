//! The names of checkpoints, of their files, and of unfinished, damaged and kept ones.

use std::path::{Path, PathBuf};

use super::format::STATE;
use runner_files::{TEMPORARY_PREFIX, has_only, is_number};

pub(super) const PREFIX: &str = "step-";
/// The prefix, behind `TEMPORARY_PREFIX`, of the name of a checkpoint that is being removed.
pub(super) const OLD: &str = "old-";
/// The suffix of the name of a checkpoint that was set aside because it cannot be used.
pub const DAMAGED: &str = ".damaged";
/// The suffix of the name of a replaced checkpoint that stays because it has files that the program did not write.
pub(super) const KEPT: &str = ".kept-";

/// The name of the checkpoint of `step`.
pub fn dir_name(step: u64) -> String {
    format!("{PREFIX}{step:08}")
}

/// The step of the checkpoint in the folder with this name; `None` for other names.
pub fn step_of_folder(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX).filter(|digits| is_number(digits))?.parse().ok()
}

/// The folder in `folder` into which the parts of the checkpoint of `step` are written before it is committed.
pub fn pending_folder(folder: &Path, step: u64) -> PathBuf {
    folder.join(format!("{TEMPORARY_PREFIX}{}", dir_name(step)))
}

/// True if the program gives `name` to a folder in the folder of checkpoints: a checkpoint, one that was set aside, or an unfinished one.
pub fn is_checkpoint_folder(name: &str) -> bool {
    name.strip_prefix(TEMPORARY_PREFIX).map_or_else(|| is_checkpoint(name), is_unfinished)
}

/// True if `rest` follows `TEMPORARY_PREFIX` in the name of a checkpoint that is being written or removed.
pub(super) fn is_unfinished(rest: &str) -> bool {
    is_checkpoint(rest.strip_prefix(OLD).unwrap_or(rest))
}

fn is_checkpoint(name: &str) -> bool {
    let name = match name.rsplit_once(KEPT) {
        Some((name, number)) if is_number(number) => name,
        _ => name,
    };
    name.strip_suffix(DAMAGED).unwrap_or(name).strip_prefix(PREFIX).is_some_and(is_number)
}

/// True if the program gives `name` to a file of a checkpoint.
pub fn is_checkpoint_file(name: &str) -> bool {
    let is_part = |stem: &str| {
        let part = name.strip_prefix(stem).and_then(|rest| rest.strip_suffix(".safetensors"));
        let numbers = part.and_then(|part| part.strip_prefix('-')?.split_once("-of-"));
        part.is_some_and(str::is_empty) || numbers.is_some_and(|(index, count)| is_number(index) && is_number(count))
    };
    name == STATE || is_part("model") || is_part("optimizer")
}

/// True if `path` is a folder with nothing in it but files of a checkpoint.
pub fn is_own_checkpoint(path: &Path) -> bool {
    has_only(path, &|names, kind| matches!(names, [file] if kind.is_file() && is_checkpoint_file(file)))
}
