//! How ranks talk: groups for collectives, channels from point to point, and what can go wrong.

pub mod alone;
pub mod communicator;
pub mod error;
pub mod local;
pub mod topology;

pub use alone::Alone;
pub use communicator::{Communicator, Pending};
pub use error::{CommError, Element, Kind, Operation};
pub use local::{BoardView, LocalComm, Phase, Region, RegionError, Seat};
pub use topology::{Channel, GroupId, Lane, Topology, TopologyError};
