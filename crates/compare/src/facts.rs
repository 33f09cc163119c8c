//! One fact about runs that are compared: its name, how it is read from a record, and what a difference in it means. `plan_facts` and
//! `session_facts` list them; `diff`, `reproduce`, `resume`, `fork` and `apply` are views of these lists.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

runner_record::named_enum! {
    /// A part of the mathematics that differs.
    pub enum MathematicsPart {
        Data = "data",
        Model = "model",
        InitialWeights = "initial_weights",
        Optimizer = "optimizer",
        Schedule = "schedule",
        Batch = "batch",
        TrainingLength = "training_length",
        Precision = "precision",
        Seed = "seed",
        Evaluation = "evaluation",
        /// The run started from a checkpoint of different mathematics.
        Beginning = "beginning",
    }
}

/// What a difference in a fact means for the numbers of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// Nothing: no number depends on the fact, or it follows from other facts.
    None,
    /// The same computation is divided or ordered differently.
    Rounding,
    /// The numbers differ.
    Mathematics(MathematicsPart),
    /// The bits may differ, for this reason.
    Bits(&'static str),
}

impl Meaning {
    /// The reason why bits may differ.
    pub(super) fn of_bits(self) -> Option<&'static str> {
        match self {
            Self::Bits(reason) => Some(reason),
            _ => None,
        }
    }
}

/// A fact about an `S`: a plan, prepared data or a session.
#[derive(Debug)]
pub struct Fact<S> {
    pub name: &'static str,
    pub meaning: Meaning,
    /// The value; `None` if it is not recorded, or absent. A list is compared part by part.
    value: fn(&S) -> Option<Value>,
}

/// One fact of both sides of a comparison, a number or a text; `None` if it is unknown or absent.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FactPair {
    pub name: &'static str,
    pub a: Option<Value>,
    pub b: Option<Value>,
    pub same: bool,
}

impl FactPair {
    pub(super) fn of<V: Into<Value>>(name: &'static str, a: Option<V>, b: Option<V>) -> Self {
        let (a, b) = (a.map(Into::into), b.map(Into::into));
        Self { name, same: a == b, a, b }
    }

    /// True if one side has the fact, and it is more than an empty list.
    pub(super) fn is_known(&self) -> bool {
        [&self.a, &self.b].into_iter().flatten().any(|value| *value != NONE)
    }
}

impl<S> Fact<S> {
    pub(super) const fn new(name: &'static str, meaning: Meaning, value: fn(&S) -> Option<Value>) -> Self {
        Self { name, meaning, value }
    }

    pub(super) fn differs(&self, a: &S, b: &S) -> bool {
        (self.value)(a) != (self.value)(b)
    }

    /// The values of both sides.
    pub(super) fn pair(&self, a: &S, b: &S) -> FactPair {
        let shown = |side| (self.value)(side).map(|value| if value.is_array() { text(&value).into() } else { value });
        FactPair::of(self.name, shown(a), shown(b))
    }

    /// The value for `one` as text; `None` if it is not recorded.
    pub(super) fn text(&self, one: &S) -> Option<String> {
        (self.value)(one).map(|value| text(&value))
    }

    /// The value for `one` without the parts that `other` has, too; the whole value if `other` lacks it.
    pub(super) fn text_beside(&self, one: &S, other: &S) -> Option<String> {
        let (mut value, others) = ((self.value)(one)?, (self.value)(other));
        if let (Value::Array(parts), Some(Value::Array(others))) = (&mut value, &others)
            && parts != others
        {
            parts.retain(|part| !others.contains(part));
        }
        Some(text(&value))
    }

    /// The change from `was` to `is`, if it may change bits; `None` if one of them does not record the fact: then it is unknown, or does not
    /// apply to it.
    pub(super) fn change(&self, was: &S, is: &S) -> Option<FactChange> {
        let meaning = self.meaning.of_bits().filter(|_| self.differs(was, is))?;
        Some(FactChange { name: self.name, was: self.text_beside(was, is)?, is: self.text_beside(is, was)?, meaning })
    }
}

/// A list without parts, as text.
pub(super) const NONE: &str = "none";

/// The parts of a list, or another value, as text.
fn text(value: &Value) -> String {
    match value {
        Value::Array(parts) if parts.is_empty() => NONE.to_owned(),
        Value::Array(parts) => parts.iter().map(text).collect::<Vec<_>>().join(", "),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A change of a fact between two sessions that may change bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FactChange {
    pub name: &'static str,
    pub was: String,
    pub is: String,
    pub meaning: &'static str,
}

impl fmt::Display for FactChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}, was {}: {}", self.name, self.is, self.was, self.meaning)
    }
}
