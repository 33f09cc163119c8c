//! The shape of a model, and its parameters with their names, shapes and initialization.
//!
//! The planner counts them, and the executor allocates them.

mod activation;
pub mod decoder;
pub mod family;

mod heads;
mod initial;
pub mod layout;
mod mask;
mod option_rules;
pub mod options;
mod parameter;
pub mod parts;
pub(crate) mod pytorch_init;
mod rope;
mod spec;
pub mod stage;
pub mod values;
mod wiring;

pub use activation::Activation;
pub use decoder::Decoder;
pub use family::Family;
pub use heads::{HeadMistake, Heads, head_mistakes};
pub use initial::ParamInit;
pub use mask::Mask;
pub use option_rules::BrokenRule;
pub use options::{Biases, LayerOptions, ModelOptions, NormGain, NormPlace, PositionKind, QkNorm};
pub use parameter::{InitialWeights, ParamRole, ParamSpec};
pub use pytorch_init::PytorchEmbedding;
pub use rope::{RopeScaling, Rotary};
pub use spec::{DEFAULT_ROPE_THETA, ModelSpec};
pub use wiring::{Carried, CarriedTensor, MOST_TERMS};

/// The parameters of `spec` in registration order. A tied head adds none.
pub fn parameters(spec: &ModelSpec) -> Vec<ParamSpec> {
    spec.decoder().parameters().into_iter().map(|parameter| parameter.spec).collect()
}
