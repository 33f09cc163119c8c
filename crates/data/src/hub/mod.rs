//! Finds and downloads the files of datasets and tokenizers that an experiment names on the Hugging Face hub.

mod client;
mod error;
mod fetch;
mod lower;
mod repository;
mod select;
mod settings;

pub use error::HubError;
pub use fetch::{Downloading, Report};
pub use lower::{LoweredData, is_needed, lower};
pub use settings::Settings;

#[cfg(test)]
mod tests;
