//! The judgement whether measurements of two runs compare: a mean loss per token compares only over the same tokens, and bits per byte
//! only over the same text.

use runner_spec::data::{DataFacts, SplitFacts, SplitText};
use runner_spec::format::{count, counted};
use runner_spec::measure::Quantity;
use runner_spec::plan::Plan;

/// Texts whose lengths differ by at most this share count as the same: the tokens at the end that fill no whole row are left out, and
/// how many these are depends on the tokenizer.
const MAX_TEXT_DIFFERENCE: f64 = 0.01;

/// The data that a run's measurements were taken over.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasurementBasis {
    data: DataFacts,
    /// The number of validation rows that an evaluation reads.
    rows_read: Option<u64>,
    /// The number of test rows that are read.
    test_rows_read: Option<u64>,
    /// True if rows are padded, so that contexts of multiple choice follow the token that begins a row.
    is_padded: bool,
    /// True if a token is predicted from the tokens before it alone.
    is_causal: bool,
}

impl MeasurementBasis {
    #[must_use]
    pub fn of_plan(plan: &Plan) -> Self {
        let is_causal = plan.ranks.first().is_none_or(|rank| !rank.program.model.options.mask.sees_ahead());
        let test_rows_read = plan.test_rows();
        let is_padded = plan.totals.has_padding;
        Self { data: plan.data.clone(), rows_read: plan.validation_rows(), test_rows_read, is_padded, is_causal }
    }

    /// What the evaluations of a run of `plan` measure.
    #[must_use]
    pub fn evaluated_quantities(plan: &Plan) -> Vec<Quantity> {
        let tasks = plan.ranks.first().map(|rank| rank.program.eval.tasks()).unwrap_or_default();
        let tasks = tasks.into_iter().map(|task| Quantity::Task(task.name.into()));
        [Quantity::ValidationLoss, Quantity::BitsPerByte].into_iter().chain(tasks).collect()
    }

    /// True if evaluations of the run measure `quantity`.
    #[must_use]
    pub fn measures(&self, quantity: &Quantity) -> bool {
        match quantity {
            Quantity::ValidationLoss | Quantity::BitsPerByte => self.rows_read.is_some(),
            Quantity::Task(task) => self.data.task(task).is_some(),
            Quantity::TestLoss => self.test_rows_read.is_some(),
            Quantity::TrainLoss | Quantity::Speed => true,
        }
    }

    /// The warnings about evaluated text that was trained on, or by which checkpoints were chosen.
    #[must_use]
    pub fn overlap_warnings(&self) -> Vec<String> {
        self.data.overlap_warnings()
    }

    /// True if both train on the same rows.
    #[must_use]
    pub fn has_same_training_data(&self, other: &Self) -> bool {
        self.data.train.hash == other.data.train.hash && self.has_same_tokenizer(other)
    }

    /// True if both make the same tokens of a text.
    #[must_use]
    pub fn has_same_tokenizer(&self, other: &Self) -> bool {
        self.data.tokenizer_hash == other.data.tokenizer_hash
    }

    /// The reason why `quantity` of the run `name` does not compare with that of `other_name`, whose basis is `other`; `None` if it does.
    #[must_use]
    pub fn describe_difference(
        &self,
        name: &str,
        other: &Self,
        other_name: &str,
        quantity: &Quantity,
    ) -> Option<String> {
        let has_same_tokenizer = self.has_same_tokenizer(other);
        if self.is_causal != other.is_causal && !matches!(quantity, Quantity::Task(_) | Quantity::Speed) {
            let (sees_all, causal) = if other.is_causal { (name, other_name) } else { (other_name, name) };
            return Some(format!(
                "{sees_all} has `model.causal: false`, so its attention sees the tokens that it predicts; {causal} is causal"
            ));
        }
        match quantity {
            Quantity::Task(task) => {
                let (a, b) = (self.data.task(task)?, other.data.task(task)?);
                if a.items != b.items {
                    return Some(format!(
                        "{name} scores {} of {task}, but {other_name} scores {}",
                        counted(a.items as u64, "item"),
                        count(b.items as u64)
                    ));
                }
                if has_same_tokenizer && a.hash != b.hash {
                    return Some(format!(
                        "{name} and {other_name} have different items of {task}, or prepare their text differently"
                    ));
                }
                (has_same_tokenizer && self.is_padded != other.is_padded).then(|| {
                    format!("the rows of {name} or {other_name} are padded, so the contexts of {task} begin with different tokens")
                })
            }
            Quantity::TrainLoss | Quantity::ValidationLoss | Quantity::TestLoss if !has_same_tokenizer => {
                let per_token = format!(
                    "{name} and {other_name} have different tokenizers, and losses per token of different tokens \
                     are not comparable"
                );
                let texts = [&self.data, &other.data].map(|data| data.validation.as_ref()?.text.as_ref());
                let parts = texts[0].zip(texts[1]).filter(|_| *quantity == Quantity::ValidationLoss);
                let parts = parts.and_then(|(a, b)| describe_different_parts(name, a, other_name, b));
                Some(parts.map_or(per_token.clone(), |parts| format!("{per_token}; nor are bits per byte: {parts}")))
            }
            Quantity::TrainLoss => (self.data.train.hash != other.data.train.hash)
                .then(|| format!("{name} and {other_name} have different training data")),
            Quantity::ValidationLoss | Quantity::BitsPerByte => {
                let a = self.data.validation.as_ref().zip(self.rows_read)?;
                let b = other.data.validation.as_ref().zip(other.rows_read)?;
                describe_split_difference(["validation", "eval.loss.rows"], name, a, other_name, b)
            }
            Quantity::Speed => None,
            Quantity::TestLoss => {
                let a = self.data.test.as_ref().zip(self.test_rows_read)?;
                let b = other.data.test.as_ref().zip(other.test_rows_read)?;
                describe_split_difference(["test", "eval.test_rows"], name, a, other_name, b)
            }
        }
    }
}

/// Compares splits of the kind `split`, each with the number of rows that are read of it, which `key` sets.
fn describe_split_difference(
    [split, key]: [&str; 2],
    name: &str,
    (a, a_read): (&SplitFacts, u64),
    other_name: &str,
    (b, b_read): (&SplitFacts, u64),
) -> Option<String> {
    if a.hash == b.hash {
        return (a_read != b_read)
            .then(|| format!("{name} reads {} {split} rows, but {other_name} reads {}", count(a_read), count(b_read)));
    }
    let (Some(text), Some(other)) = (&a.text, &b.text) else {
        return Some(format!("{name} and {other_name} have different {split} data"));
    };
    if text.hash != other.hash {
        return Some(format!("{name} and {other_name} have different {split} text"));
    }
    if let Some(parts) = describe_different_parts(name, text, other_name, other) {
        return Some(parts);
    }
    if (a.rows, b.rows) != (a_read, b_read) {
        // `160 of 3,900 rows`.
        let describe_rows = |facts: &SplitFacts, read: u64| {
            let part = if read == facts.rows { "all".to_owned() } else { format!("{} of", count(read)) };
            format!("{part} {} rows", count(facts.rows))
        };
        return Some(format!(
            "{name} and {other_name} read different parts of the {split} text ({}, {}); with `{key}` of {} both \
             read all of it",
            describe_rows(a, a_read),
            describe_rows(b, b_read),
            a.rows.max(b.rows)
        ));
    }
    (!has_same_length(text, other)).then(|| {
        format!(
            "the {split} rows of {name} hold {} bytes of the text, but those of {other_name} hold {}: shorter rows \
             hold more of it",
            count(text.bytes),
            count(other.bytes)
        )
    })
}

fn has_same_length(a: &SplitText, b: &SplitText) -> bool {
    a.bytes.abs_diff(b.bytes) as f64 <= MAX_TEXT_DIFFERENCE * a.bytes.max(b.bytes) as f64
}

/// Says that the ends of one text that are held out have different lengths, because they are cut by tokens; `None` if that is not so.
fn describe_different_parts(name: &str, a: &SplitText, other_name: &str, b: &SplitText) -> Option<String> {
    let is_cut = a.hash == b.hash && a.is_cut_by_tokens && b.is_cut_by_tokens;
    (is_cut && !has_same_length(a, b)).then(|| {
        format!(
            "`data.validation.fraction` counts tokens, so it holds out {} bytes of the text in {name} and {} in {other_name}; give all \
             of them the same separate text, such as `data.validation: {{text: {{files: [validation.txt]}}}}`",
            count(a.bytes),
            count(b.bytes)
        )
    })
}

/// The reason why `quantity` does not compare between all of `runs`, which are names with bases: the first difference from the first
/// run. `None` if it compares.
pub fn find_incomparable<'a>(
    runs: impl IntoIterator<Item = (String, &'a MeasurementBasis)>,
    quantity: &Quantity,
) -> Option<String> {
    let mut runs = runs.into_iter();
    let (first_name, first) = runs.next()?;
    runs.find_map(|(name, basis)| basis.describe_difference(&name, first, &first_name, quantity))
}

/// Runs between which a quantity compares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComparableRuns {
    pub names: Vec<String>,
    /// The reason why it does not compare with that of the first group; `None` for the first group.
    pub reason: Option<String>,
}

/// Groups `runs`, which are names with bases, by whether `quantity` compares with that of the first run of a group.
pub fn group_comparable<'a>(
    runs: impl IntoIterator<Item = (String, &'a MeasurementBasis)>,
    quantity: &Quantity,
) -> Vec<ComparableRuns> {
    let mut groups: Vec<(ComparableRuns, &MeasurementBasis)> = Vec::new();
    for (name, basis) in runs {
        let differs = |(group, first): &(ComparableRuns, &MeasurementBasis)| {
            basis.describe_difference(&name, first, &group.names[0], quantity)
        };
        let reason = groups.first().and_then(differs);
        match groups.iter_mut().position(|group| differs(group).is_none()).map(|found| &mut groups[found].0) {
            Some(group) => group.names.push(name),
            None => groups.push((ComparableRuns { names: vec![name], reason }, basis)),
        }
    }
    groups.into_iter().map(|(group, _)| group).collect()
}

/// Groups names of figures by the reason why they do not compare, in the order of the first figure of each group. Figures without a reason
/// compare, and are left out.
pub fn group_by_reason<T>(figures: impl IntoIterator<Item = (T, Option<String>)>) -> Vec<(String, Vec<T>)> {
    let mut groups: Vec<(String, Vec<T>)> = Vec::new();
    for (name, reason) in figures {
        let Some(reason) = reason else { continue };
        match groups.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, names)) => names.push(name),
            None => groups.push((reason, vec![name])),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{compiled, experiment};

    fn basis(tokenizer: &str, hash: &str, rows_read: u64, rows: u64, text: Option<(&str, u64)>) -> MeasurementBasis {
        let mut plan = compiled(&experiment());
        plan.data.tokenizer_hash = tokenizer.to_owned();
        let text = text.map(|(hash, bytes)| SplitText { hash: hash.to_owned(), bytes, is_cut_by_tokens: false });
        plan.data.validation = Some(SplitFacts { rows, hash: hash.to_owned(), text, ..plan.data.train.clone() });
        MeasurementBasis {
            data: plan.data,
            rows_read: Some(rows_read),
            test_rows_read: None,
            is_padded: false,
            is_causal: true,
        }
    }

    fn difference(a: &MeasurementBasis, b: &MeasurementBasis, quantity: &Quantity) -> String {
        find_incomparable([("a".to_owned(), a), ("b".to_owned(), b)], quantity).unwrap_or_default()
    }

    #[test]
    fn the_same_rows_compare_and_other_rows_do_not() {
        use Quantity::{BitsPerByte, TestLoss, TrainLoss, ValidationLoss};
        let a = basis("x", "v", 160, 900, Some(("text", 9000)));
        let fewer = basis("x", "v", 80, 900, Some(("text", 9000)));
        let tested = |basis: &MeasurementBasis, rows: u64| {
            let mut tested = MeasurementBasis { test_rows_read: Some(rows), ..basis.clone() };
            tested.data.test.clone_from(&tested.data.validation);
            tested
        };
        assert_eq!(difference(&tested(&a, 7), &tested(&a, 7), &TestLoss), "");
        assert_eq!(difference(&tested(&a, 7), &tested(&a, 9), &TestLoss), "b reads 9 test rows, but a reads 7");
        assert_eq!(difference(&tested(&a, 7), &a, &TestLoss), "", "only one of them was tested");
        for quantity in &[BitsPerByte, ValidationLoss] {
            assert_eq!(difference(&a, &a, quantity), "");
            assert_eq!(difference(&a, &fewer, quantity), "b reads 80 validation rows, but a reads 160");
            let other = basis("x", "w", 160, 900, None);
            assert_eq!(difference(&a, &other, quantity), "b and a have different validation data");
        }
        assert_eq!(difference(&a, &fewer, &TrainLoss), "");
    }

    #[test]
    fn across_tokenizers_only_bits_per_byte_of_the_same_text_compare() {
        use Quantity::{BitsPerByte, TrainLoss, ValidationLoss};
        let a = basis("x", "v", 900, 900, Some(("text", 9000)));
        let b = basis("y", "w", 300, 300, Some(("text", 8950)));
        assert_eq!(difference(&a, &b, &BitsPerByte), "");
        for quantity in &[TrainLoss, ValidationLoss] {
            assert!(
                difference(&a, &b, quantity).starts_with("b and a have different tokenizers, and losses per token")
            );
        }
        let part = basis("y", "w", 160, 300, Some(("text", 8950)));
        let expected = "b and a read different parts of the validation text (160 of 300 rows, all 900 rows); with \
            `eval.loss.rows` of 900 both read all of it";
        assert_eq!(difference(&a, &part, &BitsPerByte), expected);
        let short = basis("y", "w", 300, 300, Some(("text", 8000)));
        assert!(
            difference(&a, &short, &BitsPerByte).contains("hold 8,000 bytes of the text, but those of a hold 9,000")
        );
        let other = basis("y", "w", 300, 300, Some(("texts", 9000)));
        assert_eq!(difference(&a, &other, &BitsPerByte), "b and a have different validation text");
        let unknown = basis("y", "w", 300, 300, None);
        assert_eq!(difference(&a, &unknown, &BitsPerByte), "b and a have different validation data");
    }

    #[test]
    fn a_fraction_of_different_tokens_needs_a_separate_text() {
        use Quantity::{BitsPerByte, TrainLoss, ValidationLoss};
        let held_out = |tokenizer: &str, rows: u64, read: u64, bytes: u64| {
            let mut basis = basis(tokenizer, tokenizer, read, rows, Some(("text", bytes)));
            basis.data.validation.as_mut().unwrap().text.as_mut().unwrap().is_cut_by_tokens = true;
            basis
        };
        // More rows would not help, so they are not the advice.
        let (a, b) = (held_out("x", 900, 160, 9000), held_out("y", 300, 160, 8000));
        let parts = "`data.validation.fraction` counts tokens, so it holds out 8,000 bytes of the text in b and 9,000 in a; give all \
            of them the same separate text, such as `data.validation: {text: {files: [validation.txt]}}`";
        assert_eq!(difference(&a, &b, &BitsPerByte), parts);
        assert!(
            difference(&a, &b, &ValidationLoss).ends_with(&format!("not comparable; nor are bits per byte: {parts}"))
        );
        assert!(difference(&a, &b, &TrainLoss).ends_with("different tokens are not comparable"));
        let nearly = held_out("y", 300, 160, 8950);
        assert!(difference(&a, &nearly, &BitsPerByte).contains("with `eval.loss.rows` of 900 both read all of it"));
    }

    #[test]
    fn runs_are_grouped_by_what_compares() {
        let (a, b) = (basis("x", "v", 900, 900, Some(("text", 9000))), basis("y", "w", 300, 300, Some(("text", 8950))));
        let fewer = basis("x", "v", 80, 900, Some(("text", 9000)));
        let runs = || [("a", &a), ("b", &b), ("c", &a), ("d", &fewer), ("e", &b)].map(|(name, b)| (name.to_owned(), b));
        let groups = |quantity| group_comparable(runs(), &quantity).into_iter().map(|group| group.names.concat());
        assert_eq!(groups(Quantity::ValidationLoss).collect::<Vec<_>>(), ["ac", "be", "d"]);
        assert_eq!(groups(Quantity::BitsPerByte).collect::<Vec<_>>(), ["abce", "d"]);
        assert_eq!(groups(Quantity::TrainLoss).collect::<Vec<_>>(), ["acd", "be"]);
        let reasons: Vec<_> =
            group_comparable(runs(), &Quantity::ValidationLoss).into_iter().map(|g| g.reason).collect();
        assert!(reasons[0].is_none() && reasons[1].as_ref().unwrap().starts_with("b and a have different tokenizers"));
        assert_eq!(reasons[2].as_deref(), Some("d reads 80 validation rows, but a reads 900"));
    }

    #[test]
    fn a_model_that_sees_the_targets_compares_only_with_others_like_it() {
        use Quantity::{BitsPerByte, Task, TrainLoss, ValidationLoss};
        let causal = basis("x", "v", 900, 900, Some(("text", 9000)));
        let sees_all = MeasurementBasis { is_causal: false, ..causal.clone() };
        for quantity in &[TrainLoss, ValidationLoss, BitsPerByte] {
            assert_eq!(difference(&sees_all, &sees_all, quantity), "");
            let expected =
                "b has `model.causal: false`, so its attention sees the tokens that it predicts; a is causal";
            assert_eq!(difference(&causal, &sees_all, quantity), expected);
            assert!(difference(&sees_all, &causal, quantity).starts_with("a has `model.causal: false`, "));
        }
        assert_eq!(difference(&causal, &sees_all, &Task("quiz".into())), "");
    }

    #[test]
    fn the_same_tokens_in_rows_of_another_length_compare_as_a_whole() {
        let a = basis("x", "v", 900, 900, Some(("text", 9000)));
        let longer = basis("x", "w", 450, 450, Some(("text", 8990)));
        assert_eq!(difference(&a, &longer, &Quantity::ValidationLoss), "");
    }
}
