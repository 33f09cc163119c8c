//! The folder of a model: its description, its weights as safetensors, and the files of its tokenizer.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use hf_hub::{Cache, Repo, RepoType};
use serde_json::Value;

use super::client::{Client, Report};
use super::error::{HubError, Result};
use super::listing::{ListedFile, check_free_space};
use super::repository::Snapshot;
use super::settings::Settings;
use runner_files::{read_regular, strict_json};
use runner_spec::experiment::ModelFolder;

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
/// Says which file each tensor is in, if there are several.
const INDEX: &str = "model.safetensors.index.json";
/// Bytes of an index: more than that of a model of 10,000 layers.
const MAX_INDEX_BYTES: u64 = 64 << 20;

/// Downloads what is missing in the cache of the model `name` at `revision`: `config.json`, the weights as safetensors, and
/// `tokenizer.json`, or else `vocab.json` and `merges.txt`, with the files that name its special tokens, where the model has them.
///
/// # Errors
/// If the model has no description or no safetensors, or a file is neither in the cache nor can be downloaded.
pub fn fetch_model_folder(name: &str, revision: &str, settings: &Settings, report: &Report<'_>) -> Result<ModelFolder> {
    let client = Client::new(settings, report);
    let repository = client.repository(RepoType::Model, name, revision);
    let snapshot = repository.snapshot()?;
    let has = |file: &str| snapshot.file(file).is_some();
    let lacking = |what: &str| client.lacking(&snapshot, format!("model {name} ({revision}) has no {what}"));
    if !has(CONFIG) {
        return Err(lacking(CONFIG));
    }
    let mut files = vec![CONFIG.to_owned()];
    if has(WEIGHTS) {
        files.push(WEIGHTS.to_owned());
    } else if let Some(index) = snapshot.file(INDEX) {
        let index = repository.file(&snapshot.commit, index, (1, 1))?;
        files.extend(indexed_files(&index, &snapshot, &client)?);
    } else {
        return Err(lacking(&format!("{WEIGHTS}; weights in other formats are not supported")));
    }
    let tokenizer = super::lower::tokenizer_files(&snapshot);
    let mut companions = super::lower::companion_files(&repository, &snapshot, &tokenizer);
    companions.retain(|file| *file != CONFIG);
    files.extend(tokenizer.into_iter().chain(companions).map(str::to_owned));
    let listed: Vec<&ListedFile> = files.iter().filter_map(|file| snapshot.file(file)).collect();
    check_free_space(&settings.cache, repository.missing_bytes(&snapshot.commit, listed.iter().copied()))?;
    repository.download_all(&snapshot.commit, &listed)?;
    Ok(ModelFolder {
        path: repository.cached(&snapshot.commit).pointer_path(&snapshot.commit),
        commit: snapshot.commit,
    })
}

/// The folder in the cache of the model `name` at the commit `commit`, which may be missing.
#[must_use]
pub fn cached_model_folder(name: &str, commit: &str, settings: &Settings) -> PathBuf {
    let repo = Repo::with_revision(name.to_owned(), RepoType::Model, commit.to_owned());
    Cache::new(settings.cache.clone()).repo(repo).pointer_path(commit)
}

/// The files of weights of `snapshot` that the index at `path` names.
fn indexed_files(path: &Path, snapshot: &Snapshot, client: &Client<'_>) -> Result<BTreeSet<String>> {
    let wrong = |message: &str| HubError::Other(format!("{}: {message}", path.display()));
    let size = path.metadata().map_err(HubError::io(path))?.len();
    if size > MAX_INDEX_BYTES {
        return Err(wrong("too long for an index of weights"));
    }
    let bytes = read_regular(path).map_err(HubError::io(path))?;
    let index = strict_json::parse(&bytes).map_err(|error| wrong(&format!("not JSON: {error}")))?;
    let map = index["weight_map"].as_object().ok_or_else(|| wrong("an index of weights without `weight_map`"))?;
    let named: BTreeSet<String> = map.values().filter_map(Value::as_str).map(str::to_owned).collect();
    if let Some(missing) = named.iter().find(|file| file.contains('/') || snapshot.file(file).is_none()) {
        let is_partial = snapshot.partial.is_some() && !missing.contains('/');
        let place = if is_partial { "cache" } else { "model" };
        let message = format!("it names `{}`, which the {place} does not have", super::error::quoted(missing));
        return Err(client.lacking(snapshot, format!("{}: {message}", path.display())));
    }
    Ok(named)
}
