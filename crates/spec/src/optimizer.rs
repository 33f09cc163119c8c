//! The optimizers. Each has a file here that describes it, and a file of the same name in `compute/optim/` that computes it.

mod adamw;
mod group;
mod lion;
mod muon;
mod sgd;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::diagnostic::KeyMistake;
use crate::format::json_value;
use crate::model::ParamSpec;

pub use adamw::AdamW;
pub use group::{GroupOptions, GroupRules, ParameterGroup};
pub use lion::Lion;
pub use muon::{Muon, MuonScale};
pub use sgd::Sgd;

/// One optimizer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema, strum::IntoStaticStr)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
#[schemars(extend("x-has-default" = true))]
#[strum(serialize_all = "lowercase")]
pub enum Optimizer {
    /// AdamW.
    Adamw(AdamW),
    /// Lion.
    Lion(Lion),
    /// Muon for the matrices of layers, AdamW for the rest.
    Muon(Muon),
    /// Stochastic gradient descent.
    Sgd(Sgd),
}

impl Default for Optimizer {
    fn default() -> Self {
        Self::Adamw(AdamW::default())
    }
}

/// The properties of an optimizer from which its checks, its place in a plan, its memory and its time follow.
pub trait OptimizerDescription {
    /// The number of buffers of the parameters' size that it keeps from step to step.
    fn moments(&self) -> usize;

    /// The parameters that weight decay acts on.
    fn decays(&self) -> Decays;

    /// The weight decay; `None` if the optimizer has none.
    fn weight_decay(&self) -> Option<f64>;

    /// The same settings with this weight decay; `None` if the optimizer has none.
    fn with_decay(&self, weight_decay: f64) -> Option<Optimizer>;

    /// The settings other than the learning rate, as plans show them.
    fn describe(&self) -> String;

    /// Mistakes that the schema does not find. `section` is the optimizer's key, such as `optimizer.adamw`.
    fn mistakes(&self, _section: &str) -> Vec<KeyMistake> {
        Vec::new()
    }

    /// Numbers that the end of a step reads and writes per parameter. The update reads the weight, the gradient and the moments, and
    /// writes all but the gradient; the norm reads the gradient once more, and clearing writes it.
    fn passes(&self) -> f64 {
        5.0 + 2.0 * self.moments() as f64
    }
}

/// What an optimizer does with one parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ParameterUpdate {
    pub optimizer: Optimizer,
    /// Multiplies the learning rate of the step.
    pub lr_scale: f64,
    /// The number of moments that the parameter has: the optimizer's, or fewer.
    pub moments: usize,
}

impl Optimizer {
    /// The learning rate of the optimizer in a program, whose schedule has the real one.
    const LR_IN_PLAN: f64 = 1.0;

    pub fn description(&self) -> &dyn OptimizerDescription {
        match self {
            Self::Adamw(adamw) => adamw,
            Self::Lion(lion) => lion,
            Self::Muon(muon) => muon,
            Self::Sgd(sgd) => sgd,
        }
    }

    /// The key in the file, and the name in messages.
    pub fn name(&self) -> &'static str {
        self.into()
    }

    /// The peak learning rate, which the schedule multiplies.
    pub fn lr(&self) -> f64 {
        let (Self::Adamw(AdamW { lr, .. })
        | Self::Lion(Lion { lr, .. })
        | Self::Muon(Muon { lr, .. })
        | Self::Sgd(Sgd { lr, .. })) = self;
        *lr
    }

    /// The optimizer as programs hold it: the peak learning rate is in their schedule. A second learning rate is a multiple of it.
    #[must_use]
    pub fn without_lr(mut self) -> Self {
        if let Self::Muon(muon) = &mut self {
            muon.adamw.lr = muon.adamw_lr_scale();
        }
        let (Self::Adamw(AdamW { lr, .. })
        | Self::Lion(Lion { lr, .. })
        | Self::Muon(Muon { lr, .. })
        | Self::Sgd(Sgd { lr, .. })) = &mut self;
        *lr = Self::LR_IN_PLAN;
        self
    }

    /// The update of `parameter` in a model of `layers` layers.
    pub fn update_of(&self, parameter: &ParamSpec, layers: usize) -> ParameterUpdate {
        let (optimizer, lr_scale) = match self {
            Self::Muon(_) if Muon::orthogonalizes(parameter, layers) => {
                return ParameterUpdate { optimizer: *self, lr_scale: 1.0, moments: 1 };
            }
            Self::Muon(muon) => (Self::Adamw(muon.adamw).without_lr(), muon.adamw_lr_scale()),
            _ => (*self, 1.0),
        };
        let description = optimizer.description();
        let undecayed = match description.decays() {
            Decays::Matrices if !parameter.is_matrix() => description.with_decay(0.0),
            _ => None,
        };
        ParameterUpdate { optimizer: undecayed.unwrap_or(optimizer), lr_scale, moments: description.moments() }
    }

    /// The relative cost of the update of `parameter`, in units of one element's update by an elementwise optimizer.
    pub fn update_cost(&self, parameter: &ParamSpec, layers: usize) -> u64 {
        /// FLOPs that take about as long as the update of one element, which memory bounds.
        const FLOPS_PER_ELEMENT: f64 = 1000.0;
        let elements = parameter.len() as u64;
        match (self, parameter.shape.as_slice()) {
            (Self::Muon(muon), &[rows, cols]) if Muon::orthogonalizes(parameter, layers) => {
                elements + (muon.flops([rows, cols]) / FLOPS_PER_ELEMENT) as u64
            }
            _ => elements,
        }
    }

    /// The settings as plans store them: the keys of the file, without `lr`.
    pub fn plan_value(&self) -> Value {
        let without_lr = edit_keys(json_value(self), |keys| _ = keys.remove("lr"));
        adamw::to_plan(edit_keys(without_lr, |keys| rename(keys.get_mut("adamw"), ["lr", "lr_scale"])))
    }

    fn from_plan_value(value: Value) -> serde_json::Result<Self> {
        let set_lr = |keys: &mut Map<String, Value>| _ = keys.insert("lr".to_owned(), json!(Self::LR_IN_PLAN));
        let value = edit_keys(adamw::from_plan(value), |keys| rename(keys.get_mut("adamw"), ["lr_scale", "lr"]));
        serde_json::from_value(edit_keys(value, set_lr))
    }
}

/// Renames a key of `settings`, if they have it.
fn rename(settings: Option<&mut Value>, [from, to]: [&str; 2]) {
    let Some(settings) = settings.and_then(Value::as_object_mut) else { return };
    if let Some(value) = settings.remove(from) {
        settings.insert(to.to_owned(), value);
    }
}

/// Changes the settings in `{NAME: SETTINGS}`.
fn edit_keys(mut optimizer: Value, edit: impl Fn(&mut Map<String, Value>)) -> Value {
    optimizer.as_object_mut().into_iter().flat_map(Map::values_mut).filter_map(Value::as_object_mut).for_each(edit);
    optimizer
}

/// Serde's functions for an optimizer in a program: see [`Optimizer::plan_value`].
pub(crate) mod in_plan {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};
    use serde_json::Value;

    use super::Optimizer;

    pub(crate) fn serialize<S: Serializer>(optimizer: &Optimizer, serializer: S) -> Result<S::Ok, S::Error> {
        optimizer.plan_value().serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Optimizer, D::Error> {
        Optimizer::from_plan_value(Value::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// The parameters that weight decay acts on: those of two or more dimensions, or biases and gains too, as in
/// `torch.optim.AdamW(model.parameters())`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Decays {
    #[default]
    Matrices,
    All,
}

impl Decays {
    /// Names of the two groups of parameters: those of two or more dimensions, and the others.
    pub fn group_names(self) -> [&'static str; 2] {
        match self {
            Self::All => ["matrices", "others"],
            Self::Matrices => ["decayed", "not decayed"],
        }
    }

    /// What plans add to the weight decay.
    fn describe(self) -> &'static str {
        match self {
            Self::All => " of all parameters",
            Self::Matrices => "",
        }
    }
}

/// Reports the decay rates of moments that are not in [0, 1). `help` names common values.
fn beta_mistakes(section: &str, betas: [f64; 2], help: &str) -> Vec<KeyMistake> {
    let wrong = betas.into_iter().enumerate().filter(|(_, beta)| !(0.0..1.0).contains(beta));
    let mistake = |(i, beta)| {
        let key = format!("{section}.betas.{i}");
        let message = format!("`{key}` must be at least 0 and less than 1, got {beta}");
        KeyMistake::new([key], message, help)
    };
    wrong.map(mistake).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stored plans and their hashes contain these texts.
    #[test]
    fn optimizers_keep_their_form_in_plans() {
        let adamw = Optimizer::Adamw(AdamW { lr: 0.5, decays: Decays::All, ..AdamW::default() });
        let sgd = Optimizer::Sgd(Sgd { lr: 0.5, momentum: 0.25 });
        let stored = r#"{"adam_w":{"beta1":0.9,"beta2":0.95,"decays":"all","eps":1e-8,"weight_decay":0.1}}"#;
        let lion = Optimizer::Lion(Lion::default());
        let lion_stored = r#"{"lion":{"betas":[0.9,0.99],"decays":"matrices","weight_decay":0.0}}"#;
        let muon = Optimizer::Muon(Muon { lr: 0.5, adamw: AdamW { lr: 0.125, ..AdamW::default() }, ..Muon::default() });
        let muon_stored = r#"{"muon":{"adamw":{"betas":[0.9,0.95],"eps":1e-8,"lr_scale":0.25,"weight_decay":0.1},"iterations":5,"momentum":0.95,"nesterov":true,"scale":"original","weight_decay":0.0}}"#;
        let sgd_stored = r#"{"sgd":{"momentum":0.25}}"#;
        for (optimizer, stored) in
            [(adamw, stored), (lion, lion_stored), (muon.without_lr(), muon_stored), (sgd, sgd_stored)]
        {
            assert_eq!(optimizer.plan_value().to_string(), stored);
            let read = Optimizer::from_plan_value(optimizer.plan_value()).unwrap();
            assert_eq!((read, read.lr()), (optimizer.without_lr(), 1.0));
        }
        assert!(Optimizer::from_plan_value(json!({"adam_w": {"beta1": 0.9}})).is_err(), "beta2 is missing");
    }
}
