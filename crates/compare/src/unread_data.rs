//! Facts of data that was not read: data counts as the same if the settings that name it are equal.

use std::collections::BTreeMap;

use serde_json::Value;

use super::settings::{document, value_at};
use runner_spec::data::{ChoiceFacts, Clipped, DataFacts, SplitFacts, WeightsFacts};
use runner_spec::experiment::{Experiment, Task, Tokenizer, Validation, WeightInit, task_key};

/// The number of items of a task whose file is not read.
const ASSUMED_ITEMS: usize = 10_042;

/// Facts of `experiment`'s data without reading it, with `rows` training rows. A tokenizer whose vocabulary depends on the text gets the
/// vocabulary of the model.
#[must_use]
pub fn assume_data(experiment: &Experiment, rows: u64) -> DataFacts {
    let hash =
        |parts: &[Value]| format!("by name {}", blake3::hash(Value::from(parts).to_string().as_bytes()).to_hex());
    assume_data_hashed(experiment, rows, hash)
}

/// [`assume_data`] with `hash` for the hashes: it gets the settings that name what is hashed.
#[must_use]
pub fn assume_data_hashed(experiment: &Experiment, rows: u64, hash: impl Fn(&[Value]) -> String) -> DataFacts {
    let document = document(experiment);
    let data = |key: &str| value_at(&document, "data").and_then(|data| data.get(key)).cloned().unwrap_or_default();
    let (tokenizer, train, mut layout) = (data("tokenizer"), data("train"), data("layout"));
    // The attention mask does not change the rows.
    if let Some(padded) = layout.get_mut("padded").and_then(Value::as_object_mut) {
        padded.remove("mask");
    }
    let (known, given) = (known_vocabulary(&experiment.data.tokenizer), experiment.model.vocab_size);
    let tokenizer_vocab = known.into_iter().chain(given).min().unwrap_or(256);
    let length = experiment.data.layout.length();
    let split = |rows: u64, hash: String| SplitFacts {
        rows,
        tokens: rows.saturating_mul(length as u64),
        documents: 0,
        clipped: Clipped::default(),
        hash,
        text: None,
        overlaps: Vec::new(),
    };
    let part = match &experiment.data.validation {
        Some(Validation::Fraction(part)) => Some(*part),
        _ => None,
    };
    let of = [train, tokenizer.clone(), layout.clone(), part.into()];
    let validation = experiment.data.validation.as_ref().map(|_| {
        let rows = part.map_or(rows / 10, |part| (rows as f64 * part) as u64).max(1);
        split(rows, hash(&[data("validation"), of[0].clone(), tokenizer.clone(), layout.clone()]))
    });
    let test = experiment.eval.test.as_ref().map(|_| {
        let of = [value_at(&document, "eval.test").cloned().unwrap_or_default(), tokenizer.clone(), layout.clone()];
        split((rows / 10).max(1), hash(&of))
    });
    let facts = |name: &str, task: &Task| ChoiceFacts {
        items: task.limit.unwrap_or(ASSUMED_ITEMS),
        hash: hash(&[value_at(&document, &task_key(name)).cloned().unwrap_or_default(), tokenizer.clone()]),
    };
    let tasks: BTreeMap<String, ChoiceFacts> =
        experiment.eval.tasks().map(|(name, task)| (name.to_owned(), facts(name, task))).collect();
    let all_items = match &tasks.values().collect::<Vec<_>>()[..] {
        [] => None,
        [only] => Some((*only).clone()),
        all => {
            let hashes: Vec<Value> = all.iter().map(|facts| facts.hash.clone().into()).collect();
            Some(ChoiceFacts { items: all.iter().map(|facts| facts.items).sum(), hash: hash(&hashes) })
        }
    };
    DataFacts {
        tokenizer_vocab,
        // These tokenizers depend on the text.
        tokenizer_hash: match &experiment.data.tokenizer {
            Tokenizer::Bpe { .. } | Tokenizer::Chars {} | Tokenizer::Words { .. } => hash(&of[..2]),
            _ => hash(&[tokenizer]),
        },
        train: split(rows, hash(&of)),
        validation,
        test,
        choice: None,
        tasks: BTreeMap::new(),
        weights: match &experiment.model.init {
            Some(WeightInit::From(source)) => Some(WeightsFacts {
                hash: hash(&[source.to_string().into()]),
                vocab_size: given.unwrap_or(tokenizer_vocab),
            }),
            _ => None,
        },
        joins_documents: false,
    }
    .with_tasks(tasks, all_items)
}

/// The number of tokens of `tokenizer`, if it is known without reading its files or the text.
#[must_use]
pub fn known_vocabulary(tokenizer: &Tokenizer) -> Option<usize> {
    match tokenizer {
        Tokenizer::Bytes {} => Some(257),
        Tokenizer::Bpe { vocab_size, .. } => Some(*vocab_size),
        Tokenizer::Gpt2 { .. } => Some(50_257),
        Tokenizer::File(_) | Tokenizer::Chars {} | Tokenizer::Words { .. } | Tokenizer::Ids {} | Tokenizer::Hub(_) => {
            None
        }
    }
}

/// A number of rows that is enough for all `experiments`.
#[must_use]
pub fn sufficient_rows(experiments: &[&Experiment]) -> u64 {
    let largest = experiments.iter().map(|e| e.batch.sequences as u64).max().unwrap_or(1);
    largest.saturating_mul(1_000).max(1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_plan::testing::experiment;
    use runner_spec::optimizer::{Optimizer, Sgd};

    #[test]
    fn facts_differ_where_the_settings_name_something_else() {
        let base = experiment();
        let facts = assume_data(&base, 500);
        assert_eq!((facts.train.rows, facts.train.tokens, facts.tokenizer_vocab), (500, 4000, 257));
        assert_eq!(facts.validation.as_ref().unwrap().rows, 50);
        let mut other = base.clone();
        other.data.train = runner_spec::experiment::Source::Text { files: vec!["/data/other.txt".into()] };
        let changed = assume_data(&other, 500);
        assert_ne!(changed.train.hash, facts.train.hash);
        assert_eq!(changed.tokenizer_hash, facts.tokenizer_hash, "bytes are bytes");
        let mut other = base.clone();
        other.optimizer = Optimizer::Sgd(Sgd { lr: 1.0, momentum: 0.0 });
        assert_eq!(assume_data(&other, 500), facts);
    }
}
