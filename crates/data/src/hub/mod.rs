//! Finds and downloads the files of datasets, tokenizers and models that an experiment names on the Hugging Face hub.

mod client;
mod error;
mod fetch;
mod lower;
mod model_folder;
mod repository;
mod select;
mod settings;

pub use error::HubError;
pub use fetch::{Downloading, Report};
pub use lower::{LoweredData, is_needed, lower};
pub use model_folder::{ModelFolder, fetch_model_folder};
pub use settings::Settings;

#[cfg(test)]
mod tests;
