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
mod slurm;
mod status;

pub(crate) use args::{SweepArgs, run};
pub(super) use find::resolve as find_sweep;
pub(super) use prepare::Mistakes;
