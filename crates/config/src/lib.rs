//! From files, environment and flags to a validated `Experiment`.

#![forbid(unsafe_code)]

pub mod check;
mod explain;
mod files;
mod foreign_keys;
mod import;
mod initial_weights;
mod layers;
mod load;
mod mistakes;
mod overridden;
mod overrides;
mod presets;
mod raw;
pub mod resolve;
mod schema;
pub mod shape;
mod unknown_key;

pub use explain::{Origin, explain, to_yaml};
pub use files::{LayerFile, ReadFile};
pub use import::{ImportedConfig, import_config};
pub use load::{ExperimentFile, Loaded, from_str, load, load_resolved};
pub use overridden::OverriddenSetting;
pub use overrides::{LoadOptions, ModelFetchError, ModelFetcher, sets_key};
pub use schema::schema_text;

#[cfg(test)]
mod tests;
