//! Prepares the data section of an experiment: rows, a tokenizer, and the facts for the planner.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::cache::{DataCache, EntryKind};
use super::choice;
use super::error::{DataError, Result};
use super::gc::data_key;
use super::hashing::hash_parts;
use super::model_tokenizer::ModelTokenizer;
use super::progress::{Progress, Report};
use super::shard_tokenizer::describe_foreign_shards;
use super::shared_files::{check_disjoint, check_no_repeated_file, describe_repeated_files};
use super::source::{DocumentFormat, LocatedSource, locate, read_in_batches};
use super::split::{Dataset, PaddingTokens, Split};
use super::split_name::SplitName;
use super::stories;
use super::token_files;
use super::token_store::{TokenStore, TokenStoreWriter};
use super::token_stream::TokenStream;
use super::tokenizer::{TextTokenizer, make_tokenizer};
use super::unknown_text::{TOKENS_READ, warn_of_unknown_text};
use runner_spec::data::{ChoiceFacts, ChoiceItem, DataFacts, DataPart, SplitFacts, TaskItems};
use runner_spec::experiment::{Corpus, Data, Layout, Source, Task, TokenType, Validation, advice_for_file, task_key};

/// The data to prepare.
#[derive(Debug, Clone, Copy)]
pub struct DataRequest<'a> {
    pub data: &'a Data,
    /// The tasks, by their names, with files on this machine.
    pub tasks: &'a [(String, Task)],
    /// The source that the trained model is tested on.
    pub test: Option<&'a Source>,
    /// The folder of tokens, trained tokenizers and the built-in corpus, created if necessary.
    pub cache_dir: &'a Path,
    /// `model.vocab_size`, if given. Ids beyond it are an error.
    pub vocab_size: Option<usize>,
    /// The tokenizer as a run recorded it, which replaces that of `data.tokenizer`.
    pub recorded_tokenizer: Option<&'a TextTokenizer>,
}

/// Prepared data.
#[derive(Debug)]
pub struct Prepared {
    pub facts: DataFacts,
    pub dataset: Dataset,
    pub tokenizer: ModelTokenizer,
    /// The items of each task.
    pub tasks: TaskItems,
    /// The origin of the tokens of each source, in the order in which they were loaded.
    pub origins: Vec<TokensOrigin>,
    /// Warnings about files that are there twice, and about text that the tokenizer does not know.
    pub warnings: Vec<String>,
    /// Locks that keep the entries in the cache.
    pub(super) cache_locks: Vec<File>,
}

impl Prepared {
    /// Takes away the tokens that prompts and contexts begin with.
    pub fn remove_prefix(&mut self) {
        self.tokenizer = self.tokenizer.clone().without_prefix();
        self.tasks.iter_mut().flat_map(|(_, items)| items).for_each(|item| item.prefix.clear());
    }
}

/// The files that the tokens of a source are from.
#[derive(Debug, Clone)]
pub struct TokensOrigin {
    pub split: SplitName,
    pub files: Vec<PathBuf>,
}

/// The tokens of a source.
pub(super) struct SourceTokens {
    pub(super) stream: TokenStream,
    /// `None` for token shards, which do not have the positions of documents.
    pub(super) store: Option<TokenStore>,
    pub(super) documents: u64,
    max: u32,
    pub(super) hash: String,
    /// The content hash of the source; `None` for token shards, which hold no text.
    pub(super) text_hash: Option<String>,
}

impl SourceTokens {
    /// The number of units of which a split takes a range: documents for padded rows, tokens for others.
    pub(super) fn units(&self, padding: Option<PaddingTokens>) -> u64 {
        if padding.is_some() { self.documents } else { self.stream.count() }
    }
}

pub(super) struct Preparation<'a> {
    pub(super) layout: &'a Layout,
    /// The last part of the training source that is held out.
    pub(super) fraction: Option<f64>,
    pub(super) vocab_size: Option<usize>,
    /// The name in warnings of a text that is not a split of a run.
    pub(super) text_name: Option<&'static str>,
    pub(super) cache: DataCache,
    pub(super) report: &'a Report<'a>,
    pub(super) origins: RefCell<Vec<TokensOrigin>>,
    pub(super) warnings: RefCell<Vec<String>>,
}

/// Prepares data: finds the sources, makes or loads the tokenizer, tokenizes what is not in the cache, and cuts rows.
/// Works in the current rayon pool.
///
/// # Errors
/// If sources or settings are wrong, or the cache cannot be written.
pub fn prepare(request: &DataRequest<'_>, progress: &(dyn Fn(Progress) + Sync)) -> Result<Prepared> {
    let fraction = match request.data.validation {
        Some(Validation::Fraction(fraction)) => Some(fraction),
        _ => None,
    };
    let (layout, vocab_size) = (&request.data.layout, request.vocab_size);
    let cache = DataCache::open(request.cache_dir)?;
    let (origins, warnings) = Default::default();
    Preparation { layout, fraction, vocab_size, text_name: None, cache, report: progress, origins, warnings }
        .run(request)
}

/// The key of the part of the training source that is held out.
const HELD_OUT: &str = "data.validation.fraction";

impl Preparation<'_> {
    fn run(&self, request: &DataRequest<'_>) -> Result<Prepared> {
        let (data, fraction) = (request.data, self.fraction);
        let train = self.locate(&data.train, SplitName::Train)?;
        let separate = data.separate_validation();
        let validation = separate.map(|source| self.locate(source, SplitName::Validation)).transpose()?;
        let mut warnings = self.warnings.borrow_mut();
        if let Some(validation) = &validation {
            let why = ", which is trained on; hold out a part of it with {fraction: 0.1}";
            warnings.extend(check_disjoint(&train, validation, why)?);
        }
        if fraction.is_some() {
            check_no_repeated_file(&train)?;
        }
        let test = request.test.map(|source| self.locate(source, SplitName::Test)).transpose()?;
        if let Some(test) = &test {
            warnings.extend(check_disjoint(&train, test, ", which is trained on; test on different text")?);
            if let Some(validation) = &validation {
                let why = ", which chooses the best checkpoint; test on different text";
                warnings.extend(check_disjoint(validation, test, why)?);
            }
        }
        let sources = [Some(&train), validation.as_ref(), test.as_ref()];
        warnings.extend(sources.into_iter().flatten().filter_map(|source| {
            let warning = describe_repeated_files(source)?;
            Some(format!("{}: {warning}", source.split.key()))
        }));
        drop(warnings);
        let tokenizer = match request.recorded_tokenizer {
            Some(recorded) => recorded.clone(),
            None => make_tokenizer(data, &train, self.vocab_size, &self.cache, self.report)?,
        };
        let padding = padding_tokens(self.layout, &tokenizer)?;

        let tokens = self.load_tokens(&train, &tokenizer)?;
        let units = tokens.units(padding);
        // nanoGPT's rule: the first int(n · 0.9) are for training.
        let border = fraction.map_or(units, |f| ((units as f64 * (1.0 - f)) as u64).min(units));
        let cut = |tokens: &SourceTokens, range: Range<u64>, key: &'static str| {
            self.cut_rows(tokens, &tokenizer, padding, &range, key)
        };
        let (train_split, train_facts, train_range) = cut(&tokens, 0..border, train.split.key())?;
        let load = |source: &LocatedSource| self.load_tokens(source, &tokenizer);
        let other = validation.as_ref().map(load).transpose()?;
        let validated = match (&other, &validation) {
            (Some(tokens), Some(source)) => Some((tokens, 0..tokens.units(padding), source.split.key())),
            _ => fraction.map(|_| (&tokens, border..units, HELD_OUT)),
        };
        let tested = test.as_ref().map(load).transpose()?;
        let tested = tested.as_ref().map(|tokens| (tokens, 0..tokens.units(padding), SplitName::Test.key()));
        // The splits that were read before: a loss on their text measures memory, or luck.
        let mut read = vec![(DataPart::Train, &tokens, train_range)];
        let mut splits: [(Option<Split>, Option<SplitFacts>); 2] = Default::default();
        for ((part, chosen), prepared) in
            [(DataPart::Validation, validated), (DataPart::Test, tested)].into_iter().zip(&mut splits)
        {
            let Some((tokens, units, key)) = chosen else { continue };
            let (split, mut facts, range) = cut(tokens, units, key)?;
            facts.overlaps = self.find_overlaps(&read, (tokens, &range), &facts, &tokenizer)?;
            read.push((part, tokens, range));
            *prepared = (Some(split), Some(facts));
        }
        let [(validation_split, validation_facts), (test_split, test_facts)] = splits;

        let tokenizer = ModelTokenizer::of_rows(tokenizer, self.layout);
        let (tasks, task_facts) = self.load_tasks(request.tasks, &tokenizer)?;
        tokenizer.text.forget_words();
        let splits = [Some(&train_facts), validation_facts.as_ref(), test_facts.as_ref()];
        let documents = splits.into_iter().flatten().map(|split| split.documents).max().unwrap_or(0);
        let facts = DataFacts {
            tokenizer_vocab: tokenizer.text.vocab_size(),
            tokenizer_hash: tokenizer.text.hash().to_owned(),
            train: train_facts,
            validation: validation_facts,
            test: test_facts,
            choice: None,
            tasks: BTreeMap::new(),
            weights: None,
            joins_documents: tokenizer.text.joins_documents(self.layout, documents),
        };
        let all_items = all_items(&task_facts);
        let facts = facts.with_tasks(task_facts, all_items);
        let cache_locks = self.cache.take_locks(&data_key(|part| facts.hash_of(part)));
        let dataset = Dataset { train: train_split, validation: validation_split, test: test_split };
        let (origins, warnings) = (self.origins.take(), self.warnings.take());
        Ok(Prepared { facts, dataset, tokenizer, tasks, origins, warnings, cache_locks })
    }

    pub(super) fn locate(&self, source: &Source, split: SplitName) -> Result<LocatedSource> {
        locate(source, split, &self.cache, self.report)
    }

    /// Loads the tokens of `source`: token shards in place, tokens from the cache, or new ones.
    pub(super) fn load_tokens(&self, source: &LocatedSource, tokenizer: &TextTokenizer) -> Result<SourceTokens> {
        let split = source.split;
        let name = self.text_name.map_or_else(|| format!("{} data", split.adjective()), str::to_owned);
        let held_out = self.fraction.filter(|_| split == SplitName::Train);
        let is_padded = matches!(self.layout, Layout::Padded { .. });
        let (tokens, event) = if let DocumentFormat::Tokens(kind) = source.documents {
            if is_padded {
                let message = "token shards are one stream of tokens, not documents; use {packed: …}";
                return Err(DataError::setting("data.layout.padded", message));
            }
            let bytes_total = source.bytes();
            let report =
                |bytes_done, tokens| (self.report)(Progress::Tokenizing { split, bytes_done, bytes_total, tokens });
            self.warnings.borrow_mut().extend(describe_foreign_shards(source, tokenizer));
            let vocabulary = tokenizer.vocab_size().max(self.vocab_size.unwrap_or(0));
            let (stream, max, documents) =
                token_files::open(source, kind, vocabulary, tokenizer.end_of_text(), &self.cache, &report)?;
            let event = Progress::CacheHit { split, tokens: stream.count(), held_out };
            (SourceTokens { stream, store: None, documents, max, hash: source.hash.clone(), text_hash: None }, event)
        } else {
            // Padded rows have their own separators. The names of both kinds of tokens stay as the first version wrote them.
            let end = tokenizer.end_of_text();
            let separator = end.filter(|_| self.layout.separates_documents());
            let is_packed = separator == end && !is_padded;
            let kind = if is_packed { "packed" } else { "padded" };
            let hash = hash_parts(["tokens 1", &source.hash, tokenizer.hash(), kind]);
            let mut build = |folder: &Path| {
                let width = TokenType::for_vocabulary(tokenizer.vocab_size());
                self.tokenize(source, tokenizer, TokenStoreWriter::create(folder, width, separator)?)
            };
            let open = &TokenStore::open;
            let (store, hit) = self.cache.open_or_build(EntryKind::Tokens, &hash, self.report, open, &mut build)?;
            let (stream, documents, max) = (store.tokens.clone(), store.document_count, store.max);
            let tokens = stream.count();
            let event = if hit {
                Progress::CacheHit { split, tokens, held_out }
            } else {
                Progress::Done { split, tokens, documents, held_out }
            };
            let text_hash = Some(source.hash.clone());
            (SourceTokens { stream, store: Some(store), documents, max, hash, text_hash }, event)
        };
        (self.report)(event);
        self.origins
            .borrow_mut()
            .push(TokensOrigin { split, files: source.files.iter().map(|file| file.path.clone()).collect() });
        self.check_vocabulary(&tokens, split.key(), tokenizer)?;
        let read = |take: &mut dyn FnMut(u32)| tokens.stream.read(0, TOKENS_READ.min(tokens.stream.count()), take);
        self.warnings.borrow_mut().extend(warn_of_unknown_text(tokenizer, &name, read)?);
        Ok(tokens)
    }

    fn tokenize(&self, source: &LocatedSource, tokenizer: &TextTokenizer, mut writer: TokenStoreWriter) -> Result<()> {
        let mut bytes_done = 0;
        read_in_batches(source, tokenizer.cut_points(), &mut |batch| {
            let encoded: Vec<_> = batch.par_iter().map(|piece| tokenizer.encode_document(&piece.text)).collect();
            for (piece, tokens) in batch.iter().zip(encoded) {
                bytes_done += piece.text.len() as u64;
                let tokens = tokens.map_err(|error| error.within(source.split.key()))?;
                writer.append(piece.starts_document, &tokens)?;
            }
            // The text in a compressed file is longer than the file.
            let bytes_total = source.bytes().max(bytes_done);
            let tokens = writer.count();
            (self.report)(Progress::Tokenizing { split: source.split, bytes_done, bytes_total, tokens });
            Ok(())
        })?;
        source.check_unchanged()?;
        if writer.finish()? == 0 {
            return Err(DataError::setting(source.split.key(), "the source is empty: there is no text in it"));
        }
        Ok(())
    }

    /// Cuts the units `range` of `tokens` into rows. `key` is the setting that names them. Returns the range of their tokens, too.
    pub(super) fn cut_split(
        &self,
        tokens: &SourceTokens,
        tokenizer: &TextTokenizer,
        padding: Option<PaddingTokens>,
        range: &Range<u64>,
        key: &'static str,
    ) -> Result<(Split, Range<u64>)> {
        let length = self.layout.length().max(1);
        let columns = self.layout.columns(key != SplitName::Train.key()).map_or(1, |count| count.max(1));
        let (split, token_range) = if let (Some(store), Some(padding)) = (&tokens.store, padding) {
            let token_range = store.document_start(range.start)?..store.document_start(range.end)?;
            (Split::padded(store.clone(), range, length, padding), token_range)
        } else {
            (Split::packed(tokens.stream.clone(), range, length, columns as u64), range.clone())
        };
        // Training has no use for the text.
        let texts = if key == SplitName::Train.key() { None } else { tokenizer.token_texts() };
        let split = split.with_token_bytes(texts.map(|texts| texts.iter().map(|text| text.len() as u32).collect()));
        if split.rows() == 0 {
            let (count, units) = (range.end - range.start, tokens.units(padding));
            let total = if count < units { format!(", of {units} in the source,") } else { String::new() };
            let least = (length + 1) * columns;
            let message = if padding.is_some() {
                format!("{count} documents{total} do not fill a row")
            } else if columns > 1 {
                format!("{count} tokens{total} are too few: {columns} columns of one row of {length} need {least}")
            } else {
                format!("{count} tokens{total} are too few: one row of length {length} needs {least}")
            };
            return Err(DataError::setting(key, message));
        }
        Ok((split, token_range))
    }

    /// Cuts the units `range` of `tokens` into rows, and describes them. `key` is the setting that names them. Returns the range of their
    /// tokens, too.
    fn cut_rows(
        &self,
        tokens: &SourceTokens,
        tokenizer: &TextTokenizer,
        padding: Option<PaddingTokens>,
        range: &Range<u64>,
        key: &'static str,
    ) -> Result<(Split, SplitFacts, Range<u64>)> {
        let (split, token_range) = self.cut_split(tokens, tokenizer, padding, range, key)?;
        // This text is hashed: it stays as the first version wrote it.
        let padding = padding.map_or_else(
            || "None".to_owned(),
            |PaddingTokens { bos, eos, pad }| format!("Some(Marks {{ bos: {bos}, eos: {eos}, pad: {pad} }})"),
        );
        let layout = format!("{} {padding}", row_settings(self.layout, key != SplitName::Train.key()));
        let hash = hash_parts([&*tokens.hash, tokenizer.hash(), &layout, &format!("{range:?}")]);
        let fraction = self.fraction.filter(|_| key == HELD_OUT);
        let text = self.describe_text(tokens, tokenizer, &token_range, &split, &hash, fraction)?;
        let facts = SplitFacts {
            rows: split.rows(),
            tokens: token_range.end - token_range.start,
            documents: self.count_documents(tokens, tokenizer, &token_range)?,
            clipped: split.clipped()?,
            hash,
            text,
            overlaps: Vec::new(),
        };
        Ok((split, facts, token_range))
    }

    /// The number of documents that start in `range` of the tokens.
    fn count_documents(&self, tokens: &SourceTokens, tokenizer: &TextTokenizer, range: &Range<u64>) -> Result<u64> {
        let whole = *range == (0..tokens.stream.count());
        match (&tokens.store, tokenizer.end_of_text()) {
            _ if whole => Ok(tokens.documents),
            (Some(store), _) => Ok(store.documents_before(range.end)? - store.documents_before(range.start)?),
            (None, None) => Ok(1),
            (None, Some(end)) => {
                let memo = hash_parts([&*tokens.hash, &format!("{range:?} {end}")]);
                self.cache.remember("scans", &memo, || {
                    let mut count = 0_u64;
                    tokens
                        .stream
                        .read(range.start, range.end - range.start, |token| count += u64::from(token == end))?;
                    Ok(count.max(1))
                })
            }
        }
    }

    fn check_vocabulary(&self, tokens: &SourceTokens, what: &str, tokenizer: &TextTokenizer) -> Result<()> {
        let limits =
            [Some((tokenizer.vocab_size(), "data.tokenizer")), self.vocab_size.map(|n| (n, "model.vocab_size"))];
        for (vocabulary, key) in limits.into_iter().flatten() {
            if (tokens.max as usize) < vocabulary {
                continue;
            }
            let Some((position, token)) = tokens.stream.first_beyond(vocabulary)? else { continue };
            let (what, position) = match tokens.stream.segment_at(position) {
                Some((segment, within)) if tokens.store.is_none() => {
                    (format!("{what}: {}", segment.file.path().display()), within)
                }
                _ => (what.to_owned(), position),
            };
            return Err(DataError::TokenBeyondVocabulary { what, token, position, vocabulary, key });
        }
        Ok(())
    }

    /// The items of `tasks`, and facts about them.
    pub(super) fn load_tasks(
        &self,
        tasks: &[(String, Task)],
        tokenizer: &ModelTokenizer,
    ) -> Result<(TaskItems, BTreeMap<String, ChoiceFacts>)> {
        let (mut all, mut facts) = (Vec::with_capacity(tasks.len()), BTreeMap::new());
        for (name, task) in tasks {
            let (items, of_task) = self.load_task(&task_key(name), task, tokenizer)?;
            all.push((name.clone(), items));
            facts.insert(name.clone(), of_task);
        }
        Ok((all, facts))
    }

    /// The items of `set`, the task under `key`.
    fn load_task(&self, key: &str, set: &Task, tokenizer: &ModelTokenizer) -> Result<(Vec<ChoiceItem>, ChoiceFacts)> {
        let path: PathBuf = match (&set.file, set.builtin) {
            (Some(file), _) if !file.exists() => {
                let advice = advice_for_file(key).map_or_else(String::new, |advice| format!("; {advice}"));
                return Err(DataError::setting(
                    format!("{key}.file"),
                    format!("there is no file {}{advice}", file.display()),
                ));
            }
            (Some(file), _) => file.clone(),
            (None, Some(Corpus::Stories)) => stories::open_or_write_corpus(&self.cache, self.report)?.choice,
            (None, None) => {
                let message = "this set is on the hub and was not downloaded, or gives neither `file` nor `builtin`";
                return Err(DataError::setting(key.to_owned(), message));
            }
        };
        let (items, facts) = choice::load_items(&path, key, set, tokenizer)?;
        let tokens = items.iter().flat_map(|item| item.context.iter().chain(item.endings.iter().flatten()));
        let read = |take: &mut dyn FnMut(u32)| {
            tokens.copied().for_each(take);
            Ok(())
        };
        self.warnings.borrow_mut().extend(warn_of_unknown_text(&tokenizer.text, "multiple choice", read)?);
        if let Some(vocabulary) = self.vocab_size {
            for (number, item) in (1..).zip(&items) {
                let mut tokens = (0..).zip(item.context.iter().chain(item.endings.iter().flatten()));
                if let Some((position, &token)) = tokens.find(|(_, token)| **token as usize >= vocabulary) {
                    let (what, key) = (format!("{key}: {}, item {number}", path.display()), "model.vocab_size");
                    return Err(DataError::TokenBeyondVocabulary { what, token, position, vocabulary, key });
                }
            }
        }
        Ok((items, facts))
    }
}

/// The items of all `tasks` together. The hash of a single task is that of its items.
fn all_items(tasks: &BTreeMap<String, ChoiceFacts>) -> Option<ChoiceFacts> {
    let mut facts = tasks.values();
    let first = facts.next()?;
    if tasks.len() == 1 {
        return Some(first.clone());
    }
    let mut hasher = blake3::Hasher::new();
    for (name, facts) in tasks {
        hasher.update(format!("{name} {}\n", facts.hash).as_bytes());
    }
    let items = first.items + facts.map(|facts| facts.items).sum::<usize>();
    Some(ChoiceFacts { items, hash: hasher.finalize().to_hex().to_string() })
}

/// The settings of `layout` that determine how rows are cut from tokens, as text for a hash. The attention mask does not, and separators are
/// among the tokens.
fn row_settings(layout: &Layout, is_evaluated: bool) -> String {
    match layout {
        Layout::Columns { length, .. } => {
            let count = layout.columns(is_evaluated).unwrap_or(0);
            format!("Columns {{ length: {length}, count: {count} }}")
        }
        Layout::Padded { length, bos, eos, pad, mask: _ } => {
            format!("Padded {{ length: {length}, bos: {bos:?}, eos: {eos:?}, pad: {pad:?} }}")
        }
        Layout::Packed { length, .. } => format!("Packed {{ length: {length} }}"),
    }
}

/// The tokens of padded rows; `None` for packed ones.
pub(super) fn padding_tokens(layout: &Layout, tokenizer: &TextTokenizer) -> Result<Option<PaddingTokens>> {
    let Layout::Padded { bos, eos, pad, .. } = layout else { return Ok(None) };
    let named = |key, name: &str| tokenizer.token_id(name).map_err(|message| DataError::setting(key, message));
    Ok(Some(PaddingTokens {
        bos: named("data.layout.padded.bos", bos)?,
        eos: named("data.layout.padded.eos", eos)?,
        pad: named("data.layout.padded.pad", pad)?,
    }))
}

#[cfg(test)]
mod tests;
