//! Everything that a person or another program reads of plans and runs: progress on the terminal, tables and summaries, the HTML report,
//! exported metrics.

#![forbid(unsafe_code)]

pub mod comparison;
pub mod data_progress;
pub mod diff;
pub mod doctor;
pub mod export;
pub mod html;
mod json_event;
pub mod ladder;
pub mod plan;
pub mod printer;
pub mod run_groups;
pub mod run_page;
pub mod run_to_compare;
pub mod runs_table;
mod screen;
pub mod shard_progress;
pub mod summary;
pub mod sweep_preview;
pub mod sweep_results;
pub mod table;
mod thin;
pub mod verdict;
pub mod watch;

pub use json_event::JsonEvent;
pub use screen::{OutputMode, Screen, is_reader_gone};
