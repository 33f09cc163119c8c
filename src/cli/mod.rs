//! The command line: one file per command, which parses arguments, calls the library crates and prints.

pub(crate) mod args;
mod command;
pub(crate) mod common;
pub(crate) mod data;
pub(crate) mod experiment;
pub(crate) mod machine;
pub(crate) mod models;
pub(crate) mod runs;
mod sweep;
pub(crate) mod terminal;
pub(crate) mod training;

pub(crate) use command::run;
