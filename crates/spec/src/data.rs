//! Prepared data: facts for the planner, rows for the executor.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::experiment::HELLASWAG;
use crate::format::{count, counted, percent};
use crate::serde_defaults::is_default;

/// The facts about prepared data that a plan depends on. They are part of the plan and of its hash.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataFacts {
    /// Ids the tokenizer can produce.
    pub tokenizer_vocab: usize,
    /// Content hash of the tokenizer.
    pub tokenizer_hash: String,
    pub train: SplitFacts,
    pub validation: Option<SplitFacts>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test: Option<SplitFacts>,
    /// The items of all tasks (after `limit`) and their content hash.
    pub choice: Option<ChoiceFacts>,
    /// The items of each task, unless `hellaswag` is the only one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tasks: BTreeMap<String, ChoiceFacts>,
    /// The weights that training starts from, if they are not drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<WeightsFacts>,
    /// True if the layout puts a token between documents, and the tokenizer has none for that. It is not part of plan hashes.
    #[serde(default, skip_serializing_if = "is_default")]
    pub joins_documents: bool,
}

/// The number of the rule by which this version reads text for evaluations, samples and tokenizers. It grows when the same text gives other
/// tokens. Sessions record it.
///
/// Rule 2: a context and its ending are encoded together, a text begins as padded rows of training do, and the end of text that the files
/// next to a `tokenizer.json` name counts.
pub const TEXT_READING_RULE: u32 = 2;

/// In place of the hash of data that was not read, whose facts are assumed.
pub const ASSUMED_HASH: &str = "assumed";

/// The warning about [`DataFacts::joins_documents`].
pub const NO_SEPARATOR_WARNING: &str = "the tokenizer has no end-of-text token, so nothing separates the documents; add `<|endoftext|>` to `special_tokens` \
                                if runner trains the tokenizer, name one as `eos_token` in a tokenizer_config.json beside its \
                                tokenizer.json, or choose a tokenizer that has one";

/// A part of the data of a run, which has a content hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataPart {
    Tokenizer,
    Train,
    Validation,
    Test,
    Choice,
    Weights,
}

impl DataPart {
    /// All parts, in the order in which they are listed.
    pub const ALL: [Self; 6] =
        [Self::Tokenizer, Self::Train, Self::Validation, Self::Test, Self::Choice, Self::Weights];

    /// The name in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tokenizer => "tokenizer",
            Self::Train => "training data",
            Self::Validation => "validation data",
            Self::Test => "test data",
            Self::Choice => "multiple choice",
            Self::Weights => "initial weights",
        }
    }
}

/// A file from which a run read data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataFile {
    pub part: DataPart,
    pub path: PathBuf,
    pub bytes: u64,
    /// BLAKE3 of its content.
    pub hash: String,
}

impl DataFacts {
    /// The content hash of `part`; `None` if the run has no such part.
    #[must_use]
    pub fn hash_of(&self, part: DataPart) -> Option<&str> {
        match part {
            DataPart::Tokenizer => Some(&self.tokenizer_hash),
            DataPart::Choice => self.choice.as_ref().map(|choice| choice.hash.as_str()),
            DataPart::Weights => self.weights.as_ref().map(|weights| weights.hash.as_str()),
            DataPart::Train | DataPart::Validation | DataPart::Test => {
                self.split(part).map(|split| split.hash.as_str())
            }
        }
    }

    /// The facts with `tasks`, all of whose items are `all`.
    #[must_use]
    pub fn with_tasks(self, tasks: BTreeMap<String, ChoiceFacts>, all: Option<ChoiceFacts>) -> Self {
        let tasks = if tasks.keys().eq([HELLASWAG]) { BTreeMap::new() } else { tasks };
        Self { choice: all, tasks, ..self }
    }

    /// The items of the task `name`.
    #[must_use]
    pub fn task(&self, name: &str) -> Option<&ChoiceFacts> {
        match &self.choice {
            Some(choice) if self.tasks.is_empty() => (name == HELLASWAG).then_some(choice),
            _ => self.tasks.get(name),
        }
    }

    /// The warnings about text of evaluated splits that was read before the evaluation.
    #[must_use]
    pub fn overlap_warnings(&self) -> Vec<String> {
        let overlaps = |part: &DataPart| self.split(*part).map_or(&[][..], |split| &split.overlaps);
        DataPart::ALL
            .iter()
            .flat_map(|part| overlaps(part).iter().filter_map(|overlap| overlap.warning(*part)))
            .collect()
    }

    /// The split that `part` is; `None` if the run has none, or the part is something else.
    #[must_use]
    pub fn split(&self, part: DataPart) -> Option<&SplitFacts> {
        match part {
            DataPart::Train => Some(&self.train),
            DataPart::Validation => self.validation.as_ref(),
            DataPart::Test => self.test.as_ref(),
            DataPart::Tokenizer | DataPart::Choice | DataPart::Weights => None,
        }
    }
}

/// The facts about initial weights that a plan depends on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightsFacts {
    /// Content hash of the files that hold them.
    pub hash: String,
    /// Rows of their embedding; further ones are drawn.
    pub vocab_size: usize,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SplitFacts {
    /// Rows that training or evaluation can read.
    pub rows: u64,
    /// Tokens in the source.
    pub tokens: u64,
    pub documents: u64,
    /// What padded rows leave out of these tokens. It follows from `hash`, and is not part of plan hashes.
    #[serde(default, skip_serializing_if = "is_default")]
    pub clipped: Clipped,
    /// Content hash of source, tokenizer and layout.
    pub hash: String,
    /// The text that the rows of validation and test data were made of; `None` if its bytes cannot be computed from the tokens.
    /// It is not part of plan hashes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<SplitText>,
    /// How much of the text occurs in the splits that were read before an evaluation. It is not part of plan hashes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overlaps: Vec<TextOverlap>,
}

/// `clipped`, `text` and `overlaps` follow from `hash`.
impl PartialEq for SplitFacts {
    fn eq(&self, other: &Self) -> bool {
        let Self { rows, tokens, documents, hash, clipped: _, text: _, overlaps: _ } = self;
        (rows, tokens, documents, hash) == (&other.rows, &other.tokens, &other.documents, &other.hash)
    }
}

/// What padded rows leave out of documents that are longer than a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clipped {
    pub documents: u64,
    pub tokens: u64,
}

impl Clipped {
    /// The note about `what`, whose rows have `length` tokens, and which has these documents and tokens; `None` if no document is clipped.
    #[must_use]
    pub fn note(self, what: &str, length: usize, documents: u64, tokens: u64) -> Option<String> {
        (self.documents > 0).then(|| {
            format!(
                "{what}: rows of {length} tokens clip {} of {}, so {} of {} are never read",
                count(self.documents),
                counted(documents, "document"),
                count(self.tokens),
                counted(tokens, "token"),
            )
        })
    }
}

/// The text that an evaluated split shares with a split that was read before, found by windows at even distances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextOverlap {
    /// The other split.
    pub with: DataPart,
    /// Tokens of a window. A shorter document is a window, too.
    pub window_tokens: u64,
    /// The windows that were looked up, and those that occur in the other split.
    pub windows: u64,
    pub found: u64,
    /// The windows that were drawn from the other split, and those that occur in it more than once.
    pub drawn: u64,
    pub repeated: u64,
}

impl TextOverlap {
    /// The largest share of windows that may occur in both, above the share that recurs within the other split: quotations and licences recur
    /// in separate texts.
    const TOLERATED_EXCESS: f64 = 0.02;
    /// The largest share that may occur in both however much the other split repeats, as text that is made of templates does.
    const TOLERATED: f64 = 0.1;

    /// The share of windows that occur in the other split.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.found as f64 / self.windows.max(1) as f64
    }

    /// What the overlap means for a loss on the split `part`; `None` if it is tolerable.
    #[must_use]
    pub fn warning(&self, part: DataPart) -> Option<String> {
        let Self { with, window_tokens, windows, found, drawn, repeated } = *self;
        let again = repeated as f64 / drawn.max(1) as f64;
        if self.share() <= Self::TOLERATED && self.share() - again <= Self::TOLERATED_EXCESS {
            return None;
        }
        let what = match with {
            DataPart::Validation => "so a test loss also depends on the choice of the best checkpoint",
            _ => "so a loss on it also measures memorization",
        };
        let advice = if again > Self::TOLERATED_EXCESS {
            format!("the {} itself repeats {} of such windows", with.name(), percent(again))
        } else {
            "hold out different text".to_owned()
        };
        Some(format!(
            "{}: {} of {} of {window_tokens} tokens also occur in the {} ({}), {what}; {advice}",
            part.name(),
            count(found),
            counted(windows, "window"),
            with.name(),
            percent(self.share()),
        ))
    }
}

/// The text that a split was made of, whatever the tokenizer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitText {
    /// Hash of the source's content and of the part of it that is held out.
    pub hash: String,
    /// Bytes of UTF-8 that the predicted tokens of all rows stand for.
    pub bytes: u64,
    /// True if the text is the end of a source, cut after a number of tokens: another tokenizer cuts it elsewhere.
    #[serde(default, skip_serializing_if = "is_default")]
    pub is_cut_by_tokens: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChoiceFacts {
    pub items: usize,
    pub hash: String,
}

/// Rows of inputs and targets, `length` each, row after row. A target is the token after its input, or `IGNORED_TARGET`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rows {
    pub length: usize,
    pub inputs: Vec<u32>,
    pub targets: Vec<u32>,
    /// The number of inputs before the padding, for each row. Empty if no row has padding.
    pub filled: Vec<usize>,
}

impl Rows {
    /// The number of rows.
    pub fn count(&self) -> usize {
        self.inputs.len().checked_div(self.length).unwrap_or(0)
    }

    /// Replaces each row, which has no padding, by its piece of `length` tokens with the number in `pieces`.
    pub fn keep_pieces(&mut self, length: usize, pieces: impl Iterator<Item = usize>) {
        let starts: Vec<usize> = pieces.enumerate().map(|(row, piece)| row * self.length + piece * length).collect();
        let cut = |tokens: &[u32]| starts.iter().flat_map(|start| &tokens[*start..start + length]).copied().collect();
        (self.inputs, self.targets) = (cut(&self.inputs), cut(&self.targets));
        self.length = length;
    }

    /// Targets that the loss counts.
    pub fn valid(&self) -> u64 {
        self.targets.iter().filter(|&&t| t != IGNORED_TARGET).count() as u64
    }
}

/// One multiple-choice item, as token ids.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChoiceItem {
    /// The tokens in front of the context, which stay where the beginning of a long context is cut off.
    pub prefix: Vec<u32>,
    pub context: Vec<u32>,
    /// The tokens of each ending after the context, with the blank between them.
    pub endings: Vec<Vec<u32>>,
    /// The characters of each ending, without the blank in front.
    pub characters: Vec<usize>,
    pub label: usize,
}

/// The items of each task, by its name.
pub type TaskItems = Vec<(String, Vec<ChoiceItem>)>;

/// A part of a multiple-choice item that is cut off, because the item is longer than the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutPart {
    /// The beginning of its context.
    Context,
    /// Its context, and the beginning of an ending.
    Ending,
}

impl ChoiceItem {
    /// The tokens in front of a text for a model of this context length, which needs room for a token after them.
    #[must_use]
    pub fn prefix_within(&self, context_length: usize) -> &[u32] {
        if self.prefix.len() < context_length { &self.prefix } else { &[] }
    }

    /// The number of tokens at the beginning of the context and the ending `ending` that such a model does not read. The last token of the
    /// ending is predicted, and not read.
    #[must_use]
    pub fn cut(&self, ending: usize, context_length: usize) -> usize {
        let tokens = self.context.len() + self.endings[ending].len();
        tokens.saturating_sub(context_length + 1 - self.prefix_within(context_length).len())
    }

    /// The part of the item that such a model does not read.
    #[must_use]
    pub fn cut_part(&self, context_length: usize) -> Option<CutPart> {
        let cut = (0..self.endings.len()).map(|ending| self.cut(ending, context_length)).max().unwrap_or(0);
        // A token is predicted from those before it, so nothing predicts the first.
        let unpredicted = usize::from(self.prefix_within(context_length).is_empty());
        match cut {
            0 => None,
            _ if cut + unpredicted > self.context.len() => Some(CutPart::Ending),
            _ => Some(CutPart::Context),
        }
    }
}

/// A target that the loss ignores (padding).
pub const IGNORED_TARGET: u32 = u32::MAX;

/// The files of a tokenizer that `transformers` reads, and the special tokens of its model.
#[derive(Debug, Clone, PartialEq)]
pub struct HfTokenizer {
    /// The content of the files.
    pub tokenizer: String,
    pub config: String,
    pub special: SpecialTokens,
}

/// Ids of special tokens, if the tokenizer has them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub pad: Option<u32>,
}
