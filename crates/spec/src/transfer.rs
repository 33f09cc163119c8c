//! Transfer of settings from a small model to a larger one: μP over widths (Yang et al. 2022), CompleteP over widths and depths (Dey et al.
//! 2025).

use std::collections::HashSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::diagnostic::KeyMistake;
use crate::format::count;
use crate::model::{ModelSpec, NormPlace, ParamInit, ParamSpec};
use crate::optimizer::{AdamW, MuonScale, Optimizer};

/// The base: a model, and the length of its run, for which the learning rate, the weight decay, `eps` and the initial weights were tuned.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Transfer {
    /// The base's `d_model`.
    #[schemars(range(min = 1))]
    pub d_model: usize,
    /// The base's layers. Default: as many as this model's, which transfers over widths only (μP).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if, range(min = 1))]
    pub layers: Option<usize>,
    /// A layer adds to the residual stream in proportion to (layers / base layers)^-`depth_exponent`: 1 in CompleteP, 0.5 in Depth-μP.
    #[serde(default = "complete")]
    #[schemars(range(min = 0, max = 1))]
    pub depth_exponent: f64,
    /// The tokens that the base was trained on. Learning rates are multiplied by (tokens / base tokens)^-`token_exponent`. Default: as many as
    /// this run's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if, range(min = 1, max = 1_000_000_000_000_000_000u64))]
    pub tokens: Option<u64>,
    /// The exponent of `tokens`: 0.32 was measured by Bjorck et al. (2024).
    #[serde(default = "measured")]
    #[schemars(range(min = 0, max = 1))]
    pub token_exponent: f64,
}

fn complete() -> f64 {
    1.0
}

fn measured() -> f64 {
    0.32
}

/// What a parameter is in the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Embeddings, and the norm and biases after the layers.
    Embedding,
    /// Within a layer.
    Layer,
    /// A layer's matrix that writes to the residual stream, and its bias.
    LayerOutput,
    /// The matrix of the logits.
    Head,
}

/// Factors on the settings of a parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Factors {
    lr: f64,
    weight_decay: f64,
    eps: f64,
}

/// The rules of a transfer to one model.
#[derive(Debug, Clone)]
pub struct TransferRules {
    /// The ratio of widths, and of depths.
    width: f64,
    depth: f64,
    depth_exponent: f64,
    layers: usize,
    /// The factor on initial weights of layers' outputs by which this model differs from the base already.
    scaled_residuals: f64,
    outputs: HashSet<String>,
}

impl Transfer {
    /// The rules for `model`.
    pub fn rules(&self, model: &ModelSpec) -> TransferRules {
        let layers = model.layers as f64;
        let depth = self.layers.map_or(1.0, |base| layers / base as f64);
        TransferRules {
            width: model.d_model as f64 / self.d_model as f64,
            depth,
            depth_exponent: self.depth_exponent,
            layers: model.layers,
            scaled_residuals: if model.family.defaults().scaled_residuals { depth.sqrt() } else { 1.0 },
            outputs: model.decoder().layer_outputs().collect(),
        }
    }

    /// The transfer as a plan of `model` has it: without what has no effect. `None` if the model is the base.
    #[must_use]
    pub fn planned(self, model: &ModelSpec) -> Option<Self> {
        let layers = self.layers.filter(|layers| *layers != model.layers);
        // The schedule has the factor for the tokens.
        let depth_exponent = if layers.is_some() { self.depth_exponent } else { complete() };
        let planned = Self { layers, depth_exponent, tokens: None, token_exponent: measured(), ..self };
        (planned.d_model != model.d_model || layers.is_some()).then_some(planned)
    }

    /// The factor on learning rates of a run of `tokens` tokens.
    pub fn token_factor(&self, tokens: u64) -> f64 {
        self.tokens.map_or(1.0, |base| (tokens as f64 / base as f64).powf(-self.token_exponent))
    }

    /// A note that the default `d_ff` of `model` is not to its width as the base's is.
    #[must_use]
    pub fn note(&self, model: &ModelSpec) -> Option<String> {
        let default = model.family.defaults().d_ff;
        let [base, of_model] = [self.d_model, model.d_model].map(default);
        let is_proportional = base as u128 * model.d_model as u128 == of_model as u128 * self.d_model as u128;
        (model.d_ff == of_model && !is_proportional).then(|| {
            format!(
                "train.transfer: its rules are for a d_ff that grows like d_model, but the default d_ff is {} for a d_model of {} and {} for {}; \
                 give the base and this model a d_ff",
                count(base as u64),
                count(self.d_model as u64),
                count(of_model as u64),
                count(model.d_model as u64)
            )
        })
    }

    /// Models and optimizers for which there are no rules. `key` is where the file has the section.
    pub fn mistakes(&self, key: &str, model: &ModelSpec, optimizer: &Optimizer) -> Vec<KeyMistake> {
        let mut mistakes = Vec::new();
        let mut mistake = |other: &str, message: &str, help: &str| {
            let message = format!("`{key}` cannot be used here: {message}");
            mistakes.push(KeyMistake::new([key.to_owned(), other.to_owned()], message, help));
        };
        if model.tie_embeddings {
            let help = "write `tie_embeddings: false`";
            mistake("model.tie_embeddings", "a tied matrix is both embedding and head, whose rules differ", help);
        }
        if model.options.embedding_scale {
            let help = "write `embedding_scale: false`";
            mistake("model.embedding_scale", "embeddings that are multiplied by √d_model grow with the width", help);
        }
        if model.options.norm != NormPlace::Pre {
            let help = "use `norm: pre`, or delete `train.transfer`";
            mistake("model.norm", "there are rules only for norms before attention and MLP", help);
        }
        if !model.options.sums.is_empty() {
            mistake("model.sums", "there are no rules for sums with named values", "delete `train.transfer`");
        }
        if model.options.pytorch_init.is_some() {
            mistake("model.init", "PyTorch's initial weights depend on the width", "delete `model.init`");
        }
        if matches!(optimizer, Optimizer::Sgd(_)) {
            let help = "use one of these, or delete `train.transfer`";
            mistake("optimizer.sgd", "there are rules only for adamw, lion and muon", help);
        }
        mistakes
    }
}

impl TransferRules {
    fn role(&self, parameter: &ParamSpec) -> Role {
        if (1..=self.layers).contains(&parameter.block) {
            if self.outputs.contains(&parameter.name) { Role::LayerOutput } else { Role::Layer }
        } else if parameter.block > self.layers && parameter.is_matrix() {
            Role::Head
        } else {
            Role::Embedding
        }
    }

    /// The factor by which `parameter`'s forward is multiplied in the rules.
    fn output(&self, parameter: &ParamSpec) -> f64 {
        match self.role(parameter) {
            Role::LayerOutput => self.branch(),
            Role::Head => 1.0 / self.width,
            Role::Layer | Role::Embedding => 1.0,
        }
    }

    /// The factor on what a layer adds to the residual stream.
    fn branch(&self) -> f64 {
        self.depth.powf(-self.depth_exponent)
    }

    /// The factor on the initial weights of `parameter`.
    fn initial_factor(&self, parameter: &ParamSpec) -> f64 {
        let of_width = match self.role(parameter) {
            Role::Layer | Role::LayerOutput => self.width.powf(-0.5),
            Role::Embedding | Role::Head => 1.0,
        };
        let residual = if self.role(parameter) == Role::LayerOutput { self.scaled_residuals } else { 1.0 };
        of_width * residual * self.output(parameter)
    }

    /// Table 1 of Dey et al. The forward has no factors: a factor on what a matrix makes is in the matrix, so its settings are those for which
    /// the product changes as the rules say.
    fn factors(&self, parameter: &ParamSpec, optimizer: &Optimizer) -> Factors {
        let Self { width, depth, depth_exponent, .. } = *self;
        let output = self.output(parameter);
        let is_layers = matches!(self.role(parameter), Role::Layer | Role::LayerOutput);
        let of_width = if is_layers && parameter.is_matrix() { lr_of_width(optimizer, width) } else { 1.0 };
        let of_depth = if is_layers { depth.powf(depth_exponent - 1.0) } else { 1.0 };
        let gradient = if is_layers { self.branch() / width } else { 1.0 / width };
        Factors { lr: of_width * of_depth * output, weight_decay: 1.0 / (of_width * output), eps: gradient / output }
    }

    /// The parameter with its initial values.
    #[must_use]
    pub fn initial(&self, mut parameter: ParamSpec) -> ParamSpec {
        let factor = self.initial_factor(&parameter);
        if let ParamInit::Normal { std } = &mut parameter.init {
            *std *= factor;
        }
        parameter
    }

    /// The optimizer of `parameter`, a factor on its learning rate, and a name of the parameters that have the same.
    pub fn settings(&self, parameter: &ParamSpec, optimizer: Optimizer) -> (Optimizer, f64, &'static str) {
        let Factors { lr, weight_decay, eps, .. } = self.factors(parameter, &optimizer);
        let description = optimizer.description();
        let decayed = description.weight_decay().and_then(|decay| description.with_decay(decay * weight_decay));
        let optimizer = match decayed.unwrap_or(optimizer) {
            Optimizer::Adamw(adamw) => Optimizer::Adamw(AdamW { eps: adamw.eps * eps, ..adamw }),
            other => other,
        };
        let name = match (self.role(parameter), parameter.is_matrix()) {
            (Role::Embedding, _) if parameter.block == 0 => "embeddings",
            (Role::Embedding, _) => "final_norm",
            (Role::Layer, true) => "layers.matrices",
            (Role::Layer, false) => "layers.vectors",
            (Role::LayerOutput, true) => "outputs.matrices",
            (Role::LayerOutput, false) => "outputs.biases",
            (Role::Head, _) => "head",
        };
        (optimizer, lr, name)
    }
}

/// The factor on the learning rate of a layer's matrices where the model is `width` times as wide. An update of Adam's or Lion's changes
/// the output of a matrix in proportion to its columns. The spectral norm of Muon's update does not depend on the width, except with the
/// scale `match_rms_adamw`.
fn lr_of_width(optimizer: &Optimizer, width: f64) -> f64 {
    match optimizer {
        Optimizer::Adamw(_) | Optimizer::Lion(_) | Optimizer::Sgd(_) => 1.0 / width,
        Optimizer::Muon(muon) if muon.scale == MuonScale::MatchRmsAdamw => width.powf(-0.5),
        Optimizer::Muon(_) => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Family, ModelOptions, parameters};
    use crate::optimizer::Muon;

    fn model(layers: usize, d_model: usize) -> ModelSpec {
        let heads = d_model / 8;
        ModelSpec {
            family: Family::Gpt2,
            vocab_size: 50,
            context_length: 16,
            layers,
            heads,
            kv_heads: heads,
            d_model,
            d_ff: 4 * d_model,
            dropout: 0.0,
            tie_embeddings: false,
            norm_eps: 1e-5,
            rope_theta: 1e4,
            options: ModelOptions::default(),
        }
    }

    fn transfer(d_model: usize, layers: Option<usize>) -> Transfer {
        Transfer { d_model, layers, depth_exponent: 1.0, tokens: None, token_exponent: 0.32 }
    }

    /// Standard deviation, rate, decay and eps of the parameter whose name has this end. In the base they are 0.02 (0.01 for outputs of 2
    /// layers), 1, 1 and 1.
    fn settings(model: &ModelSpec, transfer: Transfer, optimizer: Optimizer, end: &str) -> [f64; 4] {
        let parameter = parameters(model).into_iter().find(|parameter| parameter.name.ends_with(end)).unwrap();
        let rules = transfer.rules(model);
        let ParamInit::Normal { std } = rules.initial(parameter.clone()).init else { panic!("drawn") };
        let (transferred, lr, _) = rules.settings(&parameter, optimizer);
        let eps = if let Optimizer::Adamw(adamw) = transferred { adamw.eps } else { 1.0 };
        [std, lr, transferred.description().weight_decay().unwrap(), eps]
    }

    fn assert_near(found: [f64; 4], expected: [f64; 4], what: &str) {
        let near = found.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 1e-12 * b.abs());
        assert!(near, "{what}: {found:?}, expected {expected:?}");
    }

    /// By hand, for a model four times as wide and eight times as deep.
    #[test]
    fn settings_follow_the_table() {
        let (model, transfer) = (model(16, 64), transfer(16, Some(2)));
        let adamw = Optimizer::Adamw(AdamW { eps: 1.0, weight_decay: 1.0, ..AdamW::default() });
        let of = |end| settings(&model, transfer, adamw, end);
        assert_near(of("wte.weight"), [0.02, 1.0, 1.0, 0.25], "embedding");
        assert_near(of("c_fc.weight"), [0.01, 0.25, 4.0, 1.0 / 32.0], "matrix");
        assert_near(of("mlp.c_proj.weight"), [0.01 / 16.0, 1.0 / 32.0, 32.0, 0.25], "output");
        assert_near(of("lm_head.weight"), [0.005, 0.25, 4.0, 1.0], "head");
        let half = Transfer { depth_exponent: 0.5, ..transfer };
        let found = settings(&model, half, adamw, "c_fc.weight");
        assert_near(found, [0.01, 0.25 / 8.0_f64.sqrt(), 4.0, 0.25 / 8.0_f64.sqrt()], "matrix, Depth-μP");
        let muon = Optimizer::Muon(Muon { weight_decay: 1.0, ..Muon::default() });
        let found = settings(&model, transfer, muon, "mlp.c_proj.weight");
        assert_near(found, [0.01 / 16.0, 0.125, 8.0, 1.0], "output under muon");
        let muon = Optimizer::Muon(Muon { weight_decay: 1.0, scale: MuonScale::MatchRmsAdamw, ..Muon::default() });
        assert_near(settings(&model, transfer, muon, "c_fc.weight"), [0.01, 0.5, 2.0, 1.0], "matrix under muon");
    }

    #[test]
    fn a_model_of_the_bases_size_is_not_changed() {
        let model = model(2, 16);
        for transfer in [transfer(16, None), transfer(16, Some(2))] {
            let (rules, adamw) = (transfer.rules(&model), Optimizer::default());
            for parameter in parameters(&model) {
                assert_eq!(rules.initial(parameter.clone()), parameter);
                let (optimizer, lr, _) = rules.settings(&parameter, adamw);
                assert_eq!((optimizer, lr), (adamw, 1.0), "{}", parameter.name);
            }
        }
    }

    #[test]
    fn longer_runs_have_lower_rates() {
        let transfer = Transfer { tokens: Some(1000), token_exponent: 0.5, ..transfer(16, None) };
        assert_eq!((transfer.token_factor(4000), transfer.token_factor(1000)), (0.5, 1.0));
    }

    #[test]
    fn a_default_d_ff_that_does_not_grow_like_d_model_is_noted() {
        let note = |family, d_model, d_ff: Option<usize>, base| {
            let model = ModelSpec { family, ..model(2, d_model) };
            let d_ff = d_ff.unwrap_or((family.defaults().d_ff)(d_model));
            transfer(base, None).note(&ModelSpec { d_ff, ..model })
        };
        assert_eq!(note(Family::Gpt2, 64, None, 512), None);
        assert_eq!(note(Family::Llama, 512, Some(1500), 64), None, "it was given");
        assert_eq!(note(Family::Llama, 192, None, 96).as_deref(), None, "256 and 512");
        let noted = note(Family::Llama, 512, None, 64).unwrap_or_default();
        assert!(noted.contains("the default d_ff is 256 for a d_model of 64 and 1,536 for 512"), "{noted}");
    }
}
