//! Feed-forward layers: two matrices with an activation between them, which may be gated.

use super::part::{Buffer, Linear, Part, buffer, masked};
use crate::model::activation::Activation;
use crate::model::family::Names;
use crate::model::initial::ParamInit;
use crate::model::options::Biases;
use crate::model::spec::ModelSpec;

const GATE_UP: Names = Names { gpt2: &["mlp.c_fc"], llama: &["mlp.gate_proj", "mlp.up_proj"] };
const UP: Names = Names { gpt2: &["mlp.c_fc"], llama: &["mlp.up_proj"] };
const DOWN: Names = Names { gpt2: &["mlp.c_proj"], llama: &["mlp.down_proj"] };

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MlpKind {
    /// The activation of one product; then dropout with this probability.
    Plain(Activation, f64),
    /// The activation of the gate times the other product (Shazeer 2020): both are stacked in `up`.
    Gated(Activation, f64),
}

/// A feed-forward layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Mlp {
    pub kind: MlpKind,
    pub up: Linear,
    pub down: Linear,
}

impl Mlp {
    pub(super) fn new(spec: &ModelSpec) -> Self {
        let (d, ff, options, defaults) = (spec.d_model, spec.d_ff, &spec.options, spec.family.defaults());
        let activation = options.activation.unwrap_or(defaults.activation);
        let is_gated = options.gated.unwrap_or(defaults.gated);
        let (names, outputs, kind): (_, &[usize], _) = if is_gated {
            (&GATE_UP, &[ff, ff], MlpKind::Gated(activation, options.mlp_dropout))
        } else {
            (&UP, &[ff], MlpKind::Plain(activation, options.mlp_dropout))
        };
        let [up, down] = [ParamInit::matrix(spec, d), ParamInit::residual(spec, ff)];
        Self {
            kind,
            up: Linear::new(spec, names, d, outputs, [up, ParamInit::bias(spec, d)], Biases::All),
            down: Linear::new(spec, &DOWN, ff, &[d], [down, ParamInit::bias(spec, ff)], Biases::All),
        }
    }
}

impl Part for Mlp {
    fn products(&self) -> Vec<&Linear> {
        vec![&self.up, &self.down]
    }

    /// The activation's input and output. Dropout masks are made again.
    fn kept(&self) -> Vec<Buffer> {
        let [before, after] = match self.kind {
            MlpKind::Plain(activation, _) => ["mlp.c_fc output", activation.names().name],
            MlpKind::Gated(activation, _) => ["gate and up projections", activation.names().gated],
        };
        vec![buffer(before, self.up.width()), buffer(after, self.down.inputs)]
    }

    fn held(&self) -> Buffer {
        let name = match self.kind {
            MlpKind::Plain(activation, _) => activation.names().gradient,
            // The activation itself is free when the gradients of gate and up are made.
            MlpKind::Gated(activation, _) => activation.names().gated_gradients,
        };
        buffer(name, self.up.width())
    }

    /// Those of the activation's output.
    fn mask_elements(&self, _length: usize) -> [f64; 2] {
        let (MlpKind::Plain(_, dropout) | MlpKind::Gated(_, dropout)) = self.kind;
        [masked(dropout, self.down.inputs as f64); 2]
    }
}
