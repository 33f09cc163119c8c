//! The command line: one file per command. Parses arguments, calls the library, prints.

pub mod apply;
pub mod calibrate;
mod command;
pub mod common;
pub mod eval;
pub mod exit;
pub mod export;
pub mod interrupt;
pub mod output;
pub mod plan;
pub mod runs;
pub mod sample;
pub mod schema;
pub mod validate;

pub use command::run;
