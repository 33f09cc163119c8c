//! Selects the files of a split: the files that `datasets` reads, in its order, or none.

use std::collections::{BTreeMap, BTreeSet};

use super::card::{Card, Config};
use super::error::quoted;
use super::formats::{file_name, format_of, infer_reader, is_compressed, is_kept, is_of_reader, readable};
use super::patterns::{Splits, listed_files, normalize, splits_by_name};
use super::repository::suggestion;
use runner_spec::diagnostic;
use runner_spec::experiment::FileFormat;

/// Files that a message names.
const NAMED_FILES: usize = 3;
/// A file that old versions of `datasets` wrote. It may describe a configuration that is not in the card.
const LEGACY_INFOS: &str = "dataset_infos.json";

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

/// The reason why a split cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The dataset has a script or files in other formats. The hub may have converted it.
    Unreadable(String),
    Final(String),
}

impl From<String> for Refusal {
    fn from(message: String) -> Self {
        Self::Final(message)
    }
}

/// The files of a dataset, and its card.
#[derive(Debug, Clone, Copy)]
pub(super) struct Listing<'a> {
    /// `owner/name`.
    pub(super) dataset: &'a str,
    pub(super) files: &'a [String],
    pub(super) card: &'a str,
    /// True if `files` may not be all.
    pub(super) is_partial: bool,
}

/// Selects the files of `split` of `config`.
///
/// # Errors
/// If `datasets` cannot load the configuration, or the split has files that are not read here.
pub(super) fn select(listing: Listing<'_>, config: Option<&str>, split: &str) -> Result<SelectedFiles, Refusal> {
    let mut all: Vec<&str> = listing.files.iter().map(String::as_str).collect();
    all.sort_unstable();
    let script = format!("{}.py", file_name(listing.dataset));
    if all.contains(&script.as_str()) {
        return Err(Refusal::Unreadable(format!("it has a loading script, `{script}`, which is not run")));
    }
    if all.contains(&".huggingface.yaml") {
        return Err(Refusal::Final("it has a second card, `.huggingface.yaml`, which is not read".to_owned()));
    }
    let card = &Card::parse(listing.card).map_err(|message| format!("its card (README.md): {message}"))?;
    let chosen = choose(&all, card, config)?;
    // The first configuration decides the format of all. If not all files are known, only the files of the split count.
    let (reader, splits) = match chosen {
        Some(chosen) if listing.is_partial => {
            let mut splits = splits_of_config(&all, card, chosen, Some(split))?;
            splits.retain(|(name, _)| name == split);
            (reader_of_splits(&splits)?, splits)
        }
        Some(chosen) => {
            let first = match card.configs.first().and_then(|first| first.files.as_deref()) {
                Some(listed) => resolve(&all, "", listed)?,
                None => splits_by_name(&all, "")?,
            };
            (reader_of_splits(&first)?, splits_of_config(&all, card, chosen, None)?)
        }
        None => {
            let mut splits = splits_by_name(&all, "")?;
            let reader = reader_of_splits(&splits)?;
            for (_, files) in &mut splits {
                files.retain(|file| is_kept(file, reader));
            }
            (reader, splits)
        }
    };
    let named = chosen.map_or("default", |chosen| &chosen.name);
    if !listing.is_partial {
        check_described_splits(card, named, &splits)?;
    }
    let names: Vec<String> = splits.iter().map(|(name, _)| name.clone()).collect();
    let Some((_, files)) = splits.iter().find(|(name, _)| name == split) else {
        let subject = chosen.map_or(String::new(), |chosen| format!("configuration `{}` has ", quoted(&chosen.name)));
        return Err(Refusal::Final(format!("{subject}no split `{split}`{}", suggestion(split, &names))));
    };
    let Some(format) = format_of(reader, files) else {
        let (files, readable) = (list_files(files.iter()), readable("and"));
        let message = format!("split `{split}` is read as {reader} ({files}); only {readable} files are read");
        return Err(Refusal::Unreadable(message));
    };
    for (name, files) in &splits {
        if files.is_empty() {
            return Err(Refusal::Final(format!("split `{}` has no files", quoted(name))));
        }
        let mut foreign = files.iter().filter(|file| !is_of_reader(file, reader) && !is_zip(file)).peekable();
        if chosen.is_some() && foreign.peek().is_some() {
            let files = list_files(foreign);
            return Err(Refusal::Final(format!("split `{name}` is read as {reader}, but has {files}")));
        }
    }
    let mut compressed = files.iter().filter(|file| is_compressed(file)).peekable();
    if compressed.peek().is_some() {
        let files = list_files(compressed);
        let message = format!("split `{split}` has compressed files, which are not read: {files}");
        return Err(Refusal::Unreadable(format!(
            "{message}; download the dataset, decompress them, and name its files"
        )));
    }
    let patterns = chosen.and_then(|chosen| chosen.files.as_ref()?.iter().find(|(name, _)| name == split));
    let by = match patterns {
        None => SelectedBy::Name,
        Some((_, patterns)) if patterns.iter().any(|path| path.contains(['*', '?', '['])) => SelectedBy::Pattern,
        Some(_) => SelectedBy::List,
    };
    Ok(SelectedFiles { format, files: files.clone(), by })
}

#[expect(clippy::case_sensitive_file_extension_comparisons, reason = "as `datasets` compares them")]
fn is_zip(file: &str) -> bool {
    file.ends_with(".zip")
}

/// The configuration of the card that is read; `None` if the card lists none.
fn choose<'c>(all: &[&str], card: &'c Card, config: Option<&str>) -> Result<Option<&'c Config>, Refusal> {
    let described = match card.infos.as_slice() {
        [only] if !all.contains(&LEGACY_INFOS) => Some(only.config.as_str()),
        _ => None,
    };
    let wanted = config.or(card.default_config()?).or(described);
    let names: Vec<String> = card.configs.iter().map(|config| config.name.clone()).collect();
    match wanted {
        None | Some("default") if names.is_empty() => Ok(None),
        None => Err(Refusal::Final(format!("it has several configurations; give `config`{}", suggestion("", &names)))),
        Some(name) if names.is_empty() => {
            let name = quoted(name);
            Err(Refusal::Final(format!("no configuration `{name}`: its card lists no configurations under `configs`")))
        }
        Some(name) => {
            let found = card.configs.iter().find(|config| config.name == name);
            let missing = || format!("no configuration `{}`{}", quoted(name), suggestion(name, &names));
            Ok(Some(found.ok_or_else(missing)?))
        }
    }
}

fn resolve(all: &[&str], folder: &str, listed: &[(String, Vec<String>)]) -> Result<Splits, String> {
    listed.iter().map(|(split, patterns)| Ok((split.clone(), listed_files(all, folder, patterns)?))).collect()
}

/// The splits of `chosen`, or of its listed splits only the one named `only`. All configurations of the card are checked, because one
/// that is wrong makes the others unreadable.
fn splits_of_config(all: &[&str], card: &Card, chosen: &Config, only: Option<&str>) -> Result<Splits, Refusal> {
    let mut splits = Splits::new();
    for config in &card.configs {
        let wrong = |message: String| format!("configuration `{}`: {message}", quoted(&config.name));
        let folder = match config.folder.as_deref().map(normalize).transpose().map_err(wrong)? {
            Some(folder) if folder.contains(['*', '?', '[']) => {
                return Err(Refusal::Final(wrong(format!(
                    "`data_dir` must not be a pattern, got `{}`",
                    quoted(&folder)
                ))));
            }
            Some(folder) if !folder.is_empty() => folder + "/",
            _ => String::new(),
        };
        if std::ptr::eq(config, chosen) {
            if let [setting, ..] = config.row_settings.as_slice() {
                return Err(Refusal::Unreadable(wrong(format!("`{setting}` is not supported"))));
            }
            splits = match &config.files {
                Some(listed) => match listed.iter().find(|(split, _)| Some(split.as_str()) == only) {
                    Some(one) => resolve(all, &folder, std::slice::from_ref(one)),
                    None => resolve(all, &folder, listed),
                },
                None => splits_by_name(all, &folder),
            }
            .map_err(wrong)?;
        } else if config.files.is_none() && only.is_none() {
            splits_by_name(all, &folder).map_err(wrong)?;
        }
    }
    Ok(splits)
}

/// The reader of the files of all splits.
fn reader_of_splits(splits: &Splits) -> Result<&'static str, Refusal> {
    let mut first: Option<(&str, &'static str)> = None;
    for (split, files) in splits {
        let Some(reader) = infer_reader(files) else {
            return Err(Refusal::Unreadable(format!("split `{}` has no {} files", quoted(split), readable("or"))));
        };
        match first {
            Some((other, different)) if different != reader => {
                let other = quoted(other);
                return Err(Refusal::Final(format!(
                    "its splits have different formats: `{other}` is read as {different}, `{}` as {reader}",
                    quoted(split)
                )));
            }
            _ => first = Some((split, reader)),
        }
    }
    Ok(first.ok_or_else(|| "it has no splits".to_owned())?.1)
}

/// Checks that the configuration `named` has the splits that `dataset_info` describes.
fn check_described_splits(card: &Card, named: &str, splits: &Splits) -> Result<(), String> {
    let described = card.infos.iter().rfind(|info| info.config == named).and_then(|info| info.splits.as_ref());
    let Some(described) = described else { return Ok(()) };
    let (described, found): (BTreeSet<&str>, BTreeSet<&str>) =
        (described.iter().map(String::as_str).collect(), splits.iter().map(|(split, _)| split.as_str()).collect());
    if described == found {
        return Ok(());
    }
    let list = |names: BTreeSet<&str>| {
        if names.is_empty() {
            "none".to_owned()
        } else {
            diagnostic::list(&names.into_iter().map(quoted).collect::<Vec<_>>(), "and")
        }
    };
    Err(format!(
        "`dataset_info` of its card describes the splits {}, but the files give the splits {}",
        list(described),
        list(found)
    ))
}

/// The first of `files`, and the number of the others.
fn list_files<'f>(files: impl Iterator<Item = &'f String>) -> String {
    let files: BTreeSet<&String> = files.collect();
    let named: Vec<String> = files.iter().take(NAMED_FILES).map(|file| format!("`{}`", quoted(file))).collect();
    match files.len() - named.len() {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// The part of `selected` that is missing, or may be, if only some files of the dataset are known. `None` if the card names each file, if
/// their names state how many there are, as `train-00000-of-00005.parquet` does, or if the only file is not named like a part.
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

/// The prefix, index and number of shards in a name: `data/train-`, 1 and 5 in `data/train-00001-of-00005.parquet`.
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
        let listing = Listing { dataset: "own/a", files: &names(files), card, is_partial: false };
        select(listing, config, split).map(|selected| selected.files).map_err(|refusal| match refusal {
            Refusal::Unreadable(message) | Refusal::Final(message) => message,
        })
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
        let (mut read, mut refused, mut wrong) = (0, BTreeMap::<&str, usize>::new(), Vec::new());
        for folder in &folders {
            for Answer { config, splits } in &folder.answers {
                let listed = splits.iter().flatten().map(|(split, _)| split.as_str());
                for split in listed.chain(["train", "validation", "test", "extra"]).collect::<BTreeSet<_>>() {
                    let listing = Listing {
                        dataset: "own/script",
                        files: &folder.files,
                        card: folder.card.as_deref().unwrap_or_default(),
                        is_partial: false,
                    };
                    let ours = select(listing, config.as_deref(), split);
                    let theirs = splits.as_ref().and_then(|splits| splits.get(split));
                    match (&ours, theirs) {
                        (Ok(ours), Some(theirs)) if ours.files == *theirs => read += 1,
                        (Err(_), None) => {}
                        (Err(Refusal::Unreadable(message) | Refusal::Final(message)), Some(_)) => {
                            let reasons = ["compressed files", "read as zip", "but has"];
                            let reason = reasons.into_iter().find(|reason| message.contains(reason));
                            *refused.entry(reason.unwrap_or(&folder.name)).or_default() += 1;
                        }
                        _ => wrong.push(format!("{}, {config:?}, {split}: {ours:?}, expected {theirs:?}", folder.name)),
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
        // Splits that are refused although `datasets` reads them: files that are not read here, and two rare patterns.
        let expected = [
            ("but has", 14),
            ("compressed files", 41),
            ("data_dir upwards", 1),
            ("open bracket", 2),
            ("read as zip", 2),
        ];
        assert_eq!((read, refused), (811, BTreeMap::from(expected)));
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
        assert!(refused(&gz, list).starts_with(
            "split `train` has compressed files, which are not read: `d/b.jsonl.gz`, `d/c.jsonl.gz`, `d/d.jsonl.gz` and 1 more"
        ));
        assert_eq!(
            refused(&["d/a.jsonl", "d/b.parquet", "d/c.jsonl"], list),
            "split `train` is read as json, but has `d/b.parquet`"
        );
        assert_eq!(
            refused(&["LICENSE.txt", "data.xml"], ""),
            "split `train` is read as xml (`data.xml`); only `csv`, `csv with tabs`, `json`, `parquet` and `text` files are read"
        );
        assert_eq!(
            refused(&["train.jsonl", "test.parquet"], ""),
            "its splits have different formats: `train` is read as json, `test` as parquet"
        );
        assert!(
            refused(&["a.bin"], "").contains("no `csv`, `csv with tabs`, `json`, `parquet` or `text` files"),
            "{}",
            refused(&["a.bin"], "")
        );
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
        let of = |files: &[&str], is_partial| {
            select(Listing { dataset: "own/a", files: &names(files), card, is_partial }, None, "train")
        };
        assert_eq!(of(&["a.jsonl", "b.jsonl"], true).unwrap().by, SelectedBy::List);
        for is_partial in [true, false] {
            let refused = of(&["a.jsonl"], is_partial).unwrap_err();
            let Refusal::Final(message) = refused else { panic!("{refused:?}") };
            assert!(message.ends_with("`b.jsonl`, which its card lists, is missing"), "{message}");
        }
    }
}
