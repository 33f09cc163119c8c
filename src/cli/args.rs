//! Arguments that several commands share.

pub(crate) mod checkpoint;
pub(crate) mod job;
pub(crate) mod launcher;
pub(crate) mod model;
pub(crate) mod training;
