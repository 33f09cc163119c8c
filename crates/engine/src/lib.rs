//! A run from its file to its finished record: ranks are started, watched and restarted; this machine's speed is measured.

pub mod calibrate;
pub mod launch;
pub mod point_process;
