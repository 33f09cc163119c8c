//! Layers with explicit forward and backward.
//!
//! A forward returns what its backward needs; a backward returns the gradient of its input and gives weight gradients to a
//! sink, which adds them into place or keeps them as work for later. Layers hold no numbers: only where their parameters lie in flat storage.

pub mod attention;
pub mod batch;
pub mod embedding;
pub mod head;
pub mod linear;
pub mod mlp;
pub mod norm;
mod post_norm;
pub mod transformer;
pub mod weight;

pub use attention::Attention;
pub use batch::{Dropouts, MicroBatch};
pub use embedding::{Embedding, Positions};
pub use head::Head;
pub use linear::Linear;
pub use mlp::Mlp;
pub use norm::Norm;
pub use transformer::TransformerLayer;
pub use weight::{GradSink, WeightTask};
