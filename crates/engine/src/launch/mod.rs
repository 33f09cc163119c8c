//! Starting the ranks of a plan, and seeing them through: as threads of this process, or as processes of their own.

pub mod child;
pub mod death;
mod device;
pub mod environment;
pub mod error;
pub mod faults;
pub mod gpus;
pub mod member;
pub mod message;
mod process;
mod progress;
pub mod restart;
pub mod supervise;
mod system;
pub mod threads;
pub mod world;

pub use death::{Death, ProcessError};
pub use environment::EnvironmentError;
pub use error::{RankError, where_in};
pub use faults::Faults;
pub use member::{MemberError, Task};
pub use restart::Attempt;
pub use supervise::{Ended, Launch, Record};
pub use world::World;
