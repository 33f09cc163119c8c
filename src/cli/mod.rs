//! The command line: one file per command. Parses arguments, calls the library, prints.

pub mod apply;
pub mod calibrate;
mod command;
pub mod common;
pub mod continued;
pub mod eval;
pub mod exit;
mod expect;
pub mod export;
pub mod interrupt;
mod job;
pub mod output;
pub mod plan;
mod printer;
pub mod rank;
mod ready;
pub mod render;
pub mod report;
pub mod resume;
pub mod runs;
pub mod sample;
pub mod schema;
pub mod sweep;
pub mod validate;
mod watch;

pub use command::run;
