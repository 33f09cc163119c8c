//! `runner watch`: runs on a terminal, while they train and after they have ended.

mod charts;
mod lines;
mod screen;
mod state;
#[cfg(test)]
mod tests;

pub use lines::ProgressLines;
pub use screen::draw;
pub use state::{WatchKey, WatchState};
