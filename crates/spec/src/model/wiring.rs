//! From the equations of a file to the sums at each place of a model, and to the tensors that blocks hand on for later ones.

use std::collections::BTreeSet;

use super::heads::Heads;
use super::initial::ParamInit;
use super::option_rules::BrokenRule;
use super::options::ModelOptions;
use super::parts::{Buffer, Equation, GateCoefficient, ScalarCoefficient, Sums, Term, TermTensor, buffer};
use super::spec::ModelSpec;
use super::values::{self, EquationMistake, NamedValue, Product, SumPlace};
use crate::diagnostic::nearest;

/// The most terms of an equation, a limit of the CUDA kernel.
pub const MOST_TERMS: usize = 4;

/// The largest number in an equation.
const LARGEST_NUMBER: f64 = 1e6;

/// Names that other parameters have, or that equations use.
const RESERVED: [&str; 24] = [
    "x",
    "v",
    "y",
    "norm",
    "previous",
    "layers",
    "h",
    "attn",
    "self_attn",
    "mlp",
    "ln_1",
    "ln_2",
    "ln_1_out",
    "ln_2_out",
    "ln_f",
    "wte",
    "wpe",
    "wte_norm",
    "embed_tokens",
    "embed_norm",
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
];

/// A tensor that blocks hand on for later ones in addition to the residual stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Carried {
    pub of: CarriedTensor,
    pub width: usize,
    /// The entry of the block list that makes it.
    pub from: usize,
    /// The last one that reads it.
    pub last: usize,
}

/// A tensor that later blocks read.
#[derive(Debug, Clone, PartialEq)]
pub enum CarriedTensor {
    /// The output of the block that makes it.
    Output,
    /// The rows of a table that several layers share.
    Table { name: String, vocab_size: usize, init: ParamInit },
}

impl Carried {
    /// The tensor, as plans count it.
    pub fn buffer(&self) -> Buffer {
        let name = match &self.of {
            CarriedTensor::Output if self.from == 0 => "output of the embedding",
            CarriedTensor::Output => "output of a layer",
            CarriedTensor::Table { .. } => "rows of a table",
        };
        buffer(name, self.width)
    }

    /// True if a block that did not make it reads it.
    pub fn is_handed_on(&self) -> bool {
        self.from < self.last
    }

    /// True if it is handed on to `block`.
    pub fn is_handed_to(&self, block: usize) -> bool {
        self.from < block && block <= self.last
    }
}

/// The sums of a layer.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct LayerSums {
    pub input: Sums,
    pub value: Sums,
    pub attended: Sums,
}

/// The sums of a model.
#[derive(Debug, Default)]
pub(super) struct Wiring {
    pub embedding: Sums,
    /// Of each layer, or empty.
    pub layers: Vec<LayerSums>,
    pub head: Sums,
    pub carried: Vec<Carried>,
}

/// What a product of an equation refers to.
#[derive(Clone, Copy)]
struct Factors<'a> {
    number: f64,
    scalar: Option<(&'a str, &'a values::Scalar)>,
    gate: Option<(&'a str, values::Gate)>,
    tensor: Named<'a>,
}

#[derive(Clone, Copy)]
enum Named<'a> {
    Own,
    Previous,
    Value(&'a str, &'a NamedValue),
}

/// What the sums of a model depend on besides its options.
pub(super) struct Shape {
    pub layers: usize,
    pub d_model: usize,
    pub heads: Heads,
    pub vocab_size: usize,
    /// Of tables.
    pub init: ParamInit,
    pub norm_eps: f64,
}

impl Shape {
    pub(super) fn of(spec: &ModelSpec) -> Self {
        Self {
            layers: spec.layers,
            d_model: spec.d_model,
            heads: spec.attention_heads(),
            vocab_size: spec.vocab_size,
            init: ParamInit::embedding(spec),
            norm_eps: spec.norm_eps,
        }
    }

    /// A shape by which rules are checked.
    pub(super) fn for_rules(layers: usize, d_model: usize, heads: Heads) -> Self {
        Self { layers, d_model, heads, vocab_size: 1, init: ParamInit::Zeros, norm_eps: 1.0 }
    }

    fn width(&self, place: SumPlace) -> usize {
        match place {
            SumPlace::Value => self.heads.kv * self.heads.width,
            SumPlace::Attended => self.heads.out_width(),
            SumPlace::Embedding | SumPlace::Layer | SumPlace::Head => self.d_model,
        }
    }

    /// The numbers of a gate at `place` for one position.
    fn groups(&self, place: SumPlace) -> usize {
        match place {
            SumPlace::Value => self.heads.kv,
            SumPlace::Attended => self.heads.queries,
            SumPlace::Embedding | SumPlace::Layer | SumPlace::Head => 1,
        }
    }
}

/// Lowers the equations of `options`.
pub(super) struct Lowering<'a> {
    pub options: &'a ModelOptions,
    pub shape: Shape,
    broken: Vec<BrokenRule>,
    carried: Vec<(CarriedKey<'a>, Carried)>,
}

#[derive(PartialEq)]
enum CarriedKey<'a> {
    Output(usize),
    Table(&'a str, usize),
}

impl<'a> Lowering<'a> {
    pub(super) fn new(options: &'a ModelOptions, shape: Shape) -> Self {
        Self { options, shape, broken: Vec::new(), carried: Vec::new() }
    }

    /// The sums, and the rules that the equations break. A term that breaks a rule is left out.
    pub(super) fn lower(mut self) -> (Wiring, Vec<BrokenRule>) {
        let options = self.options;
        if options.sums.is_empty() && options.values.is_empty() {
            return (Wiring::default(), Vec::new());
        }
        self.check_values();
        let at = |place: SumPlace| Sums {
            equations: Vec::new(),
            width: self.shape.width(place),
            is_in_attention: place.is_in_attention(),
        };
        let layer =
            LayerSums { input: at(SumPlace::Layer), value: at(SumPlace::Value), attended: at(SumPlace::Attended) };
        let (embedding, head) = (at(SumPlace::Embedding), at(SumPlace::Head));
        let mut wiring = Wiring { embedding, layers: vec![layer; self.shape.layers], head, carried: Vec::new() };
        let mut used = BTreeSet::new();
        for place in SumPlace::ALL {
            for (index, text) in options.sums.at(place).iter().enumerate() {
                let key = format!("sums.{}.{index}", <&str>::from(place));
                match values::Equation::read(text) {
                    Err((message, column)) => self.breaks(&key, format!("column {column} of `{text}`: {message}")),
                    Ok(values::Equation::Norm(of)) => self.norm(&key, place, &of, &mut wiring),
                    Ok(values::Equation::Sum(products)) => {
                        self.sum(&key, (place, text), &products, &mut used, &mut wiring);
                    }
                }
            }
        }
        // An equation that breaks a rule may name the others.
        let unused = options.values.keys().filter(|name| !used.contains(name.as_str()));
        if options.sums.is_empty() {
            self.breaks("values", "nothing reads `values`, because there are no `sums`".into());
        } else if self.broken.is_empty() {
            for name in unused {
                self.broken.push(BrokenRule {
                    keys: vec![format!("values.{name}")],
                    message: format!("no equation of `sums` names `{name}`"),
                    advice: "use it in an equation, or delete it".into(),
                });
            }
        }
        wiring.carried = self.carried.into_iter().map(|(_, carried)| carried).collect();
        (wiring, self.broken)
    }

    fn breaks(&mut self, key: &str, message: String) {
        let advice = if key.starts_with("values") {
            "see \"Sums with named values\" in docs/recipes.md"
        } else {
            "a term is numbers, a scalar and a gate times one tensor, as in `x + 0.5 * mix * first`"
        };
        self.broken.push(BrokenRule { keys: vec![key.to_owned()], message, advice: advice.to_owned() });
    }

    fn check_values(&mut self) {
        let options = self.options;
        for (name, value) in &options.values {
            let key = format!("values.{name}");
            let is_word = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            if !is_word || name.starts_with(|c: char| c.is_ascii_digit()) || name.is_empty() {
                self.breaks(
                    &key,
                    format!(
                        "a name consists of letters, digits and `_`, and does not start with a digit, got `{name}`"
                    ),
                );
            } else if RESERVED.contains(&name.as_str()) {
                self.breaks(&key, format!("`{name}` is reserved: choose another name"));
            }
            let (within, beside): (&[usize], _) = match value {
                NamedValue::Output(outputs) => (&outputs.within, Some(("layers", &outputs.layers))),
                NamedValue::Table(table) => {
                    (&table.within, (!table.shared.is_empty()).then_some(("shared", &table.shared)))
                }
                NamedValue::Gate(gate) => {
                    if gate.channels == 0 || gate.channels > self.shape.d_model {
                        let (channels, width) = (gate.channels, self.shape.d_model);
                        self.breaks(&key, format!("a gate reads 1 to {width} channels, not {channels}"));
                    }
                    continue;
                }
                NamedValue::Scalar(scalar) => {
                    for number in [Some(scalar.initial), scalar.initial_of_last].into_iter().flatten() {
                        if number.is_nan() || number.abs() > LARGEST_NUMBER {
                            self.breaks(&key, format!("a number must be at most 1e6 in size, got {number}"));
                        }
                    }
                    continue;
                }
                NamedValue::Embedding {} => continue,
            };
            let layers = self.shape.layers;
            if let Some(layer) = within.iter().find(|layer| **layer >= layers) {
                self.breaks(&key, format!("`in` must list layers from 0 to {}, got {layer}", layers.saturating_sub(1)));
            }
            if !within.is_sorted_by(|a, b| a < b) {
                self.breaks(&key, "`in` must list layers in ascending order, each once".into());
            }
            if let Some((list, numbers)) = beside {
                let expected = if within.is_empty() { 1 } else { within.len() };
                if numbers.len() != expected {
                    let what = if within.is_empty() { "without `in`" } else { "one for each layer of `in`" };
                    let expected = if expected == 1 { "1 entry".to_owned() } else { format!("{expected} entries") };
                    self.breaks(&key, format!("`{list}` must have {expected}, {what}, got {}", numbers.len()));
                } else if list == "shared" && within.is_empty() {
                    self.breaks(&key, "`shared` needs `in`, the layers that read the tables".into());
                } else if list == "shared" {
                    let distinct: BTreeSet<_> = numbers.iter().collect();
                    if distinct.iter().enumerate().any(|(index, number)| index != **number) {
                        self.breaks(
                            &key,
                            format!(
                                "`shared` must number its tables from 0 on without gaps, as 0 to {}",
                                distinct.len() - 1
                            ),
                        );
                    }
                }
            }
        }
    }

    fn norm(&mut self, key: &str, place: SumPlace, of: &str, wiring: &mut Wiring) {
        if place.is_in_attention() {
            self.breaks(key, "`norm` cannot stand at `value` and `attended`".into());
        } else if of != place.tensor() {
            self.breaks(key, format!("`norm` takes `{}` here, not `{of}`", place.tensor()));
        } else {
            let eps = self.shape.norm_eps;
            wiring.sites(place, |_| true).for_each(|(_, sums)| sums.equations.push(Equation::Norm(eps)));
        }
    }

    fn sum(
        &mut self,
        key: &str,
        (place, text): (SumPlace, &str),
        products: &[Product],
        used: &mut BTreeSet<&'a str>,
        wiring: &mut Wiring,
    ) {
        if products.len() > MOST_TERMS {
            return self.breaks(key, format!("an equation has at most {MOST_TERMS} terms, not {}", products.len()));
        }
        let mut all = Vec::new();
        for product in products {
            match self.factors(place, product, used) {
                Ok(factors) => all.push(factors),
                Err((message, column)) => return self.breaks(key, format!("column {column} of `{text}`: {message}")),
            }
        }
        let options = self.options;
        let has_attention = |layer: usize| !place.is_in_attention() || options.layer_has_attention(layer);
        if place.is_in_attention() && (0..self.shape.layers).all(|layer| !options.layer_has_attention(layer)) {
            return self.breaks(key, "no layer has attention".into());
        }
        if let Some(layer) = self.without_attention(place, &all) {
            return self.breaks(key, format!("layer {layer} has no attention"));
        }
        for (block, sums) in wiring.sites(place, has_attention) {
            let mut terms = Vec::new();
            for factors in &all {
                match self.term(place, block, *factors) {
                    Ok(term) => terms.extend(term),
                    Err(message) => return self.breaks(key, message),
                }
            }
            let is_identity = |term: &Term| term.tensor == TermTensor::Own && term.number == 1.0 && !term.is_trained();
            match terms.as_slice() {
                [] => {
                    return self.breaks(
                        key,
                        format!(
                            "no term is left in layer {}, which has none of its values: add `{}`",
                            block.saturating_sub(1),
                            place.tensor()
                        ),
                    );
                }
                [one] if is_identity(one) => {}
                _ => sums.equations.push(Equation::Sum(terms)),
            }
        }
    }

    /// The first layer without attention that the `in` of a value lists.
    fn without_attention(&self, place: SumPlace, all: &[Factors<'_>]) -> Option<usize> {
        let within = all.iter().filter_map(|factors| match factors.tensor {
            Named::Value(_, NamedValue::Table(table)) => Some(&table.within),
            Named::Value(_, NamedValue::Output(outputs)) => Some(&outputs.within),
            _ => None,
        });
        let mut layers = within.flatten().filter(|_| place.is_in_attention());
        layers.find(|layer| !self.options.layer_has_attention(**layer)).copied()
    }

    /// What the names of a product refer to.
    fn factors(
        &self,
        place: SumPlace,
        product: &Product,
        used: &mut BTreeSet<&'a str>,
    ) -> Result<Factors<'a>, EquationMistake> {
        let own = place.tensor();
        let first = product.names.iter().chain(&product.previous).map(|(_, column)| *column).min().unwrap_or(1);
        let mut factors = (None, None, None);
        if !(product.number.abs() > 0.0 && product.number.abs() <= LARGEST_NUMBER) {
            return Err((format!("a number must not be 0, and at most 1e6 in size, got {:e}", product.number), first));
        }
        if let Some((of, column)) = &product.previous {
            if place != SumPlace::Embedding || of != own {
                return Err(("only the embedding's `x` has a `previous`".into(), *column));
            }
            factors.2 = Some(Named::Previous);
        }
        for (name, column) in &product.names {
            let again = |what: &str| Err((format!("a term can have only one {what}; `{name}` is the second"), *column));
            let found = self.options.values.get_key_value(name);
            if found.is_none() && name == own {
                if factors.2.replace(Named::Own).is_some() {
                    return again("tensor");
                }
                continue;
            }
            let Some((name, value)) = found else {
                let known = self.options.values.keys().map(String::as_str).chain([own]);
                let hint = nearest(name, known).map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
                return Err((format!("`{name}` is neither `{own}` nor one of `values`{hint}"), *column));
            };
            let is_new = used.insert(name);
            match value {
                NamedValue::Scalar(scalar) if scalar.initial_of_last.is_some() && !place.is_in_layers() => {
                    return Err((format!("`{name}` has `initial_of_last`, which only layers have"), *column));
                }
                NamedValue::Scalar(scalar) if factors.0.is_none() => factors.0 = Some((name.as_str(), scalar)),
                NamedValue::Gate(gate) if factors.1.is_none() => factors.1 = Some((name.as_str(), *gate)),
                NamedValue::Scalar(_) => return again("scalar"),
                NamedValue::Gate(_) => return again("gate"),
                NamedValue::Embedding {} | NamedValue::Output(_) | NamedValue::Table(_) => {
                    if place == SumPlace::Embedding {
                        return Err((format!("`{name}` cannot stand at `embedding`, which comes first"), *column));
                    }
                    if factors.2.replace(Named::Value(name, value)).is_some() {
                        return again("tensor");
                    }
                }
            }
            let is_shared = matches!(value, NamedValue::Embedding {} | NamedValue::Output(_));
            if !is_new && !is_shared {
                return Err((format!("`{name}` is trained, so only one term can have it"), *column));
            }
        }
        let (scalar, gate, Some(tensor)) = factors else {
            return Err((format!("a term needs a tensor: `{own}`, or an output or table of `values`"), first));
        };
        Ok(Factors { number: product.number, scalar, gate, tensor })
    }

    /// The term at `block`; `None` where its tensor is not there.
    fn term(&mut self, place: SumPlace, block: usize, factors: Factors<'a>) -> Result<Option<Term>, String> {
        let tensor = match factors.tensor {
            Named::Own => TermTensor::Own,
            Named::Previous => TermTensor::Previous,
            Named::Value(name, value) => match self.tensor(place, block, name, value)? {
                Some(tensor) => tensor,
                None => return Ok(None),
            },
        };
        let scalar = factors.scalar.map(|(name, scalar)| {
            let depth =
                if self.shape.layers > 1 { (block as f64 - 1.0) / (self.shape.layers as f64 - 1.0) } else { 0.0 };
            let last = scalar.initial_of_last.unwrap_or(scalar.initial);
            let initial = scalar.initial + (last - scalar.initial) * depth;
            ScalarCoefficient { name: name.to_owned(), initial, sigmoid: scalar.sigmoid }
        });
        let gate = factors.gate.map(|(name, gate)| GateCoefficient {
            name: name.to_owned(),
            channels: gate.channels,
            groups: self.shape.groups(place),
        });
        Ok(Some(Term { number: factors.number, scalar, gate, tensor }))
    }

    fn tensor(
        &mut self,
        place: SumPlace,
        block: usize,
        name: &'a str,
        value: &'a NamedValue,
    ) -> Result<Option<TermTensor>, String> {
        let (width, layer) = (self.shape.width(place), block - 1);
        let within = |within: &[usize]| match within {
            [] => Some(0),
            listed => listed.iter().position(|l| *l == layer),
        };
        let d_model = || {
            let own = self.shape.d_model;
            if own == width {
                Ok(width)
            } else {
                Err(format!("`{name}` is {own} wide, and `{}` {width}", place.tensor()))
            }
        };
        match value {
            NamedValue::Embedding {} => {
                let width = d_model()?;
                Ok(Some(self.carry(CarriedKey::Output(0), CarriedTensor::Output, width, 0, block)))
            }
            NamedValue::Output(outputs)
                if !place.is_in_layers() && (outputs.layers.len() > 1 || !outputs.within.is_empty()) =>
            {
                Err(format!(
                    "`{name}` has several layers or `in`; at `head` it must be the output of one layer, without `in`"
                ))
            }
            NamedValue::Output(outputs) => {
                let width = d_model()?;
                let listed = if place.is_in_layers() { within(&outputs.within) } else { Some(0) };
                let Some(from) = listed.and_then(|index| outputs.layers.get(index)) else { return Ok(None) };
                if *from >= layer {
                    return Err(format!(
                        "layer {layer} cannot read `{name}`, the output of layer {from}, which is not before it"
                    ));
                }
                Ok(Some(self.carry(CarriedKey::Output(from + 1), CarriedTensor::Output, width, from + 1, block)))
            }
            NamedValue::Table(_) if !place.is_in_layers() => {
                Err(format!("`{name}` is a table, which only layers read"))
            }
            NamedValue::Table(table) => {
                let Some(index) = within(&table.within) else { return Ok(None) };
                let (vocab_size, init) = (self.shape.vocab_size, self.shape.init);
                let Some(shared) = table.shared.get(index) else {
                    return Ok(Some(TermTensor::Table { name: name.to_owned(), vocab_size, init }));
                };
                let of = CarriedTensor::Table { name: format!("{name}.{shared}"), vocab_size, init };
                Ok(Some(self.carry(CarriedKey::Table(name, *shared), of, width, 0, block)))
            }
            NamedValue::Scalar(_) | NamedValue::Gate(_) => Err(format!("`{name}` is a coefficient")),
        }
    }

    /// The carried tensor of `key`, which `block` reads.
    fn carry(&mut self, key: CarriedKey<'a>, of: CarriedTensor, width: usize, from: usize, block: usize) -> TermTensor {
        let known = self.carried.iter().position(|(other, _)| *other == key);
        let index = known.unwrap_or_else(|| {
            self.carried.push((key, Carried { of, width, from, last: block }));
            self.carried.len() - 1
        });
        let last = &mut self.carried[index].1.last;
        *last = block.max(*last);
        TermTensor::Carried(index)
    }
}

impl Wiring {
    /// The sums at `place`, with the entry of the block list that has them. In layers, those that `has` it.
    fn sites<'w>(
        &'w mut self,
        place: SumPlace,
        has: impl Fn(usize) -> bool + 'w,
    ) -> Box<dyn Iterator<Item = (usize, &'w mut Sums)> + 'w> {
        let head = self.layers.len() + 1;
        let of = match place {
            SumPlace::Embedding => return Box::new([(0, &mut self.embedding)].into_iter()),
            SumPlace::Head => return Box::new([(head, &mut self.head)].into_iter()),
            SumPlace::Layer => |sums: &'w mut LayerSums| &mut sums.input,
            SumPlace::Value => |sums: &'w mut LayerSums| &mut sums.value,
            SumPlace::Attended => |sums: &'w mut LayerSums| &mut sums.attended,
        };
        let layers = self.layers.iter_mut().enumerate().filter(move |(layer, _)| has(*layer));
        Box::new(layers.map(move |(layer, sums)| (layer + 1, of(sums))))
    }
}
