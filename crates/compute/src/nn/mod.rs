//! Layers with explicit forward and backward.
//!
//! A forward returns what its backward needs; a backward returns the gradient of its input and gives weight gradients to a
//! sink, which adds them at once or defers them. Layers hold no parameters: only their indexes in flat storage, and tables of fixed positions.

mod attention;
mod embedding;
pub(crate) mod head;
mod linear;
mod micro_batch;
mod mlp;
mod norm;
mod params;
mod pass;
mod sums;
pub(crate) mod transformer;
mod weight_gradients;

pub use attention::{Attention, QkNorm};
pub use embedding::{Embedding, Positions};
pub use head::Head;
pub use linear::Linear;
pub use micro_batch::{DropoutSite, MicroBatch};
pub use mlp::Mlp;
pub use norm::{Norm, NormVector};
pub use params::Params;
pub(crate) use params::parameter_index;
pub use pass::{BackwardPass, ForwardPass};
pub(crate) use sums::SumInputs;
pub use sums::{Carried, Equation, Stream, Sums, Term, TermTensor};
pub use transformer::{LayerPart, Sublayer, TransformerLayer};
pub use weight_gradients::{DeferredGradients, GradientSink, WeightGradientTask};
