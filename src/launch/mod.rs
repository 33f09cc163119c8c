//! Starting the ranks of a plan, and seeing them through: as threads of this process, or as processes of their own.

pub mod error;
pub mod threads;

pub use error::{RankError, where_in};
