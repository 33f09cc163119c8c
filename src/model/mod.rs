//! Model families as lists of blocks over flat parameter storage.

pub mod params;
pub mod spec;

pub use params::{ParamEntry, ParamLayout, Params};
pub use spec::{Family, Init, ModelSpec, ParamSpec, parameters};
