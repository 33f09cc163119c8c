//! A `config.json` of a Llama or of a class of `transformers` that has its layers with other options.

mod class;
mod read;
mod rope;
mod write;

pub(super) use class::{CLASSES, SIZE_KEYS, class_of, describe};
