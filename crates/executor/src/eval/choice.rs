//! Multiple choice as HellaSwag is scored. `acc` picks the ending with the smallest summed loss, `acc_norm` the one with the smallest loss
//! per token of the ending, as in build-nanogpt, and `acc_norm_chars` the one with the smallest loss per character, which lm-eval calls
//! `acc_norm`.

use serde::Serialize;

use super::batches::{self, Batches};
use crate::error::ExecError;
use runner_spec::data::{ChoiceItem, CutPart, IGNORED_TARGET, Rows};
use runner_spec::measure::{Measure, Measured};
use runner_spec::program::EVAL_TOKENS_PER_FORWARD;

/// The number of items that were answered right.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChoiceScore {
    pub items: usize,
    pub right: usize,
    pub right_norm: usize,
    pub right_norm_chars: usize,
    /// Items that lost their beginning, because they are longer than the context.
    pub cut: usize,
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
    /// The ending with the smallest mean loss per token (`acc_norm`).
    pub choice_norm: Option<usize>,
    /// The ending with the smallest mean loss per character (`acc_norm_chars`).
    pub choice_norm_chars: Option<usize>,
    /// The summed loss of each ending's tokens, in nats.
    pub losses: Vec<f64>,
    /// The mean loss of each ending's tokens, in nats.
    pub mean_losses: Vec<f64>,
    /// The tokens of each ending that the loss counts.
    pub tokens: Vec<usize>,
    /// The characters of each ending, without the blank in front.
    pub characters: Vec<usize>,
    /// The tokens that were cut off in front of each ending, because they are beyond the context.
    pub cut: Vec<usize>,
    #[serde(skip)]
    pub cut_part: Option<CutPart>,
}

impl ScoredItem {
    /// Which choices are right, as a digit of [`EvaluatedRows::items`](runner_spec::event::EvaluatedRows).
    pub fn right_digit(&self) -> char {
        let choices = [self.choice, self.choice_norm, self.choice_norm_chars].into_iter().enumerate();
        let digit: u8 = choices.map(|(bit, choice)| u8::from(choice == Some(self.label)) << bit).sum();
        char::from(b'0' + digit)
    }
}

impl ChoiceScore {
    pub fn new(items: &[ScoredItem]) -> Self {
        let count = |choice: fn(&ScoredItem) -> Option<usize>| {
            items.iter().filter(|item| choice(item) == Some(item.label)).count()
        };
        Self {
            items: items.len(),
            right: count(|item| item.choice),
            right_norm: count(|item| item.choice_norm),
            right_norm_chars: count(|item| item.choice_norm_chars),
            cut: items.iter().filter(|item| item.cut_part.is_some()).count(),
        }
    }

    /// Adds all of it to `measured`, as the scores of the task `task`.
    pub fn add_to(&self, measured: &mut Measured, task: &str) {
        let share = |right: usize| Some(right as f64 / self.items.max(1) as f64);
        let scores = [
            share(self.right),
            share(self.right_norm),
            share(self.right_norm_chars),
            Some(self.items as f64),
            Some(self.cut as f64).filter(|cut| *cut > 0.0),
        ];
        for (measure, score) in Measure::all_of_task(task).zip(scores) {
            if let Some(score) = score {
                measured.set(measure, score);
            }
        }
    }
}

/// One context with one ending, as inputs and targets.
struct Candidate {
    inputs: Vec<u32>,
    targets: Vec<u32>,
}

impl Candidate {
    /// Only tokens of the ending are targets. What does not fit the context length is cut off between the prefix and the rest.
    fn new(items: &[ChoiceItem], item: usize, ending: usize, context_length: usize) -> Self {
        let item = &items[item];
        let ChoiceItem { context, endings, .. } = item;
        let (prefix, cut) = (item.prefix_within(context_length), item.cut(ending, context_length));
        let tokens: Vec<u32> = context.iter().chain(&endings[ending]).copied().collect();
        let mut inputs = [prefix, &tokens[cut..]].concat();
        let first_scored = prefix.len() + context.len().saturating_sub(cut);
        let targets = (1..inputs.len()).map(|i| if i >= first_scored { inputs[i] } else { IGNORED_TARGET }).collect();
        inputs.pop();
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
    pub fn scored_items(&self, values: &[f64]) -> Result<Vec<ScoredItem>, ExecError> {
        if !values.iter().all(|l| l.is_finite()) {
            return Err(ExecError::ResultNotFinite("multiple-choice loss"));
        }
        let score = |(index, item): (usize, &ChoiceItem)| {
            let losses = values[self.first[index]..][..item.endings.len()].to_vec();
            let tokens: Vec<usize> = (0..losses.len()).map(|e| self.candidate((index, e)).scored()).collect();
            let mean_losses: Vec<f64> = losses.iter().zip(&tokens).map(|(l, &n)| l / n.max(1) as f64).collect();
            // An ending without characters is never chosen, as in lm-eval.
            let per_character = |(loss, &n): (&f64, &usize)| if n == 0 { f64::INFINITY } else { loss / n as f64 };
            let character_losses: Vec<f64> = losses.iter().zip(&item.characters).map(per_character).collect();
            ScoredItem {
                index,
                label: item.label,
                cut_part: item.cut_part(self.context_length),
                cut: (0..losses.len()).map(|ending| item.cut(ending, self.context_length)).collect(),
                choice: smallest(&losses),
                choice_norm: smallest(&mean_losses),
                choice_norm_chars: smallest(&character_losses),
                losses,
                mean_losses,
                tokens,
                characters: item.characters.clone(),
            }
        };
        Ok(self.items.iter().enumerate().map(score).collect())
    }
}

impl Batches for ChoiceBatches<'_> {
    fn count(&self) -> usize {
        self.batches.len()
    }

    fn fill(&self, index: usize, out: &mut Rows) -> Result<(), ExecError> {
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

    fn record_losses(&self, index: usize, rows: &Rows, losses: &[f32], values: &mut [f64]) -> Result<(), ExecError> {
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
        item_after(&[], context, ending)
    }

    fn item_after(prefix: &[u32], context: &[u32], ending: &[u32]) -> Vec<ChoiceItem> {
        let (prefix, context, endings) = (prefix.to_vec(), context.to_vec(), vec![ending.to_vec()]);
        vec![ChoiceItem { prefix, context, endings, characters: vec![1], label: 0 }]
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
    fn a_prefix_stays_in_front() {
        let x = IGNORED_TARGET;
        let c = |prefix: &[u32], context_length| {
            let c = Candidate::new(&item_after(prefix, &[1, 2, 3], &[4, 5]), 0, 0, context_length);
            (c.inputs, c.targets)
        };
        assert_eq!(c(&[9], 16), (vec![9, 1, 2, 3, 4], vec![x, x, x, 4, 5]));
        assert_eq!(c(&[9], 4), (vec![9, 2, 3, 4], vec![x, x, 4, 5]));
        // The ending alone is longer than the context.
        assert_eq!(c(&[9], 2), (vec![9, 4], vec![4, 5]));
        assert_eq!(c(&[9], 1), (vec![4], vec![5]), "no room for the prefix");
        assert_eq!(c(&[], 1), (vec![4], vec![5]));
    }

    /// By hand: 6 nats of 3 tokens and 12 characters, 5 nats of 2 tokens and 5 characters, 8 nats of 8 tokens and 8 characters.
    #[test]
    fn the_three_choices_differ_in_what_they_divide_by() {
        let endings = [3, 2, 8].map(|n| vec![7; n]).to_vec();
        let item = ChoiceItem { context: vec![1], endings, characters: vec![12, 5, 8], ..ChoiceItem::default() };
        let items = [item];
        let batches = ChoiceBatches::new(&items, 16);
        let scored = batches.scored_items(&[6.0, 5.0, 8.0]).unwrap().remove(0);
        assert_eq!((scored.choice, scored.choice_norm, scored.choice_norm_chars), (Some(1), Some(2), Some(0)));
        assert_eq!(scored.right_digit(), '4', "the first ending is right");
        let score = ChoiceScore::new(&batches.scored_items(&[6.0, 5.0, 8.0]).unwrap());
        let mut measured = Measured::default();
        score.add_to(&mut measured, "quiz");
        let scores: Vec<(String, f64)> = measured.iter().map(|(m, value)| (m.key().into_owned(), value)).collect();
        let expected = [("quiz_acc", 0.0), ("quiz_acc_norm", 0.0), ("quiz_acc_norm_chars", 1.0), ("quiz_n", 1.0)];
        assert_eq!(scores, expected.map(|(key, value)| (key.to_owned(), value)));
        let empty = [ChoiceItem { characters: vec![0, 5, 8], ..items[0].clone() }];
        let scored = ChoiceBatches::new(&empty, 16).scored_items(&[0.0, 5.0, 8.0]).unwrap().remove(0);
        assert_eq!(scored.choice_norm_chars, Some(1), "an ending without characters");
    }

    /// lm-eval reads `(context + ending)[-(max_length + 1):][:-1]`.
    #[test]
    fn cut_items_are_counted() {
        let item = |context: usize, endings: &[usize]| ChoiceItem {
            context: vec![1; context],
            endings: endings.iter().map(|&tokens| vec![2; tokens]).collect(),
            characters: vec![1; endings.len()],
            ..ChoiceItem::default()
        };
        let items = [item(3, &[1, 2]), item(3, &[2, 3]), item(1, &[1, 4]), item(1, &[1, 5])];
        let batches = ChoiceBatches::new(&items, 4);
        let scored = batches.scored_items(&[1.0; 8]).unwrap();
        assert_eq!(scored.iter().map(|item| item.cut.clone()).collect::<Vec<_>>(), [[0, 0], [0, 1], [0, 0], [0, 1]]);
        assert_eq!(
            scored.iter().map(|item| item.tokens[1]).collect::<Vec<_>>(),
            [2, 3, 4, 4],
            "of five, the last four"
        );
        let score = ChoiceScore::new(&scored);
        assert_eq!((score.items, score.cut), (4, 2));
        // After a prefix all of an ending is predicted.
        let after = ChoiceItem { prefix: vec![9], ..item(1, &[4]) };
        assert_eq!((after.cut(0, 4), after.cut_part(4)), (1, Some(CutPart::Context)));
        assert_eq!(Candidate::new(&[after], 0, 0, 4).targets, [2; 4]);
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
