//! The built-in corpus: simple English children's stories whose endings follow from what came before, as parquet in
//! FineWeb's schema, and multiple-choice items in HellaSwag's format from stories that the corpus does not hold.

mod corpus;
mod files;
mod plots;
mod teller;
mod words;

pub(super) use files::materialize;
#[cfg(test)]
pub(crate) use files::write_parquet;
