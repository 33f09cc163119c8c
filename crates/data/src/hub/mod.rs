//! Finds and downloads the files of datasets and tokenizers that an experiment names on the Hugging Face hub.

mod client;
mod error;
mod fetch;
mod lower;
mod progress;
mod repository;
mod select;
mod settings;

pub use error::HubError;
pub use lower::{Lowered, is_needed, lower};
pub use progress::{Downloading, Report};
pub use settings::Settings;

#[cfg(test)]
mod tests;
