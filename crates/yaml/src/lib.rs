//! YAML: a file of the user as a tree whose values know their places, and documents of which only the values count.

#![forbid(unsafe_code)]

pub mod document;
mod placeholder;
pub mod scalar;
pub mod source;
mod syntax_error;
pub mod tree;

/// The most lists and mappings within one another.
pub const MAX_DEPTH: usize = 64;
