//! What two experiments or runs have in common, what differs, and what that means; tables and curves of several.

pub mod assumed;
pub mod beginning;
pub mod class;
pub mod curves;
pub mod diff;
pub mod effect;
pub mod facts;
pub mod keys;
pub mod outcome;
pub mod record;
pub mod side;
pub mod svg;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_pairs;

pub use class::{Class, Part, Training, Verdict};
pub use diff::{Compared, Diff};
pub use effect::Effect;
pub use record::Record;
pub use side::Side;
