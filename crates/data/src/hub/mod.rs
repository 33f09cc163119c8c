//! Finds and downloads the files of datasets, tokenizers and models that an experiment names on the Hugging Face hub.

mod card;
mod client;
mod converted;
mod downloads;
mod error;
mod fetch;
mod formats;
mod listing;
mod lower;
mod model_folder;
mod patterns;
mod refusal;
mod repository;
mod select;
mod settings;

pub use client::{Downloading, Report};
pub(crate) use downloads::HubSplit;
pub use error::HubError;
pub(crate) use listing::check_free_space;
pub(crate) use lower::open_split;
pub use lower::{DataSources, LoweredData, lower};
pub use model_folder::{cached_model_folder, fetch_model_folder};
pub use settings::Settings;

#[cfg(test)]
mod tests;
