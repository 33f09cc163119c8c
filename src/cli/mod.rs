//! The command line: one file per command. Parses arguments, calls the library, prints.

pub mod apply;
pub mod calibrate;
mod command;
pub mod common;
pub mod compare;
mod confirm;
pub mod continued;
pub mod diff;
mod drift;
pub mod eval;
pub mod exit;
mod expect;
pub mod export;
pub mod export_metrics;
pub mod fork;
pub mod gc;
pub mod interrupt;
mod job;
pub mod output;
pub mod plan;
mod printer;
pub mod rank;
mod ready;
pub mod render;
pub mod report;
pub mod reproduce;
pub mod resume;
pub mod runs;
pub mod runs_rm;
pub mod runs_tag;
pub mod sample;
pub mod schema;
pub mod sweep;
pub mod validate;
mod watch;

pub use command::run;
