//! Starting the ranks of a plan, and seeing them through: as threads of this process, or as processes of their own.

pub mod child;
pub mod death;
pub mod error;
pub mod message;
mod process;
pub mod supervise;
mod system;
pub mod threads;

pub use death::{Death, ProcessError};
pub use error::{RankError, where_in};
pub use supervise::{Ended, Launch, Record};
