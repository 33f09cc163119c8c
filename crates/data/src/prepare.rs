//! From the data section of an experiment to rows, a tokenizer and the facts that the planner needs.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::cache::Cache;
use super::choice;
use super::error::DataError;
use super::fingerprint::hash_parts;
use super::gc::data_key;
use super::progress::{Progress, Report, SplitName};
use super::shards;
use super::source::{Documents, Located, Origin, Piece, locate, own_source, read};
use super::split::{Dataset, Marks, Split};
use super::store::{Store, StoreWriter};
use super::stories;
use super::stream::{TokenStream, Width};
use super::tokenizer::{self, TextTokenizer};
use runner_spec::data::{ChoiceItem, DataFacts, SplitFacts};
use runner_spec::experiment::{Corpus, Data, HellaSwag, Layout, Source, Validation};

/// Text that is encoded in parallel at a time, in bytes: the memory that tokenizing needs is some times this.
const BATCH: usize = 8 << 20;

/// What to prepare.
#[derive(Debug, Clone, Copy)]
pub struct DataRequest<'a> {
    pub data: &'a Data,
    pub choice: Option<&'a HellaSwag>,
    /// What the trained model is tested on.
    pub test: Option<&'a Source>,
    /// The experiment's. Preparing does not depend on it: the data order does, and the built-in corpus has its own.
    pub seed: u64,
    /// Where tokens, trained tokenizers and the built-in corpus are kept; created if need be.
    pub cache_dir: &'a Path,
    /// `model.vocab_size`, if given: ids beyond it are an error.
    pub vocab_size: Option<usize>,
}

/// Prepared data.
#[derive(Debug)]
pub struct Prepared {
    pub facts: DataFacts,
    pub dataset: Dataset,
    pub tokenizer: TextTokenizer,
    pub choice: Option<Vec<ChoiceItem>>,
    /// Locks of the cache's entries, which are not removed while these are held.
    _in_use: Vec<File>,
}

/// A source as tokens.
struct Tokens {
    stream: TokenStream,
    /// `None` for token shards, which do not say where their documents are.
    store: Option<Store>,
    documents: u64,
    max: u32,
    hash: String,
}

struct Preparation<'a> {
    request: &'a DataRequest<'a>,
    cache: Cache,
    report: &'a Report<'a>,
}

/// Prepares data: finds the sources, makes or loads the tokenizer, tokenizes what is not in the cache, and cuts rows.
/// Works in the current rayon pool.
///
/// # Errors
/// Whatever is wrong with the sources or the settings, and whatever keeps the cache from being written.
pub fn prepare(request: &DataRequest<'_>, progress: &(dyn Fn(Progress) + Sync)) -> Result<Prepared, DataError> {
    let cache = Cache::open(request.cache_dir)?;
    Preparation { request, cache, report: progress }.run()
}

impl Preparation<'_> {
    fn run(&self) -> Result<Prepared, DataError> {
        let data = self.request.data;
        let train = self.locate(&data.train, Origin::Train)?;
        let validation = match &data.validation {
            Some(validation) => own_source(validation).map(|s| self.locate(&s, Origin::Validation)).transpose()?,
            None => None,
        };
        if let Some(validation) = &validation {
            check_disjoint(&train, validation, ", which trains; hold out a part of it with {fraction: 0.1}")?;
        }
        let test = self.request.test.map(|source| self.locate(source, Origin::Test)).transpose()?;
        if let Some(test) = &test {
            check_disjoint(&train, test, ", which trains: test on other text")?;
            if let Some(validation) = &validation {
                check_disjoint(validation, test, ", by which the best checkpoint is chosen: test on other text")?;
            }
        }
        let tokenizer = tokenizer::build(data, &train, &self.cache, self.report)?;
        let marks = marks(&data.layout, &tokenizer)?;
        let fraction = match data.validation {
            Some(Validation::Fraction(fraction)) => Some(fraction),
            _ => None,
        };

        let tokens = self.tokens(&train, &tokenizer, SplitName::Train)?;
        let (train_split, train_facts, held_out) = self.cut(&tokens, &tokenizer, marks, Origin::Train, fraction)?;
        let whole = |source: &Located, name: SplitName| -> Result<(Split, SplitFacts), DataError> {
            let tokens = self.tokens(source, &tokenizer, name)?;
            let (split, facts, _) = self.cut(&tokens, &tokenizer, marks, source.origin, None)?;
            Ok((split, facts))
        };
        let own = validation.as_ref().map(|source| whole(source, SplitName::Validation)).transpose()?;
        let (validation_split, validation_facts) = own.or(held_out).unzip();
        let (test_split, test_facts) = test.as_ref().map(|source| whole(source, SplitName::Test)).transpose()?.unzip();

        let choice = self.request.choice.map(|set| self.choice(set, &tokenizer)).transpose()?;
        let (choice, choice_facts) = choice.unzip();
        let facts = DataFacts {
            tokenizer_vocab: tokenizer.vocab_size(),
            tokenizer_hash: tokenizer.hash().to_owned(),
            train: train_facts,
            validation: validation_facts,
            test: test_facts,
            choice: choice_facts,
            weights: None,
        };
        let (train, validation) = (&facts.train.hash, facts.validation.as_ref().map(|v| &v.hash));
        let (choice_hash, test_hash) = (facts.choice.as_ref().map(|c| &c.hash), facts.test.as_ref().map(|t| &t.hash));
        let in_use = self.cache.hold(&data_key(train, validation, choice_hash, test_hash));
        let dataset = Dataset { train: train_split, validation: validation_split, test: test_split };
        Ok(Prepared { facts, dataset, tokenizer, choice, _in_use: in_use })
    }

    fn locate(&self, source: &Source, origin: Origin) -> Result<Located, DataError> {
        let builtin = |origin| {
            let files = stories::write_corpus(&self.cache, self.report)?;
            Ok(if origin == Origin::Train { files.train } else { files.validation })
        };
        let split = origin.split();
        let report = |bytes_done, bytes_total| (self.report)(Progress::Hashing { split, bytes_done, bytes_total });
        locate(source, origin, &self.cache, &builtin, &report)
    }

    /// The tokens of `source`: shards in place, or from the cache, or made now.
    fn tokens(&self, source: &Located, tokenizer: &TextTokenizer, split: SplitName) -> Result<Tokens, DataError> {
        let key = source.origin.key();
        if source.documents == Documents::Tokens {
            if let Layout::Padded { .. } = self.request.data.layout {
                let message = "token shards are one stream of tokens, not documents; use {packed: …}";
                return Err(DataError::setting("data.layout.padded", message));
            }
            let total = source.bytes();
            let report = |bytes_done, tokens| {
                (self.report)(Progress::Tokenizing { split, bytes_done, bytes_total: total, tokens });
            };
            let (stream, max, documents) = shards::open(source, tokenizer.eot(), &self.cache, &report)?;
            let tokens = Tokens { stream, store: None, documents, max, hash: source.hash.clone() };
            self.check_vocabulary(&tokens, key, tokenizer)?;
            (self.report)(Progress::CacheHit { split, tokens: tokens.stream.count() });
            return Ok(tokens);
        }
        // Padded rows bring their own marks.
        let (layout, separator) = match self.request.data.layout {
            Layout::Packed { .. } | Layout::Columns { .. } => ("packed", tokenizer.eot()),
            Layout::Padded { .. } => ("padded", None),
        };
        let hash = hash_parts(["tokens 1", &source.hash, tokenizer.hash(), layout]);
        let mut build = |folder: &Path| {
            let writer = StoreWriter::create(folder, Width::of(tokenizer.vocab_size()), separator)?;
            self.tokenize(source, tokenizer, writer, split)
        };
        let waiting = || (self.report)(Progress::Waiting);
        let (store, hit) = self.cache.entry("tokens", &hash, &waiting, &Store::open, &mut build)?;
        let (stream, documents, max) = (store.tokens.clone(), store.document_count, store.max);
        let count = stream.count();
        (self.report)(if hit {
            Progress::CacheHit { split, tokens: count }
        } else {
            Progress::Done { split, tokens: count, documents }
        });
        let tokens = Tokens { stream, store: Some(store), documents, max, hash };
        self.check_vocabulary(&tokens, key, tokenizer)?;
        Ok(tokens)
    }

    fn tokenize(
        &self,
        source: &Located,
        tokenizer: &TextTokenizer,
        mut writer: StoreWriter,
        split: SplitName,
    ) -> Result<(), DataError> {
        let (mut done, bytes_total) = (0, source.bytes());
        let (mut batch, mut size): (Vec<Piece>, usize) = (Vec::new(), 0);
        let mut flush = |batch: &mut Vec<Piece>, size: &mut usize| -> Result<(), DataError> {
            let encode = |piece: &Piece| {
                let mut tokens = Vec::with_capacity(piece.text.len() / 3);
                tokenizer.encode_ordinary(&piece.text, &mut tokens).map(|()| tokens)
            };
            let encoded: Vec<_> = batch.par_iter().map(encode).collect();
            for (piece, tokens) in batch.drain(..).zip(encoded) {
                writer.append(piece.first, &tokens.map_err(|error| error.within(source.origin.key()))?)?;
            }
            done += std::mem::take(size) as u64;
            // The text in a compressed file is longer than the file.
            let bytes_total = bytes_total.max(done);
            let tokens = writer.count();
            (self.report)(Progress::Tokenizing { split, bytes_done: done, bytes_total, tokens });
            Ok(())
        };
        read(source, tokenizer.cut(), &mut |piece| {
            size += piece.text.len();
            batch.push(piece);
            if size >= BATCH { flush(&mut batch, &mut size) } else { Ok(()) }
        })?;
        flush(&mut batch, &mut size)?;
        source.check_unchanged()?;
        if writer.finish()? == 0 {
            return Err(DataError::setting(source.origin.key(), "the source is empty: there is no text in it"));
        }
        Ok(())
    }

    /// Rows of `tokens`, and what is held out of them for validation.
    #[expect(clippy::type_complexity, reason = "one caller, which takes it apart")]
    fn cut(
        &self,
        tokens: &Tokens,
        tokenizer: &TextTokenizer,
        marks: Option<Marks>,
        origin: Origin,
        fraction: Option<f64>,
    ) -> Result<(Split, SplitFacts, Option<(Split, SplitFacts)>), DataError> {
        let length = self.request.data.layout.length().max(1);
        let columns = match self.request.data.layout {
            Layout::Columns { count, .. } => Some(count),
            _ => None,
        };
        let units = if marks.is_some() { tokens.documents } else { tokens.stream.count() };
        // As nanoGPT does it: the first int(n · 0.9) are for training.
        let border = fraction.map_or(units, |f| ((units as f64 * (1.0 - f)) as u64).min(units));
        let make = |range: Range<u64>, key: &'static str| {
            let (split, token_range) = if let (Some(store), Some(marks)) = (&tokens.store, marks) {
                let token_range = store.document(range.start)..store.document(range.end);
                (Split::padded(store.clone(), &range, length, marks), token_range)
            } else {
                let stream = tokens.stream.clone();
                let split = match columns {
                    Some(count) => Split::columns(stream, &range, length, count),
                    None => Split::packed(stream, &range, length),
                };
                (split, range.clone())
            };
            if split.rows() == 0 {
                let count = range.end - range.start;
                let of = if range.end - range.start < units {
                    format!(", of {units} in the source,")
                } else {
                    String::new()
                };
                let message = if marks.is_some() {
                    format!("{count} documents{of} make no row")
                } else if let Some(columns) = columns {
                    let least = (length + 1) * columns;
                    format!("{count} tokens{of} are too few: {columns} columns of one row of {length} need {least}")
                } else {
                    format!("{count} tokens{of} are too few: one row of length {length} needs {}", length + 1)
                };
                return Err(DataError::setting(key, message));
            }
            let layout = format!("{} {marks:?}", rows_of(&self.request.data.layout));
            let hash = hash_parts([&*tokens.hash, tokenizer.hash(), &layout, &format!("{range:?}")]);
            let facts = SplitFacts {
                rows: split.rows(),
                tokens: token_range.end - token_range.start,
                documents: self.documents(tokens, tokenizer, &token_range),
                hash,
            };
            Ok((split, facts))
        };
        let (split, facts) = make(0..border, origin.key())?;
        let held_out = fraction.map(|_| make(border..units, "data.validation.fraction")).transpose()?;
        Ok((split, facts, held_out))
    }

    /// Documents that start in `range` of the tokens.
    fn documents(&self, tokens: &Tokens, tokenizer: &TextTokenizer, range: &Range<u64>) -> u64 {
        let whole = *range == (0..tokens.stream.count());
        match (&tokens.store, tokenizer.eot()) {
            _ if whole => tokens.documents,
            (Some(store), _) => store.documents_before(range.end) - store.documents_before(range.start),
            (None, None) => 1,
            (None, Some(end)) => {
                let memo = format!("{}.json", hash_parts([&*tokens.hash, &format!("{range:?} {end}")]));
                let known = self.cache.recall("scans", &memo);
                if let Some(count) = known.and_then(|bytes| String::from_utf8(bytes).ok()?.parse().ok()) {
                    return count;
                }
                let mut count = 0_u64;
                tokens.stream.read(range.start, range.end - range.start, |token| count += u64::from(token == end));
                self.cache.remember("scans", &memo, count.max(1).to_string().as_bytes());
                count.max(1)
            }
        }
    }

    fn check_vocabulary(&self, tokens: &Tokens, what: &str, tokenizer: &TextTokenizer) -> Result<(), DataError> {
        let limits = [
            Some((tokenizer.vocab_size(), "data.tokenizer")),
            self.request.vocab_size.map(|n| (n, "model.vocab_size")),
        ];
        for (vocabulary, key) in limits.into_iter().flatten() {
            if (tokens.max as usize) < vocabulary {
                continue;
            }
            let Some((position, token)) = tokens.stream.first_beyond(vocabulary) else { continue };
            let (what, position) = match tokens.stream.place(position) {
                Some((segment, within)) if tokens.store.is_none() => {
                    (format!("{what}: {}", segment.path.display()), within)
                }
                _ => (what.to_owned(), position),
            };
            return Err(DataError::TokenBeyondVocabulary { what, token, position, vocabulary, key });
        }
        Ok(())
    }

    fn choice(
        &self,
        set: &HellaSwag,
        tokenizer: &TextTokenizer,
    ) -> Result<(Vec<ChoiceItem>, runner_spec::data::ChoiceFacts), DataError> {
        let path: PathBuf = match (&set.file, set.builtin) {
            (Some(file), _) => file.clone(),
            (None, Some(Corpus::Stories)) => stories::write_corpus(&self.cache, self.report)?.choice,
            (None, None) => return Err(DataError::setting("eval.hellaswag", "give `file` or `builtin`")),
        };
        let (items, facts) = choice::load(&path, set.limit, tokenizer)?;
        if let Some(vocabulary) = self.request.vocab_size {
            for (index, item) in (0..).zip(&items) {
                let mut tokens = item.endings.iter().flatten().chain(&item.context);
                if let Some(&token) = tokens.find(|&&token| token as usize >= vocabulary) {
                    let (what, key) = (format!("eval.hellaswag: {}", path.display()), "model.vocab_size");
                    return Err(DataError::TokenBeyondVocabulary { what, token, position: index, vocabulary, key });
                }
            }
        }
        Ok((items, facts))
    }
}

/// What of a layout makes its rows, in words. How attention looks at them does not; and the words are in hashes.
fn rows_of(layout: &Layout) -> String {
    match layout {
        Layout::Padded { length, bos, eos, pad, mask: _ } => {
            format!("Padded {{ length: {length}, bos: {bos:?}, eos: {eos:?}, pad: {pad:?} }}")
        }
        other => format!("{other:?}"),
    }
}

/// The marks of padded rows; `None` for packed ones.
fn marks(layout: &Layout, tokenizer: &TextTokenizer) -> Result<Option<Marks>, DataError> {
    let Layout::Padded { bos, eos, pad, .. } = layout else { return Ok(None) };
    let named = |key, name: &str| tokenizer.named(name).map_err(|message| DataError::setting(key, message));
    Ok(Some(Marks {
        bos: named("data.layout.padded.bos", bos)?,
        eos: named("data.layout.padded.eos", eos)?,
        pad: named("data.layout.padded.pad", pad)?,
    }))
}

/// Validation on what is trained on measures memory, a test on what checkpoints are chosen by measures luck: the same file, under
/// whatever name, is refused.
fn check_disjoint(known: &Located, other: &Located, why: &str) -> Result<(), DataError> {
    if known.documents != other.documents {
        return Ok(());
    }
    let shared = other.files.iter().find(|file| known.files.iter().any(|one| one.hash == file.hash));
    shared.map_or(Ok(()), |file| {
        let message = format!("{} is in {} too{why}", file.path.display(), known.origin.key());
        Err(DataError::setting(other.origin.key(), message))
    })
}

#[cfg(test)]
#[path = "prepare_tests.rs"]
mod tests;
