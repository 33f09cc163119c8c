//! What a person sees: progress, tables, summaries.

pub mod comparison;
pub mod diff;
pub mod doctor;
pub mod export;
pub mod html;
pub mod inspect;
pub mod json;
pub mod many;
pub mod prepare;
pub mod printer;
pub mod run;
pub mod runs;
pub mod screen;
pub mod shards;
pub mod summary;
pub mod table;
pub mod verdict;

pub use json::JsonEvent;
pub use many::Many;
pub use screen::{Mode, Screen};
