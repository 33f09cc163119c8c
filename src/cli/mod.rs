//! The command line: one file per command. Parses arguments, calls the library, prints.

pub mod apply;
pub mod calibrate;
mod command;
pub mod common;
pub mod continued;
pub mod eval;
pub mod exit;
pub mod export;
pub mod interrupt;
mod job;
pub mod output;
pub mod plan;
mod printer;
pub mod rank;
pub mod report;
pub mod runs;
pub mod sample;
pub mod schema;
pub mod validate;
mod watch;

pub use command::run;
