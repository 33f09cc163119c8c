//! The first block: the embedding of tokens, their positions, dropout.

use super::norm::Norm;
use super::part::{PartParameter, Place, Rows};
use super::sum::Sums;
use crate::model::family::Names;
use crate::model::initial::ParamInit;
use crate::model::options::PositionKind;
use crate::model::spec::ModelSpec;
use crate::model::wiring::{Carried, CarriedTensor};

const TOKENS: Names = Names { gpt2: &["transformer.wte.weight"], llama: &["model.embed_tokens.weight"] };
const NORM: Names = Names { gpt2: &["transformer.wte_norm"], llama: &["model.embed_norm"] };
const POSITIONS: &str = "transformer.wpe.weight";

/// The positions that are added to tokens' embeddings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Positions {
    /// Attention rotates queries and keys instead.
    None,
    /// The rows of the parameter that is named.
    Learned(&'static str),
    /// The rows of a table that is not trained.
    Sinusoidal,
}

/// The embedding of tokens and positions.
#[derive(Debug, Clone, PartialEq)]
pub struct Embedding {
    /// The name of the table's parameter. A tied head has it, too.
    pub tokens: &'static str,
    vocab_size: usize,
    pub context_length: usize,
    pub width: usize,
    init: ParamInit,
    /// Factor on tokens' embeddings before positions are added.
    pub scale: Option<f64>,
    pub positions: Positions,
    /// The norm of the sum of both.
    pub norm: Option<Norm>,
    /// What follows the norm.
    pub sums: Sums,
    prefix: &'static str,
    /// Tables whose rows layers read: their places among the carried tensors, and the names of their parameters.
    pub tables: Vec<(usize, PartParameter)>,
    pub dropout: f64,
}

impl Embedding {
    pub(in crate::model) fn new(spec: &ModelSpec, sums: Sums, carried: &[Carried]) -> Self {
        let defaults = spec.family.defaults();
        let place = Place { block: 0, prefix: defaults.prefix.to_owned() };
        let tables = carried.iter().enumerate().filter_map(|(index, carried)| match &carried.of {
            CarriedTensor::Output => None,
            CarriedTensor::Table { name, vocab_size, init } => {
                let table = place.table(name, *vocab_size, carried.width, *init);
                Some((index, table))
            }
        });
        let tables = tables.collect();
        Self {
            tokens: TOKENS.of(spec.family)[0],
            vocab_size: spec.vocab_size,
            context_length: spec.context_length,
            width: spec.d_model,
            init: ParamInit::embedding(spec),
            scale: spec.options.embedding_scale.then(|| (spec.d_model as f64).sqrt()),
            positions: match spec.options.positions {
                _ if defaults.rotary => Positions::None,
                PositionKind::Learned => Positions::Learned(POSITIONS),
                PositionKind::Sinusoidal => Positions::Sinusoidal,
            },
            norm: spec.options.embedding_norm.then(|| Norm::new(spec, &NORM)),
            sums,
            tables,
            prefix: defaults.prefix,
            dropout: if defaults.dropout { spec.dropout } else { 0.0 },
        }
    }

    pub fn parameters(&self) -> Vec<PartParameter> {
        let place = Place { block: 0, prefix: String::new() };
        let table =
            |name, rows, length| PartParameter { rows, ..place.parameter(name, vec![length, self.width], self.init) };
        let mut all = vec![table(self.tokens, Rows::Tokens, self.vocab_size)];
        if let Positions::Learned(name) = self.positions {
            all.push(table(name, Rows::Positions, self.context_length));
        }
        all.extend(self.norm.iter().flat_map(|norm| norm.parameters(&place)));
        all.extend(self.sums.parameters(&self.place()));
        all.extend(self.tables.iter().map(|(_, table)| table.clone()));
        all
    }

    /// Where the parameters of sums are.
    pub fn place(&self) -> Place {
        Place { block: 0, prefix: self.prefix.to_owned() }
    }

    /// Numbers in the largest matrix.
    pub fn largest_matrix(&self) -> usize {
        let rows = match self.positions {
            Positions::Learned(_) => self.vocab_size.max(self.context_length),
            _ => self.vocab_size,
        };
        let tables = self.tables.iter().map(|(_, table)| table.spec.len());
        tables.max().unwrap_or(0).max(rows * self.width)
    }
}
