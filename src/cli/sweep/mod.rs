//! `runner sweep`: many runs from one file.

mod args;
mod list;
mod point;
mod results;
mod rm;
mod run;
mod screen;
mod status;

pub(crate) use args::{SweepArgs, run};
