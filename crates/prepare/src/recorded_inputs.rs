//! The inputs that a run recorded, which stand for the files that it began with.

use std::path::Path;

use runner_compare::stored_plan;
use runner_data::TextTokenizer;
use runner_record::run_dir::TOKENIZER;
use runner_spec::data::DataFacts;
use runner_spec::experiment::Experiment;

use runner_spec::error::Result;

/// The inputs that a run with a checkpoint recorded. With them, training goes on without the weights that the run started from, and
/// without the files of its tokenizer.
#[derive(Debug, Clone)]
pub struct RecordedInputs {
    pub facts: DataFacts,
    /// `None` if the tokenizer that the experiment names is read: its files are there, it differs from the run's, or the run kept no copy.
    pub tokenizer: Option<TextTokenizer>,
    /// True if the experiment names the weights that the run started from, which a checkpoint replaces.
    pub has_same_weights: bool,
}

impl RecordedInputs {
    /// Reads the inputs that the run in `path` recorded. `theirs` is that run's experiment; `experiment` begins with the run's checkpoint.
    ///
    /// # Errors
    /// If the run's plan is missing or damaged, or its tokenizer is needed and damaged.
    pub fn read(path: &Path, theirs: &Experiment, experiment: &Experiment) -> Result<Self> {
        let facts = stored_plan::data_facts(path)?;
        let has_same_tokenizer = theirs.data.tokenizer == experiment.data.tokenizer;
        let tokenizer = if has_same_tokenizer { recorded_tokenizer(experiment, &facts, path)? } else { None };
        Ok(Self { facts, tokenizer, has_same_weights: theirs.model.init == experiment.model.init })
    }

    /// The inputs of the run in `path`, whose experiment is `experiment` and whose data has the `facts`.
    ///
    /// # Errors
    /// If its tokenizer is needed and damaged.
    pub fn new(facts: DataFacts, path: &Path, experiment: &Experiment) -> Result<Self> {
        Ok(Self { tokenizer: recorded_tokenizer(experiment, &facts, path)?, facts, has_same_weights: true })
    }
}

/// The tokenizer that the run in `path`, with the data `facts`, keeps; `None` if the one that `experiment` names can be read in its place.
///
/// # Errors
/// If it is needed and damaged.
pub fn recorded_tokenizer(experiment: &Experiment, facts: &DataFacts, path: &Path) -> Result<Option<TextTokenizer>> {
    let (named, hash) = (&experiment.data.tokenizer, &facts.tokenizer_hash);
    Ok(TextTokenizer::read_recorded_for(named, &path.join(TOKENIZER), hash)?)
}
