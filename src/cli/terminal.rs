//! What commands have in common with a terminal: output, questions, signals, exit codes.

pub(crate) mod confirm;
pub(crate) mod exit;
pub(crate) mod help;
pub(crate) mod interrupt;
pub(crate) mod output;
pub(crate) mod repeated_command;
pub(crate) mod screen_observer;
pub(crate) mod suggestions;
