//! Finds files of a dataset by the patterns of its card, or by the names of splits in their paths, as `datasets` does.

use std::collections::BTreeSet;

use glob::{MatchOptions, Pattern};

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
/// Whether a separator precedes and follows a word in a name. Without one, the name begins or ends there.
const SEPARATED: [(bool, bool); 4] = [(false, false), (false, true), (true, false), (true, true)];
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

/// The files among `all`, which is sorted, that match the pattern.
fn matching(all: &[&str], pattern: &str) -> Result<Vec<String>, String> {
    let special = special_parts(pattern);
    if !pattern.contains(['*', '?', '[']) {
        return Ok(all.iter().filter(|file| **file == pattern).map(|file| (*file).to_owned()).collect());
    }
    if pattern.matches('*').count() > MAX_STARS {
        return Err(format!("its card has a pattern that is too broad: `{}`", quoted(pattern)));
    }
    let compiled =
        Pattern::new(pattern).map_err(|error| format!("invalid pattern `{}`: {}", quoted(pattern), error.msg))?;
    let options = MatchOptions { require_literal_separator: true, ..MatchOptions::new() };
    let is_ignored = |file: &str| DESCRIPTIONS.contains(&file_name(file)) && file_name(file) != file_name(pattern);
    let found = all
        .iter()
        .filter(|file| compiled.matches_with(file, options) && special_parts(file) == special && !is_ignored(file));
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
    let select = |is_wanted: &dyn Fn(&str) -> bool| -> Vec<String> {
        visible.iter().filter(|(_, rest)| is_wanted(rest)).map(|(path, _)| (*path).to_owned()).collect()
    };
    let sharded = |rest: &str| rest.strip_prefix("data/").filter(|name| !name.contains('/')).map(str::to_owned);
    let mut names = BTreeSet::new();
    for name in visible.iter().filter_map(|(_, rest)| sharded(rest)) {
        let shards: Vec<usize> = name.match_indices("-of-").filter_map(|(at, _)| shard_start(&name, at)).collect();
        if shards.iter().any(|&start| is_shard_of(&name, start)) {
            names.insert(shards.last().map_or("", |&start| &name[..start]).to_owned());
        }
    }
    if let Some(wrong) = names.iter().find(|name| !is_split_name(name)) {
        return Err(format!("the name of split `{}` must be letters, digits, `_` and `.`", quoted(wrong)));
    }
    let mut found: Splits = if names.is_empty() {
        first_of_words(&select)
    } else {
        let usual =
            SPLIT_WORDS.iter().filter(|(split, _)| names.contains(*split)).map(|(split, _)| (*split).to_owned());
        let others = names.iter().filter(|name| SPLIT_WORDS.iter().all(|(split, _)| split != name)).cloned();
        let shards = |split: String| {
            let is_shard = |rest: &str| {
                sharded(rest).is_some_and(|name| name.starts_with(&split) && is_shard_of(&name, split.len()))
            };
            (split.clone(), select(&is_shard))
        };
        usual.chain(others).map(shards).collect()
    };
    if found.is_empty() {
        let everything = select(&|_| true);
        if everything.is_empty() {
            let place = if folder.is_empty() { "it".to_owned() } else { format!("its folder `{}`", quoted(folder)) };
            return Err(format!("{place} has no data files"));
        }
        found.push(("train".to_owned(), everything));
    }
    for (_, files) in &mut found {
        files.retain(|file| is_data(file));
    }
    Ok(found)
}

/// True for the files that are wanted, by their paths in the folder.
type Wanted<'w> = &'w dyn Fn(&str) -> bool;

/// The splits that folders or names of files show, whichever comes first.
fn first_of_words(select: &dyn Fn(Wanted<'_>) -> Vec<String>) -> Splits {
    for in_folders in [true, false] {
        let mut found = Splits::new();
        for (split, words) in SPLIT_WORDS {
            let mut files = Vec::new();
            for word in words {
                for (before, after) in SEPARATED {
                    // A file has an ending at least.
                    if in_folders || after {
                        files.extend(select(&|rest| {
                            let (folders, name) = rest.rsplit_once('/').unwrap_or(("", rest));
                            let has = |part: &str| has_word(part, word, before, after);
                            if in_folders { folders.split('/').any(has) } else { has(name) }
                        }));
                    }
                }
            }
            if !files.is_empty() {
                found.push((split.to_owned(), files));
            }
        }
        if !found.is_empty() {
            return found;
        }
    }
    Splits::new()
}

/// True if `part` has `word` with a separator before it, or else at its start, and with one after it, or else at its end.
fn has_word(part: &str, word: &str, before: bool, after: bool) -> bool {
    let is_separator = |c: char| matches!(c, '-' | '.' | '_' | ' ' | '0'..='9');
    part.match_indices(word).any(|(at, _)| {
        let (start, end) = (&part[..at], &part[at + word.len()..]);
        (if before { start.ends_with(is_separator) } else { start.is_empty() })
            && (if after { end.starts_with(is_separator) } else { end.is_empty() })
    })
}

/// The place of `-00000-of-0000` in `name`, whose `-of-` is at `at`.
fn shard_start(name: &str, at: usize) -> Option<usize> {
    let start = at.checked_sub(6)?;
    let bytes = name.as_bytes();
    let are_digits = |bytes: &[u8]| bytes.iter().all(u8::is_ascii_digit);
    let is_start = bytes[start] == b'-' && are_digits(&bytes[start + 1..at]) && are_digits(bytes.get(at + 4..at + 8)?);
    is_start.then_some(start)
}

/// True if `-00000-of-00000` is at `start` of `name`, and a point after it.
fn is_shard_of(name: &str, start: usize) -> bool {
    let digit = name.as_bytes().get(start + 14).is_some_and(u8::is_ascii_digit);
    digit
        && name.get(start + 6..).is_some_and(|rest| rest.starts_with("-of-") && rest[4..].contains('.'))
        && shard_start(name, start + 6) == Some(start)
}
