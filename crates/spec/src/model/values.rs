//! Sums with named values: what a file says about them, and how an equation is read.
//!
//! A sum replaces a tensor at one of five places of a model by a sum of products. The tensors and coefficients that it names are the model's
//! `values`.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::diagnostic::list;
use crate::serde_defaults::is_default;

/// A value that equations name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum NamedValue {
    /// The output of the embedding.
    Embedding {},
    /// The output of earlier layers.
    Output(LayerOutputs),
    /// Trained rows, one for each token of the vocabulary, as wide as the tensor to which they are added.
    Table(TokenTable),
    /// A trained number, of each layer where it is used in layers.
    Scalar(Scalar),
    /// sigmoid(W·x): W is trained from 0, and x the first channels of the tensor at this place, or of attention's input at the places `value`
    /// and `attended`. One number for each token, at those two for each head.
    Gate(Gate),
}

impl NamedValue {
    fn describe(&self) -> String {
        let layers = |layers: &[usize]| list(&layers.iter().map(ToString::to_string).collect::<Vec<_>>(), "and");
        let within = |listed: &[usize]| match listed {
            [] => String::new(),
            [one] => format!(" in layer {one}"),
            many => format!(" in layers {}", layers(many)),
        };
        match self {
            Self::Embedding {} => "output of the embedding".into(),
            Self::Output(LayerOutputs { layers: of, within: listed }) if of.len() == 1 => {
                format!("output of layer {}{}", of[0], within(listed))
            }
            Self::Output(LayerOutputs { layers: of, within: listed }) => {
                format!("outputs of layers {}{}", layers(of), within(listed))
            }
            Self::Table(TokenTable { within: listed, shared }) if shared.is_empty() => {
                format!("table{}", within(listed))
            }
            Self::Table(TokenTable { within: listed, shared }) => format!("table {}{}", layers(shared), within(listed)),
            Self::Scalar(Scalar { initial, initial_of_last, sigmoid }) => {
                let last = initial_of_last.map_or_else(String::new, |last| format!(" to {last}"));
                format!("{} from {initial}{last}", if *sigmoid { "sigmoid of a scalar" } else { "scalar" })
            }
            Self::Gate(Gate { channels }) => format!("gate by {channels} channels"),
        }
    }
}

/// The output of earlier layers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LayerOutputs {
    /// The layers, from 0: one for each layer of `in`, or without `in` exactly one.
    #[schemars(length(min = 1, max = 10_000))]
    pub layers: Vec<usize>,
    /// The layers that read them. Terms with this value are left out elsewhere. Default: all that use it.
    #[serde(rename = "in", default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10_000))]
    pub within: Vec<usize>,
}

/// Trained rows, one for each token of the vocabulary.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TokenTable {
    /// The layers that have it, from 0. Terms with this value are left out elsewhere. Default: all that use it.
    #[serde(rename = "in", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10_000))]
    pub within: Vec<usize>,
    /// Which table each layer of `in` reads, by its number from 0. Default: each layer has its own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10_000))]
    pub shared: Vec<usize>,
}

/// A trained number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scalar {
    /// Initial value.
    #[schemars(range(min = -1e6, max = 1e6))]
    pub initial: f64,
    /// Initial value in the last layer; those between are interpolated linearly. Default: `initial`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1e6, max = 1e6))]
    pub initial_of_last: Option<f64>,
    /// If true, the coefficient is the sigmoid of the number.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schemars(!skip_serializing_if)]
    pub sigmoid: bool,
}

/// A coefficient that depends on the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Gate {
    /// The number of leading channels that it reads.
    #[schemars(range(min = 1, max = 100_000))]
    pub channels: usize,
}

/// The sums at the five places of a model, each a list of equations that are applied one after the other. An equation is a sum of products
/// of numbers, scalars, at most one gate, and one tensor, as `0.5 * mix * first`; or `norm(x)`, RMSNorm without a gain.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Sums {
    /// The embedding's output, `x`; `previous(x)` is `x` of the token before, 0 at the start of a row.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub embedding: Vec<String>,
    /// A layer's input, `x`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub layer: Vec<String>,
    /// Attention's values, `v`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub value: Vec<String>,
    /// The outputs of attention's heads before their projection, `y`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub attended: Vec<String>,
    /// The head's input before its norm, `x`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub head: Vec<String>,
}

/// A place where a tensor is replaced by a sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum SumPlace {
    Embedding,
    Layer,
    Value,
    Attended,
    Head,
}

impl SumPlace {
    pub const ALL: [Self; 5] = [Self::Embedding, Self::Layer, Self::Value, Self::Attended, Self::Head];

    /// The name of the tensor that is replaced.
    pub(super) fn tensor(self) -> &'static str {
        match self {
            Self::Embedding | Self::Layer | Self::Head => "x",
            Self::Value => "v",
            Self::Attended => "y",
        }
    }

    /// True for places within attention, whose tensors have heads.
    pub(super) fn is_in_attention(self) -> bool {
        matches!(self, Self::Value | Self::Attended)
    }

    /// True for places of each layer.
    pub(super) fn is_in_layers(self) -> bool {
        self == Self::Layer || self.is_in_attention()
    }
}

impl Sums {
    pub fn is_empty(&self) -> bool {
        SumPlace::ALL.into_iter().all(|place| self.at(place).is_empty())
    }

    pub fn at(&self, place: SumPlace) -> &[String] {
        match place {
            SumPlace::Embedding => &self.embedding,
            SumPlace::Layer => &self.layer,
            SumPlace::Value => &self.value,
            SumPlace::Attended => &self.attended,
            SumPlace::Head => &self.head,
        }
    }

    /// The equations and the values that they name in words, one line for each place.
    pub fn lines(&self, values: &NamedValues) -> Vec<String> {
        let equations = SumPlace::ALL.into_iter().filter(|place| !self.at(*place).is_empty()).map(|place| {
            let tensor = place.tensor();
            let each: Vec<String> = self.at(place).iter().map(|text| format!("{tensor} = {text}")).collect();
            format!("{}: {}", <&str>::from(place), each.join("; "))
        });
        let named = values.iter().map(|(name, value)| format!("{name}: {}", value.describe()));
        equations.chain([named.collect::<Vec<_>>().join("; ")]).filter(|line| !line.is_empty()).collect()
    }

    /// The sums with each equation in the form that spellings share, with coefficients before tensors, and without equations that
    /// change nothing. An equation that cannot be read stays as it is.
    #[must_use]
    pub(super) fn canonical(&self, values: &NamedValues) -> Self {
        let of = |place: SumPlace| {
            let one = |text: &String| match Equation::read(text) {
                Ok(mut equation) => {
                    equation.order(values);
                    equation.to_string()
                }
                Err(_) => text.clone(),
            };
            self.at(place).iter().map(one).filter(|text| text != place.tensor()).collect()
        };
        let [embedding, layer, value, attended, head] = SumPlace::ALL.map(of);
        Self { embedding, layer, value, attended, head }
    }
}

/// The values that equations name, by their names.
pub type NamedValues = BTreeMap<String, NamedValue>;

/// An equation's right side.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Equation {
    /// RMSNorm of the tensor at this place.
    Norm(String),
    Sum(Vec<Product>),
}

/// A product of a number and names.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Product {
    pub number: f64,
    /// With the column of each, from 1.
    pub names: Vec<(String, usize)>,
    /// The tensor in `previous(…)`.
    pub previous: Option<(String, usize)>,
}

/// Why an equation cannot be read, and the column, from 1.
pub(super) type EquationMistake = (String, usize);

/// A token with its column.
type Placed = (Token, usize);

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Number(f64),
    Name(String),
    Sign(char),
}

impl NamedValue {
    /// The form that spellings share in a model of `layers` layers.
    pub(super) fn canonical(self, layers: usize) -> Self {
        match self {
            Self::Scalar(scalar) => {
                let initial_of_last = scalar.initial_of_last.filter(|last| layers > 1 && *last != scalar.initial);
                Self::Scalar(Scalar { initial_of_last, ..scalar })
            }
            Self::Table(table) if table.shared.is_empty() && table.within.iter().copied().eq(0..layers) => {
                Self::Table(TokenTable::default())
            }
            other => other,
        }
    }
}

impl Equation {
    /// Puts a product's scalar first, then its gate, then its tensor.
    fn order(&mut self, values: &NamedValues) {
        let Self::Sum(products) = self else { return };
        for product in products {
            product.names.sort_by_key(|(name, _)| match values.get(name) {
                Some(NamedValue::Scalar(_)) => 0,
                Some(NamedValue::Gate(_)) => 1,
                _ => 2,
            });
        }
    }

    /// # Errors
    /// What is wrong, and where.
    pub(super) fn read(text: &str) -> Result<Self, EquationMistake> {
        let tokens = tokens(text)?;
        let end = text.chars().count() + 1;
        let mut rest = tokens.as_slice();
        if let [(Token::Name(function), _), (Token::Sign('('), _), (Token::Name(of), _), (Token::Sign(')'), _)] = rest
            && function == "norm"
        {
            return Ok(Self::Norm(of.clone()));
        }
        let mut products = Vec::new();
        let mut sign = 1.0;
        if let [(Token::Sign('-'), _), after @ ..] = rest {
            (sign, rest) = (-1.0, after);
        }
        loop {
            let product;
            (product, rest) = Product::read(rest, sign, end)?;
            products.push(product);
            match rest {
                [] => return Ok(Self::Sum(products)),
                [(Token::Sign(c @ ('+' | '-')), _), after @ ..] => {
                    (sign, rest) = (if *c == '+' { 1.0 } else { -1.0 }, after);
                }
                [(token, column), ..] => return Err((format!("expected `+`, `-` or `*`, found {token}"), *column)),
            }
        }
    }
}

impl Product {
    fn read(mut rest: &[Placed], sign: f64, end: usize) -> Result<(Self, &[Placed]), EquationMistake> {
        let mut product = Self { number: sign, names: Vec::new(), previous: None };
        loop {
            rest = match rest {
                [
                    (Token::Name(function), at),
                    (Token::Sign('('), _),
                    (Token::Name(of), _),
                    (Token::Sign(')'), _),
                    after @ ..,
                ] => {
                    if function != "previous" || product.previous.is_some() {
                        let why = if product.previous.is_some() {
                            "a term has only one"
                        } else {
                            "the functions are `previous`, and `norm` as a whole equation"
                        };
                        return Err((format!("`{function}(…)` cannot stand here: {why}"), *at));
                    }
                    product.previous = Some((of.clone(), *at));
                    after
                }
                [(Token::Name(name), at), after @ ..] => {
                    product.names.push((name.clone(), *at));
                    after
                }
                [(Token::Number(number), _), after @ ..] => {
                    product.number *= number;
                    after
                }
                [(token, column), ..] => return Err((format!("expected a number or a name, found {token}"), *column)),
                [] => return Err(("expected a number or a name at the end".into(), end)),
            };
            match rest {
                [(Token::Sign('*'), _), after @ ..] => rest = after,
                _ => return Ok((product, rest)),
            }
        }
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Name(name) => write!(f, "`{name}`"),
            Self::Sign(sign) => write!(f, "`{sign}`"),
        }
    }
}

impl fmt::Display for Equation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let products = match self {
            Self::Norm(of) => return write!(f, "norm({of})"),
            Self::Sum(products) => products,
        };
        for (index, product) in products.iter().enumerate() {
            f.write_str(match (index, product.number.is_sign_negative()) {
                (0, true) => "-",
                (0, false) => "",
                (_, true) => " - ",
                (_, false) => " + ",
            })?;
            let number = (product.number.abs() != 1.0).then(|| product.number.abs().to_string());
            let names = product.names.iter().map(|(name, _)| name.clone());
            let previous = product.previous.iter().map(|(of, _)| format!("previous({of})"));
            f.write_str(&number.into_iter().chain(names).chain(previous).collect::<Vec<_>>().join(" * "))?;
        }
        Ok(())
    }
}

fn tokens(text: &str) -> Result<Vec<Placed>, EquationMistake> {
    let chars: Vec<char> = text.chars().collect();
    let (mut tokens, mut at) = (Vec::new(), 0);
    let is_exponent = |start: usize, at: usize| at > start && matches!(chars[at - 1], 'e' | 'E');
    while let Some(&first) = chars.get(at) {
        let start = at;
        if first.is_whitespace() {
            at += 1;
            continue;
        }
        let token = if first.is_ascii_digit() || first == '.' {
            while let Some(c) = chars.get(at)
                && (c.is_ascii_alphanumeric() || *c == '.' || (matches!(c, '+' | '-') && is_exponent(start, at)))
            {
                at += 1;
            }
            let word: String = chars[start..at].iter().collect();
            match word.parse::<f64>() {
                Ok(number) if number.is_finite() => Token::Number(number),
                _ => return Err((format!("`{word}` is not a number"), start + 1)),
            }
        } else if first.is_alphabetic() || first == '_' {
            while chars.get(at).is_some_and(|c| c.is_alphanumeric() || *c == '_') {
                at += 1;
            }
            Token::Name(chars[start..at].iter().collect())
        } else if matches!(first, '+' | '-' | '*' | '(' | ')') {
            at += 1;
            Token::Sign(first)
        } else {
            return Err((format!("`{first}` has no meaning here"), start + 1));
        };
        tokens.push((token, start + 1));
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_spellings_of_an_equation_have_one_form() {
        let form = |text| Equation::read(text).map(|read| read.to_string());
        assert_eq!(form(" resid*x+ mix *first"), Ok("resid * x + mix * first".into()));
        assert_eq!(form("x - 2 * 0.10 * out * middle"), Ok("x - 0.2 * out * middle".into()));
        assert_eq!(form("-1e-3*x + smear * previous( x )"), Ok("-0.001 * x + smear * previous(x)".into()));
        assert_eq!(form("norm (x)"), Ok("norm(x)".into()));
    }

    #[test]
    fn mistakes_in_equations_have_their_column() {
        let column = |text| Equation::read(text).map_or_else(|(_, column)| column, |read| panic!("{read}"));
        for (text, at) in [
            ("", 1),
            ("x +", 4),
            ("x mix", 3),
            ("x + / 2", 5),
            ("x * 1.2.3", 5),
            ("exp(x)", 1),
            ("x (", 3),
            ("é + ß )", 7),
        ] {
            assert_eq!(column(text), at, "{text}");
        }
    }
}
