//! The files of a run's data: their record, and where they are now if they have moved since the run.

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
    format!("{} ({}) cannot be read, so the run's list of data files lacks it: {error}", path.display(), part.name())
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
}

impl MovedData {
    /// Reads values of `--data`: OLD=NEW.
    ///
    /// # Errors
    /// If a value has another form, or NEW does not exist.
    pub fn parse(values: &[String]) -> Result<Self> {
        let absolute = |path: &str| std::path::absolute(path).map_err(CommandError::io(format!("--data {path}")));
        let mut moved = Self::default();
        for value in values {
            // Names may contain `=`: NEW is what exists.
            let splits = value.match_indices('=').map(|(at, _)| (&value[..at], &value[at + 1..]));
            let splits: Vec<_> = splits.filter(|(old, new)| !old.is_empty() && !new.is_empty()).collect();
            let exists = splits.iter().find(|(_, new)| !is_absent(Path::new(new)));
            let Some(&(old, new)) = exists.or(splits.first()) else {
                return Err(CommandError::request(format!("--data must be OLD=NEW, got `{value}`")));
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
        self.renames.is_empty()
    }

    /// Puts the paths where the data is now into `experiment`, that of the run directory `run`. Patterns whose files have moved become the
    /// files that the run read.
    ///
    /// # Errors
    /// If the run read nothing at an old path, or its list of files cannot be read.
    pub fn place(&self, run: &Path, experiment: &mut Experiment) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let recorded = read_data_files(run)?.unwrap_or_default();
        let (mut read, mut used) = (Vec::new(), vec![false; self.renames.len()]);
        for (part, place) in data_places(experiment) {
            match place {
                Place::Files(patterns) => {
                    read.extend(patterns.iter().cloned());
                    let mut files: Vec<PathBuf> = of_part(&recorded, part).map(|file| file.path.clone()).collect();
                    read.extend(files.iter().cloned());
                    let mut has_moved = false;
                    for file in &mut files {
                        has_moved |= self.rename(file, &mut used);
                    }
                    if has_moved {
                        *patterns = files;
                    } else {
                        for pattern in patterns.iter_mut() {
                            self.rename(pattern, &mut used);
                        }
                    }
                }
                Place::File(path) | Place::Weights(path) => {
                    read.push(path.clone());
                    self.rename(path, &mut used);
                }
            }
        }
        let unused = self.renames.iter().zip(used).find(|(_, used)| !used);
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

    /// Replaces `path` by the rename of the longest folder it is in, and notes its use. Returns false if no rename is about it.
    fn rename(&self, path: &mut PathBuf, used: &mut [bool]) -> bool {
        let renames = self.renames.iter().zip(used).filter(|((old, _), _)| path.starts_with(old));
        let Some(((old, new), used)) = renames.max_by_key(|((old, _), _)| old.components().count()) else {
            return false;
        };
        *used = true;
        let rest = path.strip_prefix(old).unwrap_or(Path::new("")).to_owned();
        *path = if rest.as_os_str().is_empty() { new.clone() } else { new.join(rest) };
        true
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
                format!("the run read {file}; {ADVICE}")
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
        "{run}: {why} since it was trained: {what}; use `--data OLD=NEW` to name the unchanged data"
    )))
}
