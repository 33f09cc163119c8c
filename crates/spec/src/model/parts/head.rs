//! The last block: a norm, the projection to the vocabulary, and the loss.

use super::norm::Norm;
use super::part::{Buffer, Linear, PartParameter, Place, Rows, buffer, statistic};
use super::sum::Sums;
use crate::model::family::Names;
use crate::model::initial::ParamInit;
use crate::model::pytorch_init::PytorchEmbedding;
use crate::model::spec::ModelSpec;

const NORM: Names = Names { gpt2: &["transformer.ln_f"], llama: &["model.norm"] };
const PROJECTION: &str = "lm_head";

/// The head.
#[derive(Debug, Clone, PartialEq)]
pub struct Head {
    /// What precedes the norm.
    pub sums: Sums,
    prefix: &'static str,
    pub norm: Option<Norm>,
    /// True if the matrix is the embedding's.
    pub tied: bool,
    pub project: Linear,
    /// Logits z become c·tanh(z/c).
    pub softcap: Option<f64>,
    /// The training loss has this number times log²Σexp(logits) in addition.
    pub z_loss: f64,
}

impl Head {
    /// The name of the matrix of a head that is not tied.
    pub const WEIGHT: &str = "lm_head.weight";
    pub const BIAS: &str = "lm_head.bias";

    pub(in crate::model) fn new(spec: &ModelSpec, sums: Sums) -> Self {
        let d = spec.d_model;
        // In PyTorch's tutorials the bias is 0, and `nn.Linear` draws it.
        let [init, bias] = match spec.options.pytorch_init {
            Some(PytorchEmbedding::Normal) => [ParamInit::linear(d); 2],
            _ => [ParamInit::embedding(spec), ParamInit::Zeros],
        };
        Self {
            sums,
            prefix: spec.family.defaults().prefix,
            norm: spec.options.final_norm.then(|| Norm::new(spec, &NORM)),
            tied: spec.tie_embeddings,
            project: Linear {
                names: &[PROJECTION],
                inputs: d,
                outputs: vec![spec.vocab_size],
                init,
                bias: spec.options.head_bias.then_some(bias),
                rows: Rows::Tokens,
                transposed: false,
            },
            softcap: spec.options.logit_softcap,
            z_loss: spec.options.z_loss,
        }
    }

    /// The parameters of a head that is entry `block` of the block list. A tied head has no matrix.
    pub fn parameters(&self, block: usize) -> Vec<PartParameter> {
        let place = &Place { block, prefix: String::new() };
        let own = self.project.parameters(place).filter(|parameter| !self.tied || parameter.spec.name != Self::WEIGHT);
        let sums = self.sums.parameters(&self.place(block));
        self.norm.iter().flat_map(|norm| norm.parameters(place)).chain(own).chain(sums).collect()
    }

    /// Where the parameters of sums are, in a head that is entry `block` of the block list.
    pub fn place(&self, block: usize) -> Place {
        Place { block, prefix: self.prefix.to_owned() }
    }

    /// The tensors that the head keeps: the logits become their own gradient.
    pub fn kept(&self) -> Vec<Buffer> {
        let mut kept = self.sums.kept();
        kept.push(buffer("head input", self.project.inputs));
        if let Some(norm) = self.norm {
            kept.push(buffer("final norm", self.project.inputs));
            kept.push(statistic("statistics of the final norm", norm.statistics()));
        }
        kept.push(buffer("logits", self.project.width()));
        kept
    }

    /// The most that the backward holds besides what is kept: the logits' gradient is in the logits' own buffer. Where the weights' gradients
    /// are deferred, that buffer stays; otherwise it is free before the second of these gradients is made.
    pub fn held(&self) -> Buffer {
        match self.norm {
            Some(_) => buffer("gradients of the final norm and its input", 2 * self.project.inputs),
            None => buffer("gradient of the head's input", self.project.inputs),
        }
    }
}
