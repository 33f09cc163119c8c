//! Selects the files of a split: the files that `datasets` reads, in its order, or none.

use std::collections::{BTreeMap, BTreeSet};

use super::card::{Config, default_config, read_configs};
use super::error::quoted;
use super::formats::{common_format, file_name};
use super::patterns::{Splits, listed_files, normalize, splits_by_name};
use super::refusal::Refusal;
use super::repository::suggestion;
use runner_spec::experiment::FileFormat;

/// The files of a split, in the order in which they are read. A file may be read more than once.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SelectedFiles {
    pub(super) format: &'static FileFormat,
    pub(super) files: Vec<String>,
    pub(super) by: SelectedBy,
}

/// The reason for a selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SelectedBy {
    /// The card names each file.
    List,
    /// They match a pattern of the card.
    Pattern,
    /// The names of folders and files decided.
    Name,
}

/// Selects the files of `split` of `config` among `files`, all files of `dataset`, which has the `card`.
///
/// # Errors
/// If there is no such split, or it has files that are not read here.
pub(super) fn select(
    dataset: &str,
    files: &[String],
    card: &str,
    config: Option<&str>,
    split: &str,
) -> Result<SelectedFiles, Refusal> {
    let mut all: Vec<&str> = files.iter().map(String::as_str).collect();
    all.sort_unstable();
    let script = format!("{}.py", file_name(dataset));
    if all.contains(&script.as_str()) {
        return Err(Refusal::unreadable(format!("it has a loading script, `{script}`, which is not run")));
    }
    if all.contains(&".huggingface.yaml") {
        return Err("it has a second card, `.huggingface.yaml`, which is not read".to_owned().into());
    }
    let configs = read_configs(card).map_err(|message| format!("its card (README.md): {message}"))?;
    let chosen = choose(&configs, config)?;
    let (splits, by) = match chosen {
        None => (splits_by_name(&all, "")?, SelectedBy::Name),
        Some(chosen) => splits_of_config(&all, chosen, split)?,
    };
    let Some((_, files)) = splits.iter().find(|(name, _)| name == split) else {
        let names: Vec<&String> = splits.iter().map(|(name, _)| name).collect();
        let subject = chosen.map_or(String::new(), |chosen| format!("configuration `{}` has ", quoted(&chosen.name)));
        return Err(format!("{subject}no split `{split}`{}", suggestion(split, &names)).into());
    };
    let format = common_format(split, files)?;
    // `datasets` reads all splits as the first. Other splits that the card lists have no files here.
    for (name, others) in splits.iter().filter(|(_, files)| !files.is_empty()) {
        if common_format(name, others)? != format {
            return Err(Refusal::unreadable("its splits have different formats"));
        }
    }
    Ok(SelectedFiles { format, files: files.clone(), by })
}

/// The configuration of the card that is read; `None` if the card lists none.
fn choose<'c>(configs: &'c [Config], config: Option<&str>) -> Result<Option<&'c Config>, Refusal> {
    let wanted = config.or(default_config(configs)?);
    let names: Vec<&String> = configs.iter().map(|config| &config.name).collect();
    match wanted {
        None | Some("default") if names.is_empty() => Ok(None),
        None => Err(format!("it has several configurations; give `config`{}", suggestion("", &names)).into()),
        Some(name) if names.is_empty() => {
            let name = quoted(name);
            Err(format!("no configuration `{name}`: its card lists no configurations under `configs`").into())
        }
        Some(name) => {
            let found = configs.iter().find(|config| config.name == name);
            let missing = || format!("no configuration `{}`{}", quoted(name), suggestion(name, &names));
            Ok(Some(found.ok_or_else(missing)?))
        }
    }
}

/// The splits of `config`, and the reason for their files. Of splits that the card lists, only `split` has its files.
fn splits_of_config(all: &[&str], config: &Config, split: &str) -> Result<(Splits, SelectedBy), Refusal> {
    let wrong = |message: String| format!("configuration `{}`: {message}", quoted(&config.name));
    let folder = match config.folder.as_deref().map(normalize).transpose().map_err(wrong)? {
        Some(folder) if folder.contains(['*', '?', '[']) => {
            let message = format!("`data_dir` must not be a pattern, got `{}`", quoted(&folder));
            return Err(wrong(message).into());
        }
        Some(folder) if !folder.is_empty() => folder + "/",
        _ => String::new(),
    };
    if let Some(setting) = config.row_setting {
        return Err(Refusal::unreadable(wrong(format!("`{setting}` is not supported"))));
    }
    let Some(listed) = &config.files else {
        return Ok((splits_by_name(all, &folder).map_err(wrong)?, SelectedBy::Name));
    };
    let (mut splits, mut by) = (Splits::new(), SelectedBy::List);
    for (name, patterns) in listed {
        let files = if name == split { listed_files(all, &folder, patterns).map_err(wrong)? } else { Vec::new() };
        if name == split && patterns.iter().any(|path| path.contains(['*', '?', '['])) {
            by = SelectedBy::Pattern;
        }
        splits.push((name.clone(), files));
    }
    Ok((splits, by))
}

/// The part of `selected` that is missing, or may be, if only some files of the dataset are known. `None` if the card names each file, if
/// their names state how many there are, as `train-00000-of-00005.jsonl` does, or if the only file is not named like a part.
pub(super) fn missing_part(selected: &SelectedFiles) -> Option<String> {
    if selected.by == SelectedBy::List {
        return None;
    }
    let mut shards: BTreeMap<(&str, usize), BTreeSet<usize>> = BTreeMap::new();
    for file in &selected.files {
        if let Some((prefix, index, total)) = shard(file) {
            shards.entry((prefix, total)).or_default().insert(index);
        } else if selected.by == SelectedBy::Pattern || selected.files.len() > 1 || is_numbered(file) {
            let files = selected.files.len();
            return Some(format!("`{file}`, {files} in all, and there may be more"));
        }
    }
    let missing = shards.iter().find(|((_, total), there)| there.len() < *total);
    missing.map(|((prefix, total), there)| format!("{} of the {total} files `{prefix}…`", there.len()))
}

/// The prefix, index and number of shards in a name: `data/train-`, 1 and 5 in `data/train-00001-of-00005.jsonl`.
fn shard(file: &str) -> Option<(&str, usize, usize)> {
    let (before, after) = file.rsplit_once("-of-")?;
    let prefix = before.trim_end_matches(|c: char| c.is_ascii_digit());
    let end = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
    let (index, total) = (before[prefix.len()..].parse().ok()?, after[..end].parse().ok()?);
    (index < total).then_some((prefix, index, total))
}

/// True if a file's name ends in a number, as `0000.jsonl`, `000_00000.csv` and `part-3.jsonl` do.
fn is_numbered(file: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or(file);
    let stem = name.split_once('.').map_or(name, |(stem, _)| stem);
    let last = stem.rsplit(['-', '_']).next().unwrap_or(stem);
    !last.is_empty() && last.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use serde::Deserialize;

    use runner_spec::experiment::FILE_FORMATS;

    use super::*;

    const FINEWEB: &str = "---\nlicense: odc-by\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: data/*/*\n- config_name: sample-10BT\n  data_files:\n  - split: train\n    path: sample/10BT/*\n- config_name: two\n  data_dir: other\n  data_files:\n  - split: test\n    path: [a.parquet, b.parquet]\n---\n# FineWeb\n";

    fn names(files: &[&str]) -> Vec<String> {
        files.iter().map(|f| (*f).to_owned()).collect()
    }

    fn chosen(files: &[&str], card: &str, config: Option<&str>, split: &str) -> Result<Vec<String>, String> {
        select("own/a", &names(files), card, config, split)
            .map(|selected| selected.files)
            .map_err(|refusal| refusal.message)
    }

    /// A folder, and what `datasets` read of it.
    #[derive(Deserialize)]
    struct Folder {
        name: String,
        files: Vec<String>,
        card: Option<String>,
        answers: Vec<Answer>,
    }

    #[derive(Deserialize)]
    struct Answer {
        config: Option<String>,
        splits: Option<BTreeMap<String, Vec<String>>>,
    }

    /// Each split is the files that `datasets` read, in its order, or it is refused.
    #[test]
    fn splits_are_those_of_datasets() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/hub_folders.json");
        let folders: Vec<Folder> = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let (mut read, mut wrong) = (0, Vec::new());
        for folder in &folders {
            for Answer { config, splits } in &folder.answers {
                for (split, theirs) in splits.iter().flatten() {
                    let card = folder.card.as_deref().unwrap_or_default();
                    match select("own/script", &folder.files, card, config.as_deref(), split) {
                        Ok(ours) if ours.files == *theirs => read += 1,
                        Ok(ours) => {
                            wrong.push(format!("{}, {config:?}, {split}: {ours:?}, expected {theirs:?}", folder.name));
                        }
                        Err(_) => {}
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
        // The others have several formats or compressed files, or rare patterns.
        assert!(read > 700, "{read}");
    }

    #[test]
    fn the_card_says_which_files() {
        let files = [
            "README.md",
            "data/CC-1/0.parquet",
            "data/CC-2/1.parquet",
            "data/x.parquet",
            "sample/10BT/000_0.parquet",
            "sample/10BT/001_0.parquet",
            "sample/100BT/0.parquet",
            "other/a.parquet",
            "other/b.parquet",
            "other/c.parquet",
        ];
        let of = |config, split| chosen(&files, FINEWEB, config, split);
        assert_eq!(
            of(Some("sample-10BT"), "train").unwrap(),
            ["sample/10BT/000_0.parquet", "sample/10BT/001_0.parquet"]
        );
        assert_eq!(of(None, "train").unwrap(), ["data/CC-1/0.parquet", "data/CC-2/1.parquet"]);
        assert_eq!(of(Some("two"), "test").unwrap(), ["other/a.parquet", "other/b.parquet"]);
        assert_eq!(
            of(Some("sample-10BTs"), "train").unwrap_err(),
            "no configuration `sample-10BTs`: did you mean `sample-10BT`? available: `default`, `sample-10BT` and `two`"
        );
        assert_eq!(
            of(Some("two"), "tests").unwrap_err(),
            "configuration `two` has no split `tests`: did you mean `test`? available: `test`"
        );
    }

    #[test]
    fn refusals_name_the_files() {
        let refused = |files: &[&str], card: &str| chosen(files, card, None, "train").unwrap_err();
        let list = "---\nconfigs: [{config_name: a, data_files: 'd/*'}]\n---\n";
        let gz = ["d/a.jsonl", "d/b.jsonl.gz", "d/c.jsonl.gz", "d/d.jsonl.gz", "d/e.jsonl.gz"];
        let message = refused(&gz, list);
        assert!(
            message.starts_with("split `train` has `d/b.jsonl.gz`, `d/c.jsonl.gz`, `d/d.jsonl.gz` and 1 more; only"),
            "{message}"
        );
        assert_eq!(
            refused(&["d/a.jsonl", "d/b.parquet", "d/c.jsonl"], list),
            "split `train` has files of JSON lines and of parquet"
        );
        let message = refused(&["LICENSE.txt", "data.xml"], "");
        assert!(message.starts_with("split `train` has `data.xml`; only `.txt`, `.jsonl`, `.ndjson`,"), "{message}");
        assert_eq!(refused(&["train.jsonl", "test.parquet"], ""), "its splits have different formats");
        assert_eq!(refused(&["README.md"], ""), "it has no data files");
        assert_eq!(
            chosen(&["de/train.jsonl"], "", Some("de"), "train").unwrap_err(),
            "no configuration `de`: its card lists no configurations under `configs`"
        );
        assert_eq!(chosen(&["train.jsonl"], "", None, "test").unwrap_err(), "no split `test`; available: `train`");
    }

    #[test]
    fn hostile_cards_are_refused() {
        let bomb = format!("---\na: &a [x]\nb: &b [{}]\nc: [{}]\n---\n", "*a,".repeat(1000), "*b,".repeat(10_000));
        let deep = format!("---\nconfigs: {}\n---\n", "[".repeat(100_000));
        for card in
            ["---\n[1\n---\n", "---\nconfigs: 3\n---\n", "---\nconfigs: [{config_name: [1]}, 4]\n---\n", &bomb, &deep]
        {
            let error = chosen(&["train.jsonl"], card, None, "train").unwrap_err();
            assert!(error.starts_with("its card (README.md): "), "{error}");
        }
        let wide = "---\nconfigs: [{config_name: a, data_files: '*a*a*a*a*a*a*a*a*a*a*b'}]\n---\n";
        assert!(chosen(&[&"a".repeat(300)], wide, None, "train").unwrap_err().contains("too broad"));
        let away = "---\nconfigs: [{config_name: a, data_files: ../../etc/passwd}]\n---\n";
        assert!(
            chosen(&["x.parquet"], away, None, "train").unwrap_err().contains("must be a path inside the repository")
        );
        // A long card is read whole.
        let long =
            format!("\n\n---\nx: {}\nconfigs: [{{config_name: a, data_files: b.jsonl}}]\n---\n", "y ".repeat(1 << 20));
        assert_eq!(chosen(&["a.jsonl", "b.jsonl"], &long, None, "train").unwrap(), ["b.jsonl"]);
    }

    #[test]
    fn files_tell_whether_they_are_all_or_not() {
        let missing =
            |files: &[&str], by| missing_part(&SelectedFiles { format: &FILE_FORMATS[0], files: names(files), by });
        let shards = ["train-00000-of-00002-a0.parquet", "train-00001-of-00002-b1.parquet"];
        assert_eq!(missing(&shards[..1], SelectedBy::Pattern).unwrap(), "1 of the 2 files `train-…`");
        assert_eq!(missing(&shards, SelectedBy::Pattern), None);
        // A file that is not a shard does not hide that one is missing.
        assert!(missing(&["a.parquet", shards[0]], SelectedBy::Name).is_some());
        assert!(missing(&["a.parquet", "b.parquet"], SelectedBy::Name).unwrap().contains("there may be more"));
        assert_eq!(missing(&["a.parquet", "b.parquet"], SelectedBy::List), None);
        for one in ["train.parquet", "data/wikitext2.parquet", "corpus-v2.jsonl"] {
            assert_eq!(missing(&[one], SelectedBy::Name), None, "{one}");
            assert!(missing(&[one], SelectedBy::Pattern).is_some(), "{one}");
        }
        for one in ["0000.parquet", "sample/10BT/000_00000.parquet", "train-0.jsonl", "train-00003-of-00002.parquet"] {
            assert!(missing(&[one], SelectedBy::Name).is_some(), "{one}");
        }
        // Each file that the card names must be there.
        let card = "---\nconfigs: [{config_name: a, data_files: [{split: train, path: [a.jsonl, b.jsonl]}]}]\n---\n";
        let of = |files: &[&str]| select("own/a", &names(files), card, None, "train");
        assert_eq!(of(&["a.jsonl", "b.jsonl"]).unwrap().by, SelectedBy::List);
        let refused = of(&["a.jsonl"]).unwrap_err();
        assert!(
            !refused.may_be_converted && refused.message.ends_with("`b.jsonl`, which its card lists, is missing"),
            "{refused:?}"
        );
    }
}
