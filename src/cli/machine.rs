//! Commands about this machine and this program.

pub(crate) mod calibrate;
pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod version;
