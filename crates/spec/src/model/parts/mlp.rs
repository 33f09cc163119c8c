//! Feed-forward layers: two matrices with an activation between them, and SwiGLU.

use super::part::{Buffer, Linear, Part, buffer, masked};
use crate::model::activation::Activation;
use crate::model::family::Names;
use crate::model::initial::ParamInit;
use crate::model::spec::ModelSpec;

const UP: Names = Names { gpt2: &["mlp.c_fc"], llama: &["mlp.gate_proj", "mlp.up_proj"] };
const DOWN: Names = Names { gpt2: &["mlp.c_proj"], llama: &["mlp.down_proj"] };

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MlpKind {
    /// The activation of one product; then dropout with this probability.
    Plain(Activation, f64),
    /// The gate's SiLU times the other product: both are stacked in `up`.
    SwiGlu,
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
        let (d, ff, gated) = (spec.d_model, spec.d_ff, spec.family.defaults().gated);
        let outputs: &[usize] = if gated { &[ff, ff] } else { &[ff] };
        let kind =
            if gated { MlpKind::SwiGlu } else { MlpKind::Plain(spec.options.activation, spec.options.mlp_dropout) };
        let [up, down] = [ParamInit::matrix(spec, d), ParamInit::residual(spec, ff)];
        Self {
            kind,
            up: Linear::new(spec, &UP, d, outputs, [up, ParamInit::bias(spec, d)]),
            down: Linear::new(spec, &DOWN, ff, &[d], [down, ParamInit::bias(spec, ff)]),
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
            MlpKind::SwiGlu => ["gate and up projections", "swiglu"],
        };
        vec![buffer(before, self.up.width()), buffer(after, self.down.inputs)]
    }

    fn held(&self) -> Buffer {
        let name = match self.kind {
            MlpKind::Plain(activation, _) => activation.names().gradient,
            // The activation itself is free when the gradients of gate and up are made.
            MlpKind::SwiGlu => "gradients of swiglu, gate and up",
        };
        buffer(name, self.up.width())
    }

    /// Those of the activation's output.
    fn mask_elements(&self, _length: usize) -> [f64; 2] {
        match self.kind {
            MlpKind::Plain(_, dropout) => [masked(dropout, self.down.inputs as f64); 2],
            MlpKind::SwiGlu => [0.0; 2],
        }
    }
}
