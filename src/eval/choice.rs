//! Multiple choice as HellaSwag is scored in build-nanogpt: `acc` picks the ending with the smallest summed loss, `acc_norm`
//! the one with the smallest mean loss per ending token.

use super::EvalError;
use crate::data::{ChoiceItem, IGNORE};
use crate::model::{Model, Params};

/// Tokens in one forward, padding included.
pub const BATCH_TOKENS: usize = 4096;

/// How many items were right.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChoiceScore {
    pub items: usize,
    pub right: usize,
    pub right_norm: usize,
}

impl ChoiceScore {
    #[must_use]
    pub fn acc(&self) -> f64 {
        self.right as f64 / self.items.max(1) as f64
    }

    #[must_use]
    pub fn acc_norm(&self) -> f64 {
        self.right_norm as f64 / self.items.max(1) as f64
    }
}

/// One context with one ending, as inputs and targets.
struct Candidate {
    item: usize,
    ending: usize,
    inputs: Vec<u32>,
    targets: Vec<u32>,
}

impl Candidate {
    /// Only tokens of the ending are targets. What does not fit the context length is cut off at the front.
    fn new(items: &[ChoiceItem], item: usize, ending: usize, context_length: usize) -> Self {
        let choice = &items[item];
        let tokens: Vec<u32> = choice.context.iter().chain(&choice.endings[ending]).copied().collect();
        let from = tokens.len().saturating_sub(context_length + 1);
        let last = tokens.len().saturating_sub(1);
        let inputs = tokens[from.min(last)..last].to_vec();
        let targets =
            (from + 1..tokens.len()).map(|i| if i >= choice.context.len() { tokens[i] } else { IGNORE }).collect();
        Self { item, ending, inputs, targets }
    }
}

/// Scores `items`; candidates of like length share a forward.
///
/// # Errors
/// If an id is beyond the vocabulary.
pub fn score(model: &Model, params: &Params, items: &[ChoiceItem]) -> Result<ChoiceScore, EvalError> {
    let losses = ending_losses(model, params, items)?;
    // Anything can be the smallest among numbers that are none.
    if !losses.iter().flatten().all(|l| l.0.is_finite()) {
        return Err(EvalError::NotFinite("multiple-choice loss"));
    }
    let mut score = ChoiceScore { items: items.len(), ..ChoiceScore::default() };
    for (item, losses) in items.iter().zip(&losses) {
        score.right += usize::from(smallest(losses.iter().map(|l| l.0)) == Some(item.label));
        score.right_norm += usize::from(smallest(losses.iter().map(|l| l.0 / l.1.max(1.0))) == Some(item.label));
    }
    Ok(score)
}

/// Per item and ending: the summed loss and the number of tokens it sums.
fn ending_losses(model: &Model, params: &Params, items: &[ChoiceItem]) -> Result<Vec<Vec<(f64, f64)>>, EvalError> {
    let context_length = model.spec.context_length;
    let mut candidates: Vec<Candidate> = (0..items.len())
        .flat_map(|i| (0..items[i].endings.len()).map(move |e| (i, e)))
        .map(|(i, e)| Candidate::new(items, i, e, context_length))
        .collect();
    candidates.sort_by_key(|c| c.inputs.len());
    let mut losses: Vec<Vec<(f64, f64)>> = items.iter().map(|i| vec![(0.0, 0.0); i.endings.len()]).collect();
    let mut rest = candidates.as_slice();
    while !rest.is_empty() {
        // Sorted, so the last of a batch is its longest.
        let fits = |n: &usize| n * rest[n - 1].inputs.len().max(1) <= BATCH_TOKENS;
        let count = (1..=rest.len()).take_while(fits).last().unwrap_or(1);
        let (batch, others) = rest.split_at(count);
        rest = others;
        let length = batch[count - 1].inputs.len();
        if length == 0 {
            continue;
        }
        let (mut inputs, mut targets) = (vec![0; count * length], vec![IGNORE; count * length]);
        for (row, c) in batch.iter().enumerate() {
            inputs[row * length..][..c.inputs.len()].copy_from_slice(&c.inputs);
            targets[row * length..][..c.targets.len()].copy_from_slice(&c.targets);
        }
        let mb = model.micro_batch(&inputs, targets, length)?;
        let tokens = model.losses(params, &mb)?;
        for (row, c) in batch.iter().enumerate() {
            let sum: f64 = tokens[row * length..][..c.inputs.len()].iter().copied().map(f64::from).sum();
            let n = c.targets.iter().filter(|&&t| t != IGNORE).count();
            losses[c.item][c.ending] = (sum, n as f64);
        }
    }
    Ok(losses)
}

/// The index of the smallest value; the first of equals, none if there are no values.
fn smallest(values: impl Iterator<Item = f64>) -> Option<usize> {
    values.enumerate().min_by(|a, b| a.1.total_cmp(&b.1)).map(|(i, _)| i)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(context: &[u32], ending: &[u32]) -> Vec<ChoiceItem> {
        vec![ChoiceItem { context: context.to_vec(), endings: vec![ending.to_vec()], label: 0 }]
    }

    #[test]
    fn only_the_ending_is_scored() {
        let c = Candidate::new(&item(&[1, 2, 3], &[4, 5]), 0, 0, 16);
        assert_eq!(c.inputs, [1, 2, 3, 4]);
        assert_eq!(c.targets, [IGNORE, IGNORE, 4, 5]);
    }

    #[test]
    fn a_long_context_loses_its_front() {
        let c = Candidate::new(&item(&[1, 2, 3, 4], &[5, 6]), 0, 0, 3);
        assert_eq!(c.inputs, [3, 4, 5]);
        assert_eq!(c.targets, [IGNORE, 5, 6]);
    }

    #[test]
    fn degenerate_items_do_not_panic() {
        let c = Candidate::new(&item(&[], &[7]), 0, 0, 4);
        assert!(c.inputs.is_empty() && c.targets.is_empty());
        let c = Candidate::new(&item(&[], &[]), 0, 0, 4);
        assert!(c.inputs.is_empty() && c.targets.is_empty());
    }

    #[test]
    fn the_first_of_equals_is_smallest() {
        assert_eq!(smallest([2.0, 1.0, 1.0].into_iter()), Some(1));
        assert_eq!(smallest([].into_iter()), None);
    }
}
