//! Turns data that names the hub into data that names files, which it downloads, and into data that names the commits that were read.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use hf_hub::RepoType;

use super::client::Client;
use super::error::{HubError, Result};
use super::fetch::Report;
use super::repository::{Repository, Snapshot};
use super::select::{self, Format, SelectedBy, SelectedFiles};
use super::settings::Settings;
use runner_spec::experiment::{
    Data, HUB_DEFAULT_BRANCH, HubSource, HubTokenizer, JsonSource, ParquetSource, Source, Tokenizer, Validation,
};

/// The branch on which the hub keeps the parquet files that it makes of datasets in other formats.
const CONVERTED: &str = "refs/convert/parquet";
/// Bytes of a dataset's card.
const MAX_CARD_BYTES: u64 = 4 << 20;
const TOKENIZER: &str = "tokenizer.json";
const VOCAB_AND_MERGES: [&str; 2] = ["vocab.json", "merges.txt"];

/// Data that names files, and data that names commits.
#[derive(Debug, Clone, PartialEq)]
pub struct LoweredData {
    /// The data with paths of local files.
    pub local: Data,
    /// The data as given, with the commits that were read as revisions.
    pub pinned: Data,
    /// The local and the pinned source that the model is tested on, if it is on the hub.
    pub test: Option<(Source, Source)>,
}

/// True if `data` or `test` names anything on the hub.
#[must_use]
pub fn is_needed(data: &Data, test: Option<&Source>) -> bool {
    matches!(data.train, Source::Hub(_))
        || matches!(test, Some(Source::Hub(_)))
        || matches!(data.validation, Some(Validation::Source(Source::Hub(_))))
        || matches!(data.tokenizer, Tokenizer::Hub(_))
}

/// Finds the files that `data` and `test` name on the hub. `memos` is a folder for lists of files.
///
/// # Errors
/// If a file is neither in the cache nor can be downloaded, or an answer of the hub is wrong.
pub fn lower(
    data: &Data,
    test: Option<&Source>,
    settings: &Settings,
    memos: &Path,
    report: &Report<'_>,
) -> Result<LoweredData> {
    let hub = Client::new(settings, memos, report);
    let mut out = LoweredData { local: data.clone(), pinned: data.clone(), test: None };
    if let Tokenizer::Hub(HubTokenizer { name, revision }) = &data.tokenizer {
        let key = |message| format!("data.tokenizer.hub: {message}");
        let (local, commit) = hub.tokenizer(name, revision).map_err(|error| error.reword(key))?;
        out.local.tokenizer = local;
        out.pinned.tokenizer = Tokenizer::Hub(HubTokenizer { name: name.clone(), revision: commit });
    }
    let lower = |source: &HubSource, key: &str| {
        let (local, commit) =
            hub.dataset(source).map_err(|error| error.reword(|message| format!("{key}: {message}")))?;
        Ok((local, Source::Hub(HubSource { revision: commit, ..source.clone() })))
    };
    if let Source::Hub(source) = &data.train {
        (out.local.train, out.pinned.train) = lower(source, "data.train.hub")?;
    }
    if let Some(Validation::Source(Source::Hub(source))) = &data.validation {
        let (local, pinned) = lower(source, "data.validation.hub")?;
        out.local.validation = Some(Validation::Source(local));
        out.pinned.validation = Some(Validation::Source(pinned));
    }
    if let Some(Source::Hub(source)) = test {
        out.test = Some(lower(source, "eval.test.hub")?);
    }
    Ok(out)
}

impl Client<'_> {
    pub(super) fn repository<'a>(&'a self, kind: RepoType, name: &'a str, revision: &'a str) -> Repository<'a> {
        Repository { client: self, kind, name, revision }
    }

    /// The error that `snapshot` lacks something, with the reason why no more of its files are known.
    pub(super) fn lacking(&self, snapshot: &Snapshot, message: String) -> HubError {
        match &snapshot.partial {
            None => HubError::Request(message),
            Some(why) if self.settings.offline => HubError::Request(format!("{message}; {why}")),
            Some(why) => HubError::Unreachable(format!("{message}; {why}")),
        }
    }

    fn tokenizer(&self, name: &str, revision: &str) -> Result<(Tokenizer, String)> {
        let repository = self.repository(RepoType::Model, name, revision);
        let snapshot = repository.snapshot()?;
        let files = tokenizer_files(&snapshot);
        let paths =
            (1..).zip(&files).map(|(number, file)| repository.file(&snapshot.commit, file, (number, files.len())));
        let mut paths = paths.collect::<Result<Vec<_>>>()?.into_iter();
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

    fn dataset(&self, source: &HubSource) -> Result<(Source, String)> {
        let HubSource { dataset, config, split, column, template, revision } = source;
        let repository = self.repository(RepoType::Dataset, dataset, revision);
        let snapshot = repository.snapshot()?;
        let configs = read_card_configs(&repository, &snapshot)?;
        let wanted = config.as_deref();
        let describe = |message: String| format!("dataset {dataset} ({revision}): {message}");
        let mut found = select::select(&snapshot.files, &configs, wanted, split)
            .map_err(|message| self.lacking(&snapshot, describe(message)))?
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
                        .map_err(|message| self.lacking(&converted, describe(message)))?;
                    found = selected.map(|selected| (selected, converted, CONVERTED)).or(found);
                }
                Err(HubError::Request(_)) => {}
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
        let repository = self.repository(RepoType::Dataset, dataset, from);
        let paths: Vec<PathBuf> = (1..)
            .zip(&files)
            .map(|(number, file)| repository.file(&snapshot.commit, file, (number, files.len())))
            .collect::<Result<_, _>>()?;
        let (column, template) = (column.clone(), template.clone());
        let array = match (format, paths.first()) {
            (Format::Json, Some(path)) => is_array(path)?,
            _ => false,
        };
        let local = match format {
            Format::Parquet => Source::Parquet(ParquetSource { files: paths, column, template }),
            _ if array => Source::Json(JsonSource { files: paths, field: column, template }),
            _ => Source::Jsonl(JsonSource { files: paths, field: column, template }),
        };
        Ok((local, snapshot.commit))
    }
}

/// The files of a model's tokenizer: one, two, or none.
pub(super) fn tokenizer_files(snapshot: &Snapshot) -> Vec<&'static str> {
    let has = |file: &&str| snapshot.files.iter().any(|f| f == file);
    if has(&TOKENIZER) {
        vec![TOKENIZER]
    } else if VOCAB_AND_MERGES.iter().all(|file| has(file)) {
        VOCAB_AND_MERGES.to_vec()
    } else {
        Vec::new()
    }
}

/// The configurations of the dataset's card, if it has one.
fn read_card_configs(repository: &Repository<'_>, snapshot: &Snapshot) -> Result<Vec<select::Config>> {
    const CARD: &str = "README.md";
    if !snapshot.files.iter().any(|file| file == CARD) {
        return Ok(Vec::new());
    }
    let path = repository.file(&snapshot.commit, CARD, (1, 1))?;
    let mut bytes = Vec::new();
    let file = File::open(&path).map_err(HubError::io(&path))?;
    file.take(MAX_CARD_BYTES).read_to_end(&mut bytes).map_err(HubError::io(&path))?;
    Ok(select::configs(&String::from_utf8_lossy(&bytes)))
}

/// True if a JSON file begins like an array.
fn is_array(path: &Path) -> Result<bool> {
    let mut start = Vec::new();
    File::open(path).and_then(|file| file.take(4096).read_to_end(&mut start)).map_err(HubError::io(path))?;
    let start = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&start);
    Ok(start.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'['))
}
