//! Selects the files of a configuration's split among those of a dataset.
//!
//! The dataset's card (README.md) lists them under `configs`; without such a list, the names of folders and files decide.

use std::collections::{BTreeMap, BTreeSet};

use glob::{MatchOptions, Pattern};
use runner_yaml::document::Value;

use super::repository::suggestion;
use runner_files::BYTE_ORDER_MARK;
use runner_spec::error::PlainError;
use runner_yaml::document;

/// Bytes of the YAML at the top of a card.
const MAX_HEAD_BYTES: usize = 1 << 20;
/// Wildcards of a pattern. Matching takes long with many of them.
const MAX_WILDCARDS: usize = 8;

/// Files that describe data.
const DESCRIPTIONS: [&str; 7] = [
    "dataset_info.json",
    "dataset_infos.json",
    "metadata.json",
    "state.json",
    "requirements.txt",
    "LICENSE.txt",
    "README.txt",
];

/// The format of a dataset's files. The first format that has files is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Parquet,
    Jsonl,
    /// One array or lines; the file's first bytes decide which.
    Json,
    /// Each file is a document.
    Text,
}

impl Format {
    const ALL: [Self; 4] = [Self::Parquet, Self::Jsonl, Self::Json, Self::Text];

    fn ending(self) -> &'static str {
        match self {
            Self::Parquet => ".parquet",
            Self::Jsonl => ".jsonl",
            Self::Json => ".json",
            Self::Text => ".txt",
        }
    }
}

/// The files of a split, in alphabetical order, all of one format.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SelectedFiles {
    pub(super) format: Format,
    pub(super) files: Vec<String>,
    pub(super) by: SelectedBy,
}

/// The reason for a selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SelectedBy {
    /// The card names each file, and each exists.
    List,
    /// They match a pattern of the card.
    Pattern,
    /// The names of folders and files decided, because the card lists none.
    Name,
    /// The only JSON or text files, which nothing names as data: they may hold something else.
    Guess,
}

/// A configuration of a card.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Config {
    name: String,
    default: bool,
    /// Splits and their patterns.
    files: Vec<(String, String)>,
}

/// The configurations in the card `text`; none if it does not begin with YAML.
pub(super) fn configs(text: &str) -> Vec<Config> {
    let text = text.trim_start_matches(BYTE_ORDER_MARK);
    let Some(rest) = text.strip_prefix("---\n").or_else(|| text.strip_prefix("---\r\n")) else { return Vec::new() };
    let Some(end) = rest.match_indices("\n---").map(|(at, _)| at).next().filter(|&end| end <= MAX_HEAD_BYTES) else {
        return Vec::new();
    };
    let Ok(head) = document::from_str::<Value>(&rest[..end]) else { return Vec::new() };
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let many = |value: &Value| match value {
        Value::Sequence(items) => items.iter().filter_map(text).collect(),
        other => text(other).into_iter().collect::<Vec<_>>(),
    };
    let mut out = Vec::new();
    for config in head.get("configs").and_then(Value::as_sequence).into_iter().flatten() {
        let Some(name) = config.get("config_name").and_then(text) else { continue };
        let folder =
            config.get("data_dir").and_then(text).map(|f| f.trim_matches('/').to_owned()).filter(|f| !f.is_empty());
        let within = |pattern: String| folder.as_ref().map_or(pattern.clone(), |folder| format!("{folder}/{pattern}"));
        let mut files = Vec::new();
        match config.get("data_files") {
            Some(Value::Sequence(items)) => {
                for item in items {
                    let split = item.get("split").and_then(text).unwrap_or_else(|| "train".to_owned());
                    let paths = item.get("path").map_or_else(|| many(item), &many);
                    files.extend(paths.into_iter().map(|path| (split.clone(), within(path))));
                }
            }
            Some(Value::Mapping(splits)) => {
                for (split, paths) in splits {
                    files.extend(many(paths).into_iter().filter_map(|path| Some((text(split)?, within(path)))));
                }
            }
            Some(one) => files.extend(text(one).map(|path| ("train".to_owned(), within(path)))),
            None => files.extend(folder.iter().map(|folder| ("train".to_owned(), format!("{folder}/**")))),
        }
        out.push(Config { name, default: config.get("default").and_then(Value::as_bool).unwrap_or(false), files });
    }
    out
}

/// The files among `all` of `split` of `config`; `None` if neither the card nor the names show them.
///
/// # Errors
/// A message that lists the configurations or splits that exist.
pub(super) fn select(
    all: &[String],
    configs: &[Config],
    config: Option<&str>,
    split: &str,
) -> Result<Option<SelectedFiles>, PlainError> {
    if let Some(chosen) = choose(configs, config)? {
        let (mut found, mut by) = (BTreeSet::new(), SelectedBy::List);
        let mut splits = BTreeSet::new();
        for (name, pattern) in &chosen.files {
            splits.insert(name.clone());
            if name == split {
                found.extend(matching(all, pattern)?);
                if !all.iter().any(|file| file == listed_path(pattern)) {
                    by = SelectedBy::Pattern;
                }
            }
        }
        if !splits.contains(split) {
            let suggestion = suggestion(split, &Vec::from_iter(splits));
            return Err(PlainError::request(format!(
                "configuration `{}` has no split `{split}`{suggestion}",
                chosen.name
            )));
        }
        let selected = select_format(&found, by);
        let none = || {
            let name = &chosen.name;
            PlainError::request(format!("split `{split}` of configuration `{name}` has no parquet, JSON or text files"))
        };
        return selected.map(Some).ok_or_else(none);
    }
    Ok(by_name(all, config, split))
}

/// The configuration `config` of the card, or its default; `None` if the card lists no files.
fn choose<'c>(configs: &'c [Config], config: Option<&str>) -> Result<Option<&'c Config>, PlainError> {
    let configs: Vec<&Config> = configs.iter().filter(|config| !config.files.is_empty()).collect();
    let suggest = |name: &str| suggestion(name, &configs.iter().map(|config| config.name.clone()).collect::<Vec<_>>());
    let find = |name: &str| configs.iter().find(|config| config.name == name).copied();
    match (config, configs.as_slice()) {
        (_, []) => Ok(None),
        (Some(name), _) => find(name)
            .map(Some)
            .ok_or_else(|| PlainError::request(format!("no configuration `{name}`{}", suggest(name)))),
        (None, [only]) => Ok(Some(*only)),
        (None, all) => {
            let default = all.iter().find(|config| config.default).copied().or_else(|| find("default"));
            let several =
                || PlainError::request(format!("it has several configurations; give `config`{}", suggest("")));
            default.map(Some).ok_or_else(several)
        }
    }
}

/// A path of a card in the form of the list of files.
fn listed_path(path: &str) -> &str {
    path.trim_start_matches("./").trim_start_matches('/')
}

fn matching(all: &[String], pattern: &str) -> Result<Vec<String>, PlainError> {
    let pattern = listed_path(pattern);
    if pattern.matches(['*', '?', '[']).count() > MAX_WILDCARDS {
        return Err(PlainError::request(format!(
            "its card has a pattern that is too broad: `{}`",
            super::error::quoted(pattern)
        )));
    }
    let options = MatchOptions { require_literal_separator: true, ..MatchOptions::new() };
    let find = |pattern: &str| {
        let Ok(pattern) = Pattern::new(pattern) else { return Vec::new() };
        all.iter().filter(|file| pattern.matches_with(file, options)).cloned().collect::<Vec<_>>()
    };
    let found = find(pattern);
    // A folder stands for its files.
    Ok(if found.is_empty() { find(&format!("{}/**/*", pattern.trim_end_matches('/'))) } else { found })
}

/// The files of the first format that has files.
fn select_format(files: &BTreeSet<String>, by: SelectedBy) -> Option<SelectedFiles> {
    let select = |format: Format| {
        let files = files.iter().filter(|file| file.ends_with(format.ending())).cloned().collect();
        SelectedFiles { format, files, by }
    };
    Format::ALL.into_iter().map(select).find(|selected| !selected.files.is_empty())
}

/// Folders that may hold the files of `config`; without one, those of the dataset itself.
fn folders(config: Option<&str>) -> Vec<String> {
    match config {
        None | Some("default") => ["default/", "data/", ""].map(str::to_owned).to_vec(),
        // `sample-10BT` may lie in sample/10BT.
        Some(name) => [name.to_owned(), format!("data/{name}"), name.replacen('-', "/", 1)].map(|f| f + "/").to_vec(),
    }
}

/// Selects by the names of folders and files: `config/split-…`, `config/split/…`, `data/split-…`, `sample/10BT/…`.
fn by_name(all: &[String], config: Option<&str>, split: &str) -> Option<SelectedFiles> {
    for folder in folders(config) {
        let within: Vec<(&String, &str)> =
            all.iter().filter_map(|file| Some((file, file.strip_prefix(&folder)?))).collect();
        let named = within.iter().filter(|(_, rest)| split_in_path(rest) == Some(split));
        if let Some(selected) = select_format(&named.map(|(file, _)| (*file).clone()).collect(), SelectedBy::Name) {
            return Some(selected);
        }
        // Files of no split are for training.
        let here = within.iter().filter(|(_, rest)| !rest.contains('/') && !DESCRIPTIONS.contains(rest));
        let files: BTreeSet<String> = here.map(|(file, _)| (*file).clone()).collect();
        let unnamed = |s: &SelectedFiles| s.files.iter().all(|f| !is_named(f.strip_prefix(&folder).unwrap_or(f)));
        if split == "train"
            && let Some(selected) = select_format(&files, SelectedBy::Name).filter(unnamed)
            && (!folder.is_empty() || !selected.files.iter().any(|f| f.ends_with("config.json")))
        {
            let guess = folder.is_empty() && matches!(selected.format, Format::Json | Format::Text);
            return Some(SelectedFiles { by: if guess { SelectedBy::Guess } else { SelectedBy::Name }, ..selected });
        }
    }
    None
}

/// The split that a path within a configuration names: its folder, or the start of its file's name.
fn split_in_path(rest: &str) -> Option<&str> {
    match rest.split_once('/') {
        Some((folder, file)) if !file.contains('/') => Some(folder),
        Some(_) => None,
        None => {
            let stem = rest.rsplit_once('.').map_or(rest, |(stem, _)| stem);
            // Numbers of shards follow the split: train-00000-of-00005.
            let end = stem.find(['-', '.']).unwrap_or(stem.len());
            Some(&stem[..end]).filter(|name| !name.is_empty())
        }
    }
}

fn is_named(rest: &str) -> bool {
    split_in_path(rest)
        .is_some_and(|name| matches!(name, "train" | "test" | "validation" | "valid" | "val" | "dev" | "eval"))
}

/// Configurations and splits that the names of files suggest, for a message.
pub(super) fn suggested(all: &[String], configs: &[Config], config: Option<&str>, split: &str) -> String {
    // Text files have names of all kinds.
    let named = |format: &&Format| **format != Format::Text;
    let data =
        || all.iter().filter(|file| Format::ALL.iter().filter(named).any(|format| file.ends_with(format.ending())));
    let mut names: BTreeSet<String> = configs.iter().map(|c| c.name.clone()).collect();
    names.extend(data().filter_map(|file| Some(file.split_once('/')?.0.to_owned())).filter(|folder| folder != "data"));
    let mut splits = BTreeSet::new();
    for folder in folders(config) {
        splits.extend(data().filter_map(|file| split_in_path(file.strip_prefix(&folder)?)).map(str::to_owned));
    }
    splits.retain(|name| !matches!(name.as_str(), "data" | "default"));
    let (names, splits) = (Vec::from_iter(names), Vec::from_iter(splits));
    match config {
        Some(name) if !names.iter().any(|n| n == name) => {
            format!("no configuration `{name}`{}", suggestion(name, &names))
        }
        _ if splits.is_empty() => format!("no parquet, JSON or text files of it were found{}", suggestion("", &names)),
        _ => format!("no split `{split}`{}", suggestion(split, &splits)),
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

/// True if a file's name ends in a number, as `0000.parquet`, `000_00000.parquet` and `part-3.jsonl` do.
fn is_numbered(file: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or(file);
    let stem = name.split_once('.').map_or(name, |(stem, _)| stem);
    let last = stem.rsplit(['-', '_']).next().unwrap_or(stem);
    !last.is_empty() && last.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FINEWEB: &str = "---\nlicense: odc-by\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: data/*/*\n- config_name: sample-10BT\n  data_files:\n  - split: train\n    path: sample/10BT/*\n- config_name: two\n  data_dir: other\n  data_files:\n  - split: test\n    path: [a.jsonl, b.jsonl]\n---\n# FineWeb\n";

    fn names(files: &[&str]) -> Vec<String> {
        files.iter().map(|f| (*f).to_owned()).collect()
    }

    fn chosen(files: &[&str], card: &str, config: Option<&str>, split: &str) -> Result<Vec<String>, String> {
        let (all, configs) = (names(files), configs(card));
        match select(&all, &configs, config, split)? {
            Some(selected) => Ok(selected.files),
            None => Err(suggested(&all, &configs, config, split)),
        }
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
            "other/a.jsonl",
            "other/b.jsonl",
            "other/c.jsonl",
        ];
        let of = |config, split| chosen(&files, FINEWEB, config, split);
        assert_eq!(
            of(Some("sample-10BT"), "train").unwrap(),
            ["sample/10BT/000_0.parquet", "sample/10BT/001_0.parquet"]
        );
        assert_eq!(of(None, "train").unwrap(), ["data/CC-1/0.parquet", "data/CC-2/1.parquet"]);
        assert_eq!(of(Some("two"), "test").unwrap(), ["other/a.jsonl", "other/b.jsonl"]);
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
    fn names_say_it_where_the_card_is_silent() {
        let alpaca = ["README.md", "data/train-00000-of-00001-a09b74b3ef9c3b56.parquet", ".gitattributes"];
        assert_eq!(chosen(&alpaca, "# no head", None, "train").unwrap(), alpaca[1..2]);
        assert!(chosen(&alpaca, "", None, "test").unwrap_err().contains("no split `test`; available: `train`"));
        let configs = ["en/train-0.parquet", "en/test-0.parquet", "de/train.jsonl", "de/dataset.txt"];
        assert_eq!(chosen(&configs, "", Some("en"), "test").unwrap(), configs[1..2]);
        assert_eq!(chosen(&configs, "", Some("de"), "train").unwrap(), configs[2..3]);
        assert!(chosen(&configs, "", Some("fr"), "train").unwrap_err().contains("available: `de` and `en`"));
        let converted = ["default/train/0000.parquet", "default/train/0001.parquet", "default/test/0000.parquet"];
        assert_eq!(chosen(&converted, "", None, "train").unwrap(), converted[..2]);
        let sample = ["sample/10BT/000.parquet", "sample/100BT/000.parquet"];
        assert_eq!(chosen(&sample, "", Some("sample-10BT"), "train").unwrap(), sample[..1]);
        let one = ["README.md", "alpaca_data_cleaned.json"];
        assert_eq!(chosen(&one, "", None, "train").unwrap(), one[1..]);
        assert!(chosen(&one, "", None, "test").is_err());
        assert!(
            chosen(&["a.md", "LICENSE.txt"], "", None, "train").unwrap_err().contains("no parquet, JSON or text files")
        );
    }

    #[test]
    fn hostile_cards_say_nothing() {
        let bomb = format!("---\na: &a [x]\nb: &b [{}]\nc: [{}]\n---\n", "*a,".repeat(100), "*b,".repeat(10_000));
        let deep = format!("---\nconfigs: {}\n---\n", "[".repeat(100_000));
        for card in [
            "---\n",
            "---\n[1\n---\n",
            "---\nconfigs: 3\n---\n",
            "---\nconfigs: [{config_name: [1]}, 4]\n---\n",
            &bomb,
            &deep,
        ] {
            assert_eq!(configs(card), []);
        }
        let wide = "---\nconfigs: [{config_name: a, data_files: '*a*a*a*a*a*a*a*a*a*a*b'}]\n---\n";
        assert!(chosen(&[&"a".repeat(300)], wide, None, "train").unwrap_err().contains("too broad"));
        let away = "---\nconfigs: [{config_name: a, data_files: ../../etc/passwd}]\n---\n";
        assert!(chosen(&["x.parquet"], away, None, "train").is_err());
    }

    #[test]
    fn files_tell_whether_they_are_all_or_not() {
        let missing =
            |files: &[&str], by| missing_part(&SelectedFiles { format: Format::Parquet, files: names(files), by });
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
        // A card's list of which not all is there is no list.
        let card = "---\nconfigs: [{config_name: a, data_files: [{split: train, path: [a.jsonl, b.jsonl]}]}]\n---\n";
        let by = |files: &[&str]| select(&names(files), &configs(card), None, "train").unwrap().unwrap().by;
        assert_eq!((by(&["a.jsonl", "b.jsonl"]), by(&["a.jsonl"])), (SelectedBy::List, SelectedBy::Pattern));
    }

    #[test]
    fn json_files_about_data_are_not_data() {
        let train = |files: &[&str]| select(&names(files), &[], None, "train").unwrap();
        assert_eq!(train(&["metadata.json", "dataset_infos.json", "LICENSE.txt"]), None);
        let one = train(&["metadata.json", "alpaca.json"]).unwrap();
        assert_eq!((one.files, one.by), (names(&["alpaca.json"]), SelectedBy::Guess));
        assert_eq!(train(&["train.json"]).unwrap().by, SelectedBy::Name);
    }
}
