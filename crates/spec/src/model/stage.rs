//! The parameters of a pipeline rank: those of its chunks, which are ranges of the block list.
//!
//! If embeddings are tied and the head is not on the rank of the token embedding, the head's rank holds a copy of it under
//! the same name. It starts equal, because initialization goes by name; it stays equal if both ranks use the sum of both
//! gradients.

use std::ops::Range;

use crate::model::layout::ParamLayout;
use crate::model::{ModelSpec, ParamSpec, parameters};

/// True if any of `chunks` holds `block`.
fn holds_block(chunks: &[Range<usize>], block: usize) -> bool {
    chunks.iter().any(|c| c.contains(&block))
}

/// The parameters of the blocks in `chunks`, in registration order. A copy of a tied embedding comes last, as a parameter of
/// the head's block.
pub fn stage_parameters(spec: &ModelSpec, chunks: &[Range<usize>]) -> Vec<ParamSpec> {
    let head = spec.layers + 1;
    let all = parameters(spec);
    let copy = (spec.tie_embeddings && holds_block(chunks, head) && !holds_block(chunks, 0))
        .then(|| all.first().cloned())
        .flatten();
    let mut held: Vec<ParamSpec> = all.into_iter().filter(|p| holds_block(chunks, p.block)).collect();
    held.extend(copy.map(|p| ParamSpec { block: head, ..p }));
    held
}

/// The entry of `layout` that is a copy of a tied embedding on another rank: a global norm and a checkpoint leave it out, and
/// its gradient is to be added to that rank's.
pub fn tied_copy(layout: &ParamLayout, spec: &ModelSpec, chunks: &[Range<usize>]) -> Option<usize> {
    tied(layout, spec, holds_block(chunks, spec.layers + 1) && !holds_block(chunks, 0))
}

/// The entry of `layout` that is a tied embedding with a copy on another rank.
pub fn tied_original(layout: &ParamLayout, spec: &ModelSpec, chunks: &[Range<usize>]) -> Option<usize> {
    tied(layout, spec, holds_block(chunks, 0) && !holds_block(chunks, spec.layers + 1))
}

fn tied(layout: &ParamLayout, spec: &ModelSpec, apart: bool) -> Option<usize> {
    (spec.tie_embeddings && apart).then(|| layout.index(spec.decoder().embedding.tokens)).flatten()
}
