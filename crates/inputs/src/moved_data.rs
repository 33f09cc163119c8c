//! The files of a run's data: their record, and where they are now if they have moved since the run.

use std::cell::{Cell, OnceCell};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use runner_compare::plan_facts::describe_changed_data;
use runner_data::{Prepared, content_hash};
use runner_files::is_absent;
use runner_record::data_files::read_data_files;
use runner_record::manifest::DataHashes;
use runner_spec::data::{DataFacts, DataFile, DataPart};
use runner_spec::error::{CommandError, Result};
use runner_spec::experiment::{Experiment, Tokenizer, Validation, WeightInit, WeightsSource};
use runner_spec::format::{counted, short_hash};
use runner_weights::OpenedWeights;

use crate::host::Host;

/// The files from which the data of `experiment`, which is `prepared`, was read. Names on the hub that are not sources of text are left out:
/// their commits name them. So are files of the tokenizer, of items and of weights that cannot be read, because a resumed run does without:
/// `warn` gets a sentence about each.
///
/// # Errors
/// If a file of a source cannot be read. A file that did not change since it was hashed is not read.
pub fn data_files(
    experiment: &Experiment,
    prepared: &Prepared,
    host: &Host,
    warn: &mut dyn FnMut(&str),
) -> Result<Vec<DataFile>> {
    let cache = host.cache()?;
    let identify = |part: DataPart, path: &Path| -> Result<DataFile> {
        let hash = hash_file(path, cache)?;
        let bytes = fs::metadata(path).map_err(CommandError::io(format!("reading {}", path.display())))?.len();
        Ok(DataFile { part, path: path.to_owned(), bytes, hash })
    };
    let mut files = Vec::new();
    for origin in &prepared.origins {
        for file in &origin.files {
            files.push(identify(origin.split.into(), file)?);
        }
    }
    for (part, place) in data_places(&mut experiment.clone()) {
        let others = match place {
            // The origins have the files that patterns stand for.
            Place::Files(_) => Vec::new(),
            Place::File(path) => vec![path.clone()],
            Place::Weights(path) => match OpenedWeights::open(path) {
                Ok(weights) => weights.files,
                Err(error) => {
                    warn(&describe_unread(part, path, &error));
                    Vec::new()
                }
            },
        };
        for file in others {
            match identify(part, &file) {
                Ok(found) => files.push(found),
                Err(error) => warn(&describe_unread(part, &file, &error)),
            }
        }
    }
    Ok(files)
}

fn describe_unread(part: DataPart, path: &Path, error: &dyn std::fmt::Display) -> String {
    format!(
        "{} ({}) cannot be read, so the run's list of data files lacks it, and `--data` cannot find it by its content: {error}",
        path.display(),
        part.name()
    )
}

/// BLAKE3 of the content of the file `path`, with a memo in the folder `cache`.
fn hash_file(path: &Path, cache: &Path) -> Result<String> {
    Ok(content_hash(&[path.to_owned()], cache, &|_| {})?)
}

/// A path in an experiment.
enum Place<'a> {
    /// The paths or patterns of a source.
    Files(&'a mut Vec<PathBuf>),
    File(&'a mut PathBuf),
    /// A folder or a file with the weights to start from.
    Weights(&'a mut PathBuf),
}

/// The paths of `experiment` at which data is read.
fn data_places(experiment: &mut Experiment) -> Vec<(DataPart, Place<'_>)> {
    let (data, eval) = (&mut experiment.data, &mut experiment.eval);
    let sources = [
        (DataPart::Train, Some(&mut data.train)),
        (DataPart::Validation, data.validation.as_mut().and_then(Validation::source_mut)),
        (DataPart::Test, eval.test.as_mut()),
    ];
    let files = sources.into_iter().filter_map(|(part, source)| Some((part, Place::Files(source?.files_mut()?))));
    let mut places: Vec<_> = files.collect();
    match &mut data.tokenizer {
        Tokenizer::Gpt2 { vocab, merges } => {
            places.extend([vocab, merges].map(|path| (DataPart::Tokenizer, Place::File(path))));
        }
        Tokenizer::File(path) => places.push((DataPart::Tokenizer, Place::File(path))),
        _ => {}
    }
    let tasks = eval.hellaswag.iter_mut().chain(eval.tasks.iter_mut().flat_map(|tasks| tasks.values_mut()));
    places.extend(tasks.filter_map(|task| task.file.as_mut()).map(|path| (DataPart::Choice, Place::File(path))));
    if let Some(WeightInit::From(WeightsSource::Path(path))) = &mut experiment.model.init {
        places.push((DataPart::Weights, Place::Weights(path)));
    }
    places
}

/// Where the data of a run is now.
#[derive(Debug, Clone, Default)]
pub struct MovedData {
    /// Old and new paths of files or folders, absolute.
    renames: Vec<(PathBuf, PathBuf)>,
    /// Folders in which files of the recorded hashes are looked for.
    folders: Vec<PathBuf>,
}

impl MovedData {
    /// Reads values of `--data`: OLD=NEW, or a folder.
    ///
    /// # Errors
    /// If a value is neither, or NEW does not exist.
    pub fn parse(values: &[String]) -> Result<Self> {
        let absolute = |path: &str| std::path::absolute(path).map_err(CommandError::io(format!("--data {path}")));
        let mut moved = Self::default();
        for value in values {
            if Path::new(value).is_dir() {
                moved.folders.push(absolute(value)?);
                continue;
            }
            // Names may contain `=`: NEW is what exists.
            let splits = value.match_indices('=').map(|(at, _)| (&value[..at], &value[at + 1..]));
            let splits: Vec<_> = splits.filter(|(old, new)| !old.is_empty() && !new.is_empty()).collect();
            let exists = splits.iter().find(|(_, new)| !is_absent(Path::new(new)));
            let Some(&(old, new)) = exists.or(splits.first()) else {
                return Err(CommandError::request(format!(
                    "--data must be OLD=NEW or a folder, and there is no folder `{value}`"
                )));
            };
            if is_absent(Path::new(new)) {
                return Err(CommandError::request(format!("--data {value}: there is no {new}")));
            }
            moved.renames.push((absolute(old)?, absolute(new)?));
        }
        Ok(moved)
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.renames.is_empty() && self.folders.is_empty()
    }

    /// Puts the places where the data is now into `experiment`, that of the run directory `run`. Without moved data nothing is read.
    ///
    /// # Errors
    /// If a file of the recorded hash is not in the folders, the run read nothing at an old path, or a file cannot be read.
    pub fn place(&self, run: &Path, experiment: &mut Experiment, host: &Host) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let recorded = read_data_files(run)?;
        if recorded.is_none() && !self.folders.is_empty() {
            return Err(CommandError::request(format!(
                "--data {}: {} recorded no hashes of its files; use `--data OLD=NEW`",
                self.folders[0].display(),
                run.display()
            )));
        }
        let recorded = recorded.unwrap_or_default();
        let search = Search {
            moved: self,
            cache: host.cache()?,
            by_size: OnceCell::new(),
            used: vec![Cell::new(false); self.renames.len()],
        };
        let mut next_of_tokenizer = 0;
        let mut read = Vec::new();
        for (part, place) in data_places(experiment) {
            let files: Vec<&DataFile> = recorded.iter().filter(|file| file.part == part).collect();
            match place {
                Place::Files(patterns) => {
                    let found = files.iter().map(|file| search.find(file)).collect::<Result<Vec<_>>>()?;
                    read.extend(files.iter().map(|file| file.path.clone()).chain(patterns.iter().cloned()));
                    if found.iter().any(Option::is_some) {
                        let now = files.iter().zip(found).map(|(file, now)| now.unwrap_or_else(|| file.path.clone()));
                        *patterns = now.collect();
                    } else {
                        for pattern in patterns.iter_mut() {
                            search.rename_in_place(pattern);
                        }
                    }
                }
                Place::File(path) => {
                    read.push(path.clone());
                    let index = if part == DataPart::Tokenizer { next_of_tokenizer } else { 0 };
                    next_of_tokenizer += usize::from(part == DataPart::Tokenizer);
                    match files.get(index).map(|file| search.find(file)).transpose()?.flatten() {
                        Some(now) => *path = now,
                        None => search.rename_in_place(path),
                    }
                }
                Place::Weights(path) => {
                    read.push(path.clone());
                    let is_folder = files.first().is_some_and(|file| file.path.file_name() != path.file_name());
                    let renamed = search.rename(path);
                    let found = if renamed.is_some() { None } else { files.first().map(|file| search.find(file)) };
                    let found = found.transpose()?.flatten();
                    let found =
                        found.and_then(|now| if is_folder { now.parent().map(Path::to_owned) } else { Some(now) });
                    if let Some(now) = renamed.or(found) {
                        *path = now;
                    }
                }
            }
        }
        let unused = self.renames.iter().zip(&search.used).find(|(_, used)| !used.get());
        if let Some(((old, _), _)) = unused {
            read.sort();
            read.dedup();
            let more = read.len().saturating_sub(3);
            let mut named: Vec<String> = read.iter().take(3).map(|path| path.display().to_string()).collect();
            named.extend((more > 0).then(|| format!("{more} more")));
            let named = if named.is_empty() { "no file".to_owned() } else { named.join(", ") };
            return Err(CommandError::request(format!(
                "--data {}=…: the run read nothing there; it read {named}",
                old.display()
            )));
        }
        Ok(())
    }
}

/// A search for files of recorded hashes.
struct Search<'a> {
    moved: &'a MovedData,
    cache: &'a Path,
    /// The files in the folders, by their size.
    by_size: OnceCell<HashMap<u64, Vec<PathBuf>>>,
    /// True for each rename that was used.
    used: Vec<Cell<bool>>,
}

impl Search<'_> {
    /// The new path of `path` by the rename of the longest folder it is in; `None` if no rename is about it.
    fn rename(&self, path: &Path) -> Option<PathBuf> {
        let renames = self.moved.renames.iter().zip(&self.used).filter(|((old, _), _)| path.starts_with(old));
        let ((old, new), used) = renames.max_by_key(|((old, _), _)| old.components().count())?;
        let rest = path.strip_prefix(old).ok()?;
        used.set(true);
        Some(if rest.as_os_str().is_empty() { new.clone() } else { new.join(rest) })
    }

    fn rename_in_place(&self, path: &mut PathBuf) {
        if let Some(new) = self.rename(path) {
            *path = new;
        }
    }

    /// The place of `file`; `None` if it did not move.
    fn find(&self, file: &DataFile) -> Result<Option<PathBuf>> {
        if let Some(new) = self.rename(&file.path) {
            return Ok(Some(new));
        }
        if self.moved.folders.is_empty() || self.has_hash(&file.path, file) {
            return Ok(None);
        }
        let candidates = self.by_size.get_or_init(|| self.list_folders()).get(&file.bytes);
        if let Some(found) = candidates.into_iter().flatten().find(|path| self.has_hash(path, file)) {
            return Ok(Some(found.clone()));
        }
        let folders: Vec<String> = self.moved.folders.iter().map(|folder| folder.display().to_string()).collect();
        Err(CommandError::request(format!("--data: no file in {} is {}", folders.join(" or "), describe_file(file))))
    }

    /// True if `path` has the size and the hash of `file`. A file that cannot be read does not.
    fn has_hash(&self, path: &Path, file: &DataFile) -> bool {
        fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == file.bytes)
            && hash_file(path, self.cache).is_ok_and(|hash| hash == file.hash)
    }

    fn list_folders(&self) -> HashMap<u64, Vec<PathBuf>> {
        let mut by_size: HashMap<u64, Vec<PathBuf>> = HashMap::new();
        let mut folders = self.moved.folders.clone();
        while let Some(folder) = folders.pop() {
            // A folder that cannot be read has no files: the search reports what it does not find.
            for entry in fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                    // A link to a file counts; one to a folder does not, since it may lead back.
                    _ => {
                        if let Ok(metadata) = fs::metadata(entry.path()).as_ref()
                            && metadata.is_file()
                        {
                            by_size.entry(metadata.len()).or_default().push(entry.path());
                        }
                    }
                }
            }
        }
        for paths in by_size.values_mut() {
            paths.sort();
        }
        by_size
    }
}

/// The path, the part, the size and the hash of `file`.
fn describe_file(file: &DataFile) -> String {
    let (path, part, size, hash) = (file.path.display(), file.part.name(), counted(file.bytes, "byte"), &file.hash);
    format!("{path} ({part}, {size}, BLAKE3 hash {hash})")
}

/// What is missing of the data of `experiment`, that of the run directory `run`, and how to name it if it has moved; `None` if nothing is.
#[must_use]
pub fn missing_data(run: &Path, experiment: &Experiment) -> Option<String> {
    const ADVICE: &str = "if it has moved, use `--data OLD=NEW`";
    let recorded = match read_data_files(run) {
        Ok(recorded) => recorded.unwrap_or_default(),
        Err(error) => return Some(error.to_string()),
    };
    let mut experiment = experiment.clone();
    let is_pattern = |path: &Path| path.to_string_lossy().contains(['*', '?', '[']);
    data_places(&mut experiment).into_iter().find_map(|(part, place)| {
        let of_part = || recorded.iter().filter(|file| file.part == part);
        let absent: PathBuf = match place {
            Place::Files(paths) => paths
                .iter()
                .find(|path| {
                    is_absent(path)
                        && (!is_pattern(path)
                            || of_part().next().is_some() && of_part().all(|file| is_absent(&file.path)))
                })?
                .clone(),
            Place::File(path) | Place::Weights(path) => Some(path.clone()).filter(|path| is_absent(path))?,
        };
        Some(match of_part().find(|file| is_absent(&file.path)) {
            Some(file) => {
                let file = describe_file(file);
                format!("the run read {file}; {ADVICE}, or `--data FOLDER` to find it there by its hash")
            }
            None => format!("the run read {} ({}); {ADVICE}", absent.display(), part.name()),
        })
    })
}

/// `error`, with which the data of `experiment`, that of the run directory `run`, could not be prepared, with how to name data that has moved.
#[must_use]
pub fn explain_missing_data(error: CommandError, run: &Path, experiment: &Experiment) -> CommandError {
    match missing_data(run, experiment) {
        Some(hint) => error.hint(hint),
        None => error,
    }
}

/// Those of `files` that belong to `part`.
fn of_part(files: &[DataFile], part: DataPart) -> impl Iterator<Item = &DataFile> {
    files.iter().filter(move |file| file.part == part)
}

/// Checks that `prepared`, the data of `experiment`, is what the run directory `run` recorded as `facts`, apart from the parts `without`.
///
/// # Errors
/// If it is not, with the first file that differs.
pub fn check_same_data(
    run: &Path,
    facts: &DataFacts,
    experiment: &Experiment,
    prepared: &Prepared,
    host: &Host,
    without: &[DataPart],
) -> Result<()> {
    let (was, is) = (DataHashes::from(facts), DataHashes::from(&prepared.facts));
    let mut changed = was.differing_parts(&is);
    changed.retain(|part| !without.contains(part));
    let Some((why, part)) = describe_changed_data(&changed).zip(changed.first().copied()) else { return Ok(()) };
    let then = read_data_files(run)?.unwrap_or_default();
    // What cannot be read is not the file that differs.
    let now = data_files(experiment, prepared, host, &mut |_| {})?;
    // A tokenizer that is made from text changes with it, and has no file.
    let different = changed
        .iter()
        .find_map(|part| of_part(&then, *part).zip(of_part(&now, *part)).find(|(then, now)| then.hash != now.hash));
    let counts = |part: &DataPart| (of_part(&then, *part).count(), of_part(&now, *part).count());
    let other_count = changed.iter().map(|part| (part, counts(part))).find(|(_, (then, now))| *then > 0 && then != now);
    let what = match (different, other_count) {
        (Some((then, now)), _) => format!(
            "{} is not the file that the run read: its BLAKE3 hash is {}, but the run read {}",
            now.path.display(),
            now.hash,
            describe_file(then)
        ),
        (None, Some((part, (then, now)))) => {
            format!("the {} is in {}, was in {then}", part.name(), counted(now as u64, "file"))
        }
        (None, None) => {
            let short = |hashes: &DataHashes| hashes.of(part).map_or("none", short_hash).to_owned();
            format!("the {} has the hash {}, was {}", part.name(), short(&is), short(&was))
        }
    };
    let run = run.display();
    Err(CommandError::request(format!(
        "{run}: {why} since it was trained: {what}; use `--data OLD=NEW` or `--data FOLDER` to name the unchanged data"
    )))
}
