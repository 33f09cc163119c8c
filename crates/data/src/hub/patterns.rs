//! Finds files of a dataset by the patterns of its card, or by the names of splits in their paths, as `datasets` does.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use glob::{MatchOptions, Pattern};
use regex::Regex;

use super::error::quoted;
use super::formats::{file_name, is_data};
use runner_files::special_parts;

/// Stars of a pattern. Matching takes long with many of them.
const MAX_STARS: usize = 8;
/// The splits that names show, in the order of their search, and the words for them.
const SPLIT_WORDS: [(&str, &[&str]); 3] = [
    ("train", &["train", "training"]),
    ("validation", &["validation", "valid", "dev", "val"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
];
/// The places of a word in paths: as a folder or a part of its name, or else as a part of a file's name.
const WORD_PLACES: [&[&str]; 2] = [
    &["**/WORD/**", "**/WORD[-._ 0-9]*/**", "**/*[-._ 0-9]WORD/**", "**/*[-._ 0-9]WORD[-._ 0-9]*/**"],
    &["**/WORD[-._ 0-9]*", "**/*[-._ 0-9]WORD[-._ 0-9]*"],
];
/// The shards of a split.
const SHARDS: &str = "data/SPLIT-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9]*.*";
/// The split in the name of a shard.
#[expect(clippy::expect_used, reason = "the expression is part of the program, and tests compile it")]
static SHARD_SPLIT: LazyLock<Regex> =
    LazyLock::new(|| Regex::new("^data/(.*)-[0-9]{5}-of-[0-9]{4}").expect("a regular expression"));
/// Names are matched folder by folder.
const MATCHING: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: false };
/// Files that are left out unless a pattern ends with their name.
const DESCRIPTIONS: [&str; 6] =
    ["README.md", "config.json", "dataset_info.json", "dataset_infos.json", "dummy_data.zip", "dataset_dict.json"];

/// Splits and their files. A file is listed as often as it is read.
pub(super) type Splits = Vec<(String, Vec<String>)>;

/// True for words of letters, digits and `_` with points between them.
pub(super) fn is_split_name(name: &str) -> bool {
    name.split('.').all(|word| !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || c == '_'))
}

/// The path of a card without `.` and doubled or final slashes.
///
/// # Errors
/// If it leads out of the repository.
pub(super) fn normalize(path: &str) -> Result<String, String> {
    let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    if path.starts_with('/') || path.contains("::") || path.contains("://") || parts.contains(&"..") {
        return Err(format!("`{}` must be a path inside the repository, without `..`", quoted(path)));
    }
    Ok(parts.join("/"))
}

fn compile(pattern: &str) -> Result<Pattern, String> {
    Pattern::new(pattern).map_err(|error| format!("invalid pattern `{}`: {}", quoted(pattern), error.msg))
}

/// The files among `all`, which is sorted, that match the pattern.
fn matching(all: &[&str], pattern: &str) -> Result<Vec<String>, String> {
    let special = special_parts(pattern);
    if !pattern.contains(['*', '?', '[']) {
        return Ok(all.iter().filter(|file| **file == pattern).map(|file| (*file).to_owned()).collect());
    }
    if pattern.matches('*').count() > MAX_STARS {
        return Err(format!("its card has a pattern that is too broad: `{}`", quoted(pattern)));
    }
    let compiled = compile(pattern)?;
    let is_ignored = |file: &str| DESCRIPTIONS.contains(&file_name(file)) && file_name(file) != file_name(pattern);
    let found = all
        .iter()
        .filter(|file| compiled.matches_with(file, MATCHING) && special_parts(file) == special && !is_ignored(file));
    Ok(found.map(|file| (*file).to_owned()).collect())
}

/// The files of the patterns of a split, within `folder` (empty or with a slash at its end).
///
/// # Errors
/// If a path that is not a pattern names no file of data.
pub(super) fn listed_files(all: &[&str], folder: &str, patterns: &[String]) -> Result<Vec<String>, String> {
    let mut files = Vec::new();
    for given in patterns {
        let pattern = format!("{folder}{}", normalize(given)?);
        let mut found = matching(all, &pattern)?;
        found.retain(|file| is_data(file));
        if found.is_empty() && !pattern.contains(['*', '?', '[']) {
            let inside = format!("{pattern}/");
            let problem = if all.contains(&pattern.as_str()) {
                "has no ending of a data file"
            } else if all.iter().any(|file| file.starts_with(&inside)) {
                "is a folder"
            } else {
                "is missing"
            };
            return Err(format!("`{}`, which its card lists, {problem}", quoted(&pattern)));
        }
        files.extend(found);
    }
    Ok(files)
}

/// The splits that names within `folder` (empty or with a slash at its end) show: the shards `data/SPLIT-00000-of-00001.…`, else
/// folders, else files. If no name shows a split, all files are for training.
///
/// # Errors
/// If there are no files, or a split has an invalid name.
pub(super) fn splits_by_name(all: &[&str], folder: &str) -> Result<Splits, String> {
    let visible: Vec<(&str, &str)> = all
        .iter()
        .filter_map(|path| Some((*path, path.strip_prefix(folder)?)))
        .filter(|(_, rest)| special_parts(rest) == (0, 0) && !DESCRIPTIONS.contains(&file_name(rest)))
        .collect();
    let matching = |patterns: &[String]| -> Result<Vec<String>, String> {
        let mut files = Vec::new();
        for pattern in patterns {
            let pattern = compile(pattern)?;
            let found = visible.iter().filter(|(_, rest)| pattern.matches_with(rest, MATCHING));
            files.extend(found.map(|(path, _)| (*path).to_owned()));
        }
        Ok(files)
    };
    let is_shard = compile(&SHARDS.replace("SPLIT", "*"))?;
    let shards = visible.iter().filter(|(_, rest)| is_shard.matches_with(rest, MATCHING));
    let names: BTreeSet<&str> =
        shards.filter_map(|(_, rest)| Some(SHARD_SPLIT.captures(rest)?.get(1)?.as_str())).collect();
    if let Some(wrong) = names.iter().find(|name| !is_split_name(name)) {
        return Err(format!("the name of split `{}` must be letters, digits, `_` and `.`", quoted(wrong)));
    }
    let usual = SPLIT_WORDS.iter().map(|(split, _)| *split);
    let others = names.iter().copied().filter(|name| usual.clone().all(|split| split != *name));
    let mut found = Splits::new();
    for split in usual.clone().filter(|split| names.contains(split)).chain(others) {
        found.push((split.to_owned(), matching(&[SHARDS.replace("SPLIT", split)])?));
    }
    for places in WORD_PLACES {
        if !found.is_empty() {
            break;
        }
        for (split, words) in SPLIT_WORDS {
            let patterns = words.iter().flat_map(|word| places.iter().map(|place| place.replace("WORD", word)));
            let files = matching(&patterns.collect::<Vec<_>>())?;
            if !files.is_empty() {
                found.push((split.to_owned(), files));
            }
        }
    }
    if found.is_empty() {
        if visible.is_empty() {
            let place = if folder.is_empty() { "it".to_owned() } else { format!("its folder `{}`", quoted(folder)) };
            return Err(format!("{place} has no data files"));
        }
        found.push(("train".to_owned(), visible.iter().map(|(path, _)| (*path).to_owned()).collect()));
    }
    for (_, files) in &mut found {
        files.retain(|file| is_data(file));
    }
    Ok(found)
}
