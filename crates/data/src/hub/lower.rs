//! Turns data that names the hub into data that names files, which it downloads, and into data that names the commits that were read.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use hf_hub::RepoType;

use super::client::{Client, Report};
use super::converted::{CONVERTED, select_converted};
use super::downloads::HubSplit;
use super::error::{HubError, Result};
use super::listing::{ListedFile, check_free_space};
use super::refusal::Refusal;
use super::repository::{Repository, Snapshot};
use super::select::{self, SelectedFiles};
use super::settings::Settings;
use runner_files::{open_regular, without_byte_order_mark};
use runner_spec::experiment::{Data, HubChoice, HubModel, HubSource, Source, Task, Tokenizer, Validation, task_key};
use runner_spec::hub_name::{HUB_DEFAULT_BRANCH, is_commit};
use runner_yaml::source::read_limited;

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

/// What of an experiment may name the hub.
#[derive(Debug, Clone, PartialEq)]
pub struct DataSources {
    pub data: Data,
    /// The source that the trained model is tested on.
    pub test: Option<Source>,
    /// The tasks, by their names.
    pub tasks: Vec<(String, Task)>,
}

impl From<Data> for DataSources {
    fn from(data: Data) -> Self {
        Self { data, test: None, tasks: Vec::new() }
    }
}

impl DataSources {
    /// True if anything is on the hub.
    #[must_use]
    pub fn names_hub(&self) -> bool {
        self.sources().into_iter().flatten().any(|source| source.hub().is_some())
            || self.tasks.iter().any(|(_, task)| task.hub.is_some())
            || matches!(self.data.tokenizer, Tokenizer::Hub(_))
    }

    /// The sources, in the order of [`SOURCE_KEYS`].
    fn sources(&self) -> [Option<&Source>; 3] {
        [Some(&self.data.train), self.data.separate_validation(), self.test.as_ref()]
    }

    fn sources_mut(&mut self) -> [Option<&mut Source>; 3] {
        let validation = self.data.validation.as_mut().and_then(Validation::source_mut);
        [Some(&mut self.data.train), validation, self.test.as_mut()]
    }
}

/// The keys under which sources name the hub.
const SOURCE_KEYS: [&str; 3] = ["data.train.hub", "data.validation.hub", "eval.test.hub"];

/// Names on the hub, replaced by files and by commits.
#[derive(Debug, Clone, PartialEq)]
pub struct LoweredData {
    /// With paths of local files.
    pub local: DataSources,
    /// With the commits that were read as revisions.
    pub pinned: DataSources,
}

/// Finds the files that `sources` name on the hub.
///
/// # Errors
/// If a file is neither in the cache nor can be downloaded, or an answer of the hub is wrong.
pub fn lower(sources: &DataSources, settings: &Settings, report: &Report<'_>) -> Result<LoweredData> {
    let hub = Client::new(settings, report);
    let (mut local, mut pinned) = (sources.clone(), sources.clone());
    let named = |key: &str| {
        let key = key.to_owned();
        move |error: HubError| error.reword(|message| format!("{key}: {message}"))
    };
    if let Tokenizer::Hub(HubModel { name, revision }) = &sources.data.tokenizer {
        let (files, revision) = hub.tokenizer(name, revision).map_err(named("data.tokenizer.hub"))?;
        local.data.tokenizer = files;
        pinned.data.tokenizer = Tokenizer::Hub(HubModel { name: name.clone(), revision });
    }
    let mut splits = Vec::new();
    for (key, source) in SOURCE_KEYS.into_iter().zip(sources.sources()) {
        splits.push(source.and_then(Source::hub).map(|source| hub.open_split(source)).transpose().map_err(named(key))?);
    }
    let mut task_splits = Vec::new();
    for (name, task) in &sources.tasks {
        let key = format!("{}.hub", task_key(name));
        task_splits.push(task.hub.as_ref().map(|from| hub.open_choice(from)).transpose().map_err(named(&key))?);
    }
    let needed = splits.iter().chain(&task_splits).flatten().map(HubSplit::missing_bytes);
    check_free_space(&settings.cache, needed.fold(0, u64::saturating_add))?;
    let places = local.sources_mut().into_iter().zip(pinned.sources_mut());
    for ((key, split), places) in SOURCE_KEYS.into_iter().zip(&splits).zip(places) {
        if let (Some(split), (Some(local), Some(pinned))) = (split, places) {
            (*local, *pinned) = hub.download(split).map_err(named(key))?;
        }
    }
    for (((name, local), (_, pinned)), split) in local.tasks.iter_mut().zip(&mut pinned.tasks).zip(&task_splits) {
        if let (Some(split), Some(choice)) = (split, &mut pinned.hub) {
            let file = hub.download_choice(split).map_err(named(&format!("{}.hub", task_key(name))))?;
            (local.file, local.hub) = (Some(file), None);
            choice.revision.clone_from(&split.pinned.revision);
        }
    }
    Ok(LoweredData { local, pinned })
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
        let mut paths = repository.download_all(&snapshot.commit, &listed)?.into_iter().take(own.len());
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
        let paths = split.download_all(self.report)?;
        Ok((split.local_source(paths), Source::Hub(split.pinned.clone())))
    }

    /// Finds the file of a multiple-choice set, without downloading it.
    fn open_choice(&self, named: &HubChoice) -> Result<HubSplit> {
        let HubChoice { dataset, config, split, revision } = named.clone();
        let found = self.open_split(&HubSource { dataset, config, split, revision, column: None, template: None })?;
        match (found.files.len(), found.format.has_lists()) {
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
        let refuse = |snapshot: &Snapshot, message: String| {
            Err(self.lacking(snapshot, format!("dataset {dataset} ({revision}): {message}")))
        };
        // A commit of the branch of converted files is the revision of a recorded run.
        let may_be_converted = revision == CONVERTED || (is_commit(revision) && card.is_none());
        let names = snapshot.paths();
        let converted = may_be_converted.then(|| select_converted(&names, wanted, split)).flatten();
        let card = card.as_deref().unwrap_or_default();
        let selected = converted.unwrap_or_else(|| select::select(dataset, &names, card, wanted, split));
        let (selected, snapshot, from) = match selected {
            Ok(selected) => (selected, snapshot, revision.as_str()),
            Err(Refusal { message, may_be_converted }) => {
                let is_default = revision == HUB_DEFAULT_BRANCH && snapshot.partial.is_none();
                let other = self.repository(RepoType::Dataset, dataset, CONVERTED);
                let other = match (may_be_converted && is_default).then(|| other.snapshot()).transpose() {
                    Err(HubError::Request(_) | HubError::Offline(_)) => None,
                    other => other?,
                };
                match other.and_then(|other| Some((select_converted(&other.paths(), wanted, split)?, other))) {
                    Some((Ok(selected), other)) => (selected, other, CONVERTED),
                    Some((Err(refusal), other)) => {
                        let why = refusal.message;
                        return refuse(&other, format!("{message}; of the files that the hub converted: {why}"));
                    }
                    None => return refuse(&snapshot, message),
                }
            }
        };
        if snapshot.partial.is_some()
            && let Some(missing) = select::missing_part(&selected)
        {
            return refuse(&snapshot, format!("the cache has {missing}"));
        }
        let SelectedFiles { format, files, .. } = selected;
        let listed: HashMap<&str, &ListedFile> = snapshot.files.iter().map(|file| (file.path.as_str(), file)).collect();
        let files: Vec<ListedFile> = files.iter().map(|path| listed[path.as_str()].clone()).collect();
        let repository = self.repository(RepoType::Dataset, dataset, from);
        files.iter().try_for_each(|file| repository.check_content_is_named(file))?;
        let pinned = source.pinned(snapshot.commit);
        Ok(HubSplit { settings: self.settings.clone(), pinned, revision: from.to_owned(), format, files })
    }
}

/// Finds the files of the split that `source`, under `key` of the experiment, names.
///
/// # Errors
/// If the hub is needed and cannot be reached, refuses, or does not have the split.
pub(crate) fn open_split(source: &HubSource, key: &str, settings: &Settings, report: &Report<'_>) -> Result<HubSplit> {
    let opened = Client::new(settings, report).open_split(source);
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
    let file = open_regular(&path).map_err(HubError::io(&path))?;
    let bytes = read_limited(file, MAX_CARD_BYTES).map_err(HubError::io(&path))?;
    if bytes.len() as u64 > MAX_CARD_BYTES {
        return Err(wrong(format!("is larger than {}", runner_spec::format::bytes(MAX_CARD_BYTES))));
    }
    String::from_utf8(bytes).map(Some).map_err(|_| wrong("is not UTF-8 text".to_owned()))
}

/// True if a JSON file begins like an array.
fn is_array(path: &Path) -> Result<bool> {
    let start = open_regular(path).and_then(|file| read_limited(file, 4096)).map_err(HubError::io(path))?;
    let start = without_byte_order_mark(&start);
    Ok(start.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'['))
}
