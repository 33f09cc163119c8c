//! The parts that a decoder is composed of. A part says everything about itself here: its parameters and their names in folders of
//! weights, its matrix products, the tensors that its backward reads, what it holds while it works, and its options.

mod attention;
mod embedding;
mod head;
mod layer;
mod mlp;
mod norm;
mod part;
mod sum;

pub use attention::Attention;
pub use embedding::{Embedding, Positions};
pub use head::Head;
pub use layer::{Layer, LayerPart, Recompute, Sublayer};
pub use mlp::{Mlp, MlpKind};
pub use norm::Norm;
pub(super) use part::buffer;
pub use part::{Buffer, Linear, Part, PartParameter, Place, Rows};
pub use sum::{Equation, GateCoefficient, ScalarCoefficient, Sums, Term, TermTensor};
