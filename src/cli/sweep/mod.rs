//! `runner sweep`: many runs from one file.

mod args;
mod changed;
mod closing;
mod drive;
mod events;
mod find;
mod point;
mod prepare;
mod preview;
mod results;
mod run;
mod status;

pub use args::{SweepArgs, run};
pub(super) use prepare::Mistakes;
