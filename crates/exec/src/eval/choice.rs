//! Multiple choice as HellaSwag is scored in build-nanogpt: `acc` picks the ending with the smallest summed loss, `acc_norm`
//! the one with the smallest mean loss per ending token.

use serde::Serialize;

use super::EvalError;
use super::batches::{self, Batches};
use runner_spec::data::{ChoiceItem, IGNORED_TARGET, Rows};
use runner_spec::program::EVAL_TOKENS_PER_FORWARD;

/// The number of items that were answered right.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChoiceScore {
    pub items: usize,
    pub right: usize,
    pub right_norm: usize,
}

/// The result of one item. An ending is named by its position.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScoredItem {
    /// The position of the item, from 0.
    pub index: usize,
    /// The right ending.
    pub label: usize,
    /// The ending with the smallest summed loss (`acc`).
    pub choice: Option<usize>,
    /// The ending with the smallest mean loss (`acc_norm`).
    pub choice_norm: Option<usize>,
    /// The summed loss of each ending's tokens, in nats.
    pub losses: Vec<f64>,
    /// The mean loss of each ending's tokens, in nats.
    pub mean_losses: Vec<f64>,
    /// The tokens of each ending that the loss counts.
    pub tokens: Vec<usize>,
}

impl ChoiceScore {
    pub fn new(items: &[ScoredItem]) -> Self {
        let count = |choice: fn(&ScoredItem) -> Option<usize>| {
            items.iter().filter(|item| choice(item) == Some(item.label)).count()
        };
        Self { items: items.len(), right: count(|item| item.choice), right_norm: count(|item| item.choice_norm) }
    }

    pub fn acc(&self) -> f64 {
        self.right as f64 / self.items.max(1) as f64
    }

    pub fn acc_norm(&self) -> f64 {
        self.right_norm as f64 / self.items.max(1) as f64
    }
}

/// One context with one ending, as inputs and targets.
struct Candidate {
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
        let targets = (from + 1..tokens.len())
            .map(|i| if i >= choice.context.len() { tokens[i] } else { IGNORED_TARGET })
            .collect();
        Self { inputs, targets }
    }

    /// Tokens that its loss sums.
    fn scored(&self) -> usize {
        self.targets.iter().filter(|&&t| t != IGNORED_TARGET).count()
    }
}

/// Candidates of similar length, in batches of at most `EVAL_TOKENS_PER_FORWARD` tokens. The batches are the same for every number of
/// replicas. The summed loss of each candidate is recorded.
#[derive(Debug, Clone)]
pub struct ChoiceBatches<'a> {
    items: &'a [ChoiceItem],
    context_length: usize,
    /// (item, ending) of each row.
    batches: Vec<Vec<(usize, usize)>>,
    /// The number of endings of all items before each item, and last of all items.
    first: Vec<usize>,
}

impl<'a> ChoiceBatches<'a> {
    pub fn new(items: &'a [ChoiceItem], context_length: usize) -> Self {
        let mut candidates: Vec<(usize, usize, usize)> = (0..items.len())
            .flat_map(|i| (0..items[i].endings.len()).map(move |e| (i, e)))
            .map(|(i, e)| (Candidate::new(items, i, e, context_length).inputs.len(), i, e))
            .collect();
        candidates.sort_by_key(|&(length, ..)| length);
        // A candidate without inputs predicts nothing.
        let mut rest = &candidates[candidates.partition_point(|&(length, ..)| length == 0)..];
        let mut batches = Vec::new();
        while !rest.is_empty() {
            // Sorted, so the last of a batch is its longest.
            let fits = |n: &usize| n * rest[n - 1].0 <= EVAL_TOKENS_PER_FORWARD;
            let count = (1..=rest.len()).take_while(fits).last().unwrap_or(1);
            let (batch, others) = rest.split_at(count);
            batches.push(batch.iter().map(|&(_, item, ending)| (item, ending)).collect());
            rest = others;
        }
        let mut first = vec![0];
        for item in items {
            first.push(first[first.len() - 1] + item.endings.len());
        }
        Self { items, context_length, batches, first }
    }

    fn candidate(&self, (item, ending): (usize, usize)) -> Candidate {
        Candidate::new(self.items, item, ending, self.context_length)
    }

    /// The items with their losses and choices, in order, when all batches are recorded in `values`.
    ///
    /// # Errors
    /// If a loss is not finite: then any ending could count as the one with the smallest loss.
    pub fn scored_items(&self, values: &[f64]) -> Result<Vec<ScoredItem>, EvalError> {
        if !values.iter().all(|l| l.is_finite()) {
            return Err(EvalError::NotFinite("multiple-choice loss"));
        }
        let score = |(index, item): (usize, &ChoiceItem)| {
            let losses = values[self.first[index]..][..item.endings.len()].to_vec();
            let tokens: Vec<usize> = (0..losses.len()).map(|e| self.candidate((index, e)).scored()).collect();
            let mean_losses: Vec<f64> = losses.iter().zip(&tokens).map(|(l, &n)| l / n.max(1) as f64).collect();
            let (choice, choice_norm) = (smallest(&losses), smallest(&mean_losses));
            ScoredItem { index, label: item.label, choice, choice_norm, losses, mean_losses, tokens }
        };
        Ok(self.items.iter().enumerate().map(score).collect())
    }

    /// The score, when all batches are recorded in `values`.
    ///
    /// # Errors
    /// Those of [`ChoiceBatches::scored_items`].
    pub fn finish(&self, values: &[f64]) -> Result<ChoiceScore, EvalError> {
        Ok(ChoiceScore::new(&self.scored_items(values)?))
    }
}

impl Batches for ChoiceBatches<'_> {
    fn count(&self) -> usize {
        self.batches.len()
    }

    fn fill(&self, index: usize, out: &mut Rows) -> Result<(), EvalError> {
        let rows: Vec<Candidate> = self.batches[index].iter().map(|&c| self.candidate(c)).collect();
        let length = rows.last().map_or(0, |c| c.inputs.len());
        let (mut inputs, mut targets) = (vec![0; rows.len() * length], vec![IGNORED_TARGET; rows.len() * length]);
        for (row, c) in rows.iter().enumerate() {
            inputs[row * length..][..c.inputs.len()].copy_from_slice(&c.inputs);
            targets[row * length..][..c.targets.len()].copy_from_slice(&c.targets);
        }
        *out = Rows { length, inputs, targets, filled: Vec::new() };
        Ok(())
    }

    fn value_count(&self) -> usize {
        self.first[self.items.len()]
    }

    fn record_losses(&self, index: usize, rows: &Rows, losses: &[f32], values: &mut [f64]) -> Result<(), EvalError> {
        batches::check_losses(rows, losses)?;
        for (&(item, ending), losses) in self.batches[index].iter().zip(losses.chunks_exact(rows.length)) {
            values[self.first[item] + ending] = losses.iter().copied().map(f64::from).sum();
        }
        Ok(())
    }
}

/// The index of the smallest value; the first of equals, none if there are no values.
fn smallest(values: &[f64]) -> Option<usize> {
    values.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1)).map(|(i, _)| i)
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
        assert_eq!(c.targets, [IGNORED_TARGET, IGNORED_TARGET, 4, 5]);
    }

    #[test]
    fn a_long_context_loses_its_front() {
        let c = Candidate::new(&item(&[1, 2, 3, 4], &[5, 6]), 0, 0, 3);
        assert_eq!(c.inputs, [3, 4, 5]);
        assert_eq!(c.targets, [IGNORED_TARGET, 5, 6]);
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
        assert_eq!(smallest(&[2.0, 1.0, 1.0]), Some(1));
        assert_eq!(smallest(&[]), None);
    }
}
