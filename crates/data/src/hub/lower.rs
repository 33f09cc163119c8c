//! Turns data that names the hub into data that names files, which it downloads, and into data that names the commits that were read.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use hf_hub::RepoType;

use super::client::{Client, Report};
use super::downloads::{Downloads, HubCommit};
use super::error::{HubError, Result};
use super::listing::check_free_space;
use super::repository::{Repository, Snapshot};
use super::select::{self, Format, SelectedBy, SelectedFiles};
use super::settings::Settings;
use runner_files::open_regular;
use runner_spec::experiment::{
    Data, HUB_DEFAULT_BRANCH, HellaSwag, HubChoice, HubModel, HubSource, JsonSource, ParquetSource, Source, Tokenizer,
    Validation,
};

/// The branch on which the hub keeps the parquet files that it makes of datasets in other formats.
const CONVERTED: &str = "refs/convert/parquet";
/// Bytes of a dataset's card.
const MAX_CARD_BYTES: u64 = 4 << 20;
const TOKENIZER: &str = "tokenizer.json";
const VOCAB_AND_MERGES: [&str; 2] = ["vocab.json", "merges.txt"];
/// The files beside a tokenizer that name its special tokens, and its chat template, which an export lacks. The last two are read with
/// `vocab.json` and `merges.txt` alone.
const COMPANIONS: [&str; 6] = [
    "tokenizer_config.json",
    "generation_config.json",
    "config.json",
    "chat_template.jinja",
    "added_tokens.json",
    "special_tokens_map.json",
];

/// Data that names files, and data that names commits.
#[derive(Debug, Clone, PartialEq)]
pub struct LoweredData {
    /// The data with paths of local files.
    pub local: Data,
    /// The data as given, with the commits that were read as revisions.
    pub pinned: Data,
    /// The local and the pinned source that the model is tested on, if it is on the hub.
    pub test: Option<(Source, Source)>,
    /// The local and the pinned multiple-choice set, if it is on the hub.
    pub choice: Option<(HellaSwag, HellaSwag)>,
}

/// True if `data`, `test` or `choice` names anything on the hub.
#[must_use]
pub fn is_needed(data: &Data, test: Option<&Source>, choice: Option<&HellaSwag>) -> bool {
    matches!(data.train, Source::Hub(_))
        || choice.is_some_and(|set| set.hub.is_some())
        || matches!(test, Some(Source::Hub(_)))
        || matches!(data.validation, Some(Validation::Source(Source::Hub(_))))
        || matches!(data.tokenizer, Tokenizer::Hub(_))
}

/// Finds the files that `data`, `test` and `choice` name on the hub. `memos` is a folder for lists of files.
///
/// # Errors
/// If a file is neither in the cache nor can be downloaded, or an answer of the hub is wrong.
pub fn lower(
    data: &Data,
    test: Option<&Source>,
    choice: Option<&HellaSwag>,
    settings: &Settings,
    memos: &Path,
    report: &Report<'_>,
) -> Result<LoweredData> {
    let hub = Client::new(settings, memos, report);
    let mut out = LoweredData { local: data.clone(), pinned: data.clone(), test: None, choice: None };
    if let Tokenizer::Hub(HubModel { name, revision }) = &data.tokenizer {
        let key = |message| format!("data.tokenizer.hub: {message}");
        let (local, commit) = hub.tokenizer(name, revision).map_err(|error| error.reword(key))?;
        out.local.tokenizer = local;
        out.pinned.tokenizer = Tokenizer::Hub(HubModel { name: name.clone(), revision: commit });
    }
    let named = |key: &'static str| move |error: HubError| error.reword(|message| format!("{key}: {message}"));
    let open = |source: Option<&Source>, key: &'static str| match source {
        Some(Source::Hub(source)) => hub.open_split(source).map(Some).map_err(named(key)),
        _ => Ok(None),
    };
    let separate = match &data.validation {
        Some(Validation::Source(source)) => Some(source),
        _ => None,
    };
    let choice_on_hub = choice.and_then(|set| Some((set, set.hub.as_ref()?)));
    let train_split = open(Some(&data.train), "data.train.hub")?;
    let validation_split = open(separate, "data.validation.hub")?;
    let test_split = open(test, "eval.test.hub")?;
    let choice_split = choice_on_hub.map(|(_, named)| hub.open_choice(named)).transpose();
    let choice_split = choice_split.map_err(named("eval.hellaswag.hub"))?;
    let splits = [&train_split, &validation_split, &test_split, &choice_split].into_iter().flatten();
    let needed = splits.map(|split| split.downloads.missing_bytes(0));
    check_free_space(&settings.cache, needed.fold(0, u64::saturating_add))?;
    if let Some(split) = &train_split {
        (out.local.train, out.pinned.train) = hub.download(split).map_err(named("data.train.hub"))?;
    }
    if let Some(split) = &validation_split {
        let (local, pinned) = hub.download(split).map_err(named("data.validation.hub"))?;
        out.local.validation = Some(Validation::Source(local));
        out.pinned.validation = Some(Validation::Source(pinned));
    }
    if let Some(split) = &test_split {
        out.test = Some(hub.download(split).map_err(named("eval.test.hub"))?);
    }
    if let (Some((set, from)), Some(split)) = (choice_on_hub, &choice_split) {
        let file = hub.download_choice(split).map_err(named("eval.hellaswag.hub"))?;
        let pinned = HubChoice { revision: split.pinned.revision.clone(), ..from.clone() };
        out.choice = Some((
            HellaSwag { file: Some(file), hub: None, ..set.clone() },
            HellaSwag { hub: Some(pinned), ..set.clone() },
        ));
    }
    Ok(out)
}

/// The error that `split` cannot be a multiple-choice set, because it `is` something else.
fn not_a_choice_set(split: &str, is: &str) -> HubError {
    HubError::Request(format!("split `{split}` {is}; a multiple-choice set must be one parquet or JSON Lines file"))
}

impl Client<'_> {
    pub(super) fn repository<'a>(&'a self, kind: RepoType, name: &'a str, revision: &'a str) -> Repository<'a> {
        Repository { client: self, kind, name, revision }
    }

    /// The error that `snapshot` lacks something, with the reason why no more of its files are known.
    pub(super) fn lacking(&self, snapshot: &Snapshot, message: String) -> HubError {
        match &snapshot.partial {
            None => HubError::Request(message),
            Some(why) if self.settings.offline => HubError::Offline(format!("{message}; {why}")),
            Some(why) => HubError::Unreachable(format!("{message}; {why}")),
        }
    }

    fn tokenizer(&self, name: &str, revision: &str) -> Result<(Tokenizer, String)> {
        let repository = self.repository(RepoType::Model, name, revision);
        let snapshot = repository.snapshot()?;
        let own = tokenizer_files(&snapshot);
        let files = [own.clone(), companion_files(&repository, &snapshot, &own)].concat();
        let paths =
            (1..).zip(&files).map(|(number, file)| repository.file(&snapshot.commit, file, (number, files.len())));
        let mut paths = paths.collect::<Result<Vec<_>>>()?.into_iter().take(own.len());
        match (paths.next(), paths.next()) {
            (Some(vocab), Some(merges)) => Ok((Tokenizer::Gpt2 { vocab, merges }, snapshot.commit)),
            (Some(file), None) => Ok((Tokenizer::File(file), snapshot.commit)),
            (None, _) => {
                let title = format!("model {name} ({revision})");
                let message = format!("{title} has neither tokenizer.json nor vocab.json and merges.txt");
                Err(self.lacking(&snapshot, message))
            }
        }
    }

    /// Downloads the files of `split`. Returns the source with local files, and with the commit.
    fn download(&self, split: &HubSplit) -> Result<(Source, Source)> {
        let paths = (0..split.downloads.files().len()).map(|index| split.downloads.path(index, self.report));
        let paths = paths.collect::<Result<Vec<_>>>()?;
        Ok((split.local_source(paths, self.report)?, Source::Hub(split.pinned.clone())))
    }

    /// Finds the file of a multiple-choice set, without downloading it.
    fn open_choice(&self, named: &HubChoice) -> Result<HubSplit> {
        let HubChoice { dataset, config, split, revision } = named.clone();
        let found = self.open_split(&HubSource { dataset, config, split, revision, column: None, template: None })?;
        match (found.downloads.files().len(), found.format) {
            (1, Format::Text) => Err(not_a_choice_set(&named.split, "is plain text")),
            (1, _) => Ok(found),
            (files, _) => Err(not_a_choice_set(&named.split, &format!("has {files} files"))),
        }
    }

    /// Downloads the file that [`Self::open_choice`] found.
    fn download_choice(&self, split: &HubSplit) -> Result<PathBuf> {
        let files = match self.download(split)?.0 {
            Source::Parquet(from) => from.files,
            Source::Jsonl(from) => from.files,
            _ => Vec::new(),
        };
        files.into_iter().next().ok_or_else(|| not_a_choice_set(&split.pinned.split, "is one JSON array"))
    }

    /// Finds the files of the split that `source` names. Downloads the dataset's card alone.
    fn open_split(&self, source: &HubSource) -> Result<HubSplit> {
        let HubSource { dataset, config, split, revision, .. } = source;
        let repository = self.repository(RepoType::Dataset, dataset, revision);
        let snapshot = repository.snapshot()?;
        let configs = read_card_configs(&repository, &snapshot)?;
        let wanted = config.as_deref();
        let describe = |message: String| format!("dataset {dataset} ({revision}): {message}");
        let mut found = select::select(&snapshot.files, &configs, wanted, split)
            .map_err(|error| self.lacking(&snapshot, describe(error.text)))?
            .map(|selected| (selected, snapshot.clone(), revision.as_str()));
        // A guess is kept once its files have been downloaded, so that a later run reads the same files.
        let guessed = found.as_ref().is_none_or(|(selected, ..)| {
            selected.by == SelectedBy::Guess
                && !selected.files.iter().all(|file| repository.has(&snapshot.commit, file))
        });
        if guessed && revision == HUB_DEFAULT_BRANCH && snapshot.partial.is_none() {
            // Files that the hub has converted. Without any, the message describes the dataset's own files.
            match self.repository(RepoType::Dataset, dataset, CONVERTED).snapshot() {
                Ok(converted) => {
                    let selected = select::select(&converted.files, &[], wanted, split)
                        .map_err(|error| self.lacking(&converted, describe(error.text)))?;
                    found = selected.map(|selected| (selected, converted, CONVERTED)).or(found);
                }
                Err(HubError::Request(_) | HubError::Offline(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let Some((selected, snapshot, from)) = found else {
            let message = select::suggested(&snapshot.files, &configs, wanted, split);
            return Err(self.lacking(&snapshot, describe(message)));
        };
        if snapshot.partial.is_some()
            && let Some(missing) = select::missing_part(&selected)
        {
            return Err(self.lacking(&snapshot, describe(format!("the cache has {missing}"))));
        }
        let SelectedFiles { format, files, .. } = selected;
        let files = self.repository(RepoType::Dataset, dataset, from).listed_files(&snapshot.commit, &files)?;
        let origin = HubCommit {
            settings: self.settings.clone(),
            memos: self.memos.to_owned(),
            name: dataset.clone(),
            revision: from.to_owned(),
            commit: snapshot.commit.clone(),
        };
        let downloads = Downloads::new(origin, files);
        let pinned = HubSource { revision: snapshot.commit, ..source.clone() };
        Ok(HubSplit { pinned, format, downloads })
    }
}

/// A split of a dataset whose files are known, and are downloaded when they are read.
#[derive(Debug)]
pub(crate) struct HubSplit {
    /// The source with the commit as its revision.
    pub(crate) pinned: HubSource,
    format: Format,
    pub(crate) downloads: Downloads,
}

impl HubSplit {
    /// The source with `files` of this machine. Downloads the first file if only its content shows the format.
    ///
    /// # Errors
    /// If it cannot be downloaded or read.
    pub(crate) fn local_source(&self, files: Vec<PathBuf>, report: &Report<'_>) -> Result<Source> {
        let HubSource { column, template, .. } = self.pinned.clone();
        Ok(match self.format {
            Format::Parquet => Source::Parquet(ParquetSource { files, column, template }),
            Format::Text => Source::Text { files },
            Format::Json if is_array(&self.downloads.path(0, report)?)? => {
                Source::Json(JsonSource { files, field: column, template })
            }
            Format::Json | Format::Jsonl => Source::Jsonl(JsonSource { files, field: column, template }),
        })
    }
}

/// Finds the files of the split that `source`, under `key` of the experiment, names. `memos` is a folder for lists of files.
///
/// # Errors
/// If the hub is needed and cannot be reached, refuses, or does not have the split.
pub(crate) fn open_split(
    source: &HubSource,
    key: &str,
    settings: &Settings,
    memos: &Path,
    report: &Report<'_>,
) -> Result<HubSplit> {
    let opened = Client::new(settings, memos, report).open_split(source);
    opened.map_err(|error| error.reword(|message| format!("{key}: {message}")))
}

/// The files of a model's tokenizer: one, two, or none.
pub(super) fn tokenizer_files(snapshot: &Snapshot) -> Vec<&'static str> {
    let has = |file: &&str| snapshot.files.iter().any(|f| f == file);
    if has(&TOKENIZER) {
        vec![TOKENIZER]
    } else if VOCAB_AND_MERGES.iter().all(has) {
        VOCAB_AND_MERGES.to_vec()
    } else {
        Vec::new()
    }
}

/// The files that say which tokens begin and end a text for a tokenizer in `files`. They are downloaded with the tokenizer: if the cache has
/// it already, no request is sent for them.
pub(super) fn companion_files(repository: &Repository<'_>, snapshot: &Snapshot, files: &[&str]) -> Vec<&'static str> {
    if files.iter().all(|file| repository.has(&snapshot.commit, file)) {
        return Vec::new();
    }
    let read = if files.contains(&TOKENIZER) { 4 } else { COMPANIONS.len() };
    COMPANIONS.into_iter().take(read).filter(|file| snapshot.files.iter().any(|f| f == file)).collect()
}

/// The configurations of the dataset's card, if it has one.
fn read_card_configs(repository: &Repository<'_>, snapshot: &Snapshot) -> Result<Vec<select::Config>> {
    const CARD: &str = "README.md";
    if !snapshot.files.iter().any(|file| file == CARD) {
        return Ok(Vec::new());
    }
    let path = repository.file(&snapshot.commit, CARD, (1, 1))?;
    let mut bytes = Vec::new();
    let file = open_regular(&path).map_err(HubError::io(&path))?;
    file.take(MAX_CARD_BYTES).read_to_end(&mut bytes).map_err(HubError::io(&path))?;
    Ok(select::configs(&String::from_utf8_lossy(&bytes)))
}

/// True if a JSON file begins like an array.
fn is_array(path: &Path) -> Result<bool> {
    let mut start = Vec::new();
    open_regular(path).and_then(|file| file.take(4096).read_to_end(&mut start)).map_err(HubError::io(path))?;
    let start = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&start);
    Ok(start.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'['))
}
