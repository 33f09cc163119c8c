//! The command line: one file per command. Parses arguments, calls the library, prints.

pub mod apply;
pub mod calibrate;
mod came;
mod command;
pub mod common;
pub mod continued;
mod drift;
pub mod eval;
pub mod exit;
mod expect;
pub mod export;
pub mod fork;
pub mod interrupt;
mod job;
pub mod output;
pub mod plan;
mod printer;
pub mod rank;
mod ready;
pub mod reproduce;
pub mod resume;
pub mod runs;
pub mod sample;
pub mod schema;
pub mod validate;
mod watch;

pub use command::run;
