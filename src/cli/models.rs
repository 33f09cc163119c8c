//! Commands that use a trained model.

pub(crate) mod best_point;
pub(crate) mod eval;
pub(crate) mod export;
pub(crate) mod logits;
pub(crate) mod sample;
pub(crate) mod text_source;
