//! The executor: interprets a Program, emits events; prints nothing, writes nothing.

mod cells;
mod clock;
mod device;
pub mod diagnose;
mod ended;
mod equal;
pub mod error;
pub mod eval;
mod evaluate;
mod generate;
mod initial;
mod passes;
pub mod peers;
pub mod rank;
mod reading;
mod reduce;
pub mod shortage;
pub mod step;
pub mod trace;
pub mod watch;

pub use error::ExecError;
pub use initial::initial_state_from;
pub use peers::{List, Monitor, Peers};
pub use rank::{Orders, Outcome, Resources, run};
pub use reading::for_reading;
pub use shortage::{Room, Shortage};
pub use step::{Trainer, initial_state};
