//! `runner sweep`: many runs from one file.

mod args;
mod point;
mod results;
mod run;
mod screen;
mod status;

pub(crate) use args::{SweepArgs, run};
