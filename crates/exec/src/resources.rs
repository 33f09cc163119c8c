//! The data of a rank.

use runner_data::{Dataset, ModelTokenizer, Prepared};
use runner_spec::data::ChoiceItem;

/// The data that a rank works with besides its program.
#[derive(Debug, Clone, Copy)]
pub struct Resources<'a> {
    pub dataset: &'a Dataset,
    pub tokenizer: &'a ModelTokenizer,
    /// Items of the multiple-choice evaluation, where there is one.
    pub choice: Option<&'a [ChoiceItem]>,
}

impl<'a> From<&'a Prepared> for Resources<'a> {
    fn from(prepared: &'a Prepared) -> Self {
        let Prepared { dataset, tokenizer, choice, .. } = prepared;
        Self { dataset, tokenizer, choice: choice.as_deref() }
    }
}
