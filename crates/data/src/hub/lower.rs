//! Turns data that names the hub into data that names files, which it downloads, and into data that names the commits that were read.

use std::collections::{BTreeMap, HashMap};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use hf_hub::RepoType;

use super::client::{Client, Report};
use super::converted::{CONVERTED, select_converted};
use super::downloads::HubFiles;
use super::error::{HubError, Result};
use super::listing::{ListedFile, check_free_space};
use super::refusal::Refusal;
use super::repository::{Repository, Snapshot};
use super::select::{self, Listing, SelectedFiles};
use super::settings::Settings;
use runner_files::{open_regular, without_byte_order_mark};
use runner_spec::experiment::{
    Data, FileFormat, HubChoice, HubModel, HubSource, Source, Task, Tokenizer, Validation, task_key,
};
use runner_spec::hub_name::{HUB_DEFAULT_BRANCH, is_commit};

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
    /// The tasks on the hub by their names, each local and pinned.
    pub tasks: BTreeMap<String, (Task, Task)>,
}

/// True if `data`, `test` or one of `tasks` names anything on the hub.
#[must_use]
pub fn is_needed(data: &Data, test: Option<&Source>, tasks: &[(String, Task)]) -> bool {
    [Some(&data.train), data.separate_validation(), test].into_iter().flatten().any(|source| source.hub().is_some())
        || tasks.iter().any(|(_, task)| task.hub.is_some())
        || matches!(data.tokenizer, Tokenizer::Hub(_))
}

/// Finds the files that `data`, `test` and `tasks` name on the hub. `memos` is a folder for lists of files.
///
/// # Errors
/// If a file is neither in the cache nor can be downloaded, or an answer of the hub is wrong.
pub fn lower(
    data: &Data,
    test: Option<&Source>,
    tasks: &[(String, Task)],
    settings: &Settings,
    memos: &Path,
    report: &Report<'_>,
) -> Result<LoweredData> {
    let hub = Client::new(settings, memos, report);
    let mut out = LoweredData { local: data.clone(), pinned: data.clone(), test: None, tasks: BTreeMap::new() };
    if let Tokenizer::Hub(HubModel { name, revision }) = &data.tokenizer {
        let key = |message| format!("data.tokenizer.hub: {message}");
        let (local, commit) = hub.tokenizer(name, revision).map_err(|error| error.reword(key))?;
        out.local.tokenizer = local;
        out.pinned.tokenizer = Tokenizer::Hub(HubModel { name: name.clone(), revision: commit });
    }
    let named = |key: &str| {
        let key = key.to_owned();
        move |error: HubError| error.reword(|message| format!("{key}: {message}"))
    };
    let open = |source: Option<&Source>, key: &'static str| {
        source.and_then(Source::hub).map(|source| hub.open_split(source)).transpose().map_err(named(key))
    };
    let train_split = open(Some(&data.train), "data.train.hub")?;
    let validation_split = open(data.separate_validation(), "data.validation.hub")?;
    let test_split = open(test, "eval.test.hub")?;
    let mut task_splits = Vec::new();
    for (name, task) in tasks {
        let Some(from) = &task.hub else { continue };
        let key = format!("{}.hub", task_key(name));
        task_splits.push((name, task, from, hub.open_choice(from).map_err(named(&key))?, key));
    }
    let of_tasks = task_splits.iter().map(|(_, _, _, split, _)| split);
    let splits = [&train_split, &validation_split, &test_split].into_iter().flatten().chain(of_tasks);
    let needed = splits.map(|split| split.files.missing_bytes());
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
    for (name, task, from, split, key) in &task_splits {
        let file = hub.download_choice(split).map_err(named(key))?;
        let pinned = HubChoice { revision: split.pinned.revision.clone(), ..(*from).clone() };
        let local = Task { file: Some(file), hub: None, ..(*task).clone() };
        out.tasks.insert((*name).clone(), (local, Task { hub: Some(pinned), ..(*task).clone() }));
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
        let listed: Vec<&ListedFile> = files.iter().filter_map(|file| snapshot.file(file)).collect();
        let paths =
            (1..).zip(&listed).map(|(number, file)| repository.file(&snapshot.commit, file, (number, listed.len())));
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
        let paths = split.files.download_all(self.report)?;
        Ok((split.local_source(paths), Source::Hub(split.pinned.clone())))
    }

    /// Finds the file of a multiple-choice set, without downloading it.
    fn open_choice(&self, named: &HubChoice) -> Result<HubSplit> {
        let HubChoice { dataset, config, split, revision } = named.clone();
        let found = self.open_split(&HubSource { dataset, config, split, revision, column: None, template: None })?;
        match (found.files.files.len(), found.format.has_lists) {
            (1, false) => Err(not_a_choice_set(&named.split, &format!("is {}", found.format.name))),
            (1, true) => Ok(found),
            (files, _) => Err(not_a_choice_set(&named.split, &format!("has {files} files"))),
        }
    }

    /// Downloads the file that [`Self::open_choice`] found.
    fn download_choice(&self, split: &HubSplit) -> Result<PathBuf> {
        match self.download(split)?.0.files().first() {
            Some(file) if !is_array(file)? => Ok(file.clone()),
            _ => Err(not_a_choice_set(&split.pinned.split, "is one JSON array")),
        }
    }

    /// Finds the files of the split that `source` names. Downloads the dataset's card alone.
    fn open_split(&self, source: &HubSource) -> Result<HubSplit> {
        let HubSource { dataset, config, split, revision, .. } = source;
        let repository = self.repository(RepoType::Dataset, dataset, revision);
        let snapshot = repository.snapshot()?;
        let card = read_card(&repository, &snapshot)?;
        let wanted = config.as_deref();
        let describe = |message: String| format!("dataset {dataset} ({revision}): {message}");
        let refuse = |refusal: Refusal| match refusal {
            Refusal::Unreadable(message) | Refusal::Final(message) => self.lacking(&snapshot, describe(message)),
        };
        // A commit of the branch of converted files is the revision of a recorded run.
        let may_be_converted = revision == CONVERTED || (is_commit(revision) && card.is_none());
        let names = snapshot.paths();
        let converted = may_be_converted.then(|| select_converted(&names, wanted, split)).flatten();
        let is_partial = snapshot.partial.is_some();
        let listing = Listing { dataset, files: &names, card: card.as_deref().unwrap_or_default() };
        let (selected, snapshot, from) = match converted.unwrap_or_else(|| select::select(listing, wanted, split)) {
            Ok(selected) => (selected, snapshot, revision.as_str()),
            Err(Refusal::Unreadable(why)) if revision == HUB_DEFAULT_BRANCH && !is_partial => {
                match self.repository(RepoType::Dataset, dataset, CONVERTED).snapshot() {
                    Ok(converted) => match select_converted(&converted.paths(), wanted, split) {
                        Some(Ok(selected)) => (selected, converted, CONVERTED),
                        Some(Err(Refusal::Unreadable(message) | Refusal::Final(message))) => {
                            let message = format!("{why}; of the files that the hub converted: {message}");
                            return Err(self.lacking(&converted, describe(message)));
                        }
                        None => return Err(refuse(Refusal::Unreadable(why))),
                    },
                    Err(HubError::Request(_) | HubError::Offline(_)) => return Err(refuse(Refusal::Unreadable(why))),
                    Err(error) => return Err(error),
                }
            }
            Err(refusal) => return Err(refuse(refusal)),
        };
        if snapshot.partial.is_some()
            && let Some(missing) = select::missing_part(&selected)
        {
            return Err(self.lacking(&snapshot, describe(format!("the cache has {missing}"))));
        }
        let SelectedFiles { format, files, .. } = selected;
        let listed: HashMap<&str, &ListedFile> = snapshot.files.iter().map(|file| (file.path.as_str(), file)).collect();
        let files: Vec<ListedFile> =
            files.iter().filter_map(|path| listed.get(path.as_str()).copied().cloned()).collect();
        let repository = self.repository(RepoType::Dataset, dataset, from);
        files.iter().try_for_each(|file| repository.check_content_is_named(file))?;
        let files = HubFiles {
            settings: self.settings.clone(),
            memos: self.memos.to_owned(),
            name: dataset.clone(),
            revision: from.to_owned(),
            commit: snapshot.commit.clone(),
            files,
        };
        Ok(HubSplit { pinned: source.pinned(snapshot.commit), format, files })
    }
}

/// A split of a dataset whose files are known, and are downloaded when they are read.
#[derive(Debug)]
pub(crate) struct HubSplit {
    /// The source with the commit as its revision.
    pub(crate) pinned: HubSource,
    format: &'static FileFormat,
    pub(crate) files: HubFiles,
}

impl HubSplit {
    /// The source with `files` of this machine.
    pub(crate) fn local_source(&self, files: Vec<PathBuf>) -> Source {
        self.format.source(files, self.pinned.column.clone(), self.pinned.template.clone())
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
    let has = |file: &&str| snapshot.file(file).is_some();
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
    COMPANIONS.into_iter().take(read).filter(|file| snapshot.file(file).is_some()).collect()
}

/// The dataset's card; `None` if it has none.
fn read_card(repository: &Repository<'_>, snapshot: &Snapshot) -> Result<Option<String>> {
    const CARD: &str = "README.md";
    let Some(listed) = snapshot.file(CARD) else { return Ok(None) };
    let wrong =
        |problem: String| HubError::Request(format!("dataset {}: its card ({CARD}) {problem}", repository.name));
    let path = repository.file(&snapshot.commit, listed, (1, 1))?;
    let mut bytes = Vec::new();
    let file = open_regular(&path).map_err(HubError::io(&path))?;
    file.take(MAX_CARD_BYTES + 1).read_to_end(&mut bytes).map_err(HubError::io(&path))?;
    if bytes.len() as u64 > MAX_CARD_BYTES {
        return Err(wrong(format!("is larger than {}", runner_spec::format::bytes(MAX_CARD_BYTES))));
    }
    String::from_utf8(bytes).map(Some).map_err(|_| wrong("is not UTF-8 text".to_owned()))
}

/// True if a JSON file begins like an array.
fn is_array(path: &Path) -> Result<bool> {
    let mut start = Vec::new();
    open_regular(path).and_then(|file| file.take(4096).read_to_end(&mut start)).map_err(HubError::io(path))?;
    let start = without_byte_order_mark(&start);
    Ok(start.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'['))
}
