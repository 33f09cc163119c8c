//! What runs are measured by. One table describes each measure: whatever records, compares, draws or shows numbers of runs reads it.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::experiment::HELLASWAG;
use crate::format::{count, counted, loss, percent, rate, significant};

/// A number that a run is measured by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Measure {
    /// The task that it scores; `None` for losses and speed.
    task: Option<Arc<str>>,
    kind: &'static MeasureKind,
}

/// The description of a measure, or of a score that each task has.
#[derive(Debug, PartialEq, Eq, Hash)]
struct MeasureKind {
    /// Its key in records and files; that of a task's score follows the task's name and `_`.
    key: &'static str,
    label: &'static str,
    form: MeasureForm,
    better: Better,
    /// What it measures; `None` for a score of a task.
    quantity: Option<Quantity>,
}

/// What kind of number a measure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MeasureForm {
    /// A mean negative log-likelihood, in nats or bits.
    Loss,
    /// The exponential of a loss.
    Perplexity,
    /// The standard error of another measure over rows or items.
    StandardError,
    /// A share from 0 to 1.
    Share,
    Count,
    /// An amount per second.
    Rate,
}

/// The direction in which a number gets better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Better {
    Lower,
    Higher,
    Neither,
}

/// What a measure measures: two runs may compare by one quantity and not by another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Quantity {
    TrainLoss,
    /// The validation loss per token, or its perplexity.
    ValidationLoss,
    /// The validation loss per byte of text.
    BitsPerByte,
    /// The loss per token of `eval.test`.
    TestLoss,
    /// The accuracy in the task of this name.
    Task(Arc<str>),
    Speed,
}

const fn kind(
    [key, label]: [&'static str; 2],
    form: MeasureForm,
    better: Better,
    quantity: Option<Quantity>,
) -> MeasureKind {
    MeasureKind { key, label, form, better, quantity }
}

/// The measures of every run.
const KINDS: &[MeasureKind] = {
    use Better::{Higher, Lower, Neither};
    use MeasureForm::{Count, Loss, Perplexity, Rate, StandardError};
    use Quantity::{BitsPerByte, Speed, TrainLoss, ValidationLoss};
    &[
        kind(["val_loss", "val loss"], Loss, Lower, Some(ValidationLoss)),
        kind(["val_loss_se", "standard error"], StandardError, Neither, Some(ValidationLoss)),
        kind(["val_tokens", "tokens"], Count, Neither, Some(ValidationLoss)),
        kind(["val_rows", "rows"], Count, Neither, Some(ValidationLoss)),
        kind(["val_perplexity", "perplexity"], Perplexity, Lower, Some(ValidationLoss)),
        kind(["val_bits_per_byte", "bits/byte"], Loss, Lower, Some(BitsPerByte)),
        kind(["train_loss", "train loss"], Loss, Lower, Some(TrainLoss)),
        kind(["tokens_per_second", "tokens/s"], Rate, Higher, Some(Speed)),
        // They follow from the others, and are not recorded.
        kind(["val_perplexity_se", "perplexity's standard error"], StandardError, Neither, Some(ValidationLoss)),
        kind(["val_bits_per_byte_se", "bits/byte's standard error"], StandardError, Neither, Some(BitsPerByte)),
    ]
};

/// The scores of every task of multiple choice.
const TASK_KINDS: &[MeasureKind] = {
    use Better::{Higher, Neither};
    use MeasureForm::{Count, Share, StandardError};
    &[
        // By the loss of an ending, by its loss per token, and by its loss per character.
        kind(["acc", "acc"], Share, Higher, None),
        kind(["acc_norm", "acc_norm"], Share, Higher, None),
        kind(["acc_norm_chars", "acc_norm_chars"], Share, Higher, None),
        // The items, and those that lost their beginning, because they are longer than the context; absent if all are whole.
        kind(["n", "items"], Count, Neither, None),
        kind(["cut", "cut"], Count, Neither, None),
        // They follow from the others, and are not recorded.
        kind(["acc_se", "acc's standard error"], StandardError, Neither, None),
        kind(["acc_norm_se", "acc_norm's standard error"], StandardError, Neither, None),
        kind(["acc_norm_chars_se", "acc_norm_chars' standard error"], StandardError, Neither, None),
    ]
};

impl Measure {
    pub const VAL_LOSS: Self = Self::fixed(&KINDS[0]);
    pub const VAL_LOSS_SE: Self = Self::fixed(&KINDS[1]);
    pub const VAL_TOKENS: Self = Self::fixed(&KINDS[2]);
    pub const VAL_ROWS: Self = Self::fixed(&KINDS[3]);
    pub const VAL_PERPLEXITY: Self = Self::fixed(&KINDS[4]);
    pub const BITS_PER_BYTE: Self = Self::fixed(&KINDS[5]);
    pub const TRAIN_LOSS: Self = Self::fixed(&KINDS[6]);
    pub const TOKENS_PER_SECOND: Self = Self::fixed(&KINDS[7]);

    const fn fixed(kind: &'static MeasureKind) -> Self {
        Self { task: None, kind }
    }

    /// The measures that are not of a task.
    pub fn all_fixed() -> impl Iterator<Item = Self> {
        KINDS.iter().map(Self::fixed)
    }

    /// The measures of the task `task`: `acc`, `acc_norm`, `acc_norm_chars`, `n`, `cut`, and the standard errors of the first three.
    pub fn all_of_task(task: &str) -> impl Iterator<Item = Self> + use<> {
        let task: Arc<str> = task.into();
        TASK_KINDS.iter().map(move |kind| Self { task: Some(task.clone()), kind })
    }

    /// The measure with this key.
    #[must_use]
    pub fn of_key(key: &str) -> Option<Self> {
        if let Some(kind) = KINDS.iter().find(|kind| kind.key == key) {
            return Some(Self::fixed(kind));
        }
        let of_task = |kind: &'static MeasureKind| {
            let task = key.strip_suffix(kind.key)?.strip_suffix('_').filter(|task| is_task_name(task))?;
            Some(Self { task: Some(task.into()), kind })
        };
        TASK_KINDS.iter().find_map(of_task)
    }

    /// Its key in records and files, such as `val_loss` or `hellaswag_acc`.
    #[must_use]
    pub fn key(&self) -> Cow<'static, str> {
        match &self.task {
            None => self.kind.key.into(),
            Some(task) => format!("{task}_{}", self.kind.key).into(),
        }
    }

    /// Its place among others: losses come first, then tasks by their names, each in the order of its table.
    fn order(&self) -> (Option<&str>, usize) {
        let table = if self.task.is_some() { TASK_KINDS } else { KINDS };
        (self.task(), table.iter().position(|kind| kind == self.kind).unwrap_or(usize::MAX))
    }

    /// Its name in a line about its task, or in a narrow column.
    #[must_use]
    pub fn label(&self) -> &'static str {
        self.kind.label
    }

    /// Its name where no task is named beside it.
    #[must_use]
    pub fn full_label(&self) -> Cow<'static, str> {
        match &self.task {
            None => self.kind.label.into(),
            Some(task) => format!("{task} {}", self.kind.label).into(),
        }
    }

    #[must_use]
    pub fn task(&self) -> Option<&str> {
        self.task.as_deref()
    }

    #[must_use]
    pub fn form(&self) -> MeasureForm {
        self.kind.form
    }

    #[must_use]
    pub fn better(&self) -> Better {
        self.kind.better
    }

    #[must_use]
    pub fn quantity(&self) -> Quantity {
        match (&self.task, &self.kind.quantity) {
            (Some(task), _) => Quantity::Task(task.clone()),
            (None, Some(quantity)) => quantity.clone(),
            (None, None) => Quantity::Speed,
        }
    }

    /// True if evaluations measure it, false if training steps do.
    #[must_use]
    pub fn is_evaluated(&self) -> bool {
        !matches!(self.quantity(), Quantity::TrainLoss | Quantity::Speed)
    }

    /// True if runs may be compared by it: not for a count, or an error.
    #[must_use]
    pub fn is_comparable(&self) -> bool {
        self.kind.better != Better::Neither
    }

    /// `value` as a person reads it.
    #[must_use]
    pub fn text(&self, value: f64) -> String {
        match self.kind.form {
            MeasureForm::Loss => loss(value),
            MeasureForm::Perplexity => format!("{value:.2}"),
            MeasureForm::StandardError => significant(value, 2),
            MeasureForm::Share => percent(value),
            MeasureForm::Count => count(value as u64),
            MeasureForm::Rate => rate(value),
        }
    }

    /// A standard error of the measure as a person reads it.
    #[must_use]
    pub fn error_text(&self, error: f64) -> String {
        if self.kind.form == MeasureForm::Share { percent(error) } else { significant(error, 2) }
    }

    /// By how much the measure changes with the validation loss, where they are `value` and `loss`; `None` if it does not follow from the loss.
    #[must_use]
    pub fn error_factor(&self, loss: Option<f64>, value: Option<f64>) -> Option<f64> {
        let factor = match (self.quantity(), self.kind.form) {
            (Quantity::ValidationLoss, MeasureForm::Loss) => 1.0,
            (Quantity::ValidationLoss, MeasureForm::Perplexity) => value?,
            (Quantity::BitsPerByte, MeasureForm::Loss) => value? / loss?,
            _ => return None,
        };
        factor.is_finite().then_some(factor)
    }
}

/// True if a task may have this name, which begins keys of records and columns: letters, digits and `_`, beginning with a letter.
#[must_use]
pub fn is_task_name(name: &str) -> bool {
    name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

impl Serialize for Measure {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.key())
    }
}

impl<'de> Deserialize<'de> for Measure {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let key = String::deserialize(from)?;
        Self::of_key(&key).ok_or_else(|| D::Error::custom(format!("no measure has the key {key:?}")))
    }
}

/// What was measured: losses, then tasks by their names. Every number is finite.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Measured(Vec<(Measure, f64)>);

/// A measured number. It displays as `acc 25.0% (SE 3.1%)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate<'a> {
    pub measure: &'a Measure,
    pub value: f64,
    /// The standard error over rows or items; `None` if it is unknown.
    pub standard_error: Option<f64>,
}

/// The scores of a model in one task.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskScores<'a> {
    pub task: &'a str,
    /// Shares of right answers.
    pub shares: Vec<Estimate<'a>>,
    pub items: Option<u64>,
    /// The items that lost their beginning, because they are longer than the context.
    pub cut: Option<u64>,
}

impl Measured {
    /// Adds a number, or replaces it. A number that is not finite is left out.
    pub fn set(&mut self, measure: Measure, value: f64) {
        self.0.retain(|(known, _)| *known != measure);
        if value.is_finite() {
            let at = self.0.partition_point(|(known, _)| known.order() < measure.order());
            self.0.insert(at, (measure, value));
        }
    }

    /// These numbers with one more.
    #[must_use]
    pub fn with(mut self, measure: Measure, value: f64) -> Self {
        self.set(measure, value);
        self
    }

    #[must_use]
    pub fn get(&self, measure: &Measure) -> Option<f64> {
        self.0.iter().find(|(known, _)| known == measure).map(|(_, value)| *value)
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&Measure, f64)> {
        self.0.iter().map(|(measure, value)| (measure, *value))
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Leaves out the measures for which `is_kept` is false.
    pub fn retain(&mut self, mut is_kept: impl FnMut(&Measure) -> bool) {
        self.0.retain(|(measure, _)| is_kept(measure));
    }

    /// Adds a later measurement. It replaces those of the tasks that it has, and that of the loss if it has one.
    pub fn update(&mut self, later: &Self) {
        self.retain(|known| later.iter().all(|(measure, _)| measure.task != known.task));
        self.extend(later.0.iter().cloned());
    }

    #[must_use]
    pub fn val_loss(&self) -> Option<f64> {
        self.get(&Measure::VAL_LOSS)
    }

    #[must_use]
    pub fn bits_per_byte(&self) -> Option<f64> {
        self.get(&Measure::BITS_PER_BYTE)
    }

    /// The standard error over rows or items of the number of `measure`: of a loss as recorded, of perplexity and bits per byte as they follow
    /// from the loss, of an accuracy p among n items √(p(1 − p)/n). `None` if it is unknown.
    #[must_use]
    pub fn standard_error(&self, measure: &Measure) -> Option<f64> {
        let value = self.get(measure)?;
        if measure.form() == MeasureForm::Share {
            let items = Measure::of_key(&format!("{}_n", measure.task()?)).and_then(|items| self.get(&items))?;
            // Items that are all right, or all wrong, do not show how much others would differ.
            return Some((value * (1.0 - value) / items).sqrt()).filter(|error| *error > 0.0);
        }
        Some(measure.error_factor(self.val_loss(), Some(value))? * self.get(&Measure::VAL_LOSS_SE)?)
    }

    /// These numbers, with all standard errors that follow from them.
    #[must_use]
    pub fn with_errors(&self) -> Self {
        let error = |(measure, _): (&Measure, f64)| {
            Some((Measure::of_key(&format!("{}_se", measure.key()))?, self.standard_error(measure)?))
        };
        self.0.iter().cloned().chain(self.iter().filter_map(error)).collect()
    }

    fn estimate<'a>(&self, measure: &'a Measure, value: f64) -> Estimate<'a> {
        Estimate { measure, value, standard_error: self.standard_error(measure) }
    }

    /// What the validation loss was measured on.
    #[must_use]
    pub fn val_sample(&self) -> Option<LossSample> {
        let count = |measure| self.get(&measure).map(|count| count as u64);
        let (tokens, rows) = (count(Measure::VAL_TOKENS)?, count(Measure::VAL_ROWS)?);
        Some(LossSample { tokens, rows, standard_error: self.get(&Measure::VAL_LOSS_SE) })
    }

    fn serialize_into<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        for (measure, value) in self.iter() {
            match measure.form() {
                MeasureForm::Count => map.serialize_entry(&measure.key(), &(value as u64))?,
                _ => map.serialize_entry(&measure.key(), &value)?,
            }
        }
        Ok(())
    }

    /// The validation loss in all its forms.
    pub fn losses(&self) -> impl Iterator<Item = Estimate<'_>> {
        let is_loss = |measure: &Measure| matches!(measure.form(), MeasureForm::Loss | MeasureForm::Perplexity);
        let losses = self.iter().filter(move |(measure, _)| is_loss(measure));
        losses.map(|(measure, value)| self.estimate(measure, value))
    }

    /// The scores of each task.
    #[must_use]
    pub fn tasks(&self) -> Vec<TaskScores<'_>> {
        let mut tasks: Vec<TaskScores<'_>> = Vec::new();
        for (measure, value) in self.iter() {
            let Some(task) = measure.task() else { continue };
            let at = tasks.iter().position(|known| known.task == task).unwrap_or_else(|| {
                tasks.push(TaskScores { task, shares: Vec::new(), items: None, cut: None });
                tasks.len() - 1
            });
            match (measure.form(), measure.kind.key) {
                (MeasureForm::Share, _) => tasks[at].shares.push(self.estimate(measure, value)),
                (_, "cut") => tasks[at].cut = Some(value as u64),
                (_, "n") => tasks[at].items = Some(value as u64),
                _ => {}
            }
        }
        tasks
    }
}

impl Extend<(Measure, f64)> for Measured {
    fn extend<I: IntoIterator<Item = (Measure, f64)>>(&mut self, numbers: I) {
        numbers.into_iter().for_each(|(measure, value)| self.set(measure, value));
    }
}

impl FromIterator<(Measure, f64)> for Measured {
    fn from_iter<I: IntoIterator<Item = (Measure, f64)>>(numbers: I) -> Self {
        let mut measured = Self::default();
        measured.extend(numbers);
        measured
    }
}

impl Estimate<'_> {
    /// Without its name: `25.0% (SE 3.1%)`.
    #[must_use]
    pub fn number(&self) -> String {
        let error = self.standard_error.map(|error| format!(" (SE {})", self.measure.error_text(error)));
        self.measure.text(self.value) + &error.unwrap_or_default()
    }
}

impl fmt::Display for Estimate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.measure.label(), self.number())
    }
}

impl TaskScores<'_> {
    /// `acc 25.0% (SE 3.1%)  acc_norm 30.0% (SE 3.2%)`, with `separator` between the scores.
    #[must_use]
    pub fn shares_text(&self, separator: &str) -> String {
        self.shares.iter().map(Estimate::to_string).collect::<Vec<_>>().join(separator)
    }
}

impl Serialize for Measured {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(self.0.len()))?;
        self.serialize_into(&mut map)?;
        map.end()
    }
}

/// Serializes `measured` with its standard errors, and with `null` for what other runs may have and it lacks: the measures of evaluations, and
/// those of the task `hellaswag`.
///
/// # Errors
/// Those of `to`.
pub fn serialize_with_nulls<S: Serializer>(measured: &Measured, to: S) -> Result<S::Ok, S::Error> {
    let measured = measured.with_errors();
    let usual = Measure::all_fixed().filter(Measure::is_evaluated).chain(Measure::all_of_task(HELLASWAG));
    let absent = usual.filter(|measure| measured.get(measure).is_none());
    let mut map = to.serialize_map(None)?;
    measured.serialize_into(&mut map)?;
    for measure in absent {
        map.serialize_entry(&measure.key(), &None::<f64>)?;
    }
    map.end()
}

impl<'de> Deserialize<'de> for Measured {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Numbers;
        impl<'de> Visitor<'de> for Numbers {
            type Value = Measured;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("numbers by the keys of their measures")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Measured, M::Error> {
                let mut measured = Measured::default();
                while let Some(key) = map.next_key::<Cow<'_, str>>()? {
                    let Some(measure) = Measure::of_key(&key) else {
                        map.next_value::<serde::de::IgnoredAny>()?;
                        continue;
                    };
                    if measured.get(&measure).is_some() {
                        return Err(M::Error::custom(format!("duplicate field `{key}`")));
                    }
                    let is_count = measure.form() == MeasureForm::Count;
                    let value = if is_count {
                        map.next_value::<Option<u64>>()?.map(|count| count as f64)
                    } else {
                        map.next_value::<Option<f64>>()?
                    };
                    // What is not finite is `null`.
                    measured.extend(value.map(|value| (measure, value)));
                }
                Ok(measured)
            }
        }
        from.deserialize_map(Numbers)
    }
}

/// What a mean loss was measured on. It displays as `40,960 tokens in 320 rows, standard error 0.012`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LossSample {
    pub tokens: u64,
    pub rows: u64,
    /// The standard error of the loss over the rows; `None` for one row.
    pub standard_error: Option<f64>,
}

impl LossSample {
    /// The sample for a figure that changes by `factor` with the loss.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self { standard_error: self.standard_error.map(|error| error * factor), ..self }
    }
}

impl fmt::Display for LossSample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", counted(self.tokens, "token"), counted(self.rows, "row"))?;
        match self.standard_error {
            Some(error) => write!(f, ", standard error {}", significant(error, 2)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
