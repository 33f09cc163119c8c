//! The built-in corpus: simple English children's stories whose endings follow from their contexts, in FineWeb's
//! schema, and multiple-choice items in HellaSwag's format from stories that the corpus does not hold.

mod corpus;
mod files;
mod grammar;

#[cfg(test)]
pub(crate) use files::write_rows;
pub(super) use files::{CHOICE, TRAIN, VALIDATION, open_or_write_corpus};
